//! A transport for one request that a successor may have to finish.

use std::io::IoSlice;

use rustix::io::Errno;
use zerocopy::FromBytes as _;

use super::Transport;
use crate::in_flight::RequestSlot;
use crate::protocol::ReplyHeader;

/// Records in its slot that a request fails, *before* the kernel learns of it. Otherwise a
/// process that is killed between the two would leave a request that looks as if it had never
/// been executed, and the successor could do what has failed for the sender.
pub(crate) struct RecordedTransport<'a> {
    inner: &'a dyn Transport,
    slot: &'a dyn RequestSlot,
}

impl<'a> RecordedTransport<'a> {
    pub(crate) const fn new(inner: &'a dyn Transport, slot: &'a dyn RequestSlot) -> Self {
        Self { inner, slot }
    }
}

impl Transport for RecordedTransport<'_> {
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
            self.slot.record_error(header.error);
        }
        self.inner.reply(parts)
    }

    fn notify(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        self.inner.notify(parts)
    }
}
