//! A report as a Parquet file: one row for each app of each trace under each contender.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use super::report::{AppReport, ContenderReport, Report, TraceReport};

/// One row.
struct Row<'r> {
    trace: &'r TraceReport,
    contender: &'r ContenderReport,
    app: &'r AppReport,
}

/// What a column holds.
enum Content {
    Text(fn(&Row<'_>) -> String),
    Count(fn(&Row<'_>) -> u64),
    /// The value of a quantity; NaN where there is none.
    Number(fn(&Row<'_>) -> f64),
}

use Content::{Count, Number, Text};

const COLUMNS: [(&str, Content); 19] = [
    ("trace", Text(|row| row.trace.trace.clone())),
    ("contender", Text(|row| row.contender.name.clone())),
    ("app", Text(|row| row.app.name.clone())),
    ("duration_seconds", Number(|row| row.trace.duration_seconds)),
    ("written_pages", Count(|row| row.app.written_pages)),
    ("overwritten_pages", Count(|row| row.app.overwritten_pages)),
    ("efficiency", Number(|row| row.app.efficiency)),
    ("flushed_bytes", Count(|row| row.app.flushed_bytes)),
    (
        "flushed_kb_per_second",
        Number(|row| row.app.flushed_kb_per_second),
    ),
    (
        "flush_reduction_vs_ext4",
        Number(|row| row.app.flush_reduction_vs_ext4),
    ),
    ("flushes", Count(|row| row.app.flushes)),
    (
        "interval_mean_seconds",
        Number(|row| row.app.interval_mean_seconds.unwrap_or(f64::NAN)),
    ),
    (
        "age_at_risk_mean_seconds",
        Number(|row| row.app.age_at_risk.mean),
    ),
    (
        "age_at_risk_p50_seconds",
        Number(|row| row.app.age_at_risk.p50),
    ),
    (
        "age_at_risk_p90_seconds",
        Number(|row| row.app.age_at_risk.p90),
    ),
    (
        "age_at_risk_max_seconds",
        Number(|row| row.app.age_at_risk.max),
    ),
    (
        "bytes_at_risk_mean",
        Number(|row| row.app.bytes_at_risk.mean),
    ),
    ("bytes_at_risk_p90", Number(|row| row.app.bytes_at_risk.p90)),
    ("bytes_at_risk_max", Number(|row| row.app.bytes_at_risk.max)),
];

impl Report {
    /// Writes the report as a Parquet file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_parquet<W: Write + Send>(&self, output: W) -> Result<(), ParquetError> {
        let rows: Vec<Row<'_>> = self
            .traces
            .iter()
            .flat_map(|trace| trace.contenders.iter().map(move |c| (trace, c)))
            .flat_map(|(trace, contender)| {
                contender.apps.iter().map(move |app| Row {
                    trace,
                    contender,
                    app,
                })
            })
            .collect();
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        let mut file = SerializedFileWriter::new(output, schema()?, Arc::new(properties))?;
        let mut group = file.next_row_group()?;
        for (_, content) in &COLUMNS {
            write_column(&mut group, content, &rows)?;
        }
        group.close()?;
        file.close()?;
        Ok(())
    }
}

fn schema() -> Result<Arc<Type>, ParquetError> {
    let fields = COLUMNS.iter().map(|(name, content)| {
        let (physical, logical) = match content {
            Text(_) => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
            Count(_) => (PhysicalType::INT64, Some(LogicalType::integer(64, false))),
            Number(_) => (PhysicalType::DOUBLE, None),
        };
        let field = Type::primitive_type_builder(name, physical)
            .with_logical_type(logical)
            .with_repetition(Repetition::REQUIRED);
        field.build().map(Arc::new)
    });
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let schema = Type::group_type_builder("simulation").with_fields(fields);
    schema.build().map(Arc::new)
}

fn write_column<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    content: &Content,
    rows: &[Row<'_>],
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else {
        return Ok(());
    };
    match content {
        Text(of) => {
            let values: Vec<ByteArray> =
                rows.iter().map(|row| of(row).into_bytes().into()).collect();
            column
                .typed::<ByteArrayType>()
                .write_batch(&values, None, None)?;
        }
        Count(of) => {
            let values: Vec<i64> = rows.iter().map(|row| of(row) as i64).collect();
            column
                .typed::<Int64Type>()
                .write_batch(&values, None, None)?;
        }
        Number(of) => {
            let values: Vec<f64> = rows.iter().map(of).collect();
            column
                .typed::<DoubleType>()
                .write_batch(&values, None, None)?;
        }
    }
    column.close()
}
