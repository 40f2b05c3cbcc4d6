// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mounted export: finds its ports and its root, calls procedures, follows paths.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use dwell::executor::Handle as Tasks;
use dwell_policy::Ns;

use crate::connection::{Answered, Connection, Health, Payload};
use crate::engine::{Failure, Settings, Transport, WindowKind};
use crate::error::{Error, Result, Why};
use crate::mount::{self, Exports, GetPort, Mount, MountError, Unmount};
use crate::nfs3::{self, Answer, Attributes, FileSystem, Handle, Limits, Lookup, Status};
use crate::pool::Pool;
use crate::procedure::Procedure;
use crate::rpc::Refusal;
use crate::spread::{Connections, Spread};
use crate::url::{Url, settings};

/// One READ or WRITE where nothing else is said, in bytes: over a stream, and as a datagram.
const TRANSFER_BYTES: (u32, u32) = (256 << 10, 32 << 10);
/// Largest that is taken from a server, in bytes.
const MOST_TRANSFER_BYTES: u32 = 1 << 20;
/// Largest as a datagram, in bytes: it has 64 KiB with all heads.
const MOST_DATAGRAM_BYTES: u32 = 56 << 10;
const LISTING_BYTES: u32 = 64 << 10;
const LISTING_DATAGRAM_BYTES: u32 = 16 << 10;
/// Between attempts when the server asks for time, growing from the first to the second.
const LATER_NS: (Ns, Ns) = (20_000_000, 5_000_000_000);
/// How often a request is made again that the server failed at.
const MOST_TRIES: u32 = 8;

/// A mounted export. One thread has it; its calls run beside each other.
pub struct Client {
    tasks: Tasks,
    url: Url,
    export: String,
    root: Handle,
    limits: FileSystem,
    connections: Rc<Pool>,
    spread: RefCell<Spread>,
    /// Whether the server has READDIRPLUS.
    lists_attributes: Cell<bool>,
    mount_port: u16,
    server: SocketAddr,
}

/// What came of a call that changes something.
pub(crate) struct Changed<T> {
    pub outcome: Result<T>,
    /// Whether it was sent more than once: its error may be the answer to the second copy, and the
    /// first have succeeded.
    pub resent: bool,
}

/// What a path leads to.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its handle.
    pub handle: Handle,
    /// What it is.
    pub attributes: Attributes,
}

/// A connection for a few calls.
fn control(tasks: &Tasks, url: &Url, port: u16) -> Result<Connection> {
    let mut settings = settings(url, url.transport);
    settings.window = WindowKind::Fixed(4);
    open(tasks, url, url.address(port)?, settings)
}

fn open(tasks: &Tasks, url: &Url, to: SocketAddr, settings: Settings) -> Result<Connection> {
    Connection::open(tasks, to, settings).map_err(|error| {
        let why = Why::NoConnection { server: to.to_string(), error };
        Error::new("connecting to the server", url, why)
    })
}

async fn port_of(tasks: &Tasks, url: &Url, program: u32, version: u32) -> Result<Option<u16>> {
    let connection = control(tasks, url, mount::PORTMAPPER_PORT)?;
    let udp = url.transport == Transport::Datagram;
    connection.call(&GetPort { program, version, udp }, None, |port| port).await.map_err(|why| {
        Error::new(
            "asking the portmapper (name ports in the address where there is none)",
            url,
            why,
        )
    })
}

/// The directories that a server exports.
///
/// # Errors
/// No server, no MOUNT.
pub async fn exports(tasks: &Tasks, url: &Url) -> Result<Vec<String>> {
    let port = mount_port(tasks, url).await?;
    let connection = control(tasks, url, port)?;
    list_exports(&connection).await.map_err(|why| Error::new("listing exports", url, why))
}

async fn list_exports(connection: &Connection) -> std::result::Result<Vec<String>, Why> {
    let words = |exports: Vec<&[u8]>| {
        exports.iter().map(|export| String::from_utf8_lossy(export).into_owned()).collect()
    };
    connection.call(&Exports, None, words).await
}

async fn mount_port(tasks: &Tasks, url: &Url) -> Result<u16> {
    match url.mount_port {
        Some(port) => Ok(port),
        None => port_of(tasks, url, mount::PROGRAM, mount::VERSION)
            .await?
            .ok_or_else(|| Error::invalid(url, "the server offers no MOUNT version 3")),
    }
}

/// Whether `path` is `export` or lies in it.
fn lies_in(path: &str, export: &str) -> bool {
    let export = export.trim_end_matches('/');
    path.strip_prefix(export).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Client {
    /// Mounts the export that an address lies in.
    ///
    /// # Errors
    /// No server, no such export, permission denied.
    pub async fn mount(tasks: &Tasks, url: &Url) -> Result<Rc<Client>> {
        let mount_port = mount_port(tasks, url).await?;
        let nfs_port = match (url.port, url.mount_port) {
            (Some(port), _) => port,
            (None, Some(_)) => 2049,
            (None, None) => port_of(tasks, url, nfs3::PROGRAM, nfs3::VERSION)
                .await?
                .ok_or_else(|| Error::invalid(url, "the server offers no NFS version 3"))?,
        };
        let mounting = control(tasks, url, mount_port)?;
        let (export, root) = Self::find_export(&mounting, url).await?;
        drop(mounting);
        let address = url.address(nfs_port)?;
        let connection = open(tasks, url, address, settings(url, url.transport))?;
        let mut client = Client {
            tasks: tasks.clone(),
            url: url.clone(),
            export,
            root,
            limits: FileSystem {
                most_read_bytes: 0,
                most_write_bytes: 0,
                listing_bytes: 0,
                most_file_bytes: u64::MAX,
            },
            connections: Pool::new(connection),
            spread: RefCell::new(Spread::new(url.connections)),
            lists_attributes: Cell::new(true),
            mount_port,
            server: address,
        };
        let ask = Limits(root);
        let limits = client.call("asking for its limits", url, &ask, |limits| limits).await?;
        client.limits = client.bounded(limits);
        client.spread();
        Ok(Rc::new(client))
    }

    async fn find_export(mounting: &Connection, url: &Url) -> Result<(String, Handle)> {
        let mount = |path: String| async move {
            let answer = mounting.call(&Mount(path.as_bytes()), None, |answer| answer).await;
            answer.map(|answer| (path, answer)).map_err(|why| Error::new("mounting", url, why))
        };
        let known = match &url.export {
            Some(export) => Some(export.clone()),
            None => {
                let exports = list_exports(mounting).await.or_else(|why| match why {
                    // Some servers do not list what they export.
                    Why::Failure(Failure::Refused(_)) => Ok(Vec::new()),
                    why => Err(Error::new("mounting", url, why)),
                })?;
                let within = exports.into_iter().filter(|export| lies_in(&url.path, export));
                within.max_by_key(String::len)
            }
        };
        if let Some(export) = known {
            if !lies_in(&url.path, &export) {
                return Err(Error::invalid(url, format!("does not lie in the export {export}")));
            }
            let (export, answer) = mount(export).await?;
            let root = answer.map_err(|refused| Error::new("mounting", url, refused))?;
            return Ok((export, root));
        }
        // Servers that list nothing may let any directory of an export be mounted.
        let mut last = MountError::Missing;
        let mut path = url.path.clone();
        while !path.is_empty() {
            let (export, answer) = mount(path.clone()).await?;
            match answer {
                Ok(root) => return Ok((export, root)),
                Err(refused @ (MountError::Missing | MountError::NotDirectory)) => last = refused,
                Err(refused) => return Err(Error::new("mounting", url, refused)),
            }
            path.truncate(path.rfind('/').unwrap_or(0));
        }
        Err(Error::new("mounting", url, last))
    }

    /// A server's limits, as they are used here.
    fn bounded(&self, limits: FileSystem) -> FileSystem {
        let datagram = self.url.transport == Transport::Datagram;
        let (usual, most, listing) = match datagram {
            true => (TRANSFER_BYTES.1, MOST_DATAGRAM_BYTES, LISTING_DATAGRAM_BYTES),
            false => (TRANSFER_BYTES.0, MOST_TRANSFER_BYTES, LISTING_BYTES),
        };
        let bytes = |offered: u32, wanted: Option<u32>| {
            let offered = if offered == 0 { usual } else { offered };
            wanted.unwrap_or(usual).min(offered).clamp(512, most)
        };
        FileSystem {
            most_read_bytes: bytes(limits.most_read_bytes, self.url.read_bytes),
            most_write_bytes: bytes(limits.most_write_bytes, self.url.write_bytes),
            listing_bytes: self.url.listing_bytes.map_or(listing, |wanted| wanted.min(most)),
            most_file_bytes: limits.most_file_bytes,
        }
    }

    /// Where NFS is served.
    pub(crate) fn server(&self) -> SocketAddr {
        self.server
    }

    /// How further connections are set up.
    pub(crate) fn settings(&self) -> Settings {
        Settings { has_answered: true, ..settings(&self.url, self.url.transport) }
    }

    /// Its address for one more client, which asks neither where the server is nor what it exports:
    /// handles of one client are those of the other.
    pub(crate) fn same_export(&self) -> Url {
        let host = match self.server {
            // Without the interface, such an address leads nowhere.
            SocketAddr::V6(server) if server.scope_id() != 0 => self.url.host.clone(),
            server => server.ip().to_string(),
        };
        let (port, mount_port) = (Some(self.server.port()), Some(self.mount_port));
        Url { host, port, mount_port, export: Some(self.export.clone()), ..self.url.clone() }
    }

    /// The tasks that its calls run beside.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// The address that it was mounted by.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The export's path on the server.
    pub(crate) fn export(&self) -> &str {
        &self.export
    }

    /// The export's own directory.
    pub fn root(&self) -> Handle {
        self.root
    }

    /// Largest READ, in bytes.
    pub fn read_bytes(&self) -> u32 {
        self.limits.most_read_bytes
    }

    /// Largest WRITE, in bytes.
    pub fn write_bytes(&self) -> u32 {
        self.limits.most_write_bytes
    }

    pub(crate) fn listing_bytes(&self) -> u32 {
        self.limits.listing_bytes
    }

    /// Lists names alone from now on, and asks for attributes one by one, as with a server that has
    /// no READDIRPLUS.
    pub fn list_names_only(&self) {
        self.lists_attributes.set(false);
    }

    /// Asks the server for nothing: that it answers.
    ///
    /// # Errors
    /// That it does not.
    pub async fn call_null(&self) -> Result<()> {
        let done = self.connection().call(&nfs3::Null, None, |()| ()).await;
        done.map_err(|why| Error::new("asking whether it is there", &self.url, why))
    }

    pub(crate) fn lists_attributes(&self) -> &Cell<bool> {
        &self.lists_attributes
    }

    /// The most requests that its windows can ever let out.
    pub fn most_outstanding(&self) -> u32 {
        let most = match self.url.window {
            WindowKind::Fixed(size) => size,
            WindowKind::Dynamic { most } => most,
        };
        match self.url.connections {
            Connections::Fixed(count) => most * count,
            // A window that is found has room for several connections' requests.
            Connections::Found { .. } => most,
        }
    }

    /// How its connections are doing, together.
    pub fn health(&self) -> Health {
        self.connections.health()
    }

    /// The connection with the fewest requests, of as many as are useful.
    fn connection(&self) -> Rc<Connection> {
        self.connections.least_busy(self.spread())
    }

    /// Asks for the connections that are useful and not there yet: how many are.
    fn spread(&self) -> usize {
        let count = self.spread.borrow().count() as usize;
        self.connections.ask_for(count, &self.tasks, || {
            let settings = Settings { has_answered: false, ..self.settings() };
            Connection::open(&self.tasks, self.server, settings)
        });
        count
    }

    /// Calls a procedure of NFS, again and again while the server asks for time. `path` is told in
    /// errors.
    ///
    /// # Errors
    /// What the server says; no answer.
    pub async fn call<C, T, K>(
        &self,
        action: &'static str,
        path: &dyn ToPath,
        call: &C,
        keep: impl FnOnce(T) -> K,
    ) -> Result<K>
    where
        C: for<'a> Procedure<Results<'a> = Answer<T>>,
    {
        self.call_changing(action, path, call).await.outcome.map(keep)
    }

    /// As [`Client::call`], for a procedure that answers otherwise when it is carried out twice.
    pub(crate) async fn call_changing<C, T>(
        &self,
        action: &'static str,
        path: &dyn ToPath,
        call: &C,
    ) -> Changed<T>
    where
        C: for<'a> Procedure<Results<'a> = Answer<T>>,
    {
        let answered = match self.answered(call, None).await {
            Ok(answered) => answered,
            Err(why) => return Changed { outcome: Err(path.error(action, why)), resent: false },
        };
        let outcome = match call.read(&mut crate::xdr::Reader::new(&answered.bytes)) {
            Ok(answer) => answer.map_err(|status| path.error(action, Why::Status(status))),
            Err(malformed) => Err(path.error(action, malformed.into())),
        };
        Changed { outcome, resent: answered.resent }
    }

    /// The encoded results of a call, once the server does not ask for time any more.
    pub(crate) async fn bytes<C: Procedure>(
        &self,
        call: &C,
        payload: Option<Payload>,
    ) -> std::result::Result<Bytes, Why> {
        self.answered(call, payload).await.map(|answered| answered.bytes)
    }

    async fn answered<C: Procedure>(
        &self,
        call: &C,
        payload: Option<Payload>,
    ) -> std::result::Result<Answered, Why> {
        let give_up_ns = self.url.retry.give_up_ns(self.url.transport);
        let give_up_at = self.tasks.now().saturating_add(give_up_ns);
        let (mut later_ns, mut tries, mut resent) = (LATER_NS.0, 0, false);
        loop {
            let connection = self.connection();
            let results = match connection.results(call, payload.clone()).await {
                // A server that is out of memory, or, at what changes nothing, still at the first
                // of two equal requests.
                Err(Why::Failure(Failure::Refused(Refusal::System))) if tries < MOST_TRIES => {
                    tries += 1;
                    // At first it is mostly the latter, and over.
                    if tries > 1 {
                        self.tasks.sleep(Duration::from_nanos(later_ns)).await;
                        later_ns = (later_ns * 2).min(LATER_NS.1);
                    }
                    continue;
                }
                results => results?,
            };
            resent |= results.resent;
            let asks_for_time = (results.bytes)
                .first_chunk()
                .is_some_and(|status| u32::from_be_bytes(*status) == Status::JUKEBOX.0);
            if !asks_for_time || self.tasks.now() >= give_up_at {
                if C::CLASS.is_data() {
                    let bytes = results.bytes.len() + payload.as_ref().map_or(0, Payload::len);
                    self.spread.borrow_mut().moved(self.tasks.now(), bytes as u64);
                }
                return Ok(Answered { resent, ..results });
            }
            connection.congested();
            self.tasks.sleep(Duration::from_nanos(later_ns)).await;
            later_ns = (later_ns * 2).min(LATER_NS.1);
        }
    }

    /// A name in a directory; `None` where it has none such.
    pub async fn look_up(
        &self,
        directory: Handle,
        name: &[u8],
        path: &dyn ToPath,
    ) -> Result<Option<Found>> {
        let call = Lookup { directory, name };
        let results = self.bytes(&call, None).await.map_err(|why| path.error("looking up", why))?;
        let answer = call.read(&mut crate::xdr::Reader::new(&results));
        match answer.map_err(|malformed| path.error("looking up", malformed.into()))? {
            Err(Status::NOENT) => Ok(None),
            Err(status) => Err(path.error("looking up", Why::Status(status))),
            Ok((handle, Some(attributes))) => Ok(Some(Found { handle, attributes })),
            Ok((handle, None)) => self.attributes(handle, path).await.map(Some),
        }
    }

    /// What a handle stands for now.
    pub(crate) async fn attributes(&self, handle: Handle, path: &dyn ToPath) -> Result<Found> {
        let call = nfs3::GetAttributes(handle);
        let attributes = self.call("reading attributes", path, &call, |found| found).await?;
        Ok(Found { handle, attributes })
    }

    /// Tells the server that the export is no longer used. A server that does not answer is left
    /// alone.
    pub async fn unmount(&self) {
        if let Ok(connection) = control(&self.tasks, &self.url, self.mount_port) {
            let call = Unmount(self.export.as_bytes());
            let done = connection.call(&call, None, |()| ());
            let _ = self.tasks.timeout(Duration::from_secs(1), done).await;
        }
    }
}

/// What errors call a file by.
pub trait ToPath {
    /// An error of it.
    fn error(&self, action: &'static str, why: Why) -> Error;
}

impl<T: std::fmt::Display> ToPath for T {
    fn error(&self, action: &'static str, why: Why) -> Error {
        Error::new(action, self, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_holds_what_lies_below_it_only() {
        assert!(lies_in("/a/b", "/a") && lies_in("/a", "/a/") && lies_in("/a", "/"));
        assert!(!lies_in("/ab", "/a") && !lies_in("/", "/a"));
    }
}
