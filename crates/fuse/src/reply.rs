//! Answers to requests.

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::call::Call;
use crate::connection::{Connection, DeferredReply};
use crate::delivery::Delivery;
use crate::message::send;

/// The answer to one request. The methods that send consume it, so a request is answered at most
/// once; what they return says whether the kernel took the answer.
pub struct Reply<'a> {
    call: &'a Call<'a>,
}

impl std::fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reply").field(self.call).finish()
    }
}

impl Call<'_> {
    /// For answering the request.
    pub fn reply(&self) -> Reply<'_> {
        debug_assert!(
            self.delivery() == Delivery::Pending,
            "request {} is answered twice",
            self.header().unique
        );
        Reply { call: self }
    }
}

impl Reply<'_> {
    /// Success with a structure.
    pub fn value<T: IntoBytes + Immutable>(self, value: &T) -> Delivery {
        self.bytes(value.as_bytes())
    }

    /// Success with bytes, which may be none.
    pub fn bytes(self, bytes: &[u8]) -> Delivery {
        self.send(0, bytes)
    }

    /// Success without content.
    pub fn done(self) -> Delivery {
        self.send(0, &[])
    }

    /// Failure.
    pub fn error(self, errno: Errno) -> Delivery {
        self.send(-errno.raw_os_error(), &[])
    }

    /// For answering later, from any thread; none if the session has ended or has a
    /// [`RequestLedger`](crate::RequestLedger), where a request stays in its slot only until its
    /// handler returns. An observer does not learn of deferred replies.
    pub fn defer(self, connection: &Connection) -> Option<DeferredReply> {
        let deferred = connection.defer(self.call.header().unique)?;
        self.call.set_delivery(Delivery::Deferred);
        Some(deferred)
    }

    fn send(self, error: i32, payload: &[u8]) -> Delivery {
        let unique = self.call.header().unique;
        let delivery = send(self.call.transport(), unique, error, payload);
        self.call.set_delivery(delivery);
        delivery
    }
}
