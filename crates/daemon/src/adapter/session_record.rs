//! The record of a session in the arena, for a successor.

use mobifs_fuse::Negotiated;
use mobifs_volume::{Arena, ArenaError};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Raised when the meaning of [`SessionRecord`] changes.
const VERSION: u32 = 1;

/// Why a mount cannot be taken over.
#[derive(Debug, Error)]
pub enum TakeoverError {
    /// The predecessor died before there was a session.
    #[error("the predecessor left no session: it ended before its mount was made")]
    NoSession,
    /// Another version of this program wrote it.
    #[error("the predecessor's session was written by a version that this one does not know")]
    UnknownVersion,
    /// The arena refused to keep the record.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The descriptor of the kernel connection cannot be used.
    #[error("the predecessor's connection with the kernel cannot be used: {0}")]
    Device(#[source] std::io::Error),
}

/// What the kernel and the predecessors negotiated, and how often the session was taken
/// over. Kept by [`Arena::set_session`], whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct SessionRecord {
    version: u32,
    minor: u32,
    flags: u64,
    sync_reaches: u32,
    /// Takeovers begun since one was completed.
    attempts: u32,
    /// Takeovers begun.
    takeovers: u64,
}

impl SessionRecord {
    pub(super) fn new(negotiated: Negotiated, sync_reaches: bool) -> Self {
        Self {
            version: VERSION,
            minor: negotiated.minor,
            flags: negotiated.flags,
            sync_reaches: sync_reaches.into(),
            attempts: 0,
            takeovers: 0,
        }
    }

    pub(super) fn read(arena: &Arena) -> Result<Self, TakeoverError> {
        let bytes = arena.session().ok_or(TakeoverError::NoSession)?;
        match Self::read_from_bytes(&bytes) {
            Ok(record) if record.version == VERSION => Ok(record),
            _ => Err(TakeoverError::UnknownVersion),
        }
    }

    pub(super) fn write(&self, arena: &Arena) -> Result<(), ArenaError> {
        arena.set_session(self.as_bytes())
    }

    pub(super) const fn negotiated(&self) -> Negotiated {
        Negotiated {
            minor: self.minor,
            flags: self.flags,
        }
    }

    pub(super) const fn sync_reaches(&self) -> bool {
        self.sync_reaches != 0
    }

    pub(super) const fn takeovers(&self) -> u64 {
        self.takeovers
    }
}

/// Records that a takeover begins, before anything that could end this process, too;
/// returns how many have begun since one was completed, this one included.
///
/// # Errors
/// [`TakeoverError`].
pub fn begin_takeover(arena: &Arena) -> Result<u32, TakeoverError> {
    let mut record = SessionRecord::read(arena)?;
    record.attempts = record.attempts.saturating_add(1);
    record.takeovers = record.takeovers.saturating_add(1);
    record.write(arena)?;
    Ok(record.attempts)
}

/// Records that a takeover has failed for a reason that may pass, and does not count.
///
/// # Errors
/// [`TakeoverError`].
pub fn postpone_takeover(arena: &Arena) -> Result<(), TakeoverError> {
    let mut record = SessionRecord::read(arena)?;
    record.attempts = record.attempts.saturating_sub(1);
    Ok(record.write(arena)?)
}

/// Records that the takeover is complete: the predecessor's requests are answered.
pub(super) fn complete_takeover(arena: &Arena) -> Result<(), TakeoverError> {
    let mut record = SessionRecord::read(arena)?;
    record.attempts = 0;
    Ok(record.write(arena)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEGOTIATED: Negotiated = Negotiated {
        minor: 45,
        flags: 1 << 40 | 7,
    };

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let arena = Arena::create().unwrap();
        let missing = SessionRecord::read(&arena).unwrap_err();
        assert!(matches!(missing, TakeoverError::NoSession), "{missing}");
        let record = SessionRecord::new(NEGOTIATED, true);
        record.write(&arena).unwrap();
        let found = SessionRecord::read(&arena).unwrap();
        assert_eq!(
            (found.negotiated(), found.sync_reaches()),
            (NEGOTIATED, true)
        );
        assert_eq!(found, record);
    }

    #[test]
    fn takeovers_are_counted_until_one_is_complete() {
        let arena = Arena::create().unwrap();
        SessionRecord::new(NEGOTIATED, false).write(&arena).unwrap();
        assert_eq!(begin_takeover(&arena).unwrap(), 1);
        assert_eq!(begin_takeover(&arena).unwrap(), 2);
        postpone_takeover(&arena).unwrap();
        assert_eq!(begin_takeover(&arena).unwrap(), 2, "one did not count");
        complete_takeover(&arena).unwrap();
        assert_eq!(begin_takeover(&arena).unwrap(), 1);
        assert_eq!(SessionRecord::read(&arena).unwrap().takeovers(), 4);
    }

    #[test]
    fn a_record_of_another_version_is_refused() {
        let arena = Arena::create().unwrap();
        let mut record = SessionRecord::new(NEGOTIATED, false);
        record.version += 1;
        record.write(&arena).unwrap();
        let refused = begin_takeover(&arena).unwrap_err();
        assert!(
            matches!(refused, TakeoverError::UnknownVersion),
            "{refused}"
        );
        arena.set_session(b"short").unwrap();
        assert!(begin_takeover(&arena).is_err());
    }
}
