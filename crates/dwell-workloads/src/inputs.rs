// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inputs of other programs: text and a scene.

use std::path::Path;

use dwell_workloads::random::Random;

/// Writes words of a Zipf-like vocabulary, in sentences.
pub fn text(bytes: usize, out: &Path) -> Result<String, String> {
    let mut random = Random::new(1);
    let vowels = b"aeiou";
    let consonants = b"bcdfghklmnprstvw";
    let vocabulary: Vec<Vec<u8>> = (0..4096)
        .map(|_| {
            (0..1 + random.below(4))
                .flat_map(|_| {
                    [consonants[random.below(consonants.len())], vowels[random.below(vowels.len())]]
                })
                .collect()
        })
        .collect();
    let mut text = Vec::with_capacity(bytes + 16);
    while text.len() < bytes {
        // The product of two uniform numbers favours the first words.
        let rank = random.below(vocabulary.len()) * random.below(vocabulary.len());
        text.extend_from_slice(&vocabulary[rank / vocabulary.len()]);
        text.extend_from_slice(match random.below(12) {
            0 => b". ",
            1 => b", ",
            2 if random.below(4) == 0 => b".\n",
            _ => b" ",
        });
    }
    text.truncate(bytes);
    write(out, &text)?;
    Ok(format!("text: {bytes} bytes"))
}

/// Writes a scene of so many spheres over a plane, with a mirror among them.
pub fn scene(spheres: usize, out: &Path) -> Result<String, String> {
    let mut random = Random::new(2);
    let mut scene = String::from(
        "#version 3.7;\nglobal_settings { assumed_gamma 1.0 }\n\
         camera { location <0, 6, -16> look_at <0, 1, 0> }\n\
         light_source { <10, 20, -10> color rgb <1, 1, 1> }\n\
         light_source { <-15, 10, -5> color rgb <0.4, 0.4, 0.6> }\n\
         plane { y, 0 pigment { checker color rgb 0.9, color rgb 0.2 } finish { reflection 0.1 } }\n\
         sphere { <0, 3, 2>, 2 pigment { color rgb 0.1 } finish { reflection 0.8 } }\n",
    );
    for _ in 0..spheres {
        let mut part = |span: usize| random.below(span) as f64 / 100.0;
        let (x, z, radius) = (part(2400) - 12.0, part(2400) - 8.0, 0.05 + part(30));
        let (red, green, blue) = (part(100), part(100), part(100));
        scene += &format!(
            "sphere {{ <{x:.2}, {radius:.2}, {z:.2}>, {radius:.2} pigment {{ color rgb \
             <{red:.2}, {green:.2}, {blue:.2}> }} finish {{ phong 0.6 }} }}\n"
        );
    }
    write(out, scene.as_bytes())?;
    Ok(format!("scene: {} spheres", spheres + 1))
}

fn write(out: &Path, bytes: &[u8]) -> Result<(), String> {
    std::fs::write(out, bytes).map_err(|e| format!("{}: {e}", out.display()))
}
