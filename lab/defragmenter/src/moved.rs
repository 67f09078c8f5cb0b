//! Outcomes of moves.

/// What became of a move.
pub(crate) enum Moved {
    /// This many bytes have moved.
    Bytes(u64),
    /// The file stays as it is, or as far as it has come, for this reason.
    Skipped(&'static str),
}

/// What became of a row that was to move to a place of its own.
pub(crate) struct Outcome {
    /// This many bytes have moved.
    pub(crate) bytes: u64,
    /// How it ended.
    pub(crate) end: End,
}

/// How a row ended.
pub(crate) enum End {
    /// All of it has moved.
    Whole,
    /// Its file stays as it is, or as far as it has come, for this reason.
    LeftAlone(&'static str),
    /// The run is to end.
    Stopped,
    /// Other programs need room first.
    RoomNeeded,
}

impl From<End> for Outcome {
    fn from(end: End) -> Self {
        Self { bytes: 0, end }
    }
}
