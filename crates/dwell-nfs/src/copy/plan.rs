// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a copy would do, without doing it.

use std::collections::HashSet;

use dwell::executor::Handle as Tasks;

use super::between::Ends;
use super::{Options, Watcher, is_there};
use crate::error::{Error, Result};
use crate::lineage::Lineage;
use crate::nfs3::Kind;
use crate::tree::{Facts, Node, checked};

/// What a copy would do with a name at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make it.
    Makes,
    /// Put the copy in place of what is there.
    Replaces,
    /// Leave it as it is: it is there already.
    Leaves,
}

/// One name that a copy would make, replace or leave as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its path or address.
    pub path: String,
    /// What it would be.
    pub kind: Kind,
    /// Data to be copied for it, in bytes.
    pub bytes: u64,
    /// What would be done.
    pub effect: Effect,
}

/// Something to be copied into a directory, which may not be there.
struct Item {
    from: Node,
    facts: Facts,
    into: Option<Node>,
    name: Vec<u8>,
    path: String,
    lineage: Lineage,
}

/// What [`between`](super::between) would do, in the order of paths, and how much could not be
/// copied. Changes nothing.
///
/// # Errors
/// What keeps anything from being copied.
pub async fn plan(
    tasks: &Tasks,
    from: &str,
    to: &str,
    options: Options,
    watcher: &dyn Watcher,
) -> Result<(Vec<Planned>, u64)> {
    let Ends { from, into, name, clients } = Ends::of(tasks, from, to, options).await?;
    let planned = walk(from, into, name, options, watcher).await;
    Ends::leave(clients).await;
    planned
}

async fn walk(
    from: Node,
    into: Node,
    name: Vec<u8>,
    options: Options,
    watcher: &dyn Watcher,
) -> Result<(Vec<Planned>, u64)> {
    let facts = from.facts().await?;
    options.allow(&from, &facts)?;
    let (mut known, mut all, mut failures) = (HashSet::new(), Vec::new(), 0);
    let path = into.path_of(&name);
    let lineage = Lineage::default();
    let mut todo = vec![Item { from, facts, into: Some(into), name, path, lineage }];
    while let Some(item) = todo.pop() {
        let number = (item.facts.file_system, item.facts.file);
        let is_file = item.facts.kind == Kind::File;
        // One more name of a file has no data of its own.
        let is_name = is_file && options.times && item.facts.links > 1 && !known.insert(number);
        match item.look(options, is_name).await {
            Ok((planned, inside)) => {
                all.push(planned);
                // As a copy goes through a tree: by that it knows a file's first name.
                todo.extend(inside);
            }
            Err(error) => {
                failures += 1;
                watcher.failed(&error);
            }
        }
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((all, failures))
}

impl Item {
    /// What would be done with it, and what is in it.
    async fn look(&self, options: Options, is_name: bool) -> Result<(Planned, Vec<Item>)> {
        let Item { from, facts, into, name, path, lineage } = self;
        let name = checked(name, from)?;
        let there = match into {
            Some(into) => into.get(name).await?,
            None => None,
        };
        let is_directory = facts.kind == Kind::Directory;
        if let Some((_, there)) = &there
            && is_directory != (there.kind == Kind::Directory)
        {
            let (is, copy) = (there.kind.as_str(), facts.kind.as_str());
            return Err(Error::invalid(
                path,
                format!("a {is} is there; a {copy} cannot replace it"),
            ));
        }
        let effect = match &there {
            None => Effect::Makes,
            Some(_) if is_directory => Effect::Leaves,
            Some((_, there)) if options.resume && !is_name && is_there(facts, there) => {
                Effect::Leaves
            }
            Some(_) => Effect::Replaces,
        };
        let has_data = facts.kind == Kind::File && !is_name && effect != Effect::Leaves;
        let bytes = if has_data { facts.bytes } else { 0 };
        let planned = Planned { path: path.clone(), kind: facts.kind, bytes, effect };
        if !is_directory {
            return Ok((planned, Vec::new()));
        }
        let lineage = lineage.enter(from.identity(facts), from)?;
        let into = there.map(|(node, _)| node);
        let inside = from.list().await?.into_iter().map(|(name, from, facts)| {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            Item { from, facts, into: into.clone(), name, path, lineage: lineage.clone() }
        });
        Ok((planned, inside.collect()))
    }
}
