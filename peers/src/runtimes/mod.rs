// SPDX-License-Identifier: MIT OR Apache-2.0
//! The peers, one file for each runtime, each set up as its documentation recommends.

mod compio;
mod fio;
mod glommio;
mod kimojio;
mod monoio;
mod tokio_uring;

use anyhow::{Context, Result};
use dwell_bench::program::Answer;

use crate::work::{Subject, Work};

/// A runtime, set up in one way.
pub trait Peer {
    /// Its version.
    fn version(&self) -> Result<String>;

    /// How it is set up, each a few words.
    fn settings(&self) -> Vec<String>;

    /// A batch: first a few requests that nobody measures, then those that are.
    fn serve(&mut self, work: Work) -> Result<Answer>;
}

type Make = fn(&Subject) -> Result<Box<dyn Peer>>;

/// All peers by name.
pub const PEERS: [(&str, Make); 9] = [
    ("kimojio", kimojio::sleeping),
    ("kimojio-busy", kimojio::busy),
    ("glommio", glommio::parking),
    ("glommio-spin", glommio::spinning),
    ("monoio", monoio::make),
    ("compio", compio::make),
    ("tokio-uring", tokio_uring::make),
    ("fio-psync", fio::psync),
    ("fio-io_uring", fio::io_uring),
];

/// Version of a package that this program was built with.
pub fn built_with(package: &str) -> Result<String> {
    let lock = include_str!("../../Cargo.lock");
    let after = lock.split_once(&format!("name = \"{package}\"\nversion = \""));
    let version = after.and_then(|(_, after)| after.split_once('"'));
    version.map(|(version, _)| version.to_owned()).with_context(|| format!("{package} unlocked"))
}

/// The CPU for a pinned thread: the last of those that this process may use. The first is where
/// most devices interrupt.
fn cpu_for_one() -> Result<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).context("asking for the CPUs")?;
    let mut cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    cpus.next_back().context("there is no CPU to be pinned to")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_lock_file_and_of_the_page() {
        let page = include_str!("../../../docs/research/peers.md");
        let names = PEERS.map(|(name, _)| name).into_iter();
        for name in names.chain(crate::nfs::CLIENTS.map(|(name, _)| name)) {
            assert!(page.contains(&format!("| `{name}` |")), "{name} is not on the page");
        }
        let packages =
            ["kimojio", "glommio", "monoio", "compio", "tokio-uring", "nfs3_client", "nfs-rs"];
        for package in packages {
            let version = built_with(package).unwrap();
            assert!(page.contains(&format!("| `{package}` | {version} |")), "{package} {version}");
        }
        assert!(built_with("nonsense").is_err());
    }
}
