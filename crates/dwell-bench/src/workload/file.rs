// SPDX-License-Identifier: MIT OR Apache-2.0
//! A workload's file: TOML with parameters, of which lists make one workload per value.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use dwell_sim::assign::in_line;
use toml::{Table, Value};

use super::spec::Spec;

/// Most workloads that the lists of one file may make.
const MOST_VARIANTS: usize = 1000;
/// Parameters of these names are sizes: they are the x axis of a chart rather than a part of the
/// name.
const SIZES: [&str; 2] = ["io_bytes", "file_bytes"];

/// A workload's file, read and not yet taken apart.
#[derive(Clone, Debug)]
pub struct WorkloadFile {
    /// Where it is from: the file, or the shipped workload.
    pub origin: String,
    table: Table,
    parameters: Table,
}

/// One workload of a file: all parameters have one value.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Name, with the values of parameters that have several.
    pub label: String,
    /// The size that is the x axis, in bytes; 0 without one.
    pub size_bytes: u64,
    /// What to do.
    pub spec: Spec,
}

impl WorkloadFile {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read or is not TOML, named.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the workload {}", path.display()))?;
        Self::parse(path.display().to_string(), &text)
    }

    /// Takes a file's text.
    ///
    /// # Errors
    /// A line that is not TOML.
    pub fn parse(origin: impl Into<String>, text: &str) -> Result<Self> {
        let origin = origin.into();
        let mut table: Table = match text.parse() {
            Ok(table) => table,
            Err(error) => bail!("{origin}, {}", in_line(text, error.span(), error.message())),
        };
        let parameters = match table.remove("parameters") {
            Some(Value::Table(parameters)) => parameters,
            None => Table::new(),
            Some(_) => bail!("{origin}: parameters: a table is wanted"),
        };
        Ok(WorkloadFile { origin, table, parameters })
    }

    /// Gives a parameter another value, or several, as on a command line: `read_bias=0,10`.
    ///
    /// # Errors
    /// Another form; a parameter that the file does not have; a value of another kind.
    pub fn set(&mut self, assignment: &str) -> Result<()> {
        let (name, values) = assignment
            .split_once('=')
            .with_context(|| format!("{assignment}: NAME=VALUE is wanted, or NAME=VALUE,VALUE"))?;
        let known: Vec<String> = self.parameters.keys().cloned().collect();
        let Some(parameter) = self.parameters.get_mut(name) else {
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            bail!("{}: no parameter {name}; it has {known}", self.origin);
        };
        let values = values.split(',').map(|text| {
            let parsed: Result<Table, _> = format!("value = {text}").parse();
            let value = parsed.ok().and_then(|mut table| table.remove("value"));
            value.unwrap_or_else(|| Value::String(text.into()))
        });
        *parameter = Value::Array(values.collect());
        Ok(())
    }

    /// The workloads of the file, checked.
    ///
    /// # Errors
    /// A field that is missing, unknown, of the wrong kind or out of range: the file and the field
    /// are named.
    pub fn variants(&self) -> Result<Vec<Variant>> {
        let mut choices = vec![Table::new()];
        for (name, value) in &self.parameters {
            let values = match value {
                Value::Array(values) => values.as_slice(),
                one => std::slice::from_ref(one),
            };
            let origin = &self.origin;
            ensure!(!values.is_empty(), "{origin}: parameters.{name}: an empty list");
            ensure!(
                choices.len() * values.len() <= MOST_VARIANTS,
                "{origin}: parameters.{name}: the lists make more than {MOST_VARIANTS} workloads"
            );
            let with = |value: &Value| {
                let (name, value) = (name.clone(), value.clone());
                choices.iter().map(move |chosen| {
                    let mut chosen = chosen.clone();
                    chosen.insert(name.clone(), value.clone());
                    chosen
                })
            };
            choices = values.iter().flat_map(with).collect();
        }
        choices.iter().map(|chosen| self.variant(chosen)).collect()
    }

    fn variant(&self, chosen: &Table) -> Result<Variant> {
        let origin = &self.origin;
        let mut table = Value::Table(self.table.clone());
        let mut used = Vec::new();
        fill_in(&mut table, chosen, &mut used)
            .map_err(|what| anyhow::anyhow!("{origin}: {what}"))?;
        if let Some(idle) = chosen.keys().find(|name| !used.contains(name)) {
            bail!("{origin}: parameters.{idle}: nothing refers to it; write \"${idle}\" somewhere");
        }
        let spec: Spec = serde_path_to_error::deserialize(table).map_err(|error| {
            let path = error.path().to_string();
            let what = one_line(error.inner().message());
            match path.as_str() {
                "." => anyhow::anyhow!("{origin}: {what}"),
                path => anyhow::anyhow!("{origin}: {path}: {what}"),
            }
        })?;
        spec.check().map_err(|what| anyhow::anyhow!("{origin}: {what}"))?;
        let mut label = spec.name.clone();
        let mut size_bytes = 0;
        for (name, value) in chosen {
            let listed = self.parameters.get(name).is_some_and(Value::is_array);
            match value.as_integer() {
                Some(bytes) if listed && SIZES.contains(&name.as_str()) => {
                    size_bytes = bytes as u64;
                }
                _ if listed => label += &format!(", {} {value}", name.replace('_', " ")),
                _ => {}
            }
        }
        Ok(Variant { label, size_bytes, spec })
    }
}

/// Puts values in the place of texts like `"$read_bias"`.
fn fill_in<'p>(
    value: &mut Value,
    chosen: &'p Table,
    used: &mut Vec<&'p String>,
) -> Result<(), String> {
    match value {
        Value::String(text) => {
            let Some(name) = text.strip_prefix('$') else { return Ok(()) };
            let Some((name, chosen)) = chosen.get_key_value(name) else {
                return Err(format!("${name}: no such parameter"));
            };
            used.push(name);
            *value = chosen.clone();
            Ok(())
        }
        Value::Array(values) => {
            values.iter_mut().try_for_each(|value| fill_in(value, chosen, used))
        }
        Value::Table(table) => {
            table.iter_mut().try_for_each(|(_, value)| fill_in(value, chosen, used))
        }
        _ => Ok(()),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        name = "small"
        about = "a test"
        [parameters]
        io_bytes = [4096, 8192]
        bias = 3
        [[files]]
        name = "data"
        count = 4
        size_bytes = { uniform = [512, 65536] }
        [[threads]]
        instances = 2
        files = "data"
        io_bytes = "$io_bytes"
        loop = [
          { op = "either", bias = "$bias", first = [{ op = "read" }], second = [{ op = "stat" }] },
        ]
    "#;

    fn error_of(text: &str) -> String {
        let parsed = WorkloadFile::parse("w.toml", text);
        let error = parsed.and_then(|file| file.variants()).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.starts_with("w.toml") && !text.contains('\n'), "{text}");
        text
    }

    #[test]
    fn lists_make_one_workload_per_value_and_sizes_are_no_part_of_the_name() {
        let mut file = WorkloadFile::parse("w.toml", SMALL).unwrap();
        let variants = file.variants().unwrap();
        let seen: Vec<_> = variants.iter().map(|v| (v.label.as_str(), v.size_bytes)).collect();
        assert_eq!(seen, [("small", 4096), ("small", 8192)]);
        assert_eq!(variants[1].spec.threads[0].io_bytes, 8192);
        assert!(variants[0].spec.direct);
        file.set("bias=0,10").unwrap();
        file.set("io_bytes=4096").unwrap();
        let labels: Vec<_> = file.variants().unwrap().into_iter().map(|v| v.label).collect();
        assert_eq!(labels, ["small, bias 0", "small, bias 10"]);
        assert!(file.set("nonsense=1").unwrap_err().to_string().contains("bias, io_bytes"));
        assert!(file.set("bias").unwrap_err().to_string().contains("NAME=VALUE"));
    }

    #[test]
    fn a_wrong_workload_is_named_with_its_file_and_field() {
        for (from, to, wanted) in [
            ("count = 4", "", "files[0]: missing field `count`"),
            ("count = 4", "count = \"x\"", "files[0].count: invalid type: string \"x\""),
            ("count = 4", "count = -4", "files[0].count: invalid value"),
            ("count = 4", "count = 1", "files[0].count: 1 for 2 threads"),
            ("count = 4", "cuont = 4", "unknown field `cuont`"),
            ("uniform", "normal", "unknown variant `normal`"),
            ("[512, 65536]", "[2, 1]", "files[0].size_bytes: uniform = [2, 1]"),
            ("files = \"data\"", "files = \"d\"", "no thread uses the set"),
            ("instances = 2", "instances = 0", "files[0].name: no thread uses"),
            ("io_bytes = \"$io_bytes\"", "io_bytes = 512", "parameters.io_bytes: nothing refers"),
            ("[4096, 8192]", "[4096, 500]", "threads[0].io_bytes: 500 bytes: a multiple of 4096"),
            ("[4096, 8192]", "[]", "parameters.io_bytes: an empty list"),
            ("bias = 3", "bias = 11", "threads[0].loop: either: bias 11"),
            ("bias = \"$bias\"", "bias = \"$bais\"", "$bais: no such parameter"),
            ("op = \"read\"", "op = \"raed\"", "unknown variant `raed`"),
            ("op = \"read\"", "op = \"create\"", "threads[0].loop: create and delete go together"),
            ("name = \"small\"", "name = \"../x\"", "name: "),
            ("name = \"data\"", "name = \"a/b\"", "files[0].name: "),
            ("about = \"a test\"", "about = ", "line 3: "),
        ] {
            assert!(SMALL.contains(from), "{from}");
            let text = error_of(&SMALL.replace(from, to));
            assert!(text.contains(wanted), "{from} → {to}: {text}");
        }
        assert!(WorkloadFile::load(Path::new("/nonexistent")).is_err());
    }
}
