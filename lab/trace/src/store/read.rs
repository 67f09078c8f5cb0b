//! Reading a trace.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use parquet::column::reader::{
    ColumnReader, ColumnReaderImpl, get_column_reader, get_typed_column_reader,
};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::FileMetaData;
use parquet::file::reader::{ChunkReader, FileReader as _, SerializedFileReader};

use super::column::COLUMNS;
use super::error::{ReadError, RowError};
use super::page_headers;
use super::pages::CheckedPages;
use super::row::{Reading, Row};
use super::{FORMAT_VERSION, key};
use crate::model::{Event, Header, Trace, TraceBuilder, TraceNs};

/// Rows that are decoded at a time. What the file claims to hold is never allocated.
const BATCH_ROWS: usize = 8_192;

impl From<ParquetError> for ReadError {
    fn from(error: ParquetError) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// Reads a trace file.
///
/// # Errors
/// The file cannot be opened, or as [`read`].
pub fn read_file(path: &Path) -> Result<Trace, ReadError> {
    guarded(File::open(path)?, &File::open(path)?)
}

/// Reads a trace from the content of a file.
///
/// # Errors
/// What it holds is no trace, of another version, cut short or damaged. Nothing is left out
/// silently.
pub fn read(content: Vec<u8>) -> Result<Trace, ReadError> {
    let content = Bytes::from(content);
    guarded(content.clone(), &content)
}

thread_local! {
    static CATCHES_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is reading a trace and a panic now becomes an error. A panic hook asks
/// this, to say nothing where the error says it all.
pub fn catches_panics() -> bool {
    CATCHES_PANICS.get()
}

/// Reads `input`; `same` has the same content.
fn guarded<R: ChunkReader + 'static>(input: R, same: &R) -> Result<Trace, ReadError> {
    // The library checks most of what it reads, but panics on some damaged files. Nothing is
    // shared with it that such a panic could leave half done.
    let outer = CATCHES_PANICS.replace(true);
    let result = catch_unwind(AssertUnwindSafe(|| read_all(input, same)));
    CATCHES_PANICS.set(outer);
    result.unwrap_or_else(|_| Err(ReadError::Damaged("its parts do not fit".to_owned())))
}

fn read_all<R: ChunkReader + 'static>(input: R, same: &R) -> Result<Trace, ReadError> {
    let file = SerializedFileReader::new(input)?;
    let metadata = file.metadata().file_metadata();
    let header = header(metadata)?;
    check_columns(metadata)?;
    let mut assembly = Assembly::new(header);
    for number in 0..file.num_row_groups() {
        let group = file.get_row_group(number)?;
        let claimed = group.metadata().num_rows();
        let mut columns = Vec::with_capacity(COLUMNS.len());
        for column in 0..COLUMNS.len() {
            page_headers::check(same, group.metadata().column(column))?;
            let pages = CheckedPages(group.get_column_page_reader(column)?);
            let description = group.metadata().column(column).column_descr_ptr();
            columns.push(get_column_reader(description, Box::new(pages)));
        }
        let rows = read_group(columns, &mut assembly)?;
        if i64::try_from(rows) != Ok(claimed) {
            let message = format!("row group {number} has {rows} rows and not {claimed}");
            return Err(ReadError::Damaged(message));
        }
    }
    Ok(assembly.builder.finish())
}

fn header(metadata: &FileMetaData) -> Result<Header, ReadError> {
    let pairs = metadata.key_value_metadata().map_or(&[][..], Vec::as_slice);
    let values = |key: &'static str| {
        let of_key = pairs.iter().filter(move |pair| pair.key == key);
        of_key.map(|pair| pair.value.clone().unwrap_or_default())
    };
    match values(key::VERSION).next() {
        None => return Err(ReadError::NotATrace),
        Some(version) if version == FORMAT_VERSION => {}
        Some(version) => return Err(ReadError::Version(version)),
    }
    Ok(Header {
        source: values(key::SOURCE).next().unwrap_or_default(),
        tool: values(key::TOOL).next().unwrap_or_default(),
        notes: values(key::NOTE).collect(),
    })
}

/// The columns must be those of the schema: names, types and what may be null.
fn check_columns(metadata: &FileMetaData) -> Result<(), ReadError> {
    let described = |field: &parquet::schema::types::Type| {
        let info = field.get_basic_info();
        if !field.is_primitive() || !info.has_repetition() {
            return format!("{} (a group)", field.name());
        }
        let (physical, repetition) = (field.get_physical_type(), info.repetition());
        format!("{} ({physical}, {repetition})", field.name())
    };
    let fields = metadata.schema().get_fields();
    for position in 0..fields.len().max(COLUMNS.len()) {
        let found = fields.get(position).map(|field| described(field));
        let expected = match COLUMNS.get(position) {
            Some(column) => Some(described(&column.parquet()?)),
            None => None,
        };
        if found != expected {
            let none = || "none".to_owned();
            return Err(ReadError::Column {
                position: position + 1,
                found: found.unwrap_or_else(none),
                expected: expected.unwrap_or_else(none),
            });
        }
    }
    Ok(())
}

/// One column, a batch at a time.
struct Batches<T: DataType> {
    reader: ColumnReaderImpl<T>,
    is_optional: bool,
    levels: Vec<i16>,
    values: Vec<T::T>,
}

impl<T: DataType> Batches<T> {
    fn new(reader: ColumnReader, is_optional: bool) -> Self {
        Self {
            reader: get_typed_column_reader::<T>(reader),
            is_optional,
            levels: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Fetches the next rows; how many.
    fn fetch(&mut self) -> Result<usize, ParquetError> {
        self.levels.clear();
        self.values.clear();
        let levels = self.is_optional.then_some(&mut self.levels);
        let (rows, _, _) = self
            .reader
            .read_records(BATCH_ROWS, levels, None, &mut self.values)?;
        Ok(rows)
    }

    /// The values of the fetched rows.
    fn take(&mut self) -> Vec<Option<T::T>> {
        let mut values = self.values.drain(..);
        if self.is_optional {
            let levels = self.levels.iter();
            levels
                .map(|&level| if level > 0 { values.next() } else { None })
                .collect()
        } else {
            values.map(Some).collect()
        }
    }
}

enum AnyBatches {
    Int64(Batches<Int64Type>),
    Int32(Batches<Int32Type>),
    Bytes(Batches<ByteArrayType>),
}

/// The values of one column and batch.
enum Values {
    Int64(Vec<Option<i64>>),
    Int32(Vec<Option<i32>>),
    Bytes(Vec<Option<ByteArray>>),
}

impl AnyBatches {
    fn new(reader: ColumnReader, is_optional: bool) -> Result<Self, ReadError> {
        Ok(match &reader {
            ColumnReader::Int64ColumnReader(_) => Self::Int64(Batches::new(reader, is_optional)),
            ColumnReader::Int32ColumnReader(_) => Self::Int32(Batches::new(reader, is_optional)),
            ColumnReader::ByteArrayColumnReader(_) => {
                Self::Bytes(Batches::new(reader, is_optional))
            }
            _ => return Err(ReadError::Damaged("a column of another type".to_owned())),
        })
    }

    fn fetch(&mut self) -> Result<usize, ParquetError> {
        match self {
            Self::Int64(batches) => batches.fetch(),
            Self::Int32(batches) => batches.fetch(),
            Self::Bytes(batches) => batches.fetch(),
        }
    }

    fn take(&mut self) -> Values {
        match self {
            Self::Int64(batches) => Values::Int64(batches.take()),
            Self::Int32(batches) => Values::Int32(batches.take()),
            Self::Bytes(batches) => Values::Bytes(batches.take()),
        }
    }
}

impl Values {
    fn int64(&self, row: usize) -> Option<i64> {
        match self {
            Self::Int64(values) => values.get(row).copied().flatten(),
            _ => None,
        }
    }

    fn int32(&self, row: usize) -> Option<i32> {
        match self {
            Self::Int32(values) => values.get(row).copied().flatten(),
            _ => None,
        }
    }

    fn bytes(&self, row: usize) -> Option<&[u8]> {
        match self {
            Self::Bytes(values) => values.get(row)?.as_ref().map(ByteArray::data),
            _ => None,
        }
    }
}

/// Reads the rows of a group; how many.
fn read_group(columns: Vec<ColumnReader>, assembly: &mut Assembly) -> Result<u64, ReadError> {
    let mut batches = Vec::with_capacity(columns.len());
    for (reader, column) in columns.into_iter().zip(&COLUMNS) {
        batches.push(AnyBatches::new(reader, column.is_optional)?);
    }
    let mut rows_read = 0;
    loop {
        let mut rows = None;
        for (column, batches) in COLUMNS.iter().zip(&mut batches) {
            let fetched = batches.fetch()?;
            if *rows.get_or_insert(fetched) != fetched {
                let message = format!("the column '{}' has another length", column.name);
                return Err(ReadError::Damaged(message));
            }
        }
        let rows = rows.unwrap_or(0);
        if rows == 0 {
            return Ok(rows_read);
        }
        let values: Vec<Values> = batches.iter_mut().map(AnyBatches::take).collect();
        for row in 0..rows {
            assembly.add(&values, row)?;
        }
        rows_read += rows as u64;
    }
}

/// Events that were read.
struct Assembly {
    builder: TraceBuilder,
    last: TraceNs,
    rows: u64,
    /// Words of the schema come again and again.
    words: HashMap<Vec<u8>, String>,
}

impl Assembly {
    fn new(header: Header) -> Self {
        Self {
            builder: TraceBuilder::new(header),
            last: TraceNs(0),
            rows: 0,
            words: HashMap::new(),
        }
    }

    fn add(&mut self, values: &[Values], row: usize) -> Result<(), ReadError> {
        self.rows += 1;
        match self.event(values, row) {
            Ok(event) => {
                self.last = event.time;
                self.builder.push(event);
                Ok(())
            }
            Err(reason) => Err(ReadError::Row {
                row: self.rows,
                reason,
            }),
        }
    }

    fn word(&mut self, bytes: &[u8]) -> String {
        if let Some(word) = self.words.get(bytes) {
            return word.clone();
        }
        let word = String::from_utf8_lossy(bytes).into_owned();
        // Only a forged file has more words than this.
        if self.words.len() < 1_024 {
            self.words.insert(bytes.to_vec(), word.clone());
        }
        word
    }

    /// The columns in the order of the schema.
    fn event(&mut self, values: &[Values], row: usize) -> Result<Event, RowError> {
        let [
            time,
            app,
            process,
            thread,
            operation,
            path,
            target,
            offset,
            length,
            mode,
            detail,
            device,
            result,
            duration,
        ] = values
        else {
            return Err(RowError::Operation(String::new()));
        };
        let operation = self.word(operation.bytes(row).unwrap_or_default());
        let missing = |column| RowError::Missing {
            operation: operation.clone(),
            column,
        };
        let u64_of = |values: &Values| values.int64(row).map(|number| number as u64);
        let u32_of = |values: &Values| values.int32(row).map(|number| number as u32);
        let time = TraceNs(u64_of(time).ok_or_else(|| missing("time_ns"))?);
        if time < self.last {
            return Err(RowError::Order);
        }
        let reading = Reading {
            operation: &operation,
            row: Row {
                path: path.bytes(row).map(|path| self.builder.path(path)),
                target: target.bytes(row).map(|path| self.builder.path(path)),
                offset: u64_of(offset),
                length: u64_of(length),
                mode: u32_of(mode),
                detail: detail.bytes(row).map(|word| Cow::Owned(self.word(word))),
                device: u64_of(device),
            },
        };
        Ok(Event {
            time,
            kind: reading.kind()?,
            app: self.builder.app(app.bytes(row).unwrap_or_default()),
            process: u32_of(process).ok_or_else(|| missing("process"))?,
            thread: u32_of(thread).ok_or_else(|| missing("thread"))?,
            result: result.int64(row).ok_or_else(|| missing("result"))?,
            duration_ns: u64_of(duration).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::Length;

    use super::*;

    /// A file on which the library panics.
    struct Panics;

    impl Length for Panics {
        fn len(&self) -> u64 {
            100
        }
    }

    impl ChunkReader for Panics {
        type T = std::io::Empty;

        fn get_read(&self, _start: u64) -> Result<Self::T, ParquetError> {
            panic!("as the test wants")
        }

        fn get_bytes(&self, _start: u64, _length: usize) -> Result<Bytes, ParquetError> {
            panic!("as the test wants")
        }
    }

    #[test]
    fn a_panic_while_reading_is_an_error() {
        let error = guarded(Panics, &Panics).unwrap_err();
        assert!(
            error.to_string().ends_with("its parts do not fit"),
            "{error}"
        );
        assert!(!catches_panics());
    }
}
