// SPDX-License-Identifier: MIT OR Apache-2.0
//! To whom it counts what a user takes: a user who was given subordinate numbers (subuid(5)) could
//! otherwise have a share for each of them.

use std::fs;

/// The users that own ranges of users' numbers (subordinate ids). The default owns none: each user
/// counts alone.
#[derive(Clone, Debug, Default)]
pub struct Owners(Vec<Subordinates>);

/// Some numbers of one owner.
#[derive(Clone, Copy, Debug)]
struct Subordinates {
    first: u32,
    count: u32,
    owner: u32,
}

impl Owners {
    /// Those that this machine's `/etc/subuid` names at this moment.
    pub fn of_this_machine() -> Owners {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Owners::parse(&read("/etc/subuid"), &read("/etc/passwd"))
    }

    /// From the text of `subuid` and, for owners that are named there, of `passwd`. Lines that make
    /// no sense own nothing.
    pub fn parse(subuid: &str, passwd: &str) -> Owners {
        let number = |user: &str| {
            let named = || {
                let mut lines = passwd.lines().map(|line| line.split(':'));
                lines.find_map(|mut line| (line.next() == Some(user)).then(|| line.nth(1))?)
            };
            user.parse().ok().or_else(|| named()?.parse().ok())
        };
        let owned = |line: &str| {
            let mut fields = line.trim().split(':');
            let owner = number(fields.next()?)?;
            let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            Some(Subordinates { first, count, owner })
        };
        Owners(subuid.lines().filter_map(owned).collect())
    }

    /// The user that accounts for what this user takes: the owner of its number, or itself.
    pub fn of(&self, uid: u32) -> u32 {
        let owns =
            |range: &&Subordinates| uid.checked_sub(range.first).is_some_and(|at| at < range.count);
        self.0.iter().find(owns).map_or(uid, |range| range.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_numbers_count_to_their_owner_and_others_to_themselves() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";
        let subuid = "ann:100000:65536\n1001:165536:10\nnobody-here:1:1000\nann:no:number\n\n";
        let owners = Owners::parse(subuid, passwd);
        let expected = [(0, 0), (5, 5), (1000, 1000), (100_000, 1000), (165_535, 1000)];
        for (uid, owner) in expected.into_iter().chain([(165_536, 1001), (165_546, 165_546)]) {
            assert_eq!(owners.of(uid), owner, "{uid}");
        }
        assert_eq!(Owners::default().of(100_000), 100_000);
        assert_eq!(Owners::parse("1:4294967295:9", "").of(u32::MAX), 1);
    }
}
