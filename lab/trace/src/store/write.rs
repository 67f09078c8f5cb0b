//! Writing a trace.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::ColumnPath;

use super::column::schema;
use super::error::WriteError;
use super::row::Row;
use super::{FORMAT_VERSION, key};
use crate::model::{AppIndex, Event, Header, Names, PathIndex, Trace};

/// Events of one row group: what a reader takes in one piece, and what a writer has in memory.
pub(crate) const GROUP_EVENTS: usize = 65_536;

impl From<ParquetError> for WriteError {
    fn from(error: ParquetError) -> Self {
        Self::Parquet(error.to_string())
    }
}

/// Writes events as they come, in row groups. The file can be read when it is finished.
pub struct TraceWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
}

impl<W: Write + Send> TraceWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(output: W, header: &Header) -> Result<Self, WriteError> {
        let mut metadata = vec![
            KeyValue::new(key::VERSION.to_owned(), FORMAT_VERSION.to_owned()),
            KeyValue::new(key::SOURCE.to_owned(), header.source.clone()),
            KeyValue::new(key::TOOL.to_owned(), header.tool.clone()),
        ];
        for note in &header.notes {
            metadata.push(KeyValue::new(key::NOTE.to_owned(), note.clone()));
        }
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            // Times rise: their differences are short. A dictionary of them would be the file.
            .set_column_dictionary_enabled(ColumnPath::from("time_ns"), false)
            .set_column_encoding(ColumnPath::from("time_ns"), Encoding::DELTA_BINARY_PACKED)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_key_value_metadata(Some(metadata))
            .set_created_by(crate::edit::tool())
            .build();
        let file = SerializedFileWriter::new(output, schema()?, Arc::new(properties))?;
        Ok(Self { file })
    }

    /// Adds events, whose names are in `apps` and `paths`, and which are not before those that
    /// were added earlier. Each call makes row groups of its own.
    ///
    /// # Errors
    /// The file cannot be written; it is of no use any more.
    ///
    /// # Panics
    /// An index is not from `apps` or `paths`.
    pub fn append(
        &mut self,
        events: &[Event],
        apps: &Names<AppIndex>,
        paths: &Names<PathIndex>,
    ) -> Result<(), WriteError> {
        for events in events.chunks(GROUP_EVENTS) {
            let mut group = self.file.next_row_group()?;
            write_group(&mut group, events, apps, paths)?;
            group.close()?;
        }
        Ok(())
    }

    /// Adds a line to the notes that the header began with.
    pub fn note(&mut self, note: String) {
        let pair = KeyValue::new(key::NOTE.to_owned(), note);
        self.file.append_key_value_metadata(pair);
    }

    /// Ends the file, and gives back what it was written to.
    ///
    /// # Errors
    /// The end cannot be written; the file cannot be read without it.
    pub fn finish(self) -> Result<W, WriteError> {
        Ok(self.file.into_inner()?)
    }
}

/// The columns in the order of the schema.
fn write_group<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    events: &[Event],
    apps: &Names<AppIndex>,
    paths: &Names<PathIndex>,
) -> Result<(), ParquetError> {
    let app = AllocatedNames::new(apps);
    let path = AllocatedNames::new(paths);
    let rows: Vec<Row> = events.iter().map(|event| Row::of(&event.kind)).collect();
    let numbers = |number: fn(&Event) -> u64| events.iter().map(move |event| number(event) as i64);
    let small = |number: fn(&Event) -> u32| events.iter().map(move |event| number(event) as i32);

    required::<Int64Type, W>(group, numbers(|event| event.time.0))?;
    required::<ByteArrayType, W>(group, events.iter().map(|event| app.get(event.app.0)))?;
    required::<Int32Type, W>(group, small(|event| event.process))?;
    required::<Int32Type, W>(group, small(|event| event.thread))?;
    let operations = events.iter().map(|event| word(event.kind.name()));
    required::<ByteArrayType, W>(group, operations)?;
    let name = |index: Option<PathIndex>| index.map(|index| path.get(index.0));
    optional::<ByteArrayType, W>(group, rows.iter().map(|row| name(row.path)))?;
    optional::<ByteArrayType, W>(group, rows.iter().map(|row| name(row.target)))?;
    let big = |number: Option<u64>| number.map(|number| number as i64);
    optional::<Int64Type, W>(group, rows.iter().map(|row| big(row.offset)))?;
    optional::<Int64Type, W>(group, rows.iter().map(|row| big(row.length)))?;
    optional::<Int32Type, W>(
        group,
        rows.iter().map(|row| row.mode.map(|mode| mode as i32)),
    )?;
    let details = rows.iter().map(|row| row.detail.as_deref().map(word));
    optional::<ByteArrayType, W>(group, details)?;
    optional::<Int64Type, W>(group, rows.iter().map(|row| big(row.device)))?;
    required::<Int64Type, W>(group, events.iter().map(|event| event.result))?;
    let known = |duration_ns: u64| (duration_ns > 0).then_some(duration_ns as i64);
    optional::<Int64Type, W>(group, events.iter().map(|event| known(event.duration_ns)))
}

/// Names as the library wants them; made once for each name and group, not for each event.
struct AllocatedNames<'a> {
    names: Vec<&'a [u8]>,
}

impl<'a> AllocatedNames<'a> {
    fn new<I: crate::model::NameIndex>(names: &'a Names<I>) -> Self {
        Self {
            names: names.iter().map(|(_, name)| name).collect(),
        }
    }

    fn get(&self, index: u32) -> ByteArray {
        ByteArray::from(self.names[index as usize].to_vec())
    }
}

fn word(word: &str) -> ByteArray {
    ByteArray::from(word.as_bytes().to_vec())
}

fn required<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: impl Iterator<Item = T::T>,
) -> Result<(), ParquetError> {
    let values: Vec<T::T> = values.collect();
    write_column::<T, W>(group, &values, None)
}

fn optional<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: impl Iterator<Item = Option<T::T>>,
) -> Result<(), ParquetError> {
    let mut levels = Vec::new();
    let mut present = Vec::new();
    for value in values {
        levels.push(i16::from(value.is_some()));
        present.extend(value);
    }
    write_column::<T, W>(group, &present, Some(&levels))
}

fn write_column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("the schema has ended".to_owned()));
    };
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

/// Writes a whole trace.
///
/// # Errors
/// It cannot be written.
///
/// # Panics
/// An event's indices are not from the trace.
pub fn write<W: Write + Send>(trace: &Trace, output: W) -> Result<W, WriteError> {
    let mut writer = TraceWriter::new(output, &trace.header)?;
    writer.append(&trace.events, &trace.apps, &trace.paths)?;
    writer.finish()
}

/// Makes the file of a trace. What is there is not replaced: it may be what the trace is made of.
///
/// # Errors
/// The file is there, or cannot be made.
pub fn create_file(path: &Path) -> Result<File, WriteError> {
    File::create_new(path).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => WriteError::Exists {
            path: path.to_owned(),
        },
        _ => WriteError::Create {
            path: path.to_owned(),
            source,
        },
    })
}

/// Writes a trace to a new file ([`create_file`]).
///
/// # Errors
/// The file is there, or cannot be made or written.
///
/// # Panics
/// As [`write`].
pub fn write_file(trace: &Trace, path: &Path) -> Result<(), WriteError> {
    write_into(trace, create_file(path)?, path)
}

/// Writes a trace to the file that was made for it at `path`.
///
/// # Errors
/// It cannot be written.
///
/// # Panics
/// As [`write`].
pub fn write_into(trace: &Trace, file: File, path: &Path) -> Result<(), WriteError> {
    let mut output = write(trace, BufWriter::new(file))?;
    let flushed = output.flush();
    flushed.map_err(|source| WriteError::Create {
        path: path.to_owned(),
        source,
    })
}
