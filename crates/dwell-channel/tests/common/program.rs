// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients in C, which share no code with the library, in processes of their own.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use dwell_channel::grants::Grants;

use super::{House, Opened};

/// The program of that name, built once; `None`, and said so, where there is no C compiler. A test
/// program asks for one of them only.
pub fn compiled(name: &str) -> Option<&'static PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let source = format!("{}/tests/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let built = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-pthread", "-o"])
            .args([out.as_os_str(), source.as_ref()])
            .status()
            .ok()?;
        assert!(built.success(), "{name}.c does not build");
        Some(out)
    });
    if program.is_none() {
        println!("SKIP: no C compiler");
    }
    program.as_ref()
}

/// A client; killed when it is dropped.
pub struct Client(pub Child);

impl Client {
    pub fn start(command: &mut Command) -> Client {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Client(child.unwrap())
    }

    /// Runs one to its end; what it said.
    pub fn done(command: &mut Command) -> String {
        let mut client = Client::start(command);
        let said = std::io::read_to_string(client.0.stdout.take().unwrap()).unwrap();
        let status = client.0.wait().unwrap();
        assert!(status.success(), "{command:?}: {status}: {said}");
        said.trim().to_owned()
    }

    pub fn line(&mut self) -> String {
        // Byte by byte: what comes later is for whoever asks next.
        let mut line = String::new();
        let stdout = self.0.stdout.as_mut().unwrap();
        BufReader::with_capacity(1, stdout).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub fn say(&mut self, what: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    /// Grants an open file to the channel whose token it says.
    pub fn grant(&mut self, house: &House, opened: &Opened) {
        let line = self.line();
        let token: [u8; 16] =
            std::array::from_fn(|at| u8::from_str_radix(&line[at * 2..at * 2 + 2], 16).unwrap());
        let granted = house.daemon.grant(&token, &opened.open).unwrap();
        self.say(&format!("{} {}", granted.entry, granted.generation));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
