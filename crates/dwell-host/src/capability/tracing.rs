// SPDX-License-Identifier: MIT OR Apache-2.0
//! What following a program's waits by BPF takes.

use std::fs;
use std::path::Path;

use super::facts::Facts;
use super::{Capability, State};

pub(super) fn tracing(facts: &Facts) -> Capability {
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let has_types = Path::new("/sys/kernel/btf/vmlinux").exists();
    verdict(&facts.lacking_for_bpf(), &lockdown, has_types, facts)
}

fn verdict(lacking: &[&str], lockdown: &str, has_types: bool, facts: &Facts) -> Capability {
    const NAME: &str = "tracing";
    if lockdown.contains("[confidentiality]") {
        let found = "the kernel is locked down (confidentiality): nobody may trace";
        return Capability::new(NAME, State::Forbidden, found)
            .remedy("boot without lockdown=confidentiality");
    }
    if !lacking.is_empty() {
        let found = format!("this process lacks {}", lacking.join(" and "));
        return Capability::new(NAME, State::Forbidden, found)
            .remedy("run dwell advise as root, or give dwell CAP_BPF and CAP_PERFMON");
    }
    match has_types && facts.at_least(5, 18) {
        true => Capability::new(NAME, State::Works, "dwell advise can load its BPF programs"),
        false => Capability::new(NAME, State::Limited, "no BPF: dwell advise uses tracepoints")
            .remedy("use Linux 5.18 or newer, built with CONFIG_DEBUG_INFO_BTF"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_right_is_named() {
        let facts = |capabilities| Facts {
            capabilities,
            release: Some("6.1.0".into()),
            ..Facts::default()
        };
        let told = |capabilities| {
            let facts = facts(capabilities);
            verdict(&facts.lacking_for_bpf(), "", true, &facts)
        };
        assert_eq!(told(0).detail, "this process lacks CAP_BPF and CAP_PERFMON");
        assert_eq!(told(1 << 38).detail, "this process lacks CAP_BPF");
        for enough in [1 << 38 | 1 << 39, 1 << 21] {
            assert_eq!(told(enough).state, State::Works);
        }
        let all = facts(1 << 21);
        assert_eq!(verdict(&[], "", false, &all).state, State::Limited);
        let locked = verdict(&[], "none integrity [confidentiality]", true, &all);
        assert_eq!(locked.state, State::Forbidden);
    }
}
