//! Outcomes of moves.

/// What became of a move.
pub(crate) enum Moved {
    /// This many bytes have moved.
    Bytes(u64),
    /// The file stays as it is, or as far as it has come, for this reason.
    Skipped(&'static str),
}
