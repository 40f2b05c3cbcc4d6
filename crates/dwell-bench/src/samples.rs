// SPDX-License-Identifier: MIT OR Apache-2.0
//! The latency of every single request, in a file.
//!
//! The measured loop puts samples into memory that is there already ([`crate::batch`]); the file is
//! written between batches.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use crate::labels::{Labels, TEXTS};
use crate::result::Row;

/// Most requests of a batch that are kept: 16 MiB of memory.
pub const MOST: usize = 1 << 20;

/// The columns of a sample behind the labels of its row.
const NUMBERS: [&str; 4] = ["round", "index", "start_ns", "latency_ns"];

/// One request.
#[derive(Clone, Copy, Default)]
struct Sample {
    start_ns: u64,
    latency_ns: u64,
}

/// A file of samples, and those of the running batch.
pub(crate) struct Samples {
    path: PathBuf,
    sink: Sink,
    batch: Vec<Sample>,
    /// Most that are kept of a batch.
    most: usize,
    /// Requests of this batch that found no room, and of those before it.
    lost: (u64, u64),
}

/// Fails unless the name of a file for samples says in which format.
pub(crate) fn check_name(path: &Path) -> Result<()> {
    match ["csv", "parquet"].contains(&extension(path)) {
        true => Ok(()),
        false => bail!("{}: samples go to a file that ends in .csv or .parquet", path.display()),
    }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|end| end.to_str()).unwrap_or_default()
}

enum Sink {
    Csv {
        file: File,
        /// Length of the file up to its last whole batch, in bytes.
        whole_bytes: u64,
    },
    Parquet(SerializedFileWriter<File>),
}

impl Samples {
    /// Makes the file; its name's end says in which format.
    pub fn create(path: &Path) -> Result<Self> {
        Self::bounded(path, MOST)
    }

    fn bounded(path: &Path, most: usize) -> Result<Self> {
        check_name(path)?;
        let (name, extension) = (path.display(), extension(path));
        let cannot = || format!("cannot write samples to {name}");
        let mut file = File::create(path).with_context(cannot)?;
        let sink = match extension {
            "csv" => {
                let mut lines = csv::Writer::from_writer(Vec::new());
                lines.write_record(Labels::headings().chain(NUMBERS.map(str::to_owned)))?;
                put(&mut file, lines).with_context(cannot)?;
                Sink::Csv { whole_bytes: file.metadata()?.len(), file }
            }
            _ => {
                let properties = WriterProperties::builder()
                    .set_compression(Compression::SNAPPY)
                    .set_created_by("dwell".into())
                    .build();
                let properties = Arc::new(properties);
                Sink::Parquet(SerializedFileWriter::new(file, Arc::new(schema()?), properties)?)
            }
        };
        Ok(Samples { path: path.to_owned(), sink, batch: Vec::new(), most, lost: (0, 0) })
    }

    /// Begins a batch.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.lost.0 = 0;
    }

    /// So many requests of the batch were not kept by whoever measured it.
    pub fn lose(&mut self, requests: u64) {
        self.lost.0 += requests;
    }

    /// One request, submitted `start_ns` after the batch began.
    pub fn push(&mut self, start_ns: u64, latency_ns: u64) {
        if self.batch.len() < self.most {
            self.batch.push(Sample { start_ns, latency_ns });
        } else {
            self.lost.0 += 1;
        }
    }

    /// Writes the batch as that of a row in a round, from 0 on. After an error, which it returns as
    /// one line, nothing more can be written; what was whole is kept.
    pub fn write(&mut self, row: &Row, round: usize) -> Result<(), String> {
        self.lost.1 += self.lost.0;
        let labels = Labels::of(row);
        let written = match &mut self.sink {
            Sink::Csv { file, whole_bytes } => {
                csv_batch(file, &labels, round, &self.batch).map(|whole| *whole_bytes = whole)
            }
            Sink::Parquet(writer) => row_group(writer, &labels, round, &self.batch),
        };
        written.map_err(|error| self.give_up(&error))
    }

    /// Completes the file; what to know about it.
    pub fn finish(mut self) -> Option<String> {
        if let Sink::Parquet(writer) = &mut self.sink
            && let Err(error) = writer.finish()
        {
            return Some(self.give_up(&error.into()));
        }
        let (name, most, lost) = (self.path.display(), self.most, self.lost.1);
        (lost > 0).then(|| {
            format!("samples: {lost} requests beyond the first {most} of a batch are not in {name}")
        })
    }

    /// Cuts the file after an error and says what it still holds: whole batches of CSV. Parquet
    /// without its end is worth nothing.
    fn give_up(&self, error: &anyhow::Error) -> String {
        let left = match &self.sink {
            Sink::Csv { file, whole_bytes } => {
                // If even that fails, the last line is torn.
                let _ = file.set_len(*whole_bytes);
                "holds the batches before"
            }
            Sink::Parquet(_) => {
                let _ = std::fs::remove_file(&self.path);
                "was removed"
            }
        };
        let name = self.path.display();
        format!("samples: cannot write {name}: {error:#}; it {left}, the run went on without")
    }
}

/// Adds lines; the file's length after them.
fn csv_batch(file: &mut File, labels: &Labels, round: usize, batch: &[Sample]) -> Result<u64> {
    let cells: Vec<String> = labels.cells().chain([(round + 1).to_string()]).collect();
    for (chunk, samples) in batch.chunks(LINES).enumerate() {
        let mut lines = csv::Writer::from_writer(Vec::with_capacity(LINES * 64));
        for (i, sample) in samples.iter().enumerate() {
            for cell in &cells {
                lines.write_field(cell)?;
            }
            let numbers = [(chunk * LINES + i) as u64, sample.start_ns, sample.latency_ns];
            lines.write_record(numbers.map(|number| number.to_string()))?;
        }
        put(file, lines)?;
    }
    Ok(file.metadata()?.len())
}

/// Lines that are written at once. A buffer between them and the file would outlive an error.
const LINES: usize = 4096;

fn put(file: &mut File, lines: csv::Writer<Vec<u8>>) -> std::io::Result<()> {
    file.write_all(&lines.into_inner().map_err(|error| error.into_error())?)
}

fn schema() -> Result<Type> {
    let column = Type::primitive_type_builder;
    let mut fields = Vec::new();
    for name in TEXTS {
        let text = column(name, Physical::BYTE_ARRAY).with_logical_type(Some(LogicalType::String));
        fields.push(text.with_repetition(Repetition::OPTIONAL).build()?);
    }
    let depth = column("depth", Physical::INT32);
    fields.push(depth.with_repetition(Repetition::OPTIONAL).build()?);
    let size = column("size_bytes", Physical::INT64);
    fields.push(size.with_repetition(Repetition::REQUIRED).build()?);
    let text = column("contender", Physical::BYTE_ARRAY);
    let text = text.with_logical_type(Some(LogicalType::String));
    fields.push(text.with_repetition(Repetition::REQUIRED).build()?);
    for name in NUMBERS {
        let number = column(name, Physical::INT64);
        fields.push(number.with_repetition(Repetition::REQUIRED).build()?);
    }
    let fields = fields.into_iter().map(Arc::new).collect();
    Ok(Type::group_type_builder("samples").with_fields(fields).build()?)
}

/// Adds a row group, its columns in the order of [`schema`].
fn row_group(
    writer: &mut SerializedFileWriter<File>,
    labels: &Labels,
    round: usize,
    batch: &[Sample],
) -> Result<()> {
    if batch.is_empty() {
        return Ok(());
    }
    let mut group = writer.next_row_group()?;
    for text in &labels.texts {
        texts(&mut group, text.as_deref(), batch.len(), true)?;
    }
    let mut column = group.next_column()?.context("a column too few")?;
    let depths = vec![labels.depth.unwrap_or_default() as i32; batch.len()];
    let levels = vec![i16::from(labels.depth.is_some()); batch.len()];
    let depths = &depths[..if labels.depth.is_some() { batch.len() } else { 0 }];
    column.typed::<Int32Type>().write_batch(depths, Some(&levels), None)?;
    column.close()?;
    numbers(&mut group, batch.iter().map(|_| labels.size_bytes))?;
    texts(&mut group, Some(&labels.contender), batch.len(), false)?;
    numbers(&mut group, batch.iter().map(|_| round as u64 + 1))?;
    numbers(&mut group, 0..batch.len() as u64)?;
    numbers(&mut group, batch.iter().map(|sample| sample.start_ns))?;
    numbers(&mut group, batch.iter().map(|sample| sample.latency_ns))?;
    group.close()?;
    Ok(writer.flush()?)
}

/// The same text, or its absence, on every line.
fn texts(
    group: &mut SerializedRowGroupWriter<'_, File>,
    text: Option<&str>,
    lines: usize,
    optional: bool,
) -> Result<()> {
    let values = text.map(|text| vec![ByteArray::from(text.as_bytes().to_vec()); lines]);
    let levels = vec![i16::from(text.is_some()); lines];
    let mut column = group.next_column()?.context("a column too few")?;
    let column_writer = column.typed::<ByteArrayType>();
    let levels = optional.then_some(&levels[..]);
    column_writer.write_batch(&values.unwrap_or_default(), levels, None)?;
    Ok(column.close()?)
}

fn numbers(
    group: &mut SerializedRowGroupWriter<'_, File>,
    numbers: impl Iterator<Item = u64>,
) -> Result<()> {
    let numbers: Vec<i64> = numbers.map(|number| number as i64).collect();
    let mut column = group.next_column()?.context("a column too few")?;
    column.typed::<Int64Type>().write_batch(&numbers, None, None)?;
    Ok(column.close()?)
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};

    use super::*;
    use crate::sample;

    fn two_batches(path: &Path) -> Vec<Row> {
        let mut rows = sample::run().rows;
        rows.truncate(2);
        rows[1].setting.scheduler = Some("none".into());
        let mut samples = Samples::create(path).unwrap();
        for (round, row) in rows.iter().enumerate() {
            samples.clear();
            (0..5).for_each(|n| samples.push(n * 1000, 900 + n));
            samples.write(row, round).unwrap();
        }
        assert_eq!(samples.finish(), None);
        rows
    }

    #[test]
    fn csv_and_parquet_hold_every_request_with_what_tells_its_row() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("samples.csv");
        let rows = two_batches(&path);
        let mut reader = csv::Reader::from_path(&path).unwrap();
        let head: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        let lines: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!(lines.len(), 10);
        let last = ["loop", "idle", "none", "", "rand", "read", "1", "4096", &rows[1].policy]
            .into_iter()
            .chain(["2", "4", "4000", "904"]);
        assert!(lines[9].iter().eq(last), "{:?}", lines[9]);

        let path = directory.path().join("samples.parquet");
        two_batches(&path);
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(reader.metadata().num_row_groups(), 2);
        let columns = reader.metadata().file_metadata().schema_descr();
        let names: Vec<_> = columns.columns().iter().map(|column| column.name()).collect();
        assert_eq!(names, head);
        let records: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(records.len(), 10);
        for (record, line) in records.iter().zip(&lines) {
            for ((_, field), cell) in record.get_column_iter().zip(line) {
                let text = match field {
                    parquet::record::Field::Null => String::new(),
                    field => field.to_string().trim_matches('"').to_owned(),
                };
                assert_eq!(text, cell);
            }
        }
    }

    #[test]
    fn requests_beyond_the_bound_are_counted_and_said() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("samples.parquet");
        let mut samples = Samples::bounded(&path, 1000).unwrap();
        (0..1003).for_each(|n| samples.push(n, 1));
        assert_eq!(samples.batch.len(), 1000);
        samples.write(&sample::run().rows[0], 0).unwrap();
        samples.clear();
        let said = samples.finish().unwrap();
        assert!(said.contains(": 3 requests") && said.contains("samples.parquet"), "{said}");
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(reader.metadata().file_metadata().num_rows(), 1000);
    }

    #[test]
    fn an_unknown_format_and_a_missing_directory_are_refused_by_name() {
        for (path, says) in [("x.json", ".parquet"), ("/nonexistent/x.csv", "/nonexistent/x.csv")] {
            let error = format!("{:#}", Samples::create(Path::new(path)).err().unwrap());
            assert!(error.contains(says) && error.contains(path), "{error}");
        }
    }

    #[test]
    fn a_full_disk_ends_the_samples_in_one_line() {
        for format in ["csv", "parquet"] {
            // Writing to it fails as on a full disk.
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join(format!("full.{format}"));
            std::os::unix::fs::symlink("/dev/full", &path).unwrap();
            let refused = match Samples::create(&path) {
                Err(error) => format!("{error:#}"),
                Ok(mut samples) => {
                    (0..100_000).for_each(|n| samples.push(n * 7919, n));
                    samples.write(&sample::run().rows[0], 0).unwrap_err()
                }
            };
            assert!(refused.contains("No space") && refused.contains(format), "{refused}");
            assert!(!refused.contains('\n'), "{refused}");
        }
    }
}
