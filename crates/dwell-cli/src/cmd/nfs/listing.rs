// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `dwell nfs ls` and `dwell nfs stat` print: lines for people, or JSON.

use anyhow::Result;
use dwell_nfs::client::Found;
use dwell_nfs::directory::Item;
use dwell_nfs::nfs3::{Attributes, SpaceLeft, Time, access};
use dwell_nfs::url::Url;
use serde_json::{Value, json};

use crate::show;

/// The entries of a directory, by name.
pub fn of(mut items: Vec<Item>, as_json: bool) -> Result<String> {
    items.sort_by(|a, b| a.name.cmp(&b.name));
    let named = |item: &Item| file(&String::from_utf8_lossy(&item.name), &item.found.attributes);
    match as_json {
        true => show::json(&items.iter().map(named).collect::<Vec<_>>()),
        false => Ok(items.iter().map(line).collect()),
    }
}

fn line(item: &Item) -> String {
    let attributes = &item.found.attributes;
    format!(
        "{} {:>3} {:>5} {:>5} {:>12} {} {}\n",
        mode(attributes),
        attributes.links,
        attributes.uid,
        attributes.gid,
        attributes.bytes,
        moment(attributes.modified),
        show::one_line(&String::from_utf8_lossy(&item.name)),
    )
}

/// Everything known of a file, the rights of the user in it, and the space around it.
pub fn facts(
    url: &Url,
    found: &Found,
    granted: u32,
    space: &SpaceLeft,
    as_json: bool,
) -> Result<String> {
    let Attributes { kind, links, uid, gid, bytes, used_bytes, file: number, .. } =
        found.attributes;
    let words = [
        (access::READ, "read"),
        (access::LOOKUP, "look up"),
        (access::MODIFY, "modify"),
        (access::EXTEND, "extend"),
        (access::DELETE, "delete"),
        (access::EXECUTE, "execute"),
    ];
    let may: Vec<&str> =
        words.iter().filter(|(bit, _)| granted & bit != 0).map(|(_, word)| *word).collect();
    if as_json {
        return show::json(&json!({
            "file": file(&url.to_string(), &found.attributes),
            "may": may,
            "space": {
                "total_bytes": space.total_bytes,
                "available_bytes": space.available_bytes,
                "total_files": space.total_files,
                "free_files": space.free_files,
            },
        }));
    }
    Ok(format!(
        "{}: {}, {bytes} bytes ({used_bytes} on the server), {}\n\
         owner {uid}, group {gid}, {links} links, number {number}\n\
         you may: {}\nread {}\nwritten {}\nchanged {} (UTC)\n\
         space: {} of {} bytes free, {} of {} files\n",
        show::one_line(&url.to_string()),
        kind.as_str(),
        mode(&found.attributes),
        if may.is_empty() { "nothing".to_owned() } else { may.join(", ") },
        moment(found.attributes.accessed),
        moment(found.attributes.modified),
        moment(found.attributes.changed),
        space.available_bytes,
        space.total_bytes,
        space.free_files,
        space.total_files,
    ))
}

/// A file for a program; moments in seconds since 1970.
fn file(name: &str, attributes: &Attributes) -> Value {
    let seconds = |time: Time| f64::from(time.seconds) + f64::from(time.nanoseconds) / 1e9;
    json!({
        "name": name,
        "kind": attributes.kind.as_str(),
        "mode": attributes.mode,
        "links": attributes.links,
        "uid": attributes.uid,
        "gid": attributes.gid,
        "bytes": attributes.bytes,
        "used_bytes": attributes.used_bytes,
        "number": attributes.file,
        "accessed": seconds(attributes.accessed),
        "modified": seconds(attributes.modified),
        "changed": seconds(attributes.changed),
    })
}

fn mode(attributes: &Attributes) -> String {
    let mut text = String::from(attributes.kind.letter());
    for shift in [6, 3, 0] {
        for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
            let set = attributes.mode >> shift & bit != 0;
            text.push(if set { letter } else { '-' });
        }
    }
    text
}

/// A moment as `2026-01-31 12:00:00` in UTC.
fn moment(time: Time) -> String {
    let (days, second) = (i64::from(time.seconds / 86_400), time.seconds % 86_400);
    // Days since 1970 to a date of the Gregorian calendar, with years that begin in March.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    let year = year + era * 400;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_by_the_calendar() {
        let at = |seconds| moment(Time { seconds, nanoseconds: 0 });
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(at(1_767_225_599), "2025-12-31 23:59:59");
    }
}
