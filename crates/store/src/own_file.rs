//! What the store's small files in `.mobifs` have in common ([`calibration`](crate::calibration),
//! [`preallocation`](crate::apply::preallocation)): a magic number, a version, the identity of the
//! store and a checksum, and that one which cannot be used is ignored, with a line in the log.

use mobifs_base::FileKind;
use mobifs_base::codec::CodecError;

use crate::lower::LowerStat;

/// Why such a file, or a part of it, cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// The file was never written.
    Empty,
    Magic,
    Version(u32),
    OtherStore,
    Length,
    Checksum,
    Malformed(CodecError),
    /// A value that is never written.
    Value,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty"),
            Self::Magic => f.write_str("it begins with something else"),
            Self::Version(version) => write!(f, "it has format version {version}"),
            Self::OtherStore => f.write_str("it is that of another store"),
            Self::Length => f.write_str("it has another length than it says"),
            Self::Checksum => f.write_str("its checksum is wrong"),
            Self::Malformed(error) => write!(f, "{error}"),
            Self::Value => f.write_str("it has a value that is never written"),
        }
    }
}

impl From<CodecError> for Damage {
    fn from(error: CodecError) -> Self {
        Self::Malformed(error)
    }
}

/// Whether this is the store's own file, and of nothing else: with another name it is not.
pub(crate) fn is_ours(stat: &LowerStat) -> bool {
    stat.kind == FileKind::Regular && stat.nlink == 1
}
