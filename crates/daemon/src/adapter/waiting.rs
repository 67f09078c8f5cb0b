//! Telling the session when one of its workers waits for a commit.

use mobifs_fuse::Connection;
use mobifs_volume::CallingThreads;

/// The workers of one session.
pub(super) struct SessionWorkers {
    connection: Connection,
}

impl SessionWorkers {
    pub(super) const fn new(connection: Connection) -> Self {
        Self { connection }
    }
}

impl CallingThreads for SessionWorkers {
    fn waiting(&self) -> Box<dyn Send> {
        Box::new(self.connection.waiting())
    }
}
