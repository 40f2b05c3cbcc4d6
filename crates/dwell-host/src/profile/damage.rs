// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which field of a JSON text a parser stumbled over: it tells only line and column.

/// One level of nesting around the place reached.
enum Level {
    /// In an object: the key read last.
    Key(String),
    /// In an array: the number of the element.
    Index(usize),
}

/// Path of the field at `line` and `column` (both from 1, the column in bytes), such as
/// `curves[2].mode`. The text before that place must be well formed, as it is wherever a parser
/// got to.
pub(super) fn field_at(text: &str, line: usize, column: usize) -> String {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let end = (before + column).min(text.len());
    let mut levels: Vec<Level> = Vec::new();
    let mut string: Option<Vec<u8>> = None;
    let mut expects_key = false;
    let mut bytes = text.as_bytes()[..end].iter().copied();
    while let Some(byte) = bytes.next() {
        if let Some(read) = &mut string {
            match byte {
                b'\\' => read.extend(bytes.next()),
                b'"' => {
                    if let (true, Some(Level::Key(key))) = (expects_key, levels.last_mut()) {
                        *key = String::from_utf8_lossy(read).into_owned();
                    }
                    string = None;
                }
                _ => read.push(byte),
            }
            continue;
        }
        match byte {
            b'"' => string = Some(Vec::new()),
            b':' => expects_key = false,
            b'{' => {
                levels.push(Level::Key(String::new()));
                expects_key = true;
            }
            b'[' => {
                levels.push(Level::Index(0));
                expects_key = false;
            }
            b',' => match levels.last_mut() {
                Some(Level::Key(_)) => expects_key = true,
                Some(Level::Index(index)) => *index += 1,
                None => {}
            },
            // A parser that misses a field says so at the brace: what lacks it is one level up.
            b'}' | b']' => {
                levels.pop();
                expects_key = false;
            }
            _ => {}
        }
    }
    let mut path = String::new();
    for level in &levels {
        match level {
            Level::Key(key) if key.is_empty() => {}
            Level::Key(key) if path.is_empty() => path.push_str(key),
            Level::Key(key) => {
                path.push('.');
                path.push_str(key);
            }
            Level::Index(index) => path.push_str(&format!("[{index}]")),
        }
    }
    if path.is_empty() { format!("line {line}, column {column}") } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a parser that wants only numbers, and an `x` in each inner object, stumbles.
    fn stumble(text: &str) -> String {
        #[derive(serde::Deserialize)]
        #[allow(dead_code)]
        struct Inner {
            x: u64,
        }
        #[derive(serde::Deserialize)]
        #[allow(dead_code)]
        struct Outer {
            #[serde(default)]
            a: u64,
            #[serde(default)]
            list: Vec<Inner>,
        }
        let error = serde_json::from_str::<Outer>(text).map(|_| ()).unwrap_err();
        field_at(text, error.line(), error.column())
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named() {
        assert_eq!(stumble("{\"b\": {\"c\": [1,{}]},\n \"a\": \"no\"}"), "a");
        assert_eq!(stumble(r#"{"a":1,"list":[{"x":1},{"y":",]}\"","x":-1}]}"#), "list[1].x");
        assert_eq!(stumble(r#"{"list": {}}"#), "list");
    }

    #[test]
    fn a_missing_field_is_told_by_what_lacks_it() {
        assert_eq!(stumble(r#"{"list":[{"x":1},{"y":2}]}"#), "list[1]");
    }

    #[test]
    fn a_text_cut_short_is_told_by_where_it_ends() {
        assert_eq!(stumble(r#"{"list":[{"x":1},{"x""#), "list[1].x");
        assert_eq!(stumble(""), "line 1, column 0");
        assert_eq!(stumble("nonsense"), "line 1, column 2");
    }
}
