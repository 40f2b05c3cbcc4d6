// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scratch.
use dwell_trace::*;
fn main() {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let t = std::time::Instant::now();
    if args[0] == "read" {
        let mut r = Reader::open(&args[1]).unwrap();
        let (mut b, mut x) = (0u64, 0u64);
        while let Some(e) = r.next_event().unwrap() {
            if let Event::Block(run) = e {
                b += 1;
                for a in run.addresses {
                    x ^= a;
                }
            }
        }
        let s = t.elapsed().as_secs_f64();
        println!(
            "{} instr {} acc {} blocks {x:x} in {s:.2} s: {:.0} M instr/s {:.0} M events/s",
            r.instructions(),
            r.accesses(),
            b,
            r.instructions() as f64 / s / 1e6,
            (r.accesses() + b) as f64 / s / 1e6
        );
        return;
    }
    let n: u64 = args[1].to_str().unwrap().parse().unwrap();
    let plan = record::Recording {
        command: args[3..].to_vec(),
        out: args[0].clone().into(),
        skip: args[2].to_str().unwrap().parse().unwrap(),
        limit: (n > 0).then_some(n),
        children: true,
        tool_dir: "target/valgrind".into(),
    };
    let o = record::record(&plan, &mut |_| true).unwrap();
    println!("{:?} {:?}", o.status, t.elapsed());
    for r in o.traces {
        println!("{r:?}");
    }
}
