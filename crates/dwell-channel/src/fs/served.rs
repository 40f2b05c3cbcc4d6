// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request on its way to the tree: counted, and answered by this thread or by one that may wait.

use std::sync::Arc;

use fuser::Request;

use super::counts::Asked;
use super::tree::Tree;

/// What the kernel talks to.
pub(super) struct Served(pub Arc<Tree>);

impl Served {
    /// The tree, which carries the request out.
    pub fn count(&self, asked: Asked) -> &Tree {
        self.0.counts.one(asked);
        &self.0
    }

    /// Answers a request: here, or where it may take long on a thread of its own.
    pub fn answer(
        &self,
        request: &Request,
        may_take_long: bool,
        answer: impl FnOnce(&Tree) + Send + 'static,
    ) {
        match may_take_long {
            true => self.slowly(request, answer),
            false => answer(&self.0),
        }
    }

    /// Answers a request that may take long on a thread that has nothing else to do.
    pub fn slowly(&self, request: &Request, answer: impl FnOnce(&Tree) + Send + 'static) {
        let tree = self.0.clone();
        self.0.slow.run(tree.grants.account(request.uid()), move || answer(&tree));
    }
}
