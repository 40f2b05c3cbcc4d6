// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command's words as one line that a shell would read as the same words.

/// The line.
pub(super) fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+{}".contains(c) || !c.is_ascii();
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_shell_would_change_is_quoted() {
        let words = ["sqlite3", "--a=b", ".read x.sql", "", "it's", "$HOME", "µ"].map(String::from);
        assert_eq!(line(&words), "sqlite3 --a=b '.read x.sql' '' 'it'\\''s' '$HOME' µ");
    }
}
