// SPDX-License-Identifier: MIT OR Apache-2.0
//! For how long the kernel may believe what it was told of a file. Pure: the time is an argument.

use std::time::Duration;

use crate::nfs3::{Attributes, Kind, Time};
use crate::url::Caching;

/// What changes whenever a file's data does: by it a file that is opened again is known to be as it
/// was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    bytes: u64,
    modified: Time,
    changed: Time,
}

impl From<&Attributes> for Stamp {
    fn from(of: &Attributes) -> Self {
        Stamp { bytes: of.bytes, modified: of.modified, changed: of.changed }
    }
}

/// A tenth of the time since the last change, within the bounds of its kind: what changed a moment
/// ago is likely to change again.
pub(super) fn lifetime(of: &Attributes, now: Duration, caching: &Caching) -> Duration {
    let (least, most) = match of.kind {
        Kind::Directory => caching.directories_s,
        _ => caching.files_s,
    };
    let changed = of.modified.max(of.changed);
    let age = now.saturating_sub(Duration::new(changed.seconds.into(), changed.nanoseconds));
    let (least, most) = (Duration::from_secs(least.into()), Duration::from_secs(most.into()));
    (age / 10).max(least).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_changed_lately_are_asked_for_sooner() {
        let caching = Caching::default();
        let of = |kind, seconds| {
            let mut attributes = crate::fuse::nodes::tests::attributes(7);
            attributes.kind = kind;
            attributes.modified = Time { seconds, nanoseconds: 0 };
            lifetime(&attributes, Duration::from_secs(1000), &caching).as_secs()
        };
        assert_eq!([of(Kind::File, 999), of(Kind::File, 900), of(Kind::File, 0)], [3, 10, 60]);
        assert_eq!([of(Kind::Directory, 999), of(Kind::Directory, 0)], [30, 60]);
        // A server's clock that goes ahead.
        assert_eq!(of(Kind::File, 2000), 3);
        let never = Caching { files_s: (0, 0), directories_s: (0, 0) };
        let attributes = crate::fuse::nodes::tests::attributes(7);
        assert_eq!(lifetime(&attributes, Duration::from_secs(1000), &never), Duration::ZERO);
    }
}
