//! What the last process of a mount notes of its own work, so that, should it die, another one
//! goes on there and does nothing twice.
//!
//! A list that only grows, where the requests of the mount were: a note is written behind the
//! others, and the store of the list's length is the moment at which it counts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use mobifs_base::codec::{Reader, Writer};
use mobifs_base::{ObjectId, TransactionId};
use mobifs_store::{Intent, KnownObject, RestartSink, RestartState};
use parking_lot::Mutex;

use super::layout::{NOTES_AT, NOTES_BYTES_AT, NOTES_BYTES_MAX};
use super::region::Region;
use super::saved;

const OBJECT: u8 = 1;
const NO_OBJECT: u8 = 2;
const INTENT: u8 = 3;
const NO_INTENT: u8 = 4;
const BEGUN: u8 = 5;
const DONE: u8 = 6;
const REFUSED: u8 = 7;

/// The list.
#[derive(Clone, Debug)]
pub(crate) struct LastNotes {
    region: Arc<Region>,
    /// Held while a note is added.
    adding: Arc<Mutex<()>>,
}

/// What the last processes so far have noted.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    objects: BTreeMap<ObjectId, Option<KnownObject>>,
    /// None: nothing was noted of it; else the last intent, or that there is none.
    intent: Option<Option<Intent>>,
    /// How often each transaction was begun by a process that had no answer to it.
    begun: HashMap<u64, u32>,
    done: HashSet<u64>,
}

impl Noted {
    /// Adds to what the daemon's store knew what has become of it since.
    pub(crate) fn update(&self, known: &mut RestartState) {
        known
            .objects
            .retain(|(id, _)| !self.objects.contains_key(id));
        let now = self.objects.iter();
        let now = now.filter_map(|(id, known)| Some((*id, known.clone()?)));
        known.objects.extend(now);
        if let Some(intent) = self.intent {
            known.intent = intent;
        }
    }

    /// How many processes have begun a transaction and come to no end of it.
    pub(crate) fn attempts(&self, transaction: TransactionId) -> u32 {
        self.begun.get(&transaction.0).copied().unwrap_or(0)
    }

    /// Whether a transaction is committed.
    pub(crate) fn is_done(&self, transaction: TransactionId) -> bool {
        self.done.contains(&transaction.0)
    }

    fn note(&mut self, note: &[u8]) -> Option<()> {
        let mut from = Reader::new(note);
        match from.u8().ok()? {
            OBJECT => {
                let id = ObjectId(from.u64().ok()?);
                let known = saved::read_object(&mut from)?;
                self.objects.insert(id, Some(known));
            }
            NO_OBJECT => {
                self.objects.insert(ObjectId(from.u64().ok()?), None);
            }
            INTENT => self.intent = Some(Some(saved::read_intent(&mut from)?)),
            NO_INTENT => self.intent = Some(None),
            BEGUN => *self.begun.entry(from.u64().ok()?).or_default() += 1,
            DONE => {
                self.done.insert(from.u64().ok()?);
            }
            REFUSED => {
                self.begun.remove(&from.u64().ok()?);
            }
            _ => {}
        }
        Some(())
    }
}

impl LastNotes {
    pub(super) fn in_region(region: Arc<Region>) -> Self {
        Self {
            region,
            adding: Arc::default(),
        }
    }

    /// Everything that was noted; what cannot be read of it counts as not noted.
    pub(crate) fn read(&self) -> Noted {
        // SAFETY: what lies before the list's end never changes, and who adds holds the lock.
        let list = unsafe { self.region.bytes(NOTES_AT, self.bytes()) };
        let mut noted = Noted::default();
        let mut from = Reader::new(list);
        while let Ok(note) = from.long_bytes() {
            if noted.note(note).is_none() {
                tracing::warn!("a note of the last process cannot be read");
            }
        }
        noted
    }

    fn bytes(&self) -> usize {
        let bytes = usize::try_from(self.region.load(NOTES_BYTES_AT));
        bytes.unwrap_or(0).min(NOTES_BYTES_MAX)
    }

    /// A transaction is about to be read and handed to the store.
    pub(crate) fn begin(&self, transaction: TransactionId) {
        self.add(|out| {
            out.u8(BEGUN);
            out.u64(transaction.0);
        });
    }

    /// A transaction is committed.
    pub(crate) fn done(&self, transaction: TransactionId) {
        self.add(|out| {
            out.u8(DONE);
            out.u64(transaction.0);
        });
    }

    /// A transaction was not taken, and its process lives on.
    pub(crate) fn refused(&self, transaction: TransactionId) {
        self.add(|out| {
            out.u8(REFUSED);
            out.u64(transaction.0);
        });
    }

    fn add(&self, write: impl FnOnce(&mut Writer)) {
        let mut note = Writer::default();
        write(&mut note);
        let mut out = Writer::default();
        out.long_bytes(note.as_bytes());
        let _alone = self.adding.lock();
        let bytes = self.bytes();
        if bytes + out.as_bytes().len() > NOTES_BYTES_MAX {
            tracing::warn!("no room for notes: if this process dies, its work is done again");
            return;
        }
        // SAFETY: no process reads after the list's end, and no other one adds.
        unsafe { self.region.write(NOTES_AT + bytes, out.as_bytes()) };
        let bytes = (bytes + out.as_bytes().len()) as u64;
        self.region.store(NOTES_BYTES_AT, bytes);
    }
}

impl RestartSink for LastNotes {
    fn object(&self, id: ObjectId, known: Option<&KnownObject>) {
        self.add(|out| {
            out.u8(if known.is_some() { OBJECT } else { NO_OBJECT });
            out.u64(id.0);
            if let Some(known) = known {
                saved::write_object(out, known);
            }
        });
    }

    fn intent(&self, intent: Option<Intent>) {
        self.add(|out| match intent {
            Some(intent) => {
                out.u8(INTENT);
                saved::write_intent(out, intent);
            }
            None => out.u8(NO_INTENT),
        });
    }
}
