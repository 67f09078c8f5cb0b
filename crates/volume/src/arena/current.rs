//! What has been executed of the request that a thread is answering.

use std::cell::RefCell;

use mobifs_base::ObjectId;
use mobifs_base::codec::{Reader, Writer};

use super::Arena;
use super::records::{RawKey, Records};
use crate::Volume;

/// Kinds of records; the engine's have lower numbers.
pub(super) const EXECUTED: u8 = 64;
pub(super) const REFERENCE: u8 = 65;

/// What a killed daemon had executed of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFlightRequest {
    /// The request was executed; with the id of the object that it made or linked, or the number
    /// of bytes that it wrote or copied, or 0.
    pub outcome: Option<u64>,
    /// References to objects that it took (lookups), or, negative, gave back.
    pub references: Vec<(ObjectId, i64)>,
}

/// The request that a thread is answering.
struct Current {
    slot: usize,
    unique: u64,
    /// To be kept with the operation that is under way.
    outcome: Option<u64>,
    new_references: Vec<(ObjectId, i64)>,
    references: u64,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// The request of this thread, if there is one, has been executed by the operation that
/// is under way; to be called with the engine locked.
pub(crate) fn executed(outcome: u64) {
    CURRENT.with_borrow_mut(|current| {
        if let Some(current) = current {
            current.outcome = Some(outcome);
        }
    });
}

/// The request of this thread takes (or gives back) references to an object; to be
/// called with the engine locked.
pub(crate) fn reference(id: ObjectId, count: i64) {
    CURRENT.with_borrow_mut(|current| {
        if let Some(current) = current {
            current.new_references.push((id, count));
        }
    });
}

/// Whether something is to be kept.
pub(super) fn is_recorded() -> bool {
    CURRENT.with_borrow(|current| {
        current
            .as_ref()
            .is_some_and(|c| c.outcome.is_some() || !c.new_references.is_empty())
    })
}

/// Adds to the batch what was done.
pub(super) fn save(records: &mut Records) {
    CURRENT.with_borrow_mut(|current| {
        let Some(current) = current else { return };
        let slot = current.slot as u64;
        if let Some(outcome) = current.outcome.take() {
            let mut out = Writer::default();
            out.u64(current.unique);
            out.u64(outcome);
            let key = RawKey {
                kind: EXECUTED,
                first: slot,
                second: 0,
            };
            records.put(key, out.as_bytes());
        }
        for (id, count) in current.new_references.drain(..) {
            let mut out = Writer::default();
            out.u64(current.unique);
            out.u64(id.0);
            out.u64(count.cast_unsigned());
            let key = RawKey {
                kind: REFERENCE,
                first: slot,
                second: current.references,
            };
            current.references += 1;
            records.put(key, out.as_bytes());
        }
    });
}

impl Volume {
    /// Runs `serve` as the request `unique` in request slot `slot`: what it changes is
    /// kept together with the note that this request has done it.
    pub fn serving<R>(&self, slot: usize, unique: u64, serve: impl FnOnce() -> R) -> R {
        /// Also after a panic the thread has no request any more.
        struct Done;
        impl Drop for Done {
            fn drop(&mut self) {
                CURRENT.set(None);
            }
        }
        CURRENT.set(Some(Current {
            slot,
            unique,
            outcome: None,
            new_references: Vec::new(),
            references: 0,
        }));
        let _done = Done;
        serve()
    }

    /// What a killed daemon had executed of request `unique` in request slot `slot`.
    pub fn in_flight_request(&self, slot: usize, unique: u64) -> InFlightRequest {
        self.arena()
            .map(|arena| arena.in_flight_request(slot, unique))
            .unwrap_or_default()
    }
}

impl Arena {
    fn in_flight_request(&self, slot: usize, unique: u64) -> InFlightRequest {
        let records = self.shared.records.lock();
        let content = |kind, second| {
            records.content_of(RawKey {
                kind,
                first: slot as u64,
                second,
            })
        };
        let mut found = InFlightRequest::default();
        let executed = content(EXECUTED, 0);
        let mut from = Reader::new(&executed);
        if from.u64() == Ok(unique) {
            found.outcome = from.u64().ok();
        }
        // Those of this request come first; after them are those of longer ones before.
        for number in 0.. {
            let reference = content(REFERENCE, number);
            let mut from = Reader::new(&reference);
            if from.u64() != Ok(unique) {
                break;
            }
            let (Ok(id), Ok(count)) = (from.u64(), from.u64()) else {
                break;
            };
            found.references.push((ObjectId(id), count.cast_signed()));
        }
        found
    }
}
