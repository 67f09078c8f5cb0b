//! One request on its way to its answer ([`Reply`](crate::Reply)).

use std::cell::Cell;

use crate::delivery::Delivery;
use crate::message::invalidate_attributes;
use crate::protocol::RequestHeader;
use crate::request::{Operation, Request};
use crate::transport::Transport;

/// One request of the kernel and the way to answer it; used by the thread that handles it.
pub struct Call<'a> {
    transport: &'a dyn Transport,
    request: &'a Request<'a>,
    slot: Option<usize>,
    delivery: Cell<Delivery>,
}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call")
            .field("request", self.request)
            .field("slot", &self.slot)
            .field("delivery", &self.delivery)
            .finish_non_exhaustive()
    }
}

impl<'a> Call<'a> {
    /// A request that lies in `slot` of a [`RequestLedger`](crate::RequestLedger), if there is
    /// one.
    pub(crate) const fn new(
        transport: &'a dyn Transport,
        request: &'a Request<'a>,
        slot: Option<usize>,
    ) -> Self {
        Self {
            transport,
            request,
            slot,
            delivery: Cell::new(Delivery::Pending),
        }
    }

    /// Number, node and sender of the request.
    pub const fn header(&self) -> &'a RequestHeader {
        &self.request.header
    }

    /// What the request asks for.
    pub const fn operation(&self) -> &'a Operation<'a> {
        &self.request.operation
    }

    /// The slot of the session's [`RequestLedger`](crate::RequestLedger) in which the request
    /// lies.
    pub const fn slot(&self) -> Option<usize> {
        self.slot
    }

    /// Where the answer is.
    pub const fn delivery(&self) -> Delivery {
        self.delivery.get()
    }

    /// Has the kernel ask again for the attributes of `node`; its cached content stays.
    pub fn invalidate_attributes(&self, node: u64) {
        invalidate_attributes(self.transport, node);
    }

    pub(crate) const fn transport(&self) -> &'a dyn Transport {
        self.transport
    }

    pub(crate) fn set_delivery(&self, delivery: Delivery) {
        debug_assert!(
            self.request.expects_reply(),
            "the kernel takes a reply to FORGET as an error"
        );
        self.delivery.set(delivery);
    }
}
