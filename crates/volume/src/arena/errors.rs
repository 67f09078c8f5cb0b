//! How an arena fails.

use std::io;

use super::layout::SESSION_BYTES_MAX;

/// Why an arena cannot be made, or not be taken over.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The system refused.
    #[error("cannot make memory that outlives the daemon: {0}")]
    Memory(#[from] io::Error),
    /// The memory is not an arena, or one of another version of this program.
    #[error("the memory that was handed over is not an arena of this version of mobifs")]
    Foreign,
    /// No mount has ever run in it.
    #[error("no mount was kept in the memory that was handed over")]
    Empty,
    /// Something could not be kept, so what is there is not a state.
    #[error("the killed daemon's memory was used up, so its last state was not kept")]
    Incomplete,
    /// What is there does not make sense.
    #[error("the killed daemon's state in the arena is damaged: {0}")]
    Damaged(&'static str),
    /// A text is too long.
    #[error("the session's text has more than {SESSION_BYTES_MAX} bytes")]
    TooLong,
}
