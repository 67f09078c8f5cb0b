//! Observing what programs do: each request with its answer.
//!
//! The observer sits between the filesystem and the transport, where both are known. It is
//! called just before the answer leaves: the sender still waits then, so the observer can look
//! at it, and what the sender does next is observed later.

use std::io::IoSlice;

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use zerocopy::FromBytes as _;

use crate::protocol::ReplyHeader;
use crate::request::Request;
use crate::transport::Transport;

/// Learns of every request. Any number of threads call it at the same time, between one request
/// and the next: what it does must be short and must never wait.
pub trait RequestObserver: Send + Sync {
    /// A request ends. Requests of one thread come in their order; others may come later than
    /// such that began after them. A request that a predecessor of this process left comes only
    /// if the kernel had not had its answer.
    fn completed(&self, request: &Request<'_>, completion: &Completion<'_>);
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Completion<'a> {
    /// When its handler was called; see [`monotonic_ns`].
    pub begun_at_ns: u64,
    /// When its answer was ready; the same as `begun_at_ns` for FORGET.
    pub ended_at_ns: u64,
    /// The errno, positive; 0 for success.
    pub error: i32,
    /// What the answer holds after its header; of an answer in several parts, the first one.
    pub payload: &'a [u8],
    /// Length of the whole payload.
    pub payload_bytes: usize,
}

/// `CLOCK_MONOTONIC`, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The kernel keeps it positive and the nanoseconds below a second.
    let seconds_ns = (now.tv_sec as u64).saturating_mul(1_000_000_000);
    seconds_ns.saturating_add(now.tv_nsec as u64)
}

/// Carries the answer to one request past the observer.
pub(crate) struct ObservedTransport<'a> {
    inner: &'a dyn Transport,
    observer: &'a dyn RequestObserver,
    request: &'a Request<'a>,
    begun_at_ns: u64,
    /// A predecessor has read the request, and may have answered it.
    is_in_flight: bool,
}

impl<'a> ObservedTransport<'a> {
    pub(crate) fn new(
        inner: &'a dyn Transport,
        observer: &'a dyn RequestObserver,
        request: &'a Request<'a>,
    ) -> Self {
        Self {
            inner,
            observer,
            request,
            begun_at_ns: monotonic_ns(),
            is_in_flight: false,
        }
    }

    /// Observes a request that a predecessor left.
    pub(crate) fn in_flight(
        inner: &'a dyn Transport,
        observer: &'a dyn RequestObserver,
        request: &'a Request<'a>,
    ) -> Self {
        Self {
            is_in_flight: true,
            ..Self::new(inner, observer, request)
        }
    }

    /// For requests that have no answer, when they are done.
    pub(crate) fn completed_without_reply(&self) {
        let completion = Completion {
            begun_at_ns: self.begun_at_ns,
            ended_at_ns: self.begun_at_ns,
            error: 0,
            payload: &[],
            payload_bytes: 0,
        };
        self.observer.completed(self.request, &completion);
    }

    fn replied(&self, parts: &[IoSlice<'_>], ended_at_ns: u64) {
        let header = parts
            .first()
            .map(|part| ReplyHeader::read_from_prefix(part));
        let Some(Ok((header, _))) = header else {
            return;
        };
        let payload = parts.get(1..).unwrap_or_default();
        let completion = Completion {
            begun_at_ns: self.begun_at_ns,
            ended_at_ns,
            error: -header.error,
            payload: payload.first().map_or(&[], |part| part),
            payload_bytes: payload.iter().map(|part| part.len()).sum(),
        };
        self.observer.completed(self.request, &completion);
    }
}

impl Transport for ObservedTransport<'_> {
    fn try_receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        self.inner.try_receive(buffer)
    }

    fn sleep(&self) -> Result<(), Errno> {
        self.inner.sleep()
    }

    fn reply(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        let ended_at_ns = monotonic_ns();
        if self.is_in_flight {
            let sent = self.inner.reply(parts);
            // Not awaited: the predecessor had answered and reported it to its observer.
            if sent != Err(Errno::NOENT) {
                self.replied(parts, ended_at_ns);
            }
            return sent;
        }
        self.replied(parts, ended_at_ns);
        self.inner.reply(parts)
    }

    fn notify(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        self.inner.notify(parts)
    }
}
