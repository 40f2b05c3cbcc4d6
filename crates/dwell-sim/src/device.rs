// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ULL device: some requests at a time, and a link over which pages move one by one.

use dwell_policy::{Backlog, Ns};

use crate::Params;
use crate::params::PAGE_BYTES;
use crate::rng::Rng;

/// A device in virtual time. When a request is handed in, its completion is known.
#[derive(Clone, Debug)]
pub struct Device {
    /// When each channel is free again.
    channels: Vec<Ns>,
    to_host_free: Ns,
    to_device_free: Ns,
    read_ns: Ns,
    write_ns: Ns,
    transfer_ns: Ns,
    jitter_percent: u64,
    rng: Rng,
    /// Completions of reads that are still to come, for the backlog.
    ahead: Vec<Ns>,
}

impl Device {
    /// The device of these parameters; its jitter follows `seed`.
    pub fn new(params: &Params, seed: u64) -> Self {
        let link_mb_per_s = params.link_lanes * params.link_lane_mb_per_s;
        Device {
            channels: vec![0; params.device_channels as usize],
            to_host_free: 0,
            to_device_free: 0,
            read_ns: params.device_read_ns,
            write_ns: params.device_write_ns,
            transfer_ns: (PAGE_BYTES * 1000).div_ceil(link_mb_per_s),
            jitter_percent: params.device_jitter_percent,
            rng: Rng::new(seed ^ 0x6465_7669_6365),
            ahead: Vec::new(),
        }
    }

    fn jittered(&mut self, mean_ns: Ns) -> Ns {
        let most = (u128::from(mean_ns) * u128::from(self.jitter_percent) / 100) as Ns;
        match most {
            0 => mean_ns,
            most => mean_ns - most + self.rng.below(2 * most + 1),
        }
    }

    fn channel(&mut self) -> &mut Ns {
        let first = (0..self.channels.len()).min_by_key(|&at| self.channels[at]).unwrap_or(0);
        &mut self.channels[first]
    }

    /// Reads one page, asked for at `now`: when it is in DRAM.
    pub fn read(&mut self, now: Ns) -> Ns {
        let media_ns = self.jittered(self.read_ns);
        let channel = self.channel();
        let ready = now.max(*channel) + media_ns;
        *channel = ready;
        let done = ready.max(self.to_host_free) + self.transfer_ns;
        self.to_host_free = done;
        self.ahead.retain(|&at| at > now);
        self.ahead.push(done);
        done
    }

    /// Writes one page, asked for at `now`: when it is on the device.
    pub fn write(&mut self, now: Ns) -> Ns {
        let media_ns = self.jittered(self.write_ns);
        let moved = now.max(self.to_device_free) + self.transfer_ns;
        self.to_device_free = moved;
        let channel = self.channel();
        let done = moved.max(*channel) + media_ns;
        *channel = done;
        done
    }

    /// The page reads in flight at `now`.
    pub fn backlog(&self, now: Ns) -> Backlog {
        let requests = self.ahead.iter().filter(|&&at| at > now).count() as u32;
        Backlog { bytes: u64::from(requests) * PAGE_BYTES, requests }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(sets: &[&str]) -> Device {
        let mut params = Params::default();
        sets.iter().for_each(|set| params.set(set).unwrap());
        Device::new(&params, 1)
    }

    #[test]
    fn a_lone_read_takes_the_latency_and_the_transfer() {
        // 4096 bytes over 4 x 3.983 GB/s: 257.1 ns, rounded up.
        assert_eq!(device(&[]).read(1_000), 1_000 + 3_000 + 258);
    }

    #[test]
    fn channels_work_side_by_side_and_pages_cross_the_link_one_by_one() {
        let mut device = device(&["device_channels=2"]);
        assert_eq!([0; 4].map(|now| device.read(now)), [3_258, 3_516, 6_258, 6_516]);
        assert_eq!(device.backlog(3_300).requests, 3);
    }

    #[test]
    fn a_write_holds_a_channel_and_not_the_link_to_the_host() {
        let mut device = device(&["device_channels=1"]);
        assert_eq!(device.write(0), 3_258);
        assert_eq!(device.read(0), 3_258 + 3_258);
    }

    #[test]
    fn jitter_stays_within_its_bounds() {
        let mut device = device(&["device_jitter_percent=10"]);
        let latencies: Vec<_> =
            (0..100).map(|at| device.read(at * 100_000) - at * 100_000).collect();
        assert!(latencies.iter().all(|ns| (2_958..=3_558).contains(ns)));
        assert!(latencies.iter().any(|&ns| ns != latencies[0]));
    }
}
