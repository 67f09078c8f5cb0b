//! The schema.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as PhysicalType};
use parquet::errors::ParquetError;
use parquet::schema::types::{Type, TypePtr};

/// What a column holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    U64,
    U32,
    I64,
    /// Bytes of a name.
    Name,
    /// A word of the schema.
    Word,
}

pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) content: Content,
    pub(super) is_optional: bool,
}

const fn required(name: &'static str, content: Content) -> Column {
    Column {
        name,
        content,
        is_optional: false,
    }
}

const fn optional(name: &'static str, content: Content) -> Column {
    Column {
        name,
        content,
        is_optional: true,
    }
}

/// In the order of the file. The writer and the reader go through them one by one.
pub(super) const COLUMNS: [Column; 14] = [
    required("time_ns", Content::U64),
    required("app", Content::Name),
    required("process", Content::U32),
    required("thread", Content::U32),
    required("operation", Content::Word),
    optional("path", Content::Name),
    optional("target", Content::Name),
    optional("offset", Content::U64),
    optional("length", Content::U64),
    optional("mode", Content::U32),
    optional("detail", Content::Word),
    optional("device", Content::U64),
    required("result", Content::I64),
    optional("duration_ns", Content::U64),
];

impl Column {
    pub(super) fn parquet(&self) -> Result<Type, ParquetError> {
        let physical = match self.content {
            Content::U64 | Content::I64 => PhysicalType::INT64,
            Content::U32 => PhysicalType::INT32,
            Content::Name | Content::Word => PhysicalType::BYTE_ARRAY,
        };
        let logical = match self.content {
            Content::U64 => Some(LogicalType::integer(64, false)),
            Content::U32 => Some(LogicalType::integer(32, false)),
            Content::I64 | Content::Name => None,
            Content::Word => Some(LogicalType::String),
        };
        let repetition = if self.is_optional {
            Repetition::OPTIONAL
        } else {
            Repetition::REQUIRED
        };
        Type::primitive_type_builder(self.name, physical)
            .with_logical_type(logical)
            .with_repetition(repetition)
            .build()
    }
}

/// The schema of a trace.
pub(super) fn schema() -> Result<TypePtr, ParquetError> {
    let fields = COLUMNS.iter().map(|column| column.parquet().map(Arc::new));
    let fields: Vec<TypePtr> = fields.collect::<Result<_, _>>()?;
    let root = Type::group_type_builder("trace").with_fields(fields);
    root.build().map(Arc::new)
}
