// SPDX-License-Identifier: MIT OR Apache-2.0
//! A three-dimensional stencil over six arrays, as in weather codes: advection and diffusion of one
//! field by a wind of three components, with a source.

/// Runs `steps` steps over arrays of `side`^3 and answers a line with a checksum.
pub fn run(side: usize, steps: usize) -> String {
    let side = side.max(3);
    let (row, plane) = (side, side * side);
    let array = |factor: f32| -> Vec<f32> {
        (0..side * plane).map(|i| factor * ((i * 7919) % 1009) as f32 / 1009.0).collect()
    };
    let (east, north, up, source) = (array(0.1), array(0.2), array(0.05), array(0.01));
    let (mut field, mut next) = (array(1.0), vec![0f32; side * plane]);
    for _ in 0..steps {
        for z in 1..side - 1 {
            for y in 1..side - 1 {
                for x in 1..side - 1 {
                    let i = z * plane + y * row + x;
                    let here = field[i];
                    let neighbours = field[i - 1]
                        + field[i + 1]
                        + field[i - row]
                        + field[i + row]
                        + field[i - plane]
                        + field[i + plane];
                    let carried = east[i] * (field[i + 1] - field[i - 1])
                        + north[i] * (field[i + row] - field[i - row])
                        + up[i] * (field[i + plane] - field[i - plane]);
                    next[i] = here + 0.1 * (neighbours - 6.0 * here) - 0.05 * carried + source[i];
                }
            }
        }
        std::mem::swap(&mut field, &mut next);
    }
    let sum: f64 = field.iter().map(|&value| f64::from(value)).sum();
    format!("stencil {side}^3, {steps} steps: sum {sum:.3}")
}
