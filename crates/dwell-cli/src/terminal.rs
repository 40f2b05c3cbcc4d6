// SPDX-License-Identifier: MIT OR Apache-2.0
//! A terminal that shows one picture after another and answers to a key.

use std::io::{self, Read as _, Write as _};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

/// Shows pictures on the other page of the terminal; the first one comes back when this goes.
pub struct Pages {
    before: Option<Termios>,
}

impl Pages {
    /// Turns the page. Keys are heard one by one where standard input is a terminal.
    pub fn turn() -> io::Result<Pages> {
        let before = tcgetattr(io::stdin()).ok();
        if let Some(before) = &before {
            let mut keys = before.clone();
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            keys.special_codes[SpecialCodeIndex::VMIN] = 0;
            keys.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(io::stdin(), OptionalActions::Now, &keys)?;
        }
        let pages = Pages { before };
        write("\x1b[?1049h\x1b[?25l")?;
        Ok(pages)
    }

    /// Shows as much of a picture as fits in place of the last.
    pub fn show(&self, picture: &str) -> io::Result<()> {
        let rows = tcgetwinsize(io::stdout()).map_or(24, |size| usize::from(size.ws_row));
        let fits: Vec<&str> = picture.lines().take(rows.max(2) - 1).collect();
        let picture = fits.join("\n") + "\n";
        // Each line is wiped behind its text, and all below the last: without flicker.
        let lines = picture.replace('\n', "\x1b[K\n");
        write(&format!("\x1b[H{lines}\x1b[J"))
    }

    /// Waits for so long, or until `q` is pressed or a signal comes. `true` to go on.
    pub fn wait(&self, span: Duration, stopped: impl Fn() -> bool) -> io::Result<bool> {
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if stopped() {
                return Ok(false);
            }
            if left.is_zero() {
                return Ok(true);
            }
            if self.before.is_none() {
                std::thread::sleep(left.min(Duration::from_millis(100)));
                continue;
            }
            let stdin = io::stdin();
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            let left = Timespec::try_from(left.min(Duration::from_secs(1))).unwrap_or_default();
            match poll(&mut fds, Some(&left)) {
                Err(rustix::io::Errno::INTR) | Ok(0) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => {
                    let mut keys = [0u8; 16];
                    let read = stdin.lock().read(&mut keys)?;
                    // Nothing to read from a terminal that says there is: it is gone.
                    if read == 0 || keys[..read].iter().any(|key| matches!(key, b'q' | b'Q')) {
                        return Ok(false);
                    }
                }
            }
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // A terminal that is gone needs no tidying.
        let _ = write("\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
