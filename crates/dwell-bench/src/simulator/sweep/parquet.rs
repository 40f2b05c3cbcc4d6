// SPDX-License-Identifier: MIT OR Apache-2.0
//! Columns as a Parquet file, the same bytes for the same columns.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use dwell_sim::columns::{Cells, Column};
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

/// Writes the file whole or not at all.
pub fn save(columns: &[Column], path: &Path) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(dir).with_context(cannot)?;
    write(columns, file.as_file_mut()).with_context(cannot)?;
    file.persist(path).map(drop).with_context(cannot)
}

fn write(columns: &[Column], file: &mut std::fs::File) -> Result<()> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by("dwell".into())
        .build();
    let schema = Arc::new(schema(columns)?);
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for Column { cells, .. } in columns {
        let mut column = group.next_column()?.context("a column too few")?;
        match cells {
            Cells::Texts(texts) => {
                let texts: Vec<ByteArray> =
                    texts.iter().map(|text| text.as_bytes().to_vec().into()).collect();
                column.typed::<ByteArrayType>().write_batch(&texts, None, None)?;
            }
            Cells::Counts(counts) => {
                let counts: Vec<i64> = counts.iter().map(|count| *count as i64).collect();
                column.typed::<Int64Type>().write_batch(&counts, None, None)?;
            }
            Cells::Numbers(numbers) => {
                column.typed::<DoubleType>().write_batch(numbers, None, None)?;
            }
        }
        column.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(())
}

fn schema(columns: &[Column]) -> Result<Type> {
    let fields = columns.iter().map(|Column { name, cells }| {
        let (kind, logical) = match cells {
            Cells::Texts(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Cells::Counts(_) => (Physical::INT64, None),
            Cells::Numbers(_) => (Physical::DOUBLE, None),
        };
        let field = Type::primitive_type_builder(name, kind)
            .with_logical_type(logical)
            .with_repetition(Repetition::REQUIRED)
            .build()?;
        Ok(Arc::new(field))
    });
    let fields = fields.collect::<Result<Vec<_>>>()?;
    Ok(Type::group_type_builder("runs").with_fields(fields).build()?)
}
