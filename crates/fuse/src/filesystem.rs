//! What a filesystem offers, so that a [`Session`](crate::Session) can serve it.

use crate::call::Call;
use crate::connection::Connection;
use crate::negotiation::DirectIo;
use crate::protocol::PAYLOAD_BYTES_MAX;

/// Size of the scratch memory that [`Filesystem::handle`] gets, in bytes: room for the largest
/// READ.
pub const SCRATCH_BYTES: usize = PAYLOAD_BYTES_MAX;

/// Answers the kernel's requests.
///
/// # Threads
/// The session's workers call any method at any time and in parallel. The kernel orders only
/// what depends on an earlier answer: two requests for one object may be handled at once.
///
/// # Blocking
/// A call may block its worker (a cold read, an `fsync`). While a wait that is declared
/// ([`Connection::waiting`]) leaves no worker idle, another one takes the next request at once;
/// where all are stuck otherwise, the watchdog starts one after some milliseconds. There are up to
/// 64 more; further blocked requests wait in the kernel.
///
/// # Answers
/// Every request but FORGET and BATCH_FORGET is answered exactly once, by the handler, through
/// [`Call::reply`] before it returns, or later through [`Reply::defer`](crate::Reply::defer).
/// A request that the handler leaves unanswered is answered with `EIO` and reported in the log.
/// An error is an errno, which the calling program sees as it is.
///
/// # Memory
/// Names and data of a request lie in the worker's request buffer until the handler returns; a
/// handler that needs them longer copies them. A reply borrows its payload for the time of the
/// system call that sends it; nothing is kept.
///
/// # Requests in flight when the process dies
/// With a [`RequestLedger`](crate::RequestLedger) a request stays in its slot until the handler
/// has returned, so [`Reply::defer`](crate::Reply::defer) is not available then. A successor
/// hands each request that it finds in a slot to [`Filesystem::finish_in_flight`].
///
/// # Panics
/// A panic leaves the filesystem in an unknown state. With a ledger the process aborts, for a
/// successor to go on from the recorded state; without one the session ends.
pub trait Filesystem: Send + Sync + 'static {
    /// Handles one request. `scratch` is memory of the calling thread with any content,
    /// [`SCRATCH_BYTES`] long.
    fn handle(&self, call: &Call<'_>, scratch: &mut [u8]);

    /// Handles a request that a predecessor of this process had read and may have executed and
    /// even answered. If it had answered, the kernel refuses the reply, and [`Call::delivery`]
    /// says [`NotAwaited`](crate::Delivery::NotAwaited).
    fn finish_in_flight(&self, call: &Call<'_>, scratch: &mut [u8]) {
        self.handle(call, scratch);
    }

    /// How the kernel may carry out calls with `O_DIRECT`.
    fn direct_io(&self) -> DirectIo {
        DirectIo::Serial
    }

    /// Called once, before the first request: the connection, for notifications and deferred
    /// replies.
    fn connected(&self, _connection: Connection) {}
}
