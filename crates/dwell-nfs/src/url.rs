// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses: `nfs://server[:port]/export/path[?option=value&…]`.

mod options;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use options::number;
pub(crate) use options::settings;
pub use options::{Caching, GiveUp, Retry};

use crate::engine::{Transport, WindowKind};
use crate::error::Error;
pub use crate::spread::Connections;

/// The scheme.
pub const SCHEME: &str = "nfs";

/// An address of a file or directory on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The server: a name or an address.
    pub host: String,
    /// The port of its NFS; the portmapper's word where there is none, or else 2049.
    pub port: Option<u16>,
    /// The port of its MOUNT; the portmapper's word where there is none.
    pub mount_port: Option<u16>,
    /// Export and path within it, beginning with a slash and not ending with one.
    pub path: String,
    /// The export, where it was said.
    pub export: Option<String>,
    /// How messages travel.
    pub transport: Transport,
    /// How many requests are outstanding.
    pub window: WindowKind,
    /// Bytes of one READ; without, as the server offers.
    pub read_bytes: Option<u32>,
    /// Bytes of one WRITE; without, as the server offers.
    pub write_bytes: Option<u32>,
    /// Bytes of one part of a listing.
    pub listing_bytes: Option<u32>,
    /// Connections that a thread's requests are spread over.
    pub connections: Connections,
    /// When a request without an answer is sent again, and when it fails.
    pub retry: Retry,
    /// For how long a mount believes what it knows of files and directories.
    pub caching: Caching,
    /// So much a mount keeps in memory of what was written and of directories, in bytes.
    pub kept_bytes: u64,
    /// The user and the group to appear as.
    pub user: Option<(u32, u32)>,
}

/// Largest number of requests outstanding on a connection, unless said otherwise.
pub const MOST_OUTSTANDING: u32 = 32;
/// Largest number of connections that are found useful, unless said otherwise.
pub const MOST_CONNECTIONS: u32 = 4;
/// What a mount keeps in memory, in bytes, unless said otherwise.
pub const KEPT_BYTES: u64 = 256 << 20;

impl Url {
    /// Whether a text is meant as one.
    pub fn is_one(text: &str) -> bool {
        text.get(..4).is_some_and(|scheme| scheme.eq_ignore_ascii_case("nfs:"))
    }

    /// A server alone, as in `nfs://server`; `None` where there is more to the address.
    ///
    /// # Errors
    /// Text that is no address.
    pub fn of_server(text: &str) -> Result<Option<Url>, Error> {
        let (server, options) = text.split_once('?').unwrap_or((text, ""));
        let server = server.trim_end_matches('/');
        if !Url::is_one(text) || server.matches('/').count() != 2 {
            return Ok(None);
        }
        let url: Url = format!("{server}/-?{options}").parse()?;
        Ok(Some(url.with_path("")))
    }

    /// The same with another path.
    pub fn with_path(&self, path: &str) -> Url {
        Url { path: path.to_owned(), ..self.clone() }
    }

    /// The path of something in it.
    pub fn join(&self, name: &str) -> Url {
        self.with_path(&format!("{}/{name}", self.path.trim_end_matches('/')))
    }

    /// The server, with its port where one was named.
    pub(crate) fn server(&self) -> String {
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}{port}", self.bracketed())
    }

    fn bracketed(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        }
    }

    /// Where the server is.
    ///
    /// # Errors
    /// A name that cannot be resolved.
    pub fn address(&self, port: u16) -> Result<SocketAddr, Error> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, port));
        }
        let unknown = |why: &dyn std::fmt::Display| {
            Error::invalid(self, format!("the server's name cannot be resolved: {why}"))
        };
        let mut found =
            (self.host.as_str(), port).to_socket_addrs().map_err(|error| unknown(&error))?;
        found.next().ok_or_else(|| unknown(&"it has no address"))
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "nfs://{}{}", self.server(), self.path)
    }
}

/// A path without its escapes: `%3F` is a question mark, as RFC 2224 has it. A `%` that begins no
/// escape is itself.
fn unescape(path: &str) -> Option<String> {
    let (mut out, mut rest) = (Vec::new(), path.as_bytes());
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..2).filter(|_| byte == b'%');
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let value = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match value.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(value) => {
                out.push(value);
                rest = &tail[2..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(out).ok()
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |what: String| Error::invalid(text, what);
        let rest = text.split_once("://").filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
        let Some((_, rest)) = rest else {
            return Err(wrong("not an NFS address; write nfs://server/export/path".into()));
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (server, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (host, port) = match server.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest
                    .split_once(']')
                    .ok_or_else(|| wrong("a ] is missing after the server's address".into()))?;
                (host, rest.strip_prefix(':'))
            }
            None => match server.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (server, None),
            },
        };
        if host.is_empty() {
            return Err(wrong("no server; write nfs://server/export/path".into()));
        }
        if path.trim_matches('/').is_empty() {
            return Err(wrong("no export; write nfs://server/export/path".into()));
        }
        let path = unescape(path).ok_or_else(|| wrong("the path is no UTF-8".into()))?;
        if path.contains('\0') {
            return Err(wrong("a path cannot contain a zero byte".into()));
        }
        if path.split('/').any(|part| part == "..") {
            return Err(wrong("a path on a server cannot contain ..".into()));
        }
        let parts: Vec<&str> =
            path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        let mut url = Url {
            host: host.to_owned(),
            port: None,
            mount_port: None,
            path: format!("/{}", parts.join("/")),
            export: None,
            transport: Transport::Stream,
            window: WindowKind::Dynamic { most: MOST_OUTSTANDING },
            read_bytes: None,
            write_bytes: None,
            listing_bytes: None,
            connections: Connections::Found { most: MOST_CONNECTIONS },
            retry: Retry::default(),
            caching: Caching::default(),
            kept_bytes: KEPT_BYTES,
            user: None,
        };
        if let Some(port) = port {
            url.port = Some(number(port, 1, 65_535).map_err(|why| wrong(format!("port {why}")))?);
        }
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            url.set(name, value).map_err(|why| wrong(format!("{name} {why}")))?;
        }
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart() {
        let url: Url =
            "nfs://host:12049/mem//a/./b/?mountport=12050&proto=udp&window=8".parse().unwrap();
        assert_eq!(
            (url.host.as_str(), url.port, url.path.as_str()),
            ("host", Some(12049), "/mem/a/b")
        );
        assert_eq!((url.mount_port, url.transport), (Some(12050), Transport::Datagram));
        assert_eq!(url.window, WindowKind::Fixed(8));
        assert_eq!(url.join("c").to_string(), "nfs://host:12049/mem/a/b/c");
        let url: Url = "NFS://[::1]:5/x?window=auto:64&user=5:6".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port, url.user), ("::1", Some(5), Some((5, 6))));
        assert_eq!((url.to_string(), url.server()), ("nfs://[::1]:5/x".into(), "[::1]:5".into()));
        assert_eq!(url.address(7).unwrap().to_string(), "[::1]:7");
    }

    #[test]
    fn a_path_may_be_escaped() {
        let path = |text: &str| text.parse::<Url>().map(|url| url.path);
        assert_eq!(path("nfs://host/my%3fpath/%C3%BC?window=8").unwrap(), "/my?path/ü");
        assert_eq!(path("nfs://host/50%/100%zz").unwrap(), "/50%/100%zz");
        for wrong in ["nfs://host/%00", "nfs://host/%ff", "nfs://host/a/%2e%2e/b"] {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_text_that_is_no_address_gives_one_clear_line() {
        for (text, part) in [
            ("http://host/x", "not an NFS address"),
            ("nfs:/host", "not an NFS address"),
            ("nfs://", "no server"),
            ("nfs:///x", "no server"),
            ("nfs://host", "no export"),
            ("nfs://host//", "no export"),
            ("nfs://host:0/x", "port 0: must be a number"),
            ("nfs://host:99999/x", "port 99999"),
            ("nfs://[::1/x", "] is missing"),
            ("nfs://host/x/../y", "cannot contain .."),
            ("nfs://host/x?proto=sctp", "must be tcp or udp"),
            ("nfs://host/x?window=0", "must be a number from 1"),
            ("nfs://host/x?colour=red", "is not an option"),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains(text) && !error.contains('\n'),
                "{error}"
            );
        }
    }
}
