// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of an address, by the names that `nfs(5)` and libnfs have for them.

use dwell_policy::Ns;

use crate::engine::{Settings, Transport, WindowKind};
use crate::rpc::Credential;
use crate::spread::Connections;
use crate::url::{MOST_CONNECTIONS, MOST_OUTSTANDING, Url};

const SECOND_NS: Ns = 1_000_000_000;
/// Of `timeo`.
const TENTH_NS: Ns = SECOND_NS / 10;

/// When a request that has no answer fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// After so many seconds.
    After(u32),
    /// Never: the server is waited for.
    Never,
    /// After what `nfs(5)` calls a major timeout, by `timeo` and `retrans`.
    MajorTimeout,
}

/// When a request without an answer is sent again, and when it fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    /// When it fails; without, a mount's never does, and any other after a minute.
    pub give_up: Option<GiveUp>,
    /// Tenths of a second before it is sent again: over TCP, on a new connection; over UDP, before
    /// anything is known of the server. Without, the client's own.
    pub timeo: Option<u32>,
    /// How often it is sent again before a major timeout; without, 2 over TCP and 3 over UDP.
    pub retrans: Option<u32>,
}

impl Retry {
    /// How long a request may go without an answer, in nanoseconds.
    pub fn give_up_ns(&self, transport: Transport) -> Ns {
        match self.give_up.unwrap_or(GiveUp::After(60)) {
            GiveUp::After(seconds) => Ns::from(seconds) * SECOND_NS,
            GiveUp::Never => Ns::MAX,
            // Over TCP each wait is as much longer than the last; over UDP it is twice as long.
            GiveUp::MajorTimeout => match transport {
                Transport::Stream => {
                    let (timeo, retrans) = (self.timeo.unwrap_or(600), self.retrans.unwrap_or(2));
                    Ns::from(timeo) * TENTH_NS * (Ns::from(retrans) + 1)
                }
                Transport::Datagram => {
                    let (timeo, retrans) = (self.timeo.unwrap_or(11), self.retrans.unwrap_or(3));
                    Ns::from(timeo) * TENTH_NS * ((1 << (retrans + 1)) - 1)
                }
            },
        }
    }
}

/// For how long a mount believes what it knows of a file or directory without asking the server.
/// Opening a file asks in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// Seconds for what changed a moment ago and for what has not changed for long: of files.
    pub files_s: (u32, u32),
    /// The same of directories.
    pub directories_s: (u32, u32),
}

impl Default for Caching {
    fn default() -> Self {
        Caching { files_s: (3, 60), directories_s: (30, 60) }
    }
}

/// How connections to a server are set up.
pub(crate) fn settings(url: &Url, transport: Transport) -> Settings {
    let mut settings = Settings::new(transport);
    settings.credential = match url.user {
        Some((uid, gid)) => Credential::sys("dwell", uid, gid, &[]),
        None => Credential::own(),
    };
    settings.window = url.window;
    settings.give_up_ns = url.retry.give_up_ns(transport);
    if let Some(timeo) = url.retry.timeo {
        let wait = Ns::from(timeo) * TENTH_NS;
        (settings.silence_ns, settings.first_resend_ns) = (wait, wait);
    }
    settings
}

/// A number within bounds.
pub(crate) fn number<T: TryFrom<u64>>(text: &str, least: u64, most: u64) -> Result<T, String> {
    let value = text.parse().ok().filter(|value| (least..=most).contains(value));
    value
        .and_then(|value| T::try_from(value).ok())
        .ok_or_else(|| format!("{text}: must be a number from {least} to {most}"))
}

/// `auto`, `auto:N` with a bound, or a number; `None` and the bound for the first two.
fn found_or_fixed(text: &str, usual: u32, most: u32) -> Result<(Option<u32>, u32), String> {
    let bound = |text: &str| number::<u32>(text, 1, most.into());
    match text.strip_prefix("auto") {
        Some("") => Ok((None, usual)),
        Some(rest) => Ok((None, bound(rest.strip_prefix(':').unwrap_or(rest))?)),
        None => bound(text).map(|count| (Some(count), count)),
    }
}

const NAMES: &str = "is not an option: there are port, nfsport, mountport, export, proto, tcp, udp, \
                     window, nconnect, rsize, wsize, size, readdir-buffer, timeout, timeo, retrans, \
                     soft, hard, autoreconnect, uid, gid, user, sec, version, vers, actimeo, noac, \
                     acregmin, acregmax, acdirmin, acdirmax, dircache, memory";

impl Url {
    /// Sets an option by its name.
    ///
    /// # Errors
    /// The fault of the value, or that there is no such option.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let seconds = || number::<u32>(value, 0, 86_400);
        let transfer = || number::<u32>(value, 512, 1 << 20).map(Some);
        let id = || number::<u32>(value, 0, u32::MAX.into());
        let own = || {
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            (uid.as_raw(), gid.as_raw())
        };
        match name {
            "port" | "nfsport" => self.port = Some(number(value, 1, 65_535)?),
            "mountport" => self.mount_port = Some(number(value, 1, 65_535)?),
            "export" => self.export = Some(format!("/{}", value.trim_matches('/'))),
            "tcp" | "udp" if value.is_empty() => return self.set("proto", name),
            "proto" => {
                self.transport = match value {
                    "tcp" => Transport::Stream,
                    "udp" => Transport::Datagram,
                    _ => return Err(format!("{value}: must be tcp or udp")),
                }
            }
            "window" => {
                self.window = match found_or_fixed(value, MOST_OUTSTANDING, 1024)? {
                    (None, most) => WindowKind::Dynamic { most },
                    (Some(size), _) => WindowKind::Fixed(size),
                }
            }
            "nconnect" | "connections" => {
                self.connections = match found_or_fixed(value, MOST_CONNECTIONS, 64)? {
                    (None, most) => Connections::Found { most },
                    (Some(count), _) => Connections::Fixed(count),
                }
            }
            "size" => (self.read_bytes, self.write_bytes) = (transfer()?, transfer()?),
            "rsize" => self.read_bytes = transfer()?,
            "wsize" => self.write_bytes = transfer()?,
            "readdir-buffer" => {
                // Names and whole answers; the server is told one quarter for the former.
                let most = value.rsplit(',').next().unwrap_or(value);
                self.listing_bytes = Some(number(most, 4096, 1 << 20)?);
            }
            "timeout" => self.retry.give_up = Some(GiveUp::After(number(value, 1, 86_400)?)),
            "timeo" => self.retry.timeo = Some(number(value, 1, 36_000)?),
            "retrans" => self.retry.retrans = Some(number(value, 0, 20)?),
            "hard" if value.is_empty() => self.retry.give_up = Some(GiveUp::Never),
            "soft" if value.is_empty() => self.retry.give_up = Some(GiveUp::MajorTimeout),
            "autoreconnect" if value == "-1" => self.retry.give_up = Some(GiveUp::Never),
            "autoreconnect" => {
                return Err(format!(
                    "{value}: must be -1; a lost connection is always replaced, and soft, timeo \
                     and retrans say for how long"
                ));
            }
            "uid" => self.user = Some((id()?, self.user.unwrap_or_else(own).1)),
            "gid" => self.user = Some((self.user.unwrap_or_else(own).0, id()?)),
            "user" => {
                let (uid, gid) =
                    value.split_once(':').ok_or(format!("{value}: must be uid:gid"))?;
                let most = u64::from(u32::MAX);
                self.user = Some((number(uid, 0, most)?, number(gid, 0, most)?));
            }
            "sec" if value == "sys" => {}
            "sec" => return Err(format!("{value}: must be sys; there is no Kerberos here")),
            "version" | "vers" if value == "3" => {}
            "version" | "vers" => return Err(format!("{value}: must be 3")),
            "noac" if value.is_empty() => self.set("actimeo", "0")?,
            "dircache" => match value {
                "0" => self.caching.directories_s = (0, 0),
                "1" => self.caching.directories_s = Caching::default().directories_s,
                _ => return Err(format!("{value}: must be 0 or 1")),
            },
            "actimeo" => {
                let both = (seconds()?, seconds()?);
                self.caching = Caching { files_s: both, directories_s: both };
            }
            "acregmin" => self.caching.files_s.0 = seconds()?,
            "acregmax" => self.caching.files_s.1 = seconds()?,
            "acdirmin" => self.caching.directories_s.0 = seconds()?,
            "memory" => self.kept_bytes = number(value, 0, 1 << 40)?,
            "acdirmax" => self.caching.directories_s.1 = seconds()?,
            "hard" | "soft" | "noac" | "tcp" | "udp" => {
                return Err(format!("{value}: this option has no value"));
            }
            _ => return Err(NAMES.into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(options: &str) -> Url {
        format!("nfs://host/x?{options}").parse().unwrap()
    }

    #[test]
    fn options_have_the_names_of_nfs_and_of_libnfs() {
        let found =
            url("nfsport=5&mountport=6&rsize=1024&wsize=2048&uid=7&gid=8&version=3&sec=sys");
        assert_eq!((found.port, found.mount_port, found.user), (Some(5), Some(6), Some((7, 8))));
        assert_eq!((found.read_bytes, found.write_bytes), (Some(1024), Some(2048)));
        assert_eq!(url("gid=8&uid=7").user, Some((7, 8)));
        assert_eq!(url("nconnect=5").connections, Connections::Fixed(5));
        assert_eq!(url("nconnect=auto:9").connections, Connections::Found { most: 9 });
        assert_eq!(url("readdir-buffer=8192,16384").listing_bytes, Some(16384));
        assert_eq!(url("udp").transport, Transport::Datagram);
        assert_eq!(url("noac").caching.files_s, (0, 0));
        assert_eq!(url("acregmin=5&acdirmax=7").caching.files_s, (5, 60));
        for wrong in
            ["version=4", "sec=krb5", "soft=1", "autoreconnect=3", "nconnect=65", "debug=1"]
        {
            assert!(format!("nfs://host/x?{wrong}").parse::<Url>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_request_fails_when_the_manual_says_that_it_does() {
        let after = |options: &str| {
            let url = url(options);
            url.retry.give_up_ns(url.transport)
        };
        assert_eq!(after(""), 60 * SECOND_NS);
        assert_eq!(after("timeout=5"), 5 * SECOND_NS);
        assert_eq!(after("hard"), Ns::MAX);
        assert_eq!(after("autoreconnect=-1"), Ns::MAX);
        assert_eq!(after("soft"), 180 * SECOND_NS);
        assert_eq!(after("soft&timeo=10&retrans=4"), 5 * SECOND_NS);
        // 1, 2, 4 seconds.
        assert_eq!(after("udp&soft&timeo=10&retrans=2"), 7 * SECOND_NS);
        let settings = settings(&url("timeo=20"), Transport::Stream);
        assert_eq!(settings.silence_ns, 2 * SECOND_NS);
    }
}
