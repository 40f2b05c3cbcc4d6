// SPDX-License-Identifier: MIT OR Apache-2.0
//! `name=value` on a command line, put into a TOML table that has a value of that name already.

use std::ops::Range;

/// Why a value could not be put.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// No value is given.
    #[error("`{0}`: write a parameter as name=value")]
    NoValue(String),
    /// No parameter has that name.
    #[error("no parameter is called `{0}`; there are: {1}")]
    Unknown(String, String),
    /// The value is of another kind.
    #[error("{name}={value}: must be {must}")]
    Value {
        /// Which.
        name: String,
        /// What was given.
        value: String,
        /// What would be right.
        must: &'static str,
    },
}

/// The error of a TOML text in one line: where its `span` begins, and the message.
pub fn in_line(text: &str, span: Option<Range<usize>>, message: &str) -> String {
    let before = text.get(..span.map_or(0, |span| span.start)).unwrap_or(text);
    format!("line {}: {}", before.matches('\n').count() + 1, message.replace('\n', " "))
}

/// Changes one value; parts of its name are separated by dots.
pub(crate) fn put(table: &mut toml::Table, set: &str) -> Result<(), AssignError> {
    let (name, value) = set.split_once('=').ok_or_else(|| AssignError::NoValue(set.into()))?;
    let (name, value) = (name.trim(), value.trim());
    let mut here = table;
    let mut parts = name.split('.').peekable();
    while let Some(part) = parts.next() {
        let known = here.keys().cloned().collect::<Vec<_>>().join(", ");
        let unknown = || AssignError::Unknown(name.into(), known);
        let Some(found) = here.get_mut(part) else { return Err(unknown()) };
        match (found, parts.peek().is_some()) {
            (toml::Value::Table(inner), true) => here = inner,
            (found, false) => {
                *found = like(found, value).map_err(|must| match must {
                    None => unknown(),
                    Some(must) => {
                        AssignError::Value { name: name.into(), value: value.into(), must }
                    }
                })?;
                return Ok(());
            }
            _ => return Err(unknown()),
        }
    }
    Ok(())
}

/// The value of the same kind as another one; what it must be, or nothing where that cannot be set.
fn like(known: &toml::Value, text: &str) -> Result<toml::Value, Option<&'static str>> {
    match known {
        toml::Value::String(_) => Ok(toml::Value::String(text.into())),
        toml::Value::Boolean(_) => {
            text.parse().map(toml::Value::Boolean).map_err(|_| Some("true or false"))
        }
        toml::Value::Integer(_) => {
            text.parse().map(toml::Value::Integer).map_err(|_| Some("a whole number"))
        }
        toml::Value::Float(_) => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(toml::Value::Float(number)),
            _ => Err(Some("a number")),
        },
        _ => Err(None),
    }
}
