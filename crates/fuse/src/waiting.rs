//! Saying that a worker waits.

use std::sync::Arc;

/// Who wants to know it: the workers of a session.
pub(crate) trait Waits: Send + Sync {
    /// The calling worker waits from now on.
    fn begin_wait(self: Arc<Self>);
    /// It goes on, and takes the next request itself.
    fn end_wait(&self);
}

/// A worker waits, until the value is dropped.
pub struct WaitingWorker {
    workers: Arc<dyn Waits>,
}

impl WaitingWorker {
    pub(crate) fn begin(workers: Arc<dyn Waits>) -> Self {
        Arc::clone(&workers).begin_wait();
        Self { workers }
    }
}

impl std::fmt::Debug for WaitingWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingWorker").finish_non_exhaustive()
    }
}

impl Drop for WaitingWorker {
    fn drop(&mut self) {
        self.workers.end_wait();
    }
}
