//! What serves the content of the file.

use super::answer::Answer;

/// Which file of those that had the name one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// What becomes of a range that is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clear {
    /// Its space is not needed any more; it reads as zeros (`FALLOC_FL_PUNCH_HOLE`).
    Discard,
    /// Zeros are written (`FALLOC_FL_ZERO_RANGE`).
    Zero,
}

/// Content of the one file. Any number of threads call it at the same time; a call
/// should not block, but keep the [`Answer`] and return.
///
/// Offsets and lengths lie within the file. An answer that is dropped fails with `EIO`.
pub trait FileServer: Send + Sync + 'static {
    /// Size of the file, in bytes; constant.
    fn size_bytes(&self) -> u64;

    /// The file that its name leads to now.
    fn incarnation(&self) -> Incarnation;

    /// Reads; to be answered with [`Answer::data`].
    fn read(&self, file: Incarnation, offset: u64, bytes: usize, answer: Answer);

    /// Writes; to be answered with [`Answer::done`], as all requests that follow.
    fn write(&self, file: Incarnation, offset: u64, data: &[u8], answer: Answer);

    /// Makes everything durable that was written and answered before (`fsync(2)`).
    fn sync(&self, file: Incarnation, answer: Answer);

    /// Gives up a range.
    fn clear(&self, file: Incarnation, how: Clear, offset: u64, bytes: u64, answer: Answer);
}
