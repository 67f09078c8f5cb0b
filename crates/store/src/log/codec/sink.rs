//! Where encoded records go. Encoding first into a [`Counter`] and then into a [`Filler`] writes
//! directly into the journal's buffer, without a copy.

use mobifs_base::codec::Sink;

/// Counts bytes only.
#[derive(Default)]
pub(super) struct Counter {
    /// Bytes so far.
    pub(super) bytes: u64,
}

impl Sink for Counter {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
    }
}

/// Fills a slice from its start.
pub(super) struct Filler<'a> {
    rest: &'a mut [u8],
}

impl<'a> Filler<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Self { rest: out }
    }

    /// Bytes that were not filled.
    pub(super) fn rest_bytes(&self) -> usize {
        self.rest.len()
    }
}

impl Sink for Filler<'_> {
    /// The slice must have the size that a [`Counter`] counted for the same records.
    fn put(&mut self, bytes: &[u8]) {
        let (head, rest) = core::mem::take(&mut self.rest).split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        self.rest = rest;
    }
}
