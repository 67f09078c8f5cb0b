//! Events as rows: which column has what.

use std::borrow::Cow;

use super::error::RowError;
use crate::model::{
    AllocateMode, Attribute, BlockCommand, DeviceState, EventKind, OpenFlags, PathIndex,
    UserOperation,
};

/// The columns of an event that depend on what happened, as docs/TRACES.md has them. What an
/// operation does not have is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The file, or the old name.
    pub path: Option<PathIndex>,
    /// The new name, or what a symbolic link holds.
    pub target: Option<PathIndex>,
    /// Bytes.
    pub offset: Option<u64>,
    /// Bytes.
    pub length: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// A word of the schema.
    pub detail: Option<Cow<'static, str>>,
    /// The recorder's number of a block device.
    pub device: Option<u64>,
}

impl Row {
    /// The columns of an event; its operation is [`EventKind::name`].
    pub fn of(kind: &EventKind) -> Self {
        let (offset, length) = range(kind);
        Self {
            path: kind.path(),
            target: kind.target(),
            offset,
            length,
            mode: match *kind {
                EventKind::Create { mode, .. } | EventKind::MakeDirectory { mode, .. } => {
                    Some(mode)
                }
                _ => None,
            },
            detail: detail(kind),
            device: match *kind {
                EventKind::Block { device, .. } => Some(device),
                _ => None,
            },
        }
    }
}

fn range(kind: &EventKind) -> (Option<u64>, Option<u64>) {
    match *kind {
        EventKind::Read { offset, length, .. }
        | EventKind::Write { offset, length, .. }
        | EventKind::Allocate { offset, length, .. }
        | EventKind::Block { offset, length, .. } => (Some(offset), Some(length)),
        EventKind::Truncate { length, .. } | EventKind::SetXattr { length, .. } => {
            (None, Some(length))
        }
        _ => (None, None),
    }
}

fn detail(kind: &EventKind) -> Option<Cow<'static, str>> {
    let word = match *kind {
        EventKind::Open { flags, .. } => return Some(words_of(flags).into()),
        EventKind::Allocate { mode, .. } => mode.word(),
        EventKind::Sync {
            data_only: true, ..
        } => "data",
        EventKind::Rename { exchange: true, .. } => "exchange",
        EventKind::SetAttributes { attribute, .. } => attribute.word(),
        EventKind::Block {
            is_forced_unit_access: true,
            ..
        } => "fua",
        EventKind::User(operation) => operation.word(),
        EventKind::Device(state) => state.word(),
        _ => return None,
    };
    Some(word.into())
}

fn words_of(flags: OpenFlags) -> String {
    let words = OpenFlags::WORDS.iter();
    let words: Vec<&str> = words
        .filter(|(flag, _)| flags.contains(*flag))
        .map(|&(_, word)| word)
        .collect();
    words.join("|")
}

fn flags_of(words: &str) -> Option<OpenFlags> {
    let mut flags = OpenFlags::NONE;
    for word in words.split('|').filter(|word| !word.is_empty()) {
        flags |= OpenFlags::WORDS.iter().find(|(_, known)| *known == word)?.0;
    }
    Some(flags)
}

/// A row that is being read, with the operation's name for errors.
pub(crate) struct Reading<'a> {
    pub(crate) operation: &'a str,
    pub(crate) row: Row,
}

impl Reading<'_> {
    /// The event of the row.
    pub(crate) fn kind(&self) -> Result<EventKind, RowError> {
        if let Some(kind) = self.kind_of_name()? {
            return Ok(kind);
        }
        if let Some(kind) = self.kind_of_file()? {
            return Ok(kind);
        }
        Ok(match self.operation {
            "sync_all" => EventKind::SyncAll,
            "block_read" => self.block(BlockCommand::Read)?,
            "block_write" => self.block(BlockCommand::Write)?,
            "block_discard" => self.block(BlockCommand::Discard)?,
            "block_flush" => self.block(BlockCommand::Flush)?,
            "user" => EventKind::User(self.word(UserOperation::from_word)?),
            "device" => EventKind::Device(self.word(DeviceState::from_word)?),
            _ => return Err(RowError::Operation(self.operation.to_owned())),
        })
    }

    /// What changes or reads directories.
    fn kind_of_name(&self) -> Result<Option<EventKind>, RowError> {
        Ok(Some(match self.operation {
            "create" => EventKind::Create {
                path: self.path()?,
                mode: self.needed(self.row.mode, "mode")?,
            },
            "make_directory" => EventKind::MakeDirectory {
                path: self.path()?,
                mode: self.needed(self.row.mode, "mode")?,
            },
            "symlink" => EventKind::Symlink {
                path: self.path()?,
                target: self.target()?,
            },
            "link" => EventKind::Link {
                from: self.path()?,
                to: self.target()?,
            },
            "rename" => EventKind::Rename {
                from: self.path()?,
                to: self.target()?,
                exchange: self.has_detail("exchange")?,
            },
            "unlink" => EventKind::Unlink { path: self.path()? },
            "remove_directory" => EventKind::RemoveDirectory { path: self.path()? },
            "stat" => EventKind::Stat { path: self.path()? },
            "read_directory" => EventKind::ReadDirectory { path: self.path()? },
            _ => return Ok(None),
        }))
    }

    /// What is done to one file.
    fn kind_of_file(&self) -> Result<Option<EventKind>, RowError> {
        let offset = || self.needed(self.row.offset, "offset");
        let length = || self.needed(self.row.length, "length");
        Ok(Some(match self.operation {
            "open" => EventKind::Open {
                path: self.path()?,
                flags: self.word(flags_of)?,
            },
            "close" => EventKind::Close { path: self.path()? },
            "read" => EventKind::Read {
                path: self.path()?,
                offset: offset()?,
                length: length()?,
            },
            "write" => EventKind::Write {
                path: self.path()?,
                offset: offset()?,
                length: length()?,
            },
            "truncate" => EventKind::Truncate {
                path: self.path()?,
                length: length()?,
            },
            "allocate" => EventKind::Allocate {
                path: self.path()?,
                mode: self.word(AllocateMode::from_word)?,
                offset: offset()?,
                length: length()?,
            },
            "sync" => EventKind::Sync {
                path: self.path()?,
                data_only: self.has_detail("data")?,
            },
            "set_attributes" => EventKind::SetAttributes {
                path: self.path()?,
                attribute: self.word(Attribute::from_word)?,
            },
            "set_xattr" => EventKind::SetXattr {
                path: self.path()?,
                length: length()?,
            },
            "remove_xattr" => EventKind::RemoveXattr { path: self.path()? },
            _ => return Ok(None),
        }))
    }

    fn block(&self, command: BlockCommand) -> Result<EventKind, RowError> {
        Ok(EventKind::Block {
            device: self.needed(self.row.device, "device")?,
            command,
            offset: self.needed(self.row.offset, "offset")?,
            length: self.needed(self.row.length, "length")?,
            is_forced_unit_access: self.has_detail("fua")?,
        })
    }

    fn needed<T>(&self, value: Option<T>, column: &'static str) -> Result<T, RowError> {
        value.ok_or_else(|| RowError::Missing {
            operation: self.operation.to_owned(),
            column,
        })
    }

    fn path(&self) -> Result<PathIndex, RowError> {
        self.needed(self.row.path, "path")
    }

    fn target(&self) -> Result<PathIndex, RowError> {
        self.needed(self.row.target, "target")
    }

    fn word<T>(&self, meaning: impl Fn(&str) -> Option<T>) -> Result<T, RowError> {
        let word = self.needed(self.row.detail.as_deref(), "detail")?;
        meaning(word).ok_or_else(|| self.wrong_detail(word))
    }

    /// Whether the one detail that the operation may have is there.
    fn has_detail(&self, known: &str) -> Result<bool, RowError> {
        match self.row.detail.as_deref() {
            None => Ok(false),
            Some(detail) if detail == known => Ok(true),
            Some(detail) => Err(self.wrong_detail(detail)),
        }
    }

    fn wrong_detail(&self, detail: &str) -> RowError {
        RowError::Detail {
            operation: self.operation.to_owned(),
            detail: detail.to_owned(),
        }
    }
}
