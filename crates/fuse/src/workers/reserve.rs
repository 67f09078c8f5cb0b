//! What the workers know of those in reserve (see [`super::reserve_worker`]).

use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;

/// The reserve.
#[derive(Default)]
pub(crate) struct Reserve {
    pub(super) state: Mutex<State>,
    /// Reserve workers that sleep.
    pub(super) asleep: AtomicUsize,
}

/// What changes together.
#[derive(Default)]
pub(super) struct State {
    /// Workers that wait for a commit.
    pub(super) waiting: usize,
    /// The next request wakes a reserve worker.
    pub(super) is_armed: bool,
}
