// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `dwell nfs cp --dry-run` prints.

use dwell_nfs::copy::{Effect, Planned};
use dwell_nfs::nfs3::Kind;

use crate::show;

/// A line for each name, and one with the sums.
pub fn of(planned: &[Planned]) -> String {
    let count = |effect| {
        let is_one = |one: &&Planned| one.effect == effect && one.kind != Kind::Directory;
        planned.iter().filter(is_one).count()
    };
    // A server may tell any length.
    let bytes = planned.iter().fold(0u64, |bytes, one| bytes.saturating_add(one.bytes));
    let (makes, replaces) = (count(Effect::Makes), count(Effect::Replaces));
    let leaves = count(Effect::Leaves);
    let sums = format!(
        "{bytes} bytes to copy: {makes} new, {replaces} to be replaced, {leaves} there already\n"
    );
    planned.iter().map(line).chain([sums]).collect()
}

fn line(one: &Planned) -> String {
    let does = match one.effect {
        Effect::Makes => "new",
        Effect::Replaces => "replace",
        Effect::Leaves => "leave",
    };
    let slash = if one.kind == Kind::Directory { "/" } else { "" };
    format!("{does:<8}{:>14} {}{slash}\n", one.bytes, show::one_line(&one.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_a_line_for_each_name_and_one_for_all() {
        let one =
            |path: &str, kind, bytes, effect| Planned { path: path.into(), kind, bytes, effect };
        let planned = [
            one("d", Kind::Directory, 0, Effect::Leaves),
            one("d/a", Kind::File, 12, Effect::Makes),
            one("d/b", Kind::File, 30, Effect::Replaces),
            one("d/c\n", Kind::Link, 0, Effect::Makes),
            one("d/e", Kind::File, 0, Effect::Leaves),
        ];
        let text = of(&planned);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "leave                0 d/");
        assert_eq!(lines[2], "replace             30 d/b");
        assert_eq!(lines[5], "42 bytes to copy: 2 new, 1 to be replaced, 1 there already");
        assert_eq!(lines.len(), 6);
    }
}
