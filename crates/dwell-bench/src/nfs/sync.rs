// SPDX-License-Identifier: MIT OR Apache-2.0
//! The least that one thread can do for a window of requests over TCP: prepared calls sent by one
//! writev, a blocking read that sleeps until half of their answers are there. No estimates, no
//! timers, no retransmission, nothing kept.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, Read as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail, ensure};
use dwell_nfs::engine::Transport;
use dwell_nfs::nfs3::{Commit, Handle, Read, Stable, Write};
use dwell_nfs::procedure::Procedure;
use dwell_nfs::rpc::record::{MARK_BYTES, Records};
use dwell_nfs::rpc::{self, Credential};

use super::Job;
use super::threads::{open, write_head};
use super::wire::send_all;
use crate::result::Direction;
use crate::usage::{Cost, Meter, Scope};

struct Thread<'j> {
    job: &'j Job,
    file: Handle,
    stream: TcpStream,
    records: Records,
    credential: Credential,
    xid: u32,
    low_water: usize,
}

/// Moves the file once.
pub fn run(job: &Job, window: u32) -> Result<Cost> {
    ensure!(job.url.transport == Transport::Stream, "bare calls are made over TCP only");
    let size = job.size_bytes;
    ensure!(
        job.bytes.is_multiple_of(u64::from(size)) && size.is_multiple_of(4),
        "whole requests of a multiple of 4 bytes are measured"
    );
    let file = open(job)?;
    let stream =
        TcpStream::connect(job.url.address(job.url.port.unwrap_or(2049))?).context("connecting")?;
    stream.set_nodelay(true)?;
    let (records, credential) = (Records::new(size + 4096), Credential::own());
    let mut thread = Thread { job, file, stream, records, credential, xid: 0, low_water: 1 };
    let meter = Meter::start(Scope::Process);
    thread.transfer(window)?;
    Ok(meter.stop())
}

impl Thread<'_> {
    fn write_next(&mut self, head: &mut Vec<u8>, offset: u64) {
        let (file, bytes) = (self.file, self.job.size_bytes);
        self.xid = self.xid.wrapping_add(1);
        match self.job.direction {
            Direction::Write => {
                let call = Write { file, offset, bytes, stable: Stable::Unstable };
                write_head(head, self.xid, &call, &self.credential, bytes as usize);
            }
            Direction::Read => {
                write_head(head, self.xid, &Read { file, offset, bytes }, &self.credential, 0);
            }
        }
    }

    fn transfer(&mut self, window: u32) -> Result<()> {
        let payload = match self.job.direction {
            Direction::Write => vec![0x5a; self.job.size_bytes as usize],
            Direction::Read => Vec::new(),
        };
        let mut heads = vec![Vec::new(); window as usize];
        let (mut next, mut outstanding, mut reply_bytes) = (0, 0, 0);
        while next < self.job.bytes || outstanding > 0 {
            let mut sent = 0;
            while outstanding < window as usize && next < self.job.bytes {
                self.write_next(&mut heads[sent], next);
                next += u64::from(self.job.size_bytes);
                (sent, outstanding) = (sent + 1, outstanding + 1);
            }
            let mut slices: Vec<IoSlice<'_>> = (heads[..sent].iter())
                .flat_map(|head| [IoSlice::new(head), IoSlice::new(&payload)])
                .filter(|slice| !slice.is_empty())
                .collect();
            send_all(&self.stream, &mut slices)?;
            self.sleep_for(outstanding.div_ceil(2) * reply_bytes)?;
            for bytes in self.receive()? {
                reply_bytes = bytes;
                outstanding = outstanding.checked_sub(1).context("an answer to nothing")?;
            }
        }
        if self.job.direction == Direction::Write {
            self.commit()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        let commit = Commit { file: self.file, offset: 0, bytes: 0 };
        let mut head = Vec::new();
        self.xid = self.xid.wrapping_add(1);
        write_head(&mut head, self.xid, &commit, &self.credential, 0);
        send_all(&self.stream, &mut [IoSlice::new(&head)])?;
        self.sleep_for(1)?;
        while self.receive()?.is_empty() {}
        Ok(())
    }

    /// Has the next read sleep until so many bytes are there, those included that were read
    /// already.
    fn sleep_for(&mut self, bytes: usize) -> io::Result<()> {
        let bytes = bytes.saturating_sub(self.records.buffered()).max(1);
        if bytes == self.low_water {
            return Ok(());
        }
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: an open socket, and a live int with its size.
        let rc = unsafe {
            libc::setsockopt(
                self.stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const value).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        self.low_water = bytes;
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Lengths of the answers that came, in bytes.
    fn receive(&mut self) -> Result<Vec<usize>> {
        match self.stream.read(self.records.room())? {
            0 => bail!("the server closed the connection"),
            bytes => self.records.filled(bytes),
        }
        let mut lengths = Vec::new();
        while let Some(record) = self.records.take_next()? {
            let mut results = rpc::read_reply(&record)?.outcome?;
            let status = results.u32("status")?;
            ensure!(status == 0, "{} failed with status {status}", Write::NAME);
            lengths.push(record.len() + MARK_BYTES);
        }
        Ok(lengths)
    }
}
