//! What the processes of a supervisor share: the calls that were taken up and are not answered yet, and what was
//! learnt of the programs.
//!
//! It lies in memory that outlives each of them. The kernel writes a call that it hands out straight into this memory,
//! so at no moment is a call only with a process that may be killed: the process that follows it finds the call here.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use zerocopy::FromZeros;

use crate::received::Received;
use crate::shared_page::SharedPage;

/// How many calls can be with the supervisor at a time.
pub(crate) const PLACES: usize = 65;

/// Zeros are one without calls.
#[derive(FromZeros)]
#[repr(C)]
struct Page {
    has_mapped: AtomicU32,
    is_restricted: AtomicU32,
    places: [Place; PLACES],
}

#[derive(FromZeros)]
#[repr(C)]
struct Place {
    is_taken: AtomicU32,
    /// The descriptor that the call's process has got for it, and one; 0 if it has none.
    added: AtomicU32,
    call: UnsafeCell<Received>,
}

// SAFETY: all words but the call are atomic, and the call belongs to who has the place.
unsafe impl Sync for Place {}

/// The shared memory. What is forked has the same.
#[derive(Debug)]
pub(crate) struct Ledger {
    page: SharedPage<Page>,
}

/// A place for one call, to be given back once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry(usize);

impl Ledger {
    pub(crate) fn create() -> Result<Self, Errno> {
        let page = SharedPage::create()?;
        Ok(Self { page })
    }

    /// Takes a place. There is one as long as no more than [`PLACES`] calls are taken up.
    pub(crate) fn take(&self) -> Option<Entry> {
        let take = |place: &Place| {
            let taken = place
                .is_taken
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok()
        };
        self.page.places.iter().position(take).map(Entry)
    }

    /// Gives the place back.
    pub(crate) fn give_back(&self, entry: &Entry) {
        if let Some(place) = self.page.places.get(entry.0) {
            place.is_taken.store(0, Ordering::Release);
        }
    }

    /// Empties the place, and has the kernel fill it.
    pub(crate) fn fill(
        &self,
        entry: &Entry,
        receive: impl FnOnce(*mut Received) -> Result<(), Errno>,
    ) -> Result<Received, Errno> {
        let place = self.page.places.get(entry.0).ok_or(Errno::INVAL)?;
        place.added.store(0, Ordering::Relaxed);
        let call = place.call.get();
        // SAFETY: the place belongs to the entry, so no other thread or process looks at the call; any bytes are one.
        unsafe {
            call.write_volatile(Received::default());
            receive(call)?;
            Ok(call.read_volatile())
        }
    }

    /// Notes that the process of the call has got a descriptor for it.
    pub(crate) fn note_descriptor(&self, entry: &Entry, number: u32) {
        if let Some(place) = self.page.places.get(entry.0) {
            place.added.store(number + 1, Ordering::Release);
        }
    }

    /// Calls that a process has left which has ended, each with the descriptor that its process has got for it.
    ///
    /// For the only process that takes up calls, before it takes one up.
    pub(crate) fn left_over(&self) -> Vec<(Entry, Received, Option<u32>)> {
        let places = self.page.places.iter().enumerate();
        let taken = places.filter(|(_, place)| place.is_taken.load(Ordering::Acquire) != 0);
        let left = taken.map(|(at, place)| {
            // SAFETY: who had the place has ended, and no other process takes up calls.
            let call = unsafe { place.call.get().read_volatile() };
            let added = place.added.load(Ordering::Acquire).checked_sub(1);
            (Entry(at), call, added)
        });
        left.collect()
    }

    /// A process has mapped a file that it can write.
    pub(crate) fn note_mapping(&self) {
        self.page.has_mapped.store(1, Ordering::Release);
    }

    pub(crate) fn has_mapped(&self) -> bool {
        self.page.has_mapped.load(Ordering::Acquire) != 0
    }

    /// A process has restricted itself in ways that the supervisor cannot see.
    pub(crate) fn note_restriction(&self) {
        self.page.is_restricted.store(1, Ordering::Release);
    }

    pub(crate) fn is_restricted(&self) -> bool {
        self.page.is_restricted.load(Ordering::Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_up_is_found_until_it_is_given_back() {
        let ledger = Ledger::create().unwrap();
        assert!(ledger.left_over().is_empty());
        let entries: Vec<Entry> = std::iter::from_fn(|| ledger.take()).collect();
        assert_eq!(entries.len(), PLACES);
        for (entry, thread) in entries.iter().zip(1..) {
            let filled = ledger.fill(entry, |call| {
                // SAFETY: the place is this entry's.
                unsafe { (*call).thread = thread };
                Ok(())
            });
            assert_eq!(filled.unwrap().thread, thread);
        }
        let mut entries = entries.into_iter();
        let (first, second) = (entries.next().unwrap(), entries.next().unwrap());
        ledger.note_descriptor(&first, 0);
        entries.for_each(|entry| ledger.give_back(&entry));
        let left = ledger.left_over();
        let left: Vec<_> = left
            .iter()
            .map(|(_, call, added)| (call.thread, *added))
            .collect();
        assert_eq!(left, [(1, Some(0)), (2, None)]);
        ledger.give_back(&first);
        // What was in a place is not there for the next call.
        assert_eq!(ledger.take(), Some(Entry(0)));
        let refused = ledger.fill(&Entry(0), |_| Err(Errno::NOENT));
        assert_eq!(refused.map(|call| call.thread), Err(Errno::NOENT));
        let left = ledger.left_over();
        assert_eq!((left[0].1.thread, left[0].2), (0, None));
        ledger.give_back(&second);
        assert_eq!(ledger.left_over().len(), 1);
    }

    #[test]
    fn what_was_learnt_stays() {
        let ledger = Ledger::create().unwrap();
        assert!(!ledger.has_mapped() && !ledger.is_restricted());
        ledger.note_mapping();
        assert!(ledger.has_mapped() && !ledger.is_restricted());
        ledger.note_restriction();
        assert!(ledger.is_restricted());
    }
}
