// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hands metrics out: in a file for node_exporter's textfile collector, or by HTTP.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::openmetrics::CONTENT_TYPE;

/// How long a client may take to ask and to listen.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest request that is read, in bytes.
const LONGEST_REQUEST: u64 = 8 << 10;

/// Writes a file so that whoever reads it finds the old text or the new, and nothing between.
pub fn write_file(path: &Path, text: &str) -> Result<()> {
    // The collector reads `*.prom` only.
    let mut name = path.file_name().context("names no file")?.to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let fresh = path.with_file_name(name);
    let written = File::create(&fresh)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written.with_context(|| format!("{}: cannot write it", path.display()))
}

/// A place where metrics can be fetched.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// `ADDRESS:PORT` or `unix:PATH`.
    pub fn bind(place: &str) -> Result<Listener> {
        let listener = match place.strip_prefix("unix:") {
            Some(path) => {
                let path = PathBuf::from(path);
                clear_stale(&path)?;
                let bound = UnixListener::bind(&path)
                    .with_context(|| format!("{}: cannot listen there", path.display()))?;
                Listener::Unix(bound, path)
            }
            None => Listener::Tcp(
                TcpListener::bind(place)
                    .with_context(|| format!("{place}: cannot listen there"))?,
            ),
        };
        match &listener {
            Listener::Tcp(bound) => bound.set_nonblocking(true)?,
            Listener::Unix(bound, _) => bound.set_nonblocking(true)?,
        }
        Ok(listener)
    }

    /// Where it listens.
    pub fn place(&self) -> String {
        match self {
            Listener::Tcp(bound) => match bound.local_addr() {
                Ok(address) => format!("http://{address}/metrics"),
                Err(_) => "http".to_owned(),
            },
            Listener::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(bound) => bound.as_fd(),
            Listener::Unix(bound, _) => bound.as_fd(),
        }
    }

    /// Serves whoever comes within `span`.
    pub fn serve(&self, span: Duration, text: &mut dyn FnMut() -> Result<String>) -> Result<()> {
        let fd = self.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let span = Timespec::try_from(span).unwrap_or_default();
        match poll(&mut fds, Some(&span)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(io::Error::from(error).into()),
            Ok(_) => {}
        }
        match self {
            Listener::Tcp(bound) => {
                let Ok((stream, _)) = bound.accept() else { return Ok(()) };
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                answer(&stream, &stream, text);
            }
            Listener::Unix(bound, _) => {
                let Ok((stream, _)) = bound.accept() else { return Ok(()) };
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                answer(&stream, &stream, text);
            }
        }
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes a socket that nobody listens at any more.
fn clear_stale(path: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        bail!("{}: is there already, and no socket", path.display());
    }
    if UnixStream::connect(path).is_ok() {
        bail!("{}: somebody listens there already", path.display());
    }
    fs::remove_file(path).with_context(|| format!("{}: cannot remove it", path.display()))
}

/// Answers one request. What goes wrong with it is the client's trouble, not ours.
fn answer(from: impl Read, mut to: impl Write, text: &mut dyn FnMut() -> Result<String>) {
    let mut lines = BufReader::new(from.take(LONGEST_REQUEST)).lines().map_while(Result::ok);
    let Some(asked) = lines.next() else { return };
    // The rest of the request is read, or the answer might be lost with the connection.
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    let mut words = asked.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let target = target.split('?').next().unwrap_or("");
    let (status, kind, body) = match (method, target) {
        ("GET", "/metrics") => match text() {
            Ok(body) => ("200 OK", CONTENT_TYPE, body),
            Err(error) => ("500 Internal Server Error", PLAIN, format!("{error:#}\n")),
        },
        ("GET", _) => ("404 Not Found", PLAIN, "metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", PLAIN, "GET /metrics\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = to.write_all(head.as_bytes()).and_then(|()| to.write_all(body.as_bytes()));
}

const PLAIN: &str = "text/plain; charset=utf-8";

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(request: &str) -> String {
        let mut answered = Vec::new();
        answer(request.as_bytes(), &mut answered, &mut || Ok("# EOF\n".to_owned()));
        String::from_utf8(answered).unwrap()
    }

    #[test]
    fn only_metrics_are_handed_out() {
        let found = asked("GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(found.starts_with("HTTP/1.1 200 OK\r\n") && found.ends_with("\r\n\r\n# EOF\n"));
        assert!(found.contains("Content-Type: application/openmetrics-text; version=1.0.0"));
        assert!(found.contains("Content-Length: 6\r\n"));
        assert!(asked("GET / HTTP/1.1\r\n\r\n").contains("404"));
        assert!(asked("POST /metrics HTTP/1.1\r\n\r\n").contains("405"));
        assert!(asked("\u{0}\r\n").contains("405"));
        assert_eq!(asked(""), "");
        assert!(asked(&"x".repeat(100_000)).contains("405"));
        let mut answered = Vec::new();
        let failing = &mut || bail!("no directory");
        answer(&b"GET /metrics HTTP/1.0\r\n\r\n"[..], &mut answered, failing);
        assert!(String::from_utf8(answered).unwrap().contains("500"));
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_anything_else_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let place = format!("unix:{}", path.display());
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&place).unwrap();
        let refused = Listener::bind(&place).err().unwrap().to_string();
        assert!(refused.contains("somebody listens"), "{refused}");
        drop(listener);
        assert!(!path.exists());
        fs::write(&path, "mine").unwrap();
        let refused = Listener::bind(&place).err().unwrap().to_string();
        assert!(refused.contains("no socket") && fs::read(&path).unwrap() == b"mine");
        assert!(format!("{:#}", Listener::bind("nowhere").err().unwrap()).contains("nowhere"));
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dwell.prom");
        write_file(&path, "old\n").unwrap();
        write_file(&path, "new\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new\n");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = write_file(&dir.path().join("no/file"), "").unwrap_err();
        assert!(format!("{error:#}").contains("no/file"));
    }
}
