// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers and fields of tracepoints, as tracefs describes them.
#![allow(unsafe_code)]

use std::fs;
use std::io;

use crate::{Error, Result};

/// The tracepoints, in the order of [`Point`].
const NAMES: [&str; 14] = [
    "sched/sched_switch",
    "sched/sched_waking",
    "task/task_newtask",
    "sched/sched_process_free",
    "raw_syscalls/sys_enter",
    "raw_syscalls/sys_exit",
    "block/block_rq_merge",
    "block/block_rq_insert",
    "block/block_rq_issue",
    "block/block_rq_complete",
    "block/block_bio_queue",
    "block/block_bio_complete",
    "irq/irq_handler_exit",
    "irq/softirq_exit",
];

/// The one that older kernels lack.
const SINCE_5_9: &str = "block/block_rq_merge";

/// A tracepoint that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    Switch,
    Waking,
    NewTask,
    Free,
    Enter,
    Exit,
    Merge,
    Insert,
    Issue,
    Complete,
    Bio,
    BioComplete,
    IrqEnds,
    SoftirqEnds,
}

impl Point {
    pub const ALL: [Point; 14] = [
        Point::Switch,
        Point::Waking,
        Point::NewTask,
        Point::Free,
        Point::Enter,
        Point::Exit,
        Point::Merge,
        Point::Insert,
        Point::Issue,
        Point::Complete,
        Point::Bio,
        Point::BioComplete,
        Point::IrqEnds,
        Point::SoftirqEnds,
    ];

    /// Whether it is one of a system call.
    pub fn is_call(self) -> bool {
        matches!(self, Point::Enter | Point::Exit)
    }
}

/// Where a number lies in an event.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    name: String,
    offset: usize,
    bytes: usize,
}

/// One tracepoint.
pub struct Tracepoint {
    /// What perf knows it by.
    pub id: u64,
    fields: Vec<Field>,
}

/// All of them.
pub struct Tracepoints(Vec<Tracepoint>);

impl Tracepoints {
    /// Reads the descriptions; where tracefs is not mounted, in a mount namespace of a thread's
    /// own.
    pub fn read() -> Result<Tracepoints> {
        let described = |name: &&str| match described(name) {
            // A tracepoint of nobody, where the kernel does not tell of merges.
            Err(error)
                if *name == SINCE_5_9
                    && error.kind() == io::ErrorKind::NotFound
                    && described(NAMES[0]).is_ok() =>
            {
                Ok("ID: 0;".to_owned())
            }
            other => other,
        };
        let read = || NAMES.iter().map(described).collect::<io::Result<Vec<_>>>();
        let texts = read().or_else(|first| match first.kind() {
            io::ErrorKind::NotFound => {
                std::thread::scope(|scope| scope.spawn(|| mounted().and_then(|()| read())).join())
                    .unwrap_or(Err(first))
            }
            _ => Err(first),
        });
        let texts = texts.map_err(|error| Error::Io { path: EVENTS.to_owned(), error })?;
        let points = texts.iter().map(|text| Tracepoint::parse(text));
        let missing = || Error::Refused {
            program: EVENTS.to_owned(),
            why: "its descriptions cannot be read".to_owned(),
        };
        points.collect::<Option<_>>().map(Tracepoints).ok_or_else(missing)
    }

    pub fn of(&self, point: Point) -> &Tracepoint {
        &self.0[point as usize]
    }
}

const EVENTS: &str = "/sys/kernel/tracing/events";

fn described(name: &str) -> io::Result<String> {
    fs::read_to_string(format!("{EVENTS}/{name}/format"))
}

/// Mounts tracefs for the calling thread alone.
fn mounted() -> io::Result<()> {
    let (root, at, kind) = (c"/".as_ptr(), c"/sys/kernel/tracing".as_ptr(), c"tracefs".as_ptr());
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: texts that end; a namespace of this thread's own, from which nothing spreads.
    let done = unsafe {
        libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) == 0
            && libc::mount(std::ptr::null(), root, std::ptr::null(), private, std::ptr::null()) == 0
            && libc::mount(kind, at, kind, 0, std::ptr::null()) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Tracepoint {
    fn parse(text: &str) -> Option<Tracepoint> {
        let number = |line: &str, key: &str| {
            let (_, rest) = line.split_once(key)?;
            rest.split(';').next()?.trim().parse::<usize>().ok()
        };
        let id = text.lines().find_map(|line| number(line, "ID:"))?;
        let field = |line: &str| {
            let (declared, _) = line.trim().strip_prefix("field:")?.split_once(';')?;
            let name = declared.rsplit(' ').next()?.split('[').next()?.to_owned();
            Some(Field { name, offset: number(line, "offset:")?, bytes: number(line, "size:")? })
        };
        Some(Tracepoint { id: id as u64, fields: text.lines().filter_map(field).collect() })
    }

    fn bytes<'e>(&self, event: &'e [u8], name: &str) -> Option<&'e [u8]> {
        let field = self.fields.iter().find(|field| field.name == name)?;
        event.get(field.offset..field.offset + field.bytes)
    }

    /// A number of an event.
    pub fn number(&self, event: &[u8], name: &str) -> Option<u64> {
        let bytes = self.bytes(event, name)?;
        let mut whole = [0; 8];
        whole.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_ne_bytes(whole))
    }

    /// A text of an event, which ends at its first zero.
    pub fn text<'e>(&self, event: &'e [u8], name: &str) -> &'e [u8] {
        let bytes = self.bytes(event, name).unwrap_or_default();
        bytes.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "\
name: sched_waking
ID: 315
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;

print fmt: \"comm=%s pid=%d\", REC->comm, REC->pid
";

    #[test]
    fn fields_are_found_where_the_kernel_says() {
        let point = Tracepoint::parse(FORMAT).unwrap();
        assert_eq!(point.id, 315);
        let mut event = vec![0; 28];
        event[8..11].copy_from_slice(b"dd\0");
        event[24..28].copy_from_slice(&77u32.to_ne_bytes());
        assert_eq!(point.number(&event, "pid"), Some(77));
        assert_eq!(point.text(&event, "comm"), b"dd");
        assert_eq!((point.number(&event, "none"), point.number(&event[..20], "pid")), (None, None));
        assert!(Tracepoint::parse("format:").is_none());
    }
}
