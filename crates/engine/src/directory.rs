//! The entries of one directory, whole and authoritative.
//!
//! A listing goes on after the cookie of the last entry that it returned, maybe much
//! later and after the listing has left memory and come back. So an entry's cookie follows
//! from its name, as in ext4's hashed directories. It was counted up once, and a listing that
//! went on after a reload missed entries or saw them twice.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::hash::BuildHasher as _;

use foldhash::fast::FixedState;
use mobifs_base::{DirectoryEntry, FileKind, Name, ObjectId, dentry_room_bytes};

use crate::persist::RestartImageError;
use crate::persist::dirty_tracking::UnsavedKeys;

/// Cookies are 1 to this. With the two for `.` and `..` in front they fit into 31 bits, which
/// is all that 32-bit programs without large-file support have for a place in a directory.
const COOKIE_MAX: u64 = (1 << 31) - 3;

/// What an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) id: ObjectId,
    pub(crate) kind: FileKind,
    cookie: u64,
}

/// Cookies of the entries whose own cookie was taken when they were added: one of four
/// thousand in a directory of a million.
pub(crate) type DisplacedCookies = BTreeMap<Name, u64>;

/// The entries of a directory, or what must be known of them while they are not in memory.
#[derive(Debug)]
pub(crate) enum Listing {
    Loaded(Box<Directory>),
    NotLoaded(DisplacedCookies),
}

impl Listing {
    pub(crate) const fn loaded(&self) -> Option<&Directory> {
        match self {
            Self::Loaded(directory) => Some(directory),
            Self::NotLoaded(_) => None,
        }
    }

    pub(crate) const fn loaded_mut(&mut self) -> Option<&mut Directory> {
        match self {
            Self::Loaded(directory) => Some(directory),
            Self::NotLoaded(_) => None,
        }
    }

    /// Takes the entries out, if they are loaded.
    pub(crate) fn take(&mut self) -> Option<Box<Directory>> {
        let Self::Loaded(directory) = self else {
            return None;
        };
        let displaced = Self::NotLoaded(core::mem::take(&mut directory.displaced));
        match core::mem::replace(self, displaced) {
            Self::Loaded(directory) => Some(directory),
            Self::NotLoaded(_) => None,
        }
    }
}

/// An entry, at its cookie.
#[derive(Debug)]
struct Entry {
    name: Name,
    id: ObjectId,
    kind: FileKind,
}

/// Entries in the order of their cookies. A listing sees every entry that was there all the time
/// exactly once, and ends whatever changes meanwhile.
///
/// An entry is found by its name through its own cookie, so there is no second index: a
/// directory is in memory whole, and may have millions of entries.
#[derive(Debug)]
pub(crate) struct Directory {
    hasher: FixedState,
    /// By cookie, which fits into 31 bits.
    entries: BTreeMap<u32, Entry>,
    displaced: DisplacedCookies,
    room_bytes: u64,
    /// Cookies of entries that changed.
    pub(crate) unsaved: UnsavedKeys<u64>,
}

impl Directory {
    pub(crate) fn new(hasher: FixedState, is_tracked: bool) -> Self {
        Self {
            hasher,
            entries: BTreeMap::new(),
            displaced: DisplacedCookies::new(),
            room_bytes: 0,
            unsaved: UnsavedKeys::new(is_tracked),
        }
    }

    /// Fills a new listing with entries. Those that were `displaced` when they were in memory
    /// last get the cookies that they had.
    pub(crate) fn load(&mut self, entries: Vec<DirectoryEntry>, displaced: &DisplacedCookies) {
        if !displaced.is_empty() {
            for entry in &entries {
                if let Some(&cookie) = displaced.get(&entry.name) {
                    self.unsaved.mark(cookie);
                    self.put(entry.name.clone(), entry.id, entry.kind, cookie);
                }
            }
        }
        for entry in entries {
            self.insert(entry.name, entry.id, entry.kind);
        }
    }

    /// Puts back an entry with the cookie that it had.
    pub(crate) fn restore(
        &mut self,
        name: Name,
        id: ObjectId,
        kind: FileKind,
        cookie: u64,
    ) -> Result<(), RestartImageError> {
        check_cookie(cookie)?;
        if self.get(name.as_bytes()).is_some() {
            return Err(RestartImageError("a directory has two entries of one name"));
        }
        if self.entries.contains_key(&key(cookie)) {
            return Err(RestartImageError(
                "a directory has two entries at one place",
            ));
        }
        self.put(name, id, kind, cookie);
        Ok(())
    }

    /// Marks every entry as unsaved.
    pub(crate) fn mark_all_unsaved(&mut self) {
        let unsaved = &mut self.unsaved;
        self.entries
            .keys()
            .for_each(|&cookie| unsaved.mark(cookie.into()));
    }

    /// The entry with this cookie.
    pub(crate) fn at(&self, cookie: u64) -> Option<(&Name, Slot)> {
        let entry = self.entries.get(&key(cookie))?;
        Some((&entry.name, entry.slot(cookie)))
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<Slot> {
        let own = self.own_cookie(name);
        if let Some((at_own, slot)) = self.at(own)
            && at_own.as_bytes() == name
        {
            return Some(slot);
        }
        let (_, slot) = self.at(*self.displaced.get(name)?)?;
        Some(slot)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an entry, or lets an existing one name another object.
    pub(crate) fn insert(&mut self, name: Name, id: ObjectId, kind: FileKind) {
        if let Some(slot) = self.get(name.as_bytes()) {
            if let Some(entry) = self.entries.get_mut(&key(slot.cookie)) {
                (entry.id, entry.kind) = (id, kind);
            }
            self.unsaved.mark(slot.cookie);
            return;
        }
        let own = self.own_cookie(name.as_bytes());
        let cookie = match self.free_from(own) {
            free if free <= COOKIE_MAX => free,
            _ => self.free_from(1),
        };
        self.unsaved.mark(cookie);
        self.put(name, id, kind, cookie);
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        if let Some(slot) = self.get(name) {
            self.entries.remove(&key(slot.cookie));
            self.displaced.remove(name);
            self.unsaved.mark(slot.cookie);
            self.room_bytes -= dentry_room_bytes(name.len());
        }
    }

    /// What all entries take, each [`dentry_room_bytes`].
    pub(crate) const fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    /// Entries after `cookie`, in order.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Name, Slot)> {
        let after = self.entries.range(key(cookie).saturating_add(1)..);
        after.map(|(&cookie, entry)| {
            let cookie = u64::from(cookie);
            (cookie, &entry.name, entry.slot(cookie))
        })
    }

    fn put(&mut self, name: Name, id: ObjectId, kind: FileKind, cookie: u64) {
        self.room_bytes += dentry_room_bytes(name.as_bytes().len());
        if cookie != self.own_cookie(name.as_bytes()) {
            self.displaced.insert(name.clone(), cookie);
        }
        self.entries.insert(key(cookie), Entry { name, id, kind });
    }

    /// The cookie of this name where no other entry has it.
    fn own_cookie(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name) % COOKIE_MAX + 1
    }

    /// The first cookie from here on that no entry has.
    fn free_from(&self, cookie: u64) -> u64 {
        let taken = self.entries.range(key(cookie)..);
        let taken = taken.map(|(&taken, _)| u64::from(taken));
        (cookie..)
            .zip(taken.chain([u64::MAX]))
            .find_map(|(free, taken)| (free != taken).then_some(free))
            .unwrap_or(cookie)
    }
}

impl Entry {
    const fn slot(&self, cookie: u64) -> Slot {
        Slot {
            id: self.id,
            kind: self.kind,
            cookie,
        }
    }
}

/// A cookie as it is kept. Callers may pass any number: after the last cookie
/// there is nothing.
fn key(cookie: u64) -> u32 {
    u32::try_from(cookie).unwrap_or(u32::MAX)
}

/// Fails for a cookie that no entry can have.
pub(crate) fn check_cookie(cookie: u64) -> Result<(), RestartImageError> {
    if (1..=COOKIE_MAX).contains(&cookie) {
        return Ok(());
    }
    Err(RestartImageError(
        "an entry has a place that no listing has",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Directory {
        Directory::new(FixedState::default(), false)
    }

    fn name(n: u64) -> Name {
        Name::new(alloc::format!("{n}").as_bytes()).unwrap()
    }

    fn entry(n: u64) -> DirectoryEntry {
        DirectoryEntry {
            name: name(n),
            id: ObjectId(n + 2),
            kind: FileKind::Regular,
        }
    }

    fn filled(numbers: impl Iterator<Item = u64>) -> Directory {
        let mut directory = empty();
        directory.load(numbers.map(entry).collect(), &DisplacedCookies::new());
        directory
    }

    fn listed(directory: &Directory, after: u64) -> Vec<(u64, Name)> {
        let entries = directory.after(after);
        entries
            .map(|(cookie, name, _)| (cookie, name.clone()))
            .collect()
    }

    /// An entry gets a cookie which is not its own.
    fn displace(directory: &mut Directory, n: u64, cookie: u64) {
        directory.remove(name(n).as_bytes());
        directory.put(name(n), ObjectId(n + 2), FileKind::Regular, cookie);
    }

    #[test]
    fn an_entry_outside_of_all_listings_is_refused() {
        // Found by the fuzzer of saved engines: counting on after the last overflowed.
        let mut directory = empty();
        let mut restore = |n, cookie| {
            let entry = entry(n);
            directory.restore(entry.name, entry.id, entry.kind, cookie)
        };
        assert!(restore(0, u64::MAX).is_err());
        assert!(restore(0, COOKIE_MAX + 1).is_err());
        assert!(restore(0, 0).is_err());
        assert!(restore(0, COOKIE_MAX).is_ok());
        assert!(restore(0, 7).is_err(), "it has one");
        // Whose own cookie is the last one gets the first that is free.
        let last = (1..).find(|&n| empty().own_cookie(name(n).as_bytes()) > COOKIE_MAX - 1000);
        let last = last.unwrap();
        let own = empty().own_cookie(name(last).as_bytes());
        for (n, cookie) in (own..COOKIE_MAX).enumerate() {
            displace(&mut directory, n as u64 + 1_000_000, cookie);
        }
        displace(&mut directory, 2_000_000, 1);
        directory.insert(name(last), ObjectId(3), FileKind::Regular);
        assert_eq!(directory.get(name(last).as_bytes()).unwrap().cookie, 2);
    }

    #[test]
    fn a_listing_of_what_is_being_renamed_comes_to_its_end() {
        // xfstests' generic/736: each entry that a listing showed was renamed and renamed
        // back, came after all others by that, and was shown again.
        let mut directory = filled(0..10);
        let temporary = Name::new(b"temporary").unwrap();
        let rename = |directory: &mut Directory, from: &Name, to: &Name, id| {
            directory.remove(from.as_bytes());
            directory.insert(to.clone(), id, FileKind::Regular);
        };
        let (mut cookie, mut seen) = (0, 0);
        let after = |directory: &Directory, cookie| {
            let next = directory.after(cookie).next();
            next.map(|(cookie, name, slot)| (cookie, name.clone(), slot.id))
        };
        while let Some((next, shown, id)) = after(&directory, cookie) {
            rename(&mut directory, &shown, &temporary, id);
            rename(&mut directory, &temporary, &shown, id);
            (cookie, seen) = (next, seen + 1);
            assert!(seen <= 10);
        }
        assert_eq!(seen, 10);
        // An entry that replaces another one has its position.
        let at = directory.get(b"9").unwrap().cookie;
        rename(&mut directory, &name(0), &name(9), ObjectId(2));
        let slot = directory.get(b"9").unwrap();
        assert_eq!((slot.id, slot.cookie), (ObjectId(2), at));
        assert_eq!((directory.after(0).count(), directory.len()), (9, 9));
    }

    #[test]
    fn a_listing_survives_changes() {
        let mut directory = filled(0..10);
        let before = listed(&directory, 0);
        let middle = before[4].0;
        directory.remove(before[0].1.as_bytes());
        directory.remove(before[7].1.as_bytes());
        directory.insert(name(20), ObjectId(99), FileKind::Directory);
        let mut rest = listed(&directory, middle);
        rest.retain(|(_, shown)| *shown != name(20));
        let expected = [5, 6, 8, 9].map(|at: usize| before[at].clone());
        assert_eq!(rest, expected);
    }

    #[test]
    fn a_listing_goes_on_when_its_directory_left_memory_and_came_back() {
        // A checkpointer that dropped listings between two parts of one: entries were
        // missing, others came twice.
        let before = filled(0..1000);
        let mut listing = Listing::Loaded(Box::new(filled((0..1000).rev())));
        assert_eq!(listed(listing.loaded().unwrap(), 0), listed(&before, 0));
        assert!(listing.take().is_some() && listing.take().is_none());
        assert!(matches!(&listing, Listing::NotLoaded(displaced) if displaced.is_empty()));
    }

    #[test]
    fn what_gave_way_to_another_stays_where_it_was() {
        let mut directory = filled(0..10);
        let own = directory.own_cookie(name(5).as_bytes());
        // As if both had the same cookie of their own, and 77 one just after.
        displace(&mut directory, 66, own + 1);
        displace(&mut directory, 77, own + 2);
        directory.remove(name(5).as_bytes());
        let before = listed(&directory, 0);
        let mut listing = Listing::Loaded(Box::new(directory));
        listing.take();
        let Listing::NotLoaded(displaced) = &listing else {
            panic!("it was taken out");
        };
        assert_eq!(displaced.len(), 2);
        let mut directory = empty();
        let there = before.iter().rev();
        let there = there.map(|(_, name)| DirectoryEntry {
            name: name.clone(),
            id: ObjectId(2),
            kind: FileKind::Regular,
        });
        directory.load(there.collect(), displaced);
        assert_eq!(listed(&directory, 0), before);
        directory.remove(name(66).as_bytes());
        assert_eq!(directory.displaced.len(), 1);
        assert!(directory.get(name(66).as_bytes()).is_none());
        assert!(directory.get(name(77).as_bytes()).is_some());
    }

    #[test]
    fn cookies_hardly_ever_collide() {
        let directory = filled(0..200_000);
        assert_eq!(directory.after(0).count(), 200_000);
        assert!(directory.displaced.len() < 100);
    }
}
