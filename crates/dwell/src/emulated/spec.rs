// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an emulated device is like, as an `emu:` address.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

use dwell_policy::Ns;

use super::units::{self, MILLION};
use crate::error::{Error, Result};

/// How latencies of single requests scatter about the stated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Every request takes the stated latency.
    Constant,
    /// Evenly spread, from the stated latency less the jitter to the stated latency and the jitter.
    Uniform {
        /// Half the width, in millionths of the latency.
        jitter_ppm: u32,
    },
    /// A fixed part and an exponential one; together they have the stated mean.
    Exponential {
        /// The exponential part's share of the mean, in millionths.
        jitter_ppm: u32,
    },
    /// Lognormal with the stated mean.
    Lognormal {
        /// Standard deviation of the logarithm, in millionths.
        jitter_ppm: u32,
    },
    /// One request in a hundred takes a multiple of the stated latency, the others exactly it:
    /// a tail that begins at the 99th percentile.
    Bimodal {
        /// The multiple.
        tail: u32,
    },
}

impl Distribution {
    /// The word used in addresses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Distribution::Constant => "constant",
            Distribution::Uniform { .. } => "uniform",
            Distribution::Exponential { .. } => "exponential",
            Distribution::Lognormal { .. } => "lognormal",
            Distribution::Bimodal { .. } => "bimodal",
        }
    }
}

/// A device that goes silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Number of requests that it serves first.
    pub after: u64,
    /// How long it is silent, from the first request after those; `None` is for ever. Requests
    /// that arrive meanwhile are taken up when it comes back.
    pub for_ns: Option<Ns>,
}

/// What an emulated device is like. Every figure can be given in an address:
///
/// ```
/// use dwell::emulated::Spec;
///
/// let spec: Spec = "emu:z-nand,size=1GiB,stall-after=100".parse()?;
/// assert_eq!((spec.latency_ns, spec.size_bytes), (3_000, 1 << 30));
/// // Every figure is printed, so that a report stands by itself.
/// assert_eq!(spec.to_string().parse::<Spec>()?, spec);
/// # Ok::<(), dwell::error::Error>(())
/// ```
///
/// | field | meaning | default |
/// |---|---|---|
/// | `latency` | time that the medium takes for a read (and for a write, unless said otherwise) | required without a preset |
/// | `write-latency` | time that it takes for a write or a sync | `latency` |
/// | `distribution` | `constant`, `uniform`, `exponential`, `lognormal`, `bimodal` | `constant`, or `uniform` where a jitter is given |
/// | `jitter` | spread of the middle three, see [`Distribution`] | 10%, 100%, 25% |
/// | `tail` | multiple of the latency in the tail of `bimodal` | 10x |
/// | `parallel` | requests that the medium serves at a time | 1 |
/// | `bandwidth` | of the link that all requests share | `unlimited` |
/// | `size` | capacity | 256MiB, or the file's length |
/// | `seed` | of the latencies' draw | 1 |
/// | `stall-after`, `stall-for` | see [`Stall`]; the span may be `forever` | none, `forever` |
/// | `error-every`, `short-every` | each so-many-th request fails with EIO, or transfers half | 0: none |
/// | `file` | keeps the data in this file; `,` and `%` in it are written `%2C` and `%25` | memory |
///
/// A preset is a first word without `=`. Latencies are those of the medium; no preset models a
/// particular product:
///
/// | preset | read / write | where the figures are from |
/// |---|---|---|
/// | `mram` | 35 ns / 35 ns | SmartCon §7.6; parallel MRAM parts state 35 ns for both cycles. 8 banks and 8 GB/s, a DDR3-1066 channel, are assumed |
/// | `pcm` | 70 ns / 150 ns | SmartCon §7.6; the write from Lee et al., "Architecting phase change memory as a scalable DRAM alternative", ISCA 2009. 8 banks and 8 GB/s assumed |
/// | `z-nand` | 3 µs / 3 µs | read time of the flash in Cheong et al., "A flash memory controller for 15 µs ultra-low-latency SSD", ISSCC 2018; writes are assumed to end in a buffer as fast. 16 dies, 3.2 GB/s and ±10 % assumed |
/// | `optane` | 10 µs / 10 µs | published typical latency, seven channels and 2.4 GB/s of the first 3D XPoint drives for servers; ±10 % assumed |
/// | `nand` | 80 µs / 20 µs | flash read of 45–60 µs (ISSCC 2018, the same paper's comparison) with transfer and controller; buffered writes. 32 dies, 3.2 GB/s and lognormal 20 % assumed |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Latency of the medium for a read, in nanoseconds.
    pub latency_ns: Ns,
    /// Latency of the medium for a write or a sync, in nanoseconds.
    pub write_latency_ns: Ns,
    /// How latencies scatter.
    pub distribution: Distribution,
    /// Number of requests that the medium serves at a time.
    pub parallel: u32,
    /// Bandwidth of the shared link, in bytes per second; 0 is unlimited.
    pub bandwidth: u64,
    /// Capacity in bytes; 0 takes the file's length.
    pub size_bytes: u64,
    /// Seed of the latencies' draw.
    pub seed: u64,
    /// When it goes silent.
    pub stall: Option<Stall>,
    /// Each so-many-th request fails with EIO; 0 is none.
    pub error_every: u64,
    /// Each so-many-th request transfers half of what was asked; 0 is none.
    pub short_every: u64,
    /// File that keeps the data; `None` keeps it in memory.
    pub file: Option<PathBuf>,
}

impl Default for Spec {
    /// 256 MiB of memory that answer at once: the base that an address's fields change.
    fn default() -> Self {
        Spec {
            latency_ns: 0,
            write_latency_ns: 0,
            distribution: Distribution::Constant,
            parallel: 1,
            bandwidth: 0,
            size_bytes: Self::DEFAULT_SIZE_BYTES,
            seed: 1,
            stall: None,
            error_every: 0,
            short_every: 0,
            file: None,
        }
    }
}

impl Spec {
    /// Names of the presets.
    pub const PRESETS: [&str; 5] = ["mram", "pcm", "z-nand", "optane", "nand"];
    /// Capacity of a device in memory whose address states none.
    pub const DEFAULT_SIZE_BYTES: u64 = 256 << 20;
    /// Largest number of requests that the medium serves at a time.
    pub const MAX_PARALLEL: u32 = 1024;
    /// Longest latency: a device slower than this is a stalled one.
    pub const MAX_LATENCY_NS: Ns = 60_000_000_000;

    /// A preset by its name.
    pub fn preset(name: &str) -> Option<Spec> {
        let uniform = Distribution::Uniform { jitter_ppm: MILLION / 10 };
        let (latency_ns, write_latency_ns, distribution, parallel, bandwidth) = match name {
            "mram" => (35, 35, Distribution::Constant, 8, 8_000_000_000),
            "pcm" => (70, 150, Distribution::Constant, 8, 8_000_000_000),
            "z-nand" => (3_000, 3_000, uniform, 16, 3_200_000_000),
            "optane" => (10_000, 10_000, uniform, 7, 2_400_000_000),
            "nand" => {
                let lognormal = Distribution::Lognormal { jitter_ppm: MILLION / 5 };
                (80_000, 20_000, lognormal, 32, 3_200_000_000)
            }
            _ => return None,
        };
        Some(Spec {
            latency_ns,
            write_latency_ns,
            distribution,
            parallel,
            bandwidth,
            ..Spec::default()
        })
    }

    /// Checks figures that were set by hand as an address's are checked.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self) -> Result<()> {
        self.wrong().map_or(Ok(()), |what| Err(Error::invalid(self.to_string(), what)))
    }

    fn wrong(&self) -> Option<String> {
        let slow = |ns: Ns| ns > Self::MAX_LATENCY_NS;
        Some(match self {
            spec if slow(spec.latency_ns) => "latency: at most 60s; use stall-for=forever".into(),
            spec if slow(spec.write_latency_ns) => "write-latency: at most 60s".into(),
            spec if spec.parallel == 0 || spec.parallel > Self::MAX_PARALLEL => {
                format!("parallel: must be from 1 to {}", Self::MAX_PARALLEL)
            }
            spec if spec.size_bytes == 0 && spec.file.is_none() => "size: must not be 0".into(),
            spec if i64::try_from(spec.size_bytes).is_err() => "size: must be below 8EiB".into(),
            spec if spec.bandwidth > 1_000_000_000_000_000 => {
                "bandwidth: at most 1000TB/s; write unlimited".into()
            }
            Spec { distribution: Distribution::Bimodal { tail }, .. }
                if !(1..=1_000_000).contains(tail) =>
            {
                "tail: must be from 1x to 1000000x".into()
            }
            Spec {
                distribution:
                    Distribution::Uniform { jitter_ppm }
                    | Distribution::Exponential { jitter_ppm }
                    | Distribution::Lognormal { jitter_ppm },
                ..
            } if *jitter_ppm > MILLION => "jitter: must be from 0% to 100%".into(),
            Spec { stall: Some(Stall { for_ns: Some(for_ns), .. }), .. }
                if *for_ns > 1_000 * Self::MAX_LATENCY_NS =>
            {
                "stall-for: at most 60000s; write forever".into()
            }
            _ => return None,
        })
    }
}

/// The fields of an address that depend on each other, until all are read.
#[derive(Default)]
struct Given {
    latency_ns: Option<Ns>,
    write_latency_ns: Option<Ns>,
    distribution: Option<String>,
    jitter_ppm: Option<u32>,
    tail: Option<u32>,
    size_bytes: Option<u64>,
    stall_after: Option<u64>,
    stall_for: Option<Option<Ns>>,
}

impl Given {
    fn apply(self, spec: &mut Spec, preset: bool) -> std::result::Result<(), String> {
        match (self.latency_ns, self.write_latency_ns) {
            (None, None) if !preset => {
                return Err(format!(
                    "latency: missing; write latency=5us, or a preset ({})",
                    Spec::PRESETS.join(", ")
                ));
            }
            (None, None) => {}
            (Some(latency_ns), write) => {
                spec.latency_ns = latency_ns;
                spec.write_latency_ns = write.unwrap_or(latency_ns);
            }
            (None, Some(_)) if !preset => return Err("latency: missing; write latency=5us".into()),
            (None, Some(write)) => spec.write_latency_ns = write,
        }
        self.scatter(spec)?;
        match (self.size_bytes, &spec.file) {
            (Some(0), _) => return Err("size: must not be 0".into()),
            (Some(bytes), _) => spec.size_bytes = bytes,
            (None, Some(_)) => spec.size_bytes = 0,
            (None, None) => {}
        }
        spec.stall = match (self.stall_after, self.stall_for) {
            (Some(after), for_ns) => Some(Stall { after, for_ns: for_ns.flatten() }),
            (None, Some(_)) => {
                return Err("stall-for: needs stall-after, as in stall-after=1000".into());
            }
            (None, None) => None,
        };
        Ok(())
    }

    fn scatter(&self, spec: &mut Spec) -> std::result::Result<(), String> {
        let preset_jitter = match spec.distribution {
            Distribution::Uniform { jitter_ppm }
            | Distribution::Exponential { jitter_ppm }
            | Distribution::Lognormal { jitter_ppm } => Some(jitter_ppm),
            Distribution::Constant | Distribution::Bimodal { .. } => None,
        };
        let word = match self.distribution.as_deref() {
            Some(word) => word,
            None if self.tail.is_some() => "bimodal",
            None if self.jitter_ppm.is_some() && preset_jitter.is_none() => "uniform",
            None => spec.distribution.as_str(),
        };
        // A preset's jitter means something only to the preset's own distribution.
        let kept = preset_jitter.filter(|_| word == spec.distribution.as_str());
        let jitter = |usual_ppm: u32| self.jitter_ppm.or(kept).unwrap_or(usual_ppm);
        spec.distribution = match word {
            "constant" => Distribution::Constant,
            "uniform" => Distribution::Uniform { jitter_ppm: jitter(MILLION / 10) },
            "exponential" => Distribution::Exponential { jitter_ppm: jitter(MILLION) },
            "lognormal" => Distribution::Lognormal { jitter_ppm: jitter(MILLION / 4) },
            "bimodal" => Distribution::Bimodal { tail: self.tail.unwrap_or(10) },
            other => {
                return Err(format!(
                    "distribution: {other:?} is none of constant, uniform, exponential, lognormal, bimodal"
                ));
            }
        };
        if self.jitter_ppm.is_some() && matches!(word, "constant" | "bimodal") {
            return Err(format!("jitter: means nothing with distribution={word}"));
        }
        if self.tail.is_some() && word != "bimodal" {
            return Err(format!("tail: means nothing with distribution={word}; write bimodal"));
        }
        Ok(())
    }
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(address: &str) -> Result<Self> {
        parse(address).map_err(|what| Error::invalid(address, what))
    }
}

fn parse(address: &str) -> std::result::Result<Spec, String> {
    let fields = address
        .strip_prefix("emu:")
        .ok_or("not the address of an emulated device; write emu:z-nand or emu:latency=5us")?;
    let mut fields = fields.split(',').peekable();
    let preset = fields.next_if(|first| !first.contains('='));
    let mut spec = match preset {
        Some(name) => Spec::preset(name).ok_or_else(|| {
            format!("{name:?} is not a preset; they are {}", Spec::PRESETS.join(", "))
        })?,
        None => Spec::default(),
    };
    let mut given = Given::default();
    let mut seen: Vec<&str> = Vec::new();
    for field in fields {
        let (name, value) =
            field.split_once('=').ok_or_else(|| format!("{field:?}: write it as name=value"))?;
        if seen.contains(&name) {
            return Err(format!("{name}: given twice"));
        }
        seen.push(name);
        set(&mut spec, &mut given, name, value).map_err(|what| format!("{name}: {what}"))?;
    }
    given.apply(&mut spec, preset.is_some())?;
    spec.wrong().map_or(Ok(spec), Err)
}

fn set(
    spec: &mut Spec,
    given: &mut Given,
    name: &str,
    value: &str,
) -> std::result::Result<(), String> {
    match name {
        "latency" => given.latency_ns = Some(units::span(value)?),
        "write-latency" => given.write_latency_ns = Some(units::span(value)?),
        "distribution" => given.distribution = Some(value.to_owned()),
        "jitter" => given.jitter_ppm = Some(units::share(value)?),
        "tail" => {
            let number = value.strip_suffix('x').and_then(|n| n.parse().ok());
            given.tail = Some(
                number.ok_or_else(|| format!("{value:?} is not a multiple; write it as 10x"))?,
            );
        }
        "parallel" => {
            spec.parallel = u32::try_from(units::count(value)?).unwrap_or(u32::MAX);
        }
        "bandwidth" => spec.bandwidth = units::rate(value)?,
        "size" => given.size_bytes = Some(units::size(value)?),
        "seed" => spec.seed = units::count(value)?,
        "stall-after" => given.stall_after = Some(units::count(value)?),
        "stall-for" => {
            given.stall_for =
                Some(if value == "forever" { None } else { Some(units::span(value)?) });
        }
        "error-every" => spec.error_every = units::count(value)?,
        "short-every" => spec.short_every = units::count(value)?,
        "file" => spec.file = Some(decode(value)?),
        _ => {
            return Err(
                "no such field; they are latency, write-latency, distribution, jitter, tail, \
                 parallel, bandwidth, size, seed, stall-after, stall-for, error-every, \
                 short-every, file"
                    .into(),
            );
        }
    }
    Ok(())
}

fn decode(text: &str) -> std::result::Result<PathBuf, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let hex = rest.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex
            .filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
            .ok_or("a % must be written %25")?;
        bytes.push(byte);
        rest = &rest[2..];
    }
    if bytes.is_empty() || bytes.contains(&0) {
        return Err("is not a path".into());
    }
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

fn encode(path: &std::path::Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_graphic() && byte != b',' && byte != b'%' {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "emu:latency={},write-latency={},distribution={}",
            units::show_span(self.latency_ns),
            units::show_span(self.write_latency_ns),
            self.distribution.as_str()
        )?;
        match self.distribution {
            Distribution::Constant => {}
            Distribution::Uniform { jitter_ppm }
            | Distribution::Exponential { jitter_ppm }
            | Distribution::Lognormal { jitter_ppm } => {
                write!(f, ",jitter={}", units::show_share(jitter_ppm))?;
            }
            Distribution::Bimodal { tail } => write!(f, ",tail={tail}x")?,
        }
        write!(f, ",parallel={},bandwidth={}", self.parallel, units::show_rate(self.bandwidth))?;
        if self.size_bytes > 0 {
            write!(f, ",size={}", units::show_size(self.size_bytes))?;
        }
        write!(f, ",seed={}", self.seed)?;
        if let Some(Stall { after, for_ns }) = self.stall {
            let span = for_ns.map_or_else(|| "forever".into(), units::show_span);
            write!(f, ",stall-after={after},stall-for={span}")?;
        }
        if self.error_every > 0 {
            write!(f, ",error-every={}", self.error_every)?;
        }
        if self.short_every > 0 {
            write!(f, ",short-every={}", self.short_every)?;
        }
        match &self.file {
            Some(path) => write!(f, ",file={}", encode(path)),
            None => Ok(()),
        }
    }
}
