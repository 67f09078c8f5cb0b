//! How operations on a bus fail.

use std::io;

use super::wire::Malformed;

/// Why an operation on the bus failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum BusError {
    /// There is no bus at an address.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// The connection is gone, or the other side does not speak D-Bus.
    #[error("the bus is gone")]
    Gone,
    /// A service answered that it cannot be done.
    #[error("{name}: {text}")]
    Answer {
        /// The error's name.
        name: String,
        /// What it says, if it does.
        text: String,
    },
    /// An answer did not come in time.
    #[error("no answer in time")]
    Late,
    /// The type of a reply is not the one that was requested.
    #[error("an answer of another type")]
    Type,
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl BusError {
    /// Whether the connection is still usable.
    pub(super) const fn is_of_one_call(&self) -> bool {
        matches!(self, Self::Answer { .. } | Self::Type | Self::Late)
    }
}

impl From<Malformed> for BusError {
    /// The bus checks each message before it passes it on.
    fn from(_: Malformed) -> Self {
        Self::Gone
    }
}
