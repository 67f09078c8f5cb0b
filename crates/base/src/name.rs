//! Directory entry names.

use alloc::sync::Arc;
use core::borrow::Borrow;
use core::fmt;

/// Longest name of a directory entry, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest target of a symlink: what a path may be on Linux, without its NUL.
pub const SYMLINK_BYTES_MAX: usize = 4095;

/// One component of a path: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`.
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

/// Why bytes are not a valid [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidName {
    /// Longer than [`NAME_BYTES_MAX`].
    TooLong,
    /// Empty, `.`, `..`, or with a `/` or NUL inside.
    Malformed,
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "the name is longer than 255 bytes",
            Self::Malformed => "the name is empty, '.', '..', or contains '/' or NUL",
        })
    }
}

impl core::error::Error for InvalidName {}

impl Name {
    /// Checks and copies `bytes`.
    ///
    /// # Errors
    /// [`InvalidName`] says which rule is broken.
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidName> {
        Self::check(bytes)?;
        Ok(Self(bytes.into()))
    }

    /// The name that sorts before all others.
    pub fn first() -> Self {
        Self([1].into())
    }

    /// Checks `bytes` without copying them.
    ///
    /// # Errors
    /// As [`Name::new`].
    pub fn check(bytes: &[u8]) -> Result<(), InvalidName> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(InvalidName::TooLong);
        }
        if matches!(bytes, b"" | b"." | b"..") || bytes.iter().any(|b| matches!(b, b'/' | 0)) {
            return Err(InvalidName::Malformed);
        }
        Ok(())
    }

    /// The name's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_what_no_directory_may_hold() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(Name::new(bad), Err(InvalidName::Malformed));
        }
        assert_eq!(Name::new(&[b'x'; 256]), Err(InvalidName::TooLong));
        assert!(Name::new(&[b'x'; 255]).is_ok());
        assert!(Name::new(b"\xff\n").is_ok());
    }
}
