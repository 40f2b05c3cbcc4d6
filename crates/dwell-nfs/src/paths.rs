// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths from the root of an export, and the symbolic links in them.

use std::collections::VecDeque;

use crate::client::{Client, Found};
use crate::error::{Error, Result, Why};
use crate::nfs3::{Kind, Status};
use crate::url::Url;

/// Names that a path may have.
const MOST_NAMES: usize = 1024;
/// Symbolic links that a path may lead through, as in the kernel.
const MOST_LINKS: u32 = 40;

impl Client {
    /// The names of an address below the export.
    pub(crate) fn names<'u>(&self, url: &'u Url) -> Vec<&'u str> {
        let below = url.path.strip_prefix(self.export().trim_end_matches('/')).unwrap_or(&url.path);
        below.split('/').filter(|name| !name.is_empty()).collect()
    }

    /// Follows an address from the root of the export, and the symbolic links on its way. Where the
    /// last name is a link, it finds the link.
    ///
    /// # Errors
    /// What the server says; links that lead out of the export, or round and round.
    pub async fn find(&self, url: &Url) -> Result<Option<Found>> {
        self.walk(url, false).await
    }

    /// As [`Client::find`], but it follows the last name too.
    ///
    /// # Errors
    /// As [`Client::find`].
    pub async fn find_followed(&self, url: &Url) -> Result<Option<Found>> {
        self.walk(url, true).await
    }

    /// Walks a second time where a directory on the way was removed or replaced after it was found.
    async fn walk(&self, url: &Url, follow_last: bool) -> Result<Option<Found>> {
        match self.walk_once(url, follow_last).await {
            Err(error) if error.status() == Some(Status::STALE) => {
                self.walk_once(url, follow_last).await
            }
            walked => walked,
        }
    }

    async fn walk_once(&self, url: &Url, follow_last: bool) -> Result<Option<Found>> {
        let mut names: VecDeque<Vec<u8>> =
            self.names(url).into_iter().map(|name| name.as_bytes().to_vec()).collect();
        // From the root to where it is.
        let mut way = vec![self.attributes(self.root(), url).await?];
        let mut links = 0;
        while let Some(name) = names.pop_front() {
            if names.len() > MOST_NAMES {
                return Err(Error::invalid(url, "the path has too many names"));
            }
            let here = way[way.len() - 1];
            if here.attributes.kind != Kind::Directory {
                return Err(Error::new("looking up", url, Why::Status(Status::NOTDIR)));
            }
            match &name[..] {
                b"." => continue,
                b".." if way.len() > 1 => {
                    way.pop();
                    continue;
                }
                b".." => {
                    return Err(Error::invalid(url, "a symbolic link leads out of the export"));
                }
                _ => {}
            }
            let Some(found) = self.look_up(here.handle, &name, url).await? else { return Ok(None) };
            if found.attributes.kind != Kind::Link || (names.is_empty() && !follow_last) {
                way.push(found);
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                let round = std::io::Error::from_raw_os_error(libc::ELOOP);
                return Err(Error::new("looking up", url, round));
            }
            let target = self.read_link(found.handle, url).await?;
            let target = match target.strip_prefix(b"/") {
                None => &target[..],
                Some(_) => {
                    way.truncate(1);
                    below(&target, self.export().as_bytes()).ok_or_else(|| {
                        let target = String::from_utf8_lossy(&target);
                        Error::invalid(url, format!("a link leads out of the export, to {target}"))
                    })?
                }
            };
            let parts = target.rsplit(|byte| *byte == b'/').filter(|part| !part.is_empty());
            parts.for_each(|part| names.push_front(part.to_vec()));
        }
        Ok(way.pop())
    }

    /// As [`Client::find`], where something must be.
    ///
    /// # Errors
    /// That it is not there, too.
    pub async fn require(&self, url: &Url) -> Result<Found> {
        self.find(url).await?.ok_or_else(|| missing(url))
    }

    /// As [`Client::find_followed`], where something must be.
    ///
    /// # Errors
    /// That it is not there, too.
    pub async fn require_followed(&self, url: &Url) -> Result<Found> {
        self.find_followed(url).await?.ok_or_else(|| missing(url))
    }
}

fn missing(url: &Url) -> Error {
    Error::new("looking up", url, Why::Status(Status::NOENT))
}

/// What of an absolute path lies below an export.
fn below<'p>(path: &'p [u8], export: &[u8]) -> Option<&'p [u8]> {
    let export = export.strip_suffix(b"/").unwrap_or(export);
    let rest = path.strip_prefix(export)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}
