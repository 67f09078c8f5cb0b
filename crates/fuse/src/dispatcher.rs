//! From a request in a buffer to the filesystem, with what observes and records it in between.

use std::sync::Arc;

use rustix::io::Errno;

use crate::call::Call;
use crate::delivery::Delivery;
use crate::filesystem::Filesystem;
use crate::in_flight::RequestSlot;
use crate::observer::{ObservedTransport, RequestObserver};
use crate::request::Request;
use crate::transport::{RecordedTransport, Transport};

/// Hands requests to a filesystem. A session has one; tests and fuzz targets use it without a
/// session, over a [`Transport`] of their own.
pub struct Dispatcher {
    filesystem: Box<dyn Filesystem>,
    observer: Option<Arc<dyn RequestObserver>>,
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher").finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// For this filesystem; `observer` learns of every request.
    pub fn new(filesystem: impl Filesystem, observer: Option<Arc<dyn RequestObserver>>) -> Self {
        Self {
            filesystem: Box::new(filesystem),
            observer,
        }
    }

    pub(crate) fn filesystem(&self) -> &dyn Filesystem {
        &*self.filesystem
    }

    /// Has one request handled; it lies in `slot`, if the session has a ledger. Returns where
    /// the answer is.
    pub fn handle(
        &self,
        transport: &dyn Transport,
        slot: Option<&dyn RequestSlot>,
        request: &Request<'_>,
        scratch: &mut [u8],
    ) -> Delivery {
        let recorded = slot.map(|slot| RecordedTransport::new(transport, slot));
        let transport = innermost(transport, recorded.as_ref());
        let Some(observer) = &self.observer else {
            return self.call(transport, slot, request, |call| {
                self.filesystem.handle(call, scratch);
            });
        };
        let observed = ObservedTransport::new(transport, &**observer, request);
        let delivery = self.call(&observed, slot, request, |call| {
            self.filesystem.handle(call, scratch);
        });
        if !request.expects_reply() {
            observed.completed_without_reply();
        }
        delivery
    }

    /// Has a request finished that a predecessor of this process left in `slot`.
    pub fn finish_in_flight(
        &self,
        transport: &dyn Transport,
        slot: &dyn RequestSlot,
        request: &Request<'_>,
        scratch: &mut [u8],
    ) -> Delivery {
        let recorded = RecordedTransport::new(transport, slot);
        let finish = |call: &Call<'_>| self.filesystem.finish_in_flight(call, scratch);
        match &self.observer {
            None => self.call(&recorded, Some(slot), request, finish),
            Some(observer) => {
                let observed = ObservedTransport::in_flight(&recorded, &**observer, request);
                self.call(&observed, Some(slot), request, finish)
            }
        }
    }

    /// Answers a request with an error, without asking the filesystem.
    pub(crate) fn refuse(
        transport: &dyn Transport,
        slot: Option<&dyn RequestSlot>,
        request: &Request<'_>,
        errno: Errno,
    ) {
        if request.expects_reply() {
            let recorded = slot.map(|slot| RecordedTransport::new(transport, slot));
            let transport = innermost(transport, recorded.as_ref());
            let call = Call::new(transport, request, slot.map(RequestSlot::number));
            call.reply().error(errno);
        }
    }

    fn call(
        &self,
        transport: &dyn Transport,
        slot: Option<&dyn RequestSlot>,
        request: &Request<'_>,
        handle: impl FnOnce(&Call<'_>),
    ) -> Delivery {
        let call = Call::new(transport, request, slot.map(RequestSlot::number));
        handle(&call);
        if request.expects_reply() && call.delivery() == Delivery::Pending {
            let (unique, opcode) = (request.header.unique, request.header.opcode);
            debug_assert!(false, "request {unique} (opcode {opcode}) has no answer");
            tracing::error!(unique, opcode, "the filesystem did not answer a request");
            call.reply().error(Errno::IO);
        }
        call.delivery()
    }
}

fn innermost<'a>(
    transport: &'a dyn Transport,
    recorded: Option<&'a RecordedTransport<'a>>,
) -> &'a dyn Transport {
    match recorded {
        Some(recorded) => recorded,
        None => transport,
    }
}
