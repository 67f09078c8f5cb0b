//! What is known of a file besides its extents.

use crate::kind::Kind;

/// What is known of a file besides its extents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileFacts<'f> {
    pub(crate) path: &'f [u8],
    pub(crate) size: u64,
    pub(crate) kind: Kind,
    /// When it was read, in seconds since 1970.
    pub(crate) read_s: i64,
}
