// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses of emulated devices.

use std::path::PathBuf;

use dwell::emulated::{Distribution, Spec, Stall};
use proptest::option;
use proptest::prelude::*;

fn parse(address: &str) -> Spec {
    address.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_field_is_read() {
    let spec = parse(
        "emu:latency=5us,write-latency=7us,jitter=12.5%,distribution=lognormal,parallel=4,\
         bandwidth=2GB/s,size=256MiB,seed=9,stall-after=1000,stall-for=50ms,error-every=7,\
         short-every=11,file=/tmp/a%2Cb",
    );
    let expected = Spec {
        latency_ns: 5_000,
        write_latency_ns: 7_000,
        distribution: Distribution::Lognormal { jitter_ppm: 125_000 },
        parallel: 4,
        bandwidth: 2_000_000_000,
        size_bytes: 256 << 20,
        seed: 9,
        stall: Some(Stall { after: 1000, for_ns: Some(50_000_000) }),
        error_every: 7,
        short_every: 11,
        file: Some(PathBuf::from("/tmp/a,b")),
    };
    assert_eq!(spec, expected);
}

#[test]
fn presets_are_changed_by_what_follows() {
    for name in Spec::PRESETS {
        assert_eq!(parse(&format!("emu:{name}")), Spec::preset(name).unwrap());
    }
    assert_eq!(parse("emu:mram").latency_ns, 35);
    assert_eq!(parse("emu:pcm").latency_ns, 70);
    assert_eq!(parse("emu:z-nand").latency_ns, 3_000);
    assert_eq!(parse("emu:optane").latency_ns, 10_000);
    assert_eq!(parse("emu:nand").latency_ns, 80_000);
    let spec = parse("emu:z-nand,size=1GiB,stall-after=100");
    let stall = Some(Stall { after: 100, for_ns: None });
    assert_eq!(spec, Spec { size_bytes: 1 << 30, stall, ..Spec::preset("z-nand").unwrap() });
    assert_eq!(parse("emu:nand,latency=50us").write_latency_ns, 50_000);
    assert_eq!(parse("emu:nand,write-latency=9us").latency_ns, 80_000);
}

#[test]
fn the_distribution_follows_from_what_is_given() {
    let of = |address: &str| parse(address).distribution;
    assert_eq!(of("emu:latency=1us"), Distribution::Constant);
    assert_eq!(of("emu:latency=1us,jitter=5%"), Distribution::Uniform { jitter_ppm: 50_000 });
    assert_eq!(of("emu:latency=1us,tail=50x"), Distribution::Bimodal { tail: 50 });
    assert_eq!(of("emu:latency=1us,distribution=bimodal"), Distribution::Bimodal { tail: 10 });
    assert_eq!(of("emu:nand,jitter=5%"), Distribution::Lognormal { jitter_ppm: 50_000 });
    assert_eq!(of("emu:nand,distribution=constant"), Distribution::Constant);
    assert_eq!(
        of("emu:nand,distribution=exponential"),
        Distribution::Exponential { jitter_ppm: 1_000_000 }
    );
}

#[test]
fn errors_name_the_field() {
    for (address, field) in [
        ("file:x", "emu:"),
        ("emu:", "preset"),
        ("emu:floppy", "z-nand"),
        ("emu:size=1MiB", "latency"),
        ("emu:write-latency=1us", "latency"),
        ("emu:z-nand,mram", "name=value"),
        ("emu:z-nand,", "name=value"),
        ("emu:latency=5", "latency"),
        ("emu:latency=2000s", "latency"),
        ("emu:z-nand,write-latency=61s", "write-latency"),
        ("emu:z-nand,jitter=200%", "jitter"),
        ("emu:z-nand,jitter=10%,distribution=constant", "jitter"),
        ("emu:z-nand,tail=10x,distribution=uniform", "tail"),
        ("emu:z-nand,tail=0x", "tail"),
        ("emu:z-nand,tail=10", "tail"),
        ("emu:z-nand,distribution=normal", "distribution"),
        ("emu:z-nand,parallel=0", "parallel"),
        ("emu:z-nand,parallel=99999999999", "parallel"),
        ("emu:z-nand,bandwidth=2GB", "bandwidth"),
        ("emu:z-nand,size=0", "size"),
        ("emu:z-nand,size=9000000TiB", "size"),
        ("emu:z-nand,seed=x", "seed"),
        ("emu:z-nand,stall-for=1ms", "stall-after"),
        ("emu:z-nand,stall-after=1,stall-for=long", "stall-for"),
        ("emu:z-nand,error-every=-1", "error-every"),
        ("emu:z-nand,short-every=1.5", "short-every"),
        ("emu:z-nand,file=", "file"),
        ("emu:z-nand,file=a%zz", "file"),
        ("emu:z-nand,seed=1,seed=2", "seed: given twice"),
        ("emu:z-nand,speed=1", "speed"),
    ] {
        let error = address.parse::<Spec>().expect_err(address).to_string();
        assert!(error.starts_with(address), "{error}");
        assert!(error[address.len()..].contains(field), "{field} in {error}");
    }
}

fn distribution() -> impl Strategy<Value = Distribution> {
    prop_oneof![
        Just(Distribution::Constant),
        (0..=1_000_000u32).prop_map(|jitter_ppm| Distribution::Uniform { jitter_ppm }),
        (0..=1_000_000u32).prop_map(|jitter_ppm| Distribution::Exponential { jitter_ppm }),
        (0..=1_000_000u32).prop_map(|jitter_ppm| Distribution::Lognormal { jitter_ppm }),
        (1..=1_000_000u32).prop_map(|tail| Distribution::Bimodal { tail }),
    ]
}

prop_compose! {
    fn any_spec()(
        figures in (0..=Spec::MAX_LATENCY_NS, 0..=Spec::MAX_LATENCY_NS, 1..=Spec::MAX_PARALLEL),
        distribution in distribution(),
        bandwidth in 0..=1_000_000_000_000_000u64,
        size_bytes in 1..=i64::MAX as u64,
        numbers in any::<(u64, u64, u64)>(),
        stall in option::of((any::<u64>(), option::of(0..1_000_000_000_000u64))),
        file in option::of("[^\0]{1,20}"),
    ) -> Spec {
        let (latency_ns, write_latency_ns, parallel) = figures;
        let (seed, error_every, short_every) = numbers;
        let stall = stall.map(|(after, for_ns)| Stall { after, for_ns });
        let file = file.map(PathBuf::from);
        Spec {
            latency_ns, write_latency_ns, distribution, parallel, bandwidth, size_bytes, seed,
            stall, error_every, short_every, file,
        }
    }
}

proptest! {
    #[test]
    fn a_printed_spec_reads_back(spec in any_spec()) {
        let printed = spec.to_string();
        prop_assert_eq!(printed.parse::<Spec>().unwrap(), spec, "{}", printed);
    }

    #[test]
    fn no_text_panics(text in "(emu:)?[a-z0-9=,.%µ-]{0,60}") {
        let _ = text.parse::<Spec>();
    }
}
