//! The entries of one directory, whole and authoritative.

use alloc::collections::BTreeMap;

use foldhash::fast::FixedState;
use mobifs_types::{FileKind, Name, ObjectId};

use crate::HashMap;
use crate::image::ImageError;
use crate::notes::Notes;

/// Cookies beyond this are not reached by counting; they would overflow.
const COOKIE_MAX: u64 = u64::MAX / 2;

/// What an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) id: ObjectId,
    pub(crate) kind: FileKind,
    cookie: u64,
}

/// Entries by name, and by the order in which they came: a listing that continues
/// behind a cookie sees every entry that was there all the time exactly once.
#[derive(Debug)]
pub(crate) struct Directory {
    by_name: HashMap<Name, Slot>,
    by_cookie: BTreeMap<u64, Name>,
    next_cookie: u64,
    /// Cookies of entries that changed.
    pub(crate) notes: Notes<u64>,
}

impl Directory {
    pub(crate) fn new(hasher: FixedState, is_noted: bool) -> Self {
        Self {
            by_name: HashMap::with_hasher(hasher),
            by_cookie: BTreeMap::new(),
            next_cookie: 1,
            notes: Notes::new(is_noted),
        }
    }

    /// The cookie that the next new entry gets.
    pub(crate) const fn next_cookie(&self) -> u64 {
        self.next_cookie
    }

    /// Entries to come get cookies from here on.
    pub(crate) fn continue_at(&mut self, next_cookie: u64) -> Result<(), ImageError> {
        if next_cookie > COOKIE_MAX {
            return Err(ImageError("an entry has a place that no listing has"));
        }
        self.next_cookie = self.next_cookie.max(next_cookie);
        Ok(())
    }

    /// Puts back an entry with the cookie that it had.
    pub(crate) fn restore(
        &mut self,
        name: Name,
        id: ObjectId,
        kind: FileKind,
        cookie: u64,
    ) -> Result<(), ImageError> {
        self.continue_at(cookie.saturating_add(1))?;
        self.by_cookie.insert(cookie, name.clone());
        self.by_name.insert(name, Slot { id, kind, cookie });
        Ok(())
    }

    /// Notes every entry.
    pub(crate) fn note_all(&mut self) {
        self.by_cookie
            .keys()
            .for_each(|cookie| self.notes.add(*cookie));
    }

    /// The entry with this cookie.
    pub(crate) fn at(&self, cookie: u64) -> Option<(&Name, Slot)> {
        let name = self.by_cookie.get(&cookie)?;
        Some((name, self.get(name.as_bytes())?))
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<Slot> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Adds an entry, or lets an existing one name another object (its place in a
    /// listing stays).
    pub(crate) fn insert(&mut self, name: Name, id: ObjectId, kind: FileKind) {
        if let Some(slot) = self.by_name.get_mut(&name) {
            (slot.id, slot.kind) = (id, kind);
            self.notes.add(slot.cookie);
            return;
        }
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.notes.add(cookie);
        self.by_cookie.insert(cookie, name.clone());
        self.by_name.insert(name, Slot { id, kind, cookie });
    }

    /// Gives an entry another name. If that is new, it gets the place of the old one: a
    /// listing that goes on sees what is renamed at most once, and comes to its end although
    /// everything it sees is renamed.
    pub(crate) fn rename(&mut self, from: &[u8], to: Name, id: ObjectId, kind: FileKind) {
        let Some(slot) = self.by_name.remove(from) else {
            return self.insert(to, id, kind);
        };
        self.notes.add(slot.cookie);
        if self.by_name.contains_key(&to) {
            self.by_cookie.remove(&slot.cookie);
            return self.insert(to, id, kind);
        }
        let cookie = slot.cookie;
        self.by_cookie.insert(cookie, to.clone());
        self.by_name.insert(to, Slot { id, kind, cookie });
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        if let Some(slot) = self.by_name.remove(name) {
            self.by_cookie.remove(&slot.cookie);
            self.notes.add(slot.cookie);
        }
    }

    /// Entries behind `cookie`, in order.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Name, Slot)> {
        self.by_cookie
            .range(cookie.saturating_add(1)..)
            .filter_map(|(&cookie, name)| Some((cookie, name, self.get(name.as_bytes())?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_behind_all_others_is_refused() {
        // Found by the fuzzer of saved engines: counting on from there overflowed.
        let mut directory = Directory::new(FixedState::default(), false);
        let name = Name::new(b"a").unwrap();
        let mut restore =
            |cookie| directory.restore(name.clone(), ObjectId(2), FileKind::Regular, cookie);
        assert!(restore(u64::MAX).is_err());
        assert!(restore(COOKIE_MAX).is_err());
        assert!(restore(COOKIE_MAX - 1).is_ok());
        assert!(directory.continue_at(u64::MAX).is_err());
        directory.insert(Name::new(b"b").unwrap(), ObjectId(3), FileKind::Regular);
    }

    #[test]
    fn a_listing_of_what_is_being_renamed_comes_to_its_end() {
        // xfstests' generic/736: each entry that a listing showed was renamed and renamed
        // back, came behind all others by that, and was shown again.
        let mut directory = Directory::new(FixedState::default(), false);
        let name = |n: u64| Name::new(alloc::format!("{n}").as_bytes()).unwrap();
        let temporary = Name::new(b"temporary").unwrap();
        for n in 0..10 {
            directory.insert(name(n), ObjectId(n + 2), FileKind::Regular);
        }
        let (mut cookie, mut seen) = (0, 0);
        let behind = |directory: &Directory, cookie| {
            let next = directory.after(cookie).next();
            next.map(|(cookie, name, slot)| (cookie, name.clone(), slot.id))
        };
        while let Some((next, shown, id)) = behind(&directory, cookie) {
            directory.rename(shown.as_bytes(), temporary.clone(), id, FileKind::Regular);
            directory.rename(b"temporary", shown, id, FileKind::Regular);
            (cookie, seen) = (next, seen + 1);
            assert!(seen <= 10);
        }
        assert_eq!(seen, 10);
        // What takes the place of another is where that was.
        let last = directory.after(0).last().map(|(cookie, ..)| cookie);
        directory.rename(b"0", name(9), ObjectId(2), FileKind::Directory);
        let slot = directory.get(b"9").unwrap();
        assert_eq!((slot.id, slot.kind), (ObjectId(2), FileKind::Directory));
        assert_eq!(Some(slot.cookie), last);
        assert_eq!(directory.after(0).count(), 9);
        assert_eq!(directory.by_cookie.len(), directory.by_name.len());
    }

    #[test]
    fn a_listing_survives_changes() {
        let mut directory = Directory::new(FixedState::default(), false);
        let name = |n: u8| Name::new(&[b'a' + n]).unwrap();
        for n in 0..10 {
            directory.insert(name(n), ObjectId(u64::from(n) + 2), FileKind::Regular);
        }
        let (middle, _, _) = directory.after(0).nth(4).unwrap();
        directory.remove(b"a");
        directory.remove(b"h");
        directory.insert(name(20), ObjectId(99), FileKind::Directory);
        let rest: alloc::vec::Vec<_> = directory
            .after(middle)
            .map(|(_, name, _)| name.clone())
            .collect();
        assert_eq!(rest, [name(5), name(6), name(8), name(9), name(20)]);
    }
}
