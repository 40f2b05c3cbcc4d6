// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bounds within which parameters make a machine.

use super::{ParamError, Params};

impl Params {
    /// Whether these parameters make a machine: the first that does not, with what it must be.
    pub fn check(&self) -> Result<(), ParamError> {
        let bad = |name: &'static str, why: &str| {
            let value = self.get(name).unwrap_or_default();
            Err(ParamError::Value { name, value, why: why.into() })
        };
        if ![64, 128].contains(&self.line_bytes) {
            return bad("line_bytes", "must be 64 or 128");
        }
        for (bytes, ways, name, optional) in [
            (self.l1_bytes, self.l1_ways, "l1_bytes", true),
            (self.l2_bytes, self.l2_ways, "l2_bytes", true),
            (self.llc_bytes, self.llc_ways, "llc_bytes", false),
        ] {
            if optional && bytes == 0 {
                continue;
            }
            let set_bytes = ways.saturating_mul(self.line_bytes);
            let sets = bytes.checked_div(set_bytes).unwrap_or(0);
            if !(1..=64).contains(&ways) || !sets.is_power_of_two() || bytes % set_bytes != 0 {
                return bad(name, "must be ways x line x a power of two, with 1 to 64 ways");
            }
            if bytes > 1 << 30 {
                return bad(name, "must be at most 1G");
            }
        }
        let sets = self.tlb_entries.checked_div(self.tlb_ways).unwrap_or(0);
        if self.tlb_entries > 0
            && (!(1..=64).contains(&self.tlb_ways)
                || sets * self.tlb_ways != self.tlb_entries
                || !sets.is_power_of_two()
                || sets > 1 << 20)
        {
            return bad("tlb_entries", "must be ways x a power of two, with 1 to 64 ways");
        }
        if !(1..=1024).contains(&self.preexecute_misses) {
            return bad("preexecute_misses", "must be 1 to 1024");
        }
        if !(1..100).contains(&self.preexecute_cache_percent) {
            return bad("preexecute_cache_percent", "must be 1 to 99");
        }
        if self.instruction_ps == 0 {
            return bad("instruction_ps", "must be at least 1");
        }
        if !(self.working_set_percent > 0.0 && self.working_set_percent <= 100.0) {
            return bad("working_set_percent", "must be above 0 and at most 100");
        }
        if self.dram_bytes == 0 && self.dram_percent == 0 {
            return bad("dram_percent", "must be at least 1");
        }
        if self.dram_bytes > 64 << 30 {
            return bad("dram_bytes", "must be at most 64G");
        }
        if !(1..=4096).contains(&self.device_channels) {
            return bad("device_channels", "must be 1 to 4096");
        }
        if self.device_jitter_percent > 100 {
            return bad("device_jitter_percent", "must be at most 100");
        }
        if self.link_lanes == 0 || self.link_lanes > 1024 {
            return bad("link_lanes", "must be 1 to 1024");
        }
        if self.link_lane_mb_per_s == 0 || self.link_lane_mb_per_s > 10_000_000 {
            return bad("link_lane_mb_per_s", "must be 1 to 10000000");
        }
        if !(self.slice_scale > 0.0 && self.slice_scale <= 1000.0) {
            return bad("slice_scale", "must be above 0 and at most 1000");
        }
        if self.prefetch_group_pages == 0 || self.prefetch_group_pages > 4096 {
            return bad("prefetch_group_pages", "must be 1 to 4096");
        }
        if self.prefetch_pages > 4096 {
            return bad("prefetch_pages", "must be at most 4096");
        }
        if !(1..=4096).contains(&self.store_buffer_entries) {
            return bad("store_buffer_entries", "must be 1 to 4096");
        }
        if self.recovery_timer_ns == 0 {
            return bad("recovery_timer_ns", "must be at least 1");
        }
        if self.switch_lines > 1 << 20 {
            return bad("switch_lines", "must be at most 1M");
        }
        for (name, ns) in self.spans_ns() {
            if ns > 1_000_000_000_000 {
                return bad(name, "must be at most 1000 seconds");
            }
        }
        Ok(())
    }

    fn spans_ns(&self) -> [(&'static str, u64); 15] {
        [
            ("instruction_ps", self.instruction_ps / 1000),
            ("l2_hit_ns", self.l2_hit_ns),
            ("llc_hit_ns", self.llc_hit_ns),
            ("dram_ns", self.dram_ns),
            ("tlb_walk_ns", self.tlb_walk_ns),
            ("tlb_shootdown_ns", self.tlb_shootdown_ns),
            ("kernel_entry_ns", self.kernel_entry_ns),
            ("minor_fault_ns", self.minor_fault_ns),
            ("submit_ns", self.submit_ns),
            ("interrupt_ns", self.interrupt_ns),
            ("switch_ns", self.switch_ns),
            ("device_read_ns", self.device_read_ns),
            ("device_write_ns", self.device_write_ns),
            ("its_entry_ns", self.its_entry_ns),
            ("recovery_restore_ns", self.recovery_restore_ns),
        ]
    }
}
