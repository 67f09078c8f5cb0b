//! A transport for one request that a successor may have to finish.

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};

use mobifs_volume::Refusal;
use rustix::io::Errno;
use zerocopy::FromBytes as _;

use super::Transport;
use crate::protocol::ReplyHeader;

/// Notes how a request ends.
///
/// That it fails is noted in its slot *before* the kernel hears of it. Otherwise a
/// process that is killed between the two would leave a request that looks as if it had
/// never been looked at, and the successor could do what the sender was told has failed.
pub(crate) struct NotedTransport<'a> {
    inner: &'a dyn Transport,
    refusal: Refusal<'a>,
    nobody_waited: AtomicBool,
}

impl<'a> NotedTransport<'a> {
    pub(crate) const fn new(inner: &'a dyn Transport, refusal: Refusal<'a>) -> Self {
        Self {
            inner,
            refusal,
            nobody_waited: AtomicBool::new(false),
        }
    }

    /// Whether the kernel said that nobody waits for the reply. It waits for the reply to
    /// each request that was read, so that means: it has had one.
    pub(crate) fn nobody_waited(&self) -> bool {
        self.nobody_waited.load(Ordering::Relaxed)
    }
}

impl Transport for NotedTransport<'_> {
    fn try_receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        self.inner.try_receive(buffer)
    }

    fn sleep(&self) -> Result<(), Errno> {
        self.inner.sleep()
    }

    fn reply(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        let header = parts
            .first()
            .map(|part| ReplyHeader::read_from_prefix(part));
        if let Some(Ok((header, _))) = header
            && header.error != 0
        {
            self.refusal.note(header.error);
        }
        let sent = self.inner.reply(parts);
        if sent == Err(Errno::NOENT) {
            self.nobody_waited.store(true, Ordering::Relaxed);
        }
        sent
    }

    fn notify(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        self.inner.notify(parts)
    }
}
