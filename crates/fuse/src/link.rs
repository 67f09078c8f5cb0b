//! What reaches the kernel, and is needed for it outside a session's threads.

use std::sync::{OnceLock, Weak};

use crate::negotiation::Negotiated;
use crate::transport::DeviceTransport;
use crate::waiting::Waits;

/// The way to the kernel, which a session shares with those who send notifications and deferred
/// replies. Unlike the session it knows no filesystem, so a filesystem may hold what holds it.
pub(crate) struct Link {
    pub(crate) transport: DeviceTransport,
    pub(crate) negotiated: Negotiated,
    /// Requests are answered by a successor if this process dies.
    pub(crate) requests_outlive_process: bool,
    /// The threads that answer, once the session runs.
    pub(crate) workers: OnceLock<Weak<dyn Waits>>,
}
