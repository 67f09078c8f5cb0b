//! The progress of the last process of a mount: should it die, another one goes on there and does
//! nothing twice.
//!
//! A list that only grows, in the place of the mount's request slots: a record is appended, and
//! storing the list's length makes it count.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use mobifs_base::codec::{Reader, Writer};
use mobifs_base::{ObjectId, TransactionId};
use mobifs_store::{Intent, KnownObject, RestartSink, RestartState};
use parking_lot::Mutex;

use super::layout::{PROGRESS_AT, PROGRESS_BYTES_AT, PROGRESS_BYTES_MAX};
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
pub(crate) struct ProgressLog {
    region: Arc<Region>,
    /// Held while a record is added.
    adding: Arc<Mutex<()>>,
}

/// The progress of the last processes so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    objects: BTreeMap<ObjectId, Option<KnownObject>>,
    /// None: not recorded; else the last intent, or that there is none.
    intent: Option<Option<Intent>>,
    /// How often each transaction was begun by a process that did not learn its outcome.
    begun: HashMap<u64, u32>,
    done: HashSet<u64>,
}

impl Progress {
    /// Adds to the predecessor's state what has become of it since.
    pub(crate) fn update(&self, known: &mut RestartState) {
        known
            .objects
            .retain(|(id, _)| !self.objects.contains_key(id));
        let now = self.objects.iter();
        let now = now.filter_map(|(id, known)| Some((*id, known.clone()?)));
        known.objects.extend(now);
        if let Some(intent) = &self.intent {
            known.intent.clone_from(intent);
        }
    }

    /// How many processes have begun a transaction and not finished it.
    pub(crate) fn attempts(&self, transaction: TransactionId) -> u32 {
        self.begun.get(&transaction.0).copied().unwrap_or(0)
    }

    /// Whether a transaction is committed.
    pub(crate) fn is_done(&self, transaction: TransactionId) -> bool {
        self.done.contains(&transaction.0)
    }

    fn replay(&mut self, record: &[u8]) -> Option<()> {
        let mut from = Reader::new(record);
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

impl ProgressLog {
    pub(super) fn in_region(region: Arc<Region>) -> Self {
        Self {
            region,
            adding: Arc::default(),
        }
    }

    /// Everything that was recorded; what cannot be read of it counts as not recorded.
    pub(crate) fn read(&self) -> Progress {
        // SAFETY: what lies before the list's end never changes, and a thread that adds holds the
        // lock.
        let list = unsafe { self.region.bytes(PROGRESS_AT, self.bytes()) };
        let mut progress = Progress::default();
        let mut from = Reader::new(list);
        while let Ok(record) = from.long_bytes() {
            if progress.replay(record).is_none() {
                tracing::warn!("cannot read a progress record of the last process");
            }
        }
        progress
    }

    fn bytes(&self) -> usize {
        let bytes = usize::try_from(self.region.load(PROGRESS_BYTES_AT));
        bytes.unwrap_or(0).min(PROGRESS_BYTES_MAX)
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

    /// The store refused a transaction, and the process lives on.
    pub(crate) fn refused(&self, transaction: TransactionId) {
        self.add(|out| {
            out.u8(REFUSED);
            out.u64(transaction.0);
        });
    }

    fn add(&self, write: impl FnOnce(&mut Writer)) {
        let mut record = Writer::default();
        write(&mut record);
        let mut out = Writer::default();
        out.long_bytes(record.as_bytes());
        let _alone = self.adding.lock();
        let bytes = self.bytes();
        if bytes + out.as_bytes().len() > PROGRESS_BYTES_MAX {
            tracing::warn!(
                "no room for progress records: if this process dies, its successor repeats its \
                 work"
            );
            return;
        }
        // SAFETY: no process reads after the list's end, and no other one adds.
        unsafe { self.region.write(PROGRESS_AT + bytes, out.as_bytes()) };
        let bytes = (bytes + out.as_bytes().len()) as u64;
        self.region.store(PROGRESS_BYTES_AT, bytes);
    }
}

impl RestartSink for ProgressLog {
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
                saved::write_intent(out, &intent);
            }
            None => out.u8(NO_INTENT),
        });
    }
}
