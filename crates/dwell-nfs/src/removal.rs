// SPDX-License-Identifier: MIT OR Apache-2.0
//! Removing whole directories, and what that would remove.

use std::rc::Rc;

use crate::client::{Client, Found};
use crate::directory::Item;
use crate::error::Result;
use crate::lineage::{Identity, Lineage};
use crate::nfs3::{Handle, Kind};
use crate::url::Url;

fn identity(found: &Found) -> Identity {
    (found.handle, found.attributes.file_system, found.attributes.file)
}

impl Client {
    /// Removes what a name stands for; a directory only with all that is in it, if `whole` says so,
    /// or when it is empty. Calls `removed` for each name.
    ///
    /// # Errors
    /// What the server says; a directory that contains itself.
    pub async fn remove_all(
        self: &Rc<Self>,
        directory: Handle,
        item: Item,
        whole: bool,
        url: &Url,
        removed: &mut dyn FnMut(&Url),
    ) -> Result<()> {
        enum Step {
            Visit(Handle, Item, Url, Lineage),
            Leave(Handle, Item, Url),
        }
        let mut steps = vec![Step::Visit(directory, item, url.clone(), Lineage::default())];
        while let Some(step) = steps.pop() {
            let url = match step {
                Step::Visit(parent, item, url, lineage) => {
                    let handle = item.found.handle;
                    if item.found.attributes.kind == Kind::Directory {
                        let lineage = lineage.enter(identity(&item.found), &url)?;
                        steps.push(Step::Leave(parent, item, url.clone()));
                        let inside =
                            if whole { self.list(handle, &url).await? } else { Vec::new() };
                        steps.extend(inside.into_iter().map(|inner| {
                            let url = url.join(&String::from_utf8_lossy(&inner.name));
                            Step::Visit(handle, inner, url, lineage.clone())
                        }));
                        continue;
                    }
                    self.remove(parent, &item.name, &item.found, &url).await?;
                    url
                }
                Step::Leave(parent, item, url) => {
                    self.remove_directory(parent, &item, &url).await?;
                    url
                }
            };
            removed(&url);
        }
        Ok(())
    }

    /// What [`Client::remove_all`] would remove, a directory before what is in it.
    ///
    /// # Errors
    /// As of that.
    pub async fn all_in(&self, url: &Url, found: Found) -> Result<Vec<Url>> {
        let (mut left, mut seen) = (vec![(url.clone(), found, Lineage::default())], Vec::new());
        while let Some((url, found, lineage)) = left.pop() {
            if found.attributes.kind == Kind::Directory {
                let lineage = lineage.enter(identity(&found), &url)?;
                let items = self.list(found.handle, &url).await?;
                left.extend(items.into_iter().map(|item| {
                    let url = url.join(&String::from_utf8_lossy(&item.name));
                    (url, item.found, lineage.clone())
                }));
            }
            seen.push(url);
        }
        Ok(seen)
    }
}
