//! What the kernel and the program hold of a volume, and release: references to objects, and
//! open files. The volume has to count exactly these, whichever daemon serves it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use mobifs_base::ObjectId;
use mobifs_volume::{InFlightRequest, References, Volume};

use super::VolumeTarget;
use crate::target::known_names::KnownNames;

impl VolumeTarget {
    /// Releases what neither names nor open files hold.
    pub(super) fn give_back(&self) {
        let Some(names) = &self.names else { return };
        let unused = names.borrow_mut().take_unused(|id| self.is_in_use(id));
        for (id, count) in unused {
            self.volume.forget(id, count);
        }
    }

    /// Whether the program has an object open.
    pub(super) fn is_in_use(&self, id: ObjectId) -> bool {
        let held = self.held.values().map(|(id, _)| id);
        self.open.values().chain(held).any(|&open| open == id)
    }

    /// The objects that the kernel references at this moment.
    pub fn known_names(&self) -> Option<KnownNames> {
        self.names.as_ref().map(|names| names.borrow().clone())
    }

    /// Continues with the same open files on the successor's volume, after a daemon died that had
    /// answered the last request. The kernel forgets names, and keeps its references.
    pub fn go_on(&mut self, volume: Arc<Volume>) {
        self.volume = volume;
        if let Some(names) = &self.names {
            names.borrow_mut().clear();
        }
    }

    /// As [`VolumeTarget::go_on`] where the daemon died in the last request, of which it had done
    /// `left`: the kernel has its earlier references, without those that were released, and gets no
    /// answer. References that were taken for the answer are released, and the program's files that
    /// were open for the time of that operation are closed.
    pub fn go_on_unanswered(
        &mut self,
        volume: Arc<Volume>,
        before: Option<KnownNames>,
        left: &InFlightRequest,
        answers_object: bool,
    ) {
        self.names = before.map(RefCell::new);
        self.go_on(volume);
        let mut taken: BTreeMap<ObjectId, i64> = BTreeMap::new();
        if let Some(outcome) = left.outcome.filter(|_| answers_object) {
            taken.insert(ObjectId(outcome), 1);
        }
        for (id, count) in &left.references {
            *taken.entry(*id).or_default() += count;
        }
        for (id, count) in taken {
            if let Ok(count) = u64::try_from(count) {
                self.volume.forget(id, count);
            } else if let Some(names) = &self.names {
                names.borrow_mut().given_back(id, count.unsigned_abs());
            }
        }
        self.close_opened_by_path();
    }

    /// It is open how far the daemon got with opening and closing files for an operation.
    fn close_opened_by_path(&self) {
        let expected = self.expected_references();
        // One that is copied within itself was opened twice.
        for id in self.opened_by_path.take() {
            let opens = |of: &BTreeMap<ObjectId, References>| of.get(&id).map_or(0, |r| r.opens);
            if opens(&self.volume.references()) > opens(&expected) {
                self.volume.release(id);
            }
        }
    }

    fn expected_references(&self) -> BTreeMap<ObjectId, References> {
        let mut expected: BTreeMap<ObjectId, References> = BTreeMap::new();
        for id in self.open.values() {
            expected.entry(*id).or_default().opens += 1;
        }
        match &self.names {
            Some(names) => {
                for (id, count) in names.borrow().references() {
                    expected.entry(id).or_default().lookups += count;
                }
            }
            None => {
                let held = self.held.values().map(|(id, _)| id);
                for id in self.open.values().chain(held) {
                    expected.entry(*id).or_default().lookups += 1;
                }
            }
        }
        // Nothing is counted of the root, which never leaves memory.
        expected.remove(&ObjectId::ROOT);
        expected
    }

    /// Whether the volume counts exactly the references that the kernel has, and the files that the
    /// program has open. One too many keeps an object in memory until the unmount; one too few
    /// frees it while it is in use.
    ///
    /// # Errors
    /// Of which object it counts others.
    pub fn check_references(&self) -> Result<(), String> {
        let mut counted = self.volume.references();
        counted.remove(&ObjectId::ROOT);
        let expected = self.expected_references();
        let ids = counted.keys().chain(expected.keys());
        for id in ids {
            let of = |map: &BTreeMap<ObjectId, References>| map.get(id).copied();
            let (counted, expected) = (of(&counted), of(&expected));
            if counted != expected {
                return Err(format!(
                    "of {id} the volume counts {counted:?}, and the kernel has {expected:?}"
                ));
            }
        }
        Ok(())
    }
}
