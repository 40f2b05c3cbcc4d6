// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inference by a network with CaffeNet's layers, as im2col and matrix multiplication. Weights and
//! images are pseudo-random: only the shapes matter to memory.

use dwell_workloads::random::Random;

/// One convolution: kernel, stride, padding, output channels, groups, and whether it is pooled.
struct Convolution {
    kernel: usize,
    stride: usize,
    padding: usize,
    channels: usize,
    groups: usize,
    pooled: bool,
}

const fn convolution(
    kernel: usize,
    stride: usize,
    padding: usize,
    channels: usize,
    groups: usize,
    pooled: bool,
) -> Convolution {
    Convolution { kernel, stride, padding, channels, groups, pooled }
}

const CONVOLUTIONS: [Convolution; 5] = [
    convolution(11, 4, 0, 96, 1, true),
    convolution(5, 1, 2, 256, 2, true),
    convolution(3, 1, 1, 384, 1, false),
    convolution(3, 1, 1, 384, 2, false),
    convolution(3, 1, 1, 256, 2, true),
];
const FULLY_CONNECTED: [usize; 3] = [4096, 4096, 1000];
const IMAGE_SIDE: usize = 227;
const IMAGE_CHANNELS: usize = 3;

/// Channels, side, and the values of each channel one after the other.
struct Planes {
    channels: usize,
    side: usize,
    values: Vec<f32>,
}

/// Runs `images` images through layers with their channels divided by `divisor`.
pub fn run(divisor: usize, images: usize) -> String {
    let mut random = Random::new(7);
    let mut weights = |count: usize| -> Vec<f32> {
        (0..count).map(|_| (random.draw() >> 40) as f32 / (1 << 24) as f32 - 0.5).collect()
    };
    let channels = |layer: &Convolution| (layer.channels / divisor).max(layer.groups);
    let mut kernels = Vec::new();
    let (mut inputs, mut side) = (IMAGE_CHANNELS, IMAGE_SIDE);
    for layer in &CONVOLUTIONS {
        let per_output = inputs / layer.groups * layer.kernel * layer.kernel;
        kernels.push(weights(channels(layer) * per_output));
        side = (side + 2 * layer.padding - layer.kernel) / layer.stride + 1;
        side = if layer.pooled { (side - 3) / 2 + 1 } else { side };
        inputs = channels(layer);
    }
    let mut width = inputs * side * side;
    let mut matrices = Vec::new();
    for outputs in FULLY_CONNECTED {
        let outputs = (outputs / divisor).max(1);
        matrices.push((weights(outputs * width), outputs));
        width = outputs;
    }
    let mut votes = Vec::new();
    for _ in 0..images {
        let values = weights(IMAGE_CHANNELS * IMAGE_SIDE * IMAGE_SIDE);
        let mut planes = Planes { channels: IMAGE_CHANNELS, side: IMAGE_SIDE, values };
        for (layer, kernel) in CONVOLUTIONS.iter().zip(&kernels) {
            planes = convolve(&planes, layer, channels(layer), kernel);
            if layer.pooled {
                planes = pool(&planes);
            }
        }
        let mut values = planes.values;
        for (matrix, outputs) in &matrices {
            let mut next = vec![0f32; *outputs];
            multiply(matrix, &values, &mut next, values.len(), 1);
            next.iter_mut().for_each(|value| *value = value.max(0.0) / values.len() as f32);
            values = next;
        }
        let best = values.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        votes.push(best.map_or(0, |(class, _)| class));
    }
    format!("caffenet /{divisor}, {images} images: classes {:?}", &votes[..votes.len().min(4)])
}

fn convolve(input: &Planes, layer: &Convolution, channels: usize, kernel: &[f32]) -> Planes {
    let side = (input.side + 2 * layer.padding - layer.kernel) / layer.stride + 1;
    let (area, group_inputs) = (side * side, input.channels / layer.groups);
    let depth = group_inputs * layer.kernel * layer.kernel;
    let group_outputs = channels / layer.groups;
    let mut values = vec![0f32; channels * area];
    let mut columns = vec![0f32; depth * area];
    for group in 0..layer.groups {
        columns_of(input, layer, group * group_inputs, group_inputs, side, &mut columns);
        let kernel = &kernel[group * group_outputs * depth..][..group_outputs * depth];
        let out = &mut values[group * group_outputs * area..][..group_outputs * area];
        multiply(kernel, &columns, out, depth, area);
        out.iter_mut().for_each(|value| *value = value.max(0.0) / depth as f32);
    }
    Planes { channels, side, values }
}

/// im2col: one row per weight, one column per output place.
fn columns_of(
    input: &Planes,
    layer: &Convolution,
    first: usize,
    count: usize,
    side: usize,
    columns: &mut [f32],
) {
    let mut row = 0;
    for channel in first..first + count {
        let plane = &input.values[channel * input.side * input.side..][..input.side * input.side];
        for ky in 0..layer.kernel {
            for kx in 0..layer.kernel {
                let out = &mut columns[row * side * side..][..side * side];
                row += 1;
                for y in 0..side {
                    let from = (y * layer.stride + ky).wrapping_sub(layer.padding);
                    for x in 0..side {
                        let at = (x * layer.stride + kx).wrapping_sub(layer.padding);
                        let inside = from < input.side && at < input.side;
                        out[y * side + x] =
                            if inside { plane[from * input.side + at] } else { 0.0 };
                    }
                }
            }
        }
    }
}

/// `out` (rows × `columns`) += `left` (rows × `depth`) · `right` (`depth` × `columns`).
fn multiply(left: &[f32], right: &[f32], out: &mut [f32], depth: usize, columns: usize) {
    if columns == 1 {
        for (value, row) in out.iter_mut().zip(left.chunks(depth)) {
            *value += row.iter().zip(right).map(|(a, b)| a * b).sum::<f32>();
        }
        return;
    }
    // Blocks of the depth, so that the right side's rows stay in the cache between rows of the
    // left.
    for first in (0..depth).step_by(64) {
        let last = (first + 64).min(depth);
        for (row, out) in out.chunks_mut(columns).enumerate() {
            for k in first..last {
                let factor = left[row * depth + k];
                let right = &right[k * columns..][..columns];
                out.iter_mut().zip(right).for_each(|(value, r)| *value += factor * r);
            }
        }
    }
}

fn pool(input: &Planes) -> Planes {
    let side = (input.side - 3) / 2 + 1;
    let mut values = Vec::with_capacity(input.channels * side * side);
    for plane in input.values.chunks(input.side * input.side) {
        for y in 0..side {
            for x in 0..side {
                let mut most = f32::MIN;
                for dy in 0..3 {
                    for dx in 0..3 {
                        most = most.max(plane[(2 * y + dy) * input.side + 2 * x + dx]);
                    }
                }
                values.push(most);
            }
        }
    }
    Planes { channels: input.channels, side, values }
}
