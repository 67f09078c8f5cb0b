//! Answers that may come later.

use std::sync::Arc;

use rustix::io::Errno;

use crate::protocol::WriteReply;
use crate::reply::Reply;
use crate::session::Shared;

/// What a request waits for besides success or failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Nothing.
    Nothing,
    /// As many bytes as it asked for.
    Data,
    /// How many bytes were written: all.
    Written(u32),
}

/// One caller who waits. Answered exactly once, by whatever thread; dropped without an
/// answer, the caller gets `EIO`.
pub struct Answer {
    shared: Arc<Shared>,
    unique: u64,
    wanted: Wanted,
    is_open: bool,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer")
            .field("unique", &self.unique)
            .field("wanted", &self.wanted)
            .finish_non_exhaustive()
    }
}

impl Answer {
    pub(super) fn new(shared: Arc<Shared>, unique: u64, wanted: Wanted) -> Self {
        Self {
            shared,
            unique,
            wanted,
            is_open: true,
        }
    }

    /// The bytes that a read asked for, all of them.
    pub fn data(mut self, bytes: &[u8]) {
        self.is_open = false;
        match self.wanted {
            Wanted::Data => self.reply().bytes(bytes),
            Wanted::Nothing | Wanted::Written(_) => self.reply().error(Errno::IO),
        }
    }

    /// It is done.
    pub fn done(mut self) {
        self.is_open = false;
        match self.wanted {
            Wanted::Nothing => self.reply().done(),
            Wanted::Written(size) => self.reply().value(&WriteReply { size, padding: 0 }),
            // A read is not done without its data.
            Wanted::Data => self.reply().error(Errno::IO),
        }
    }

    /// It could not be done.
    pub fn fail(mut self, errno: Errno) {
        self.is_open = false;
        self.reply().error(errno);
    }

    fn reply(&self) -> Reply<'_> {
        Reply::new(&self.shared.transport, self.unique)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.is_open {
            self.reply().error(Errno::IO);
        }
    }
}
