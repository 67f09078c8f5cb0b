//! Answers that may come later.

use rustix::io::Errno;

use crate::connection::DeferredReply;
use crate::protocol::WriteReply;

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

/// The answer to one request for content. Sent exactly once, by any thread; dropped unsent, the
/// caller gets `EIO`.
#[derive(Debug)]
pub struct Answer {
    reply: DeferredReply,
    wanted: Wanted,
}

impl Answer {
    pub(super) const fn new(reply: DeferredReply, wanted: Wanted) -> Self {
        Self { reply, wanted }
    }

    /// The bytes that a read asked for, all of them.
    pub fn data(self, bytes: &[u8]) {
        match self.wanted {
            Wanted::Data => self.reply.bytes(bytes),
            Wanted::Nothing | Wanted::Written(_) => self.reply.error(Errno::IO),
        }
    }

    /// Answers that the request is done.
    pub fn done(self) {
        match self.wanted {
            Wanted::Nothing => self.reply.bytes(&[]),
            Wanted::Written(size) => self.reply.value(&WriteReply { size, padding: 0 }),
            // A read is not done without its data.
            Wanted::Data => self.reply.error(Errno::IO),
        }
    }

    /// Answers that the request could not be done.
    pub fn fail(self, errno: Errno) {
        self.reply.error(errno);
    }
}
