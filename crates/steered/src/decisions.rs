//! Decisions call by call, as fast as they can be.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::path::Arg;

use crate::directory::Directory;
use crate::journalled::is_journalled;
use crate::mappings::MappedFiles;
use crate::ofd_lock::last_error;
use crate::record::{Record, Scope};
use crate::superblock::{Device, Look};

/// How many mounts are remembered.
const SLOTS: usize = 64;
/// How many records stay mapped; one that is published again is another one.
const RECORDS_MAX: u32 = 1024;
/// A slot that is being written.
const BUSY: u64 = u64::MAX;

/// The range that [`pending_error`] asks for: of a file, where none has content. With these
/// arguments `sync_file_range` writes nothing and waits for nothing.
pub const PROBE_OFFSET: i64 = 0x7ff_ffff_f000;
/// The length of the range that is asked for.
pub const PROBE_BYTES: i64 = 1;
/// The flags with which is asked: `SYNC_FILE_RANGE_WAIT_BEFORE`.
pub const PROBE_FLAGS: u32 = libc::SYNC_FILE_RANGE_WAIT_BEFORE;

/// Which calls may return at once.
#[derive(Debug)]
pub struct Decisions {
    directory: Directory,
    /// Every filesystem counts as steered.
    is_unsafe: bool,
    slots: [Slot; SLOTS],
    records: AtomicU32,
}

/// A mount on a steered filesystem.
#[derive(Debug)]
struct Slot {
    /// 0: free.
    mount_id: AtomicU64,
    record: AtomicPtr<Record>,
}

impl Decisions {
    /// By the registrations in a directory.
    pub const fn by(directory: Directory) -> Self {
        Self {
            directory,
            is_unsafe: false,
            slots: [const {
                Slot {
                    mount_id: AtomicU64::new(0),
                    record: AtomicPtr::new(null_mut()),
                }
            }; SLOTS],
            records: AtomicU32::new(0),
        }
    }

    /// For every filesystem, steered or not.
    pub const fn for_all() -> Self {
        let mut decisions = Self::by(Directory::standard());
        decisions.is_unsafe = true;
        decisions
    }

    /// Whether every filesystem counts as steered.
    pub fn is_unsafe(&self) -> bool {
        self.is_unsafe
    }

    /// What `fsync` and its like answer at once for this descriptor; `None`: the call has to be made.
    ///
    /// `mount_table` is the mountinfo of a process that sees the mount.
    pub fn answer(&self, file: impl AsFd, mount_table: impl Arg) -> Option<Result<(), Errno>> {
        let look = Look::at(&file).ok()?;
        let is_it = look.is_file_or_directory() && self.is_steered(&look, &file, mount_table);
        is_it.then(|| answer_of(file)).flatten()
    }

    /// The answer to `syncfs`, which is about all files of the filesystem.
    pub fn answer_whole(
        &self,
        file: impl AsFd,
        mount_table: impl Arg,
    ) -> Option<Result<(), Errno>> {
        let look = Look::at(&file).ok()?;
        let is_it = look.is_file_or_directory()
            && self.scope_of(&look, &file, mount_table) == Some(Scope::Whole);
        is_it.then(|| answer_of(file)).flatten()
    }

    /// Whether what is written to this descriptor need not be durable at once.
    pub fn is_relaxed(&self, file: impl AsFd, mount_table: impl Arg) -> bool {
        Look::at(&file)
            .is_ok_and(|look| look.is_file() && self.is_steered(&look, &file, mount_table))
    }

    /// The decision of [`Self::answer`] for a descriptor that stands for the file only (`O_PATH`), of one that
    /// is open for more: errors that are pending stay so.
    pub fn is_relaxed_by_path(&self, file: impl AsFd, mount_table: impl Arg) -> bool {
        let look = Look::at(&file);
        look.is_ok_and(|look| {
            look.is_file_or_directory() && self.is_steered(&look, &file, mount_table)
        })
    }

    /// The decision of [`Self::answer_whole`] for such a descriptor.
    pub fn is_relaxed_whole(&self, file: impl AsFd, mount_table: impl Arg) -> bool {
        let look = Look::at(&file);
        look.is_ok_and(|look| {
            look.is_file_or_directory()
                && self.scope_of(&look, &file, mount_table) == Some(Scope::Whole)
        })
    }

    /// Whether `msync` may return at once: only where every filesystem counts as steered, and files are
    /// mapped in the whole range.
    ///
    /// On a steered ext4 it may not. When the kernel commits a transaction, it protects the pages of
    /// mappings one after the other: a store into one that is protected already belongs to the next
    /// transaction, and a later store into one that is not yet protected to this one.
    pub fn are_relaxed(&self, mapped: &MappedFiles, range: &Range<u64>) -> bool {
        self.is_unsafe && mapped.are_all(range, |_| true)
    }

    /// Whether the process can store into files of steered filesystems, so that none of its calls for
    /// durability may return at once: what it stores afterwards could be committed before what it
    /// wrote ([`Self::are_relaxed`] says why). What cannot be found out counts as yes.
    pub fn may_store(&self, mapped: Result<MappedFiles, Errno>) -> bool {
        if self.is_unsafe {
            return false;
        }
        // Mappings have no mount, and a device may be of another filesystem by now: nothing is
        // remembered.
        let is_steered = |device| {
            let steered = self.directory.find(device);
            steered.is_some_and(|steered| steered.is_in_force())
        };
        let found = mapped.and_then(|mapped| mapped.may_store(is_steered));
        found.unwrap_or(true)
    }

    /// Whether a filesystem is steered now, all of it.
    pub fn is_in_force(&self, device: Device) -> bool {
        let is_whole = |steered: crate::Steered| {
            steered.is_in_force() && steered.record().scope() == Scope::Whole
        };
        self.is_unsafe || self.directory.find(device).is_some_and(is_whole)
    }

    /// Whether what the descriptor is of that was looked at is steered.
    pub fn is_steered(&self, look: &Look, file: impl AsFd, mount_table: impl Arg) -> bool {
        match self.scope_of(look, &file, mount_table) {
            Some(Scope::Whole) => true,
            // A descriptor for the path only cannot be asked, and so is not.
            Some(Scope::JournalledFiles) => is_journalled(file),
            None => false,
        }
    }

    /// What of the descriptor's filesystem is steered now.
    fn scope_of(&self, look: &Look, file: impl AsFd, mount_table: impl Arg) -> Option<Scope> {
        if self.is_unsafe {
            return Some(Scope::Whole);
        }
        let mount = look.unique_mount();
        let slot = mount.and_then(|mount| self.slot_of(mount));
        if let Some(record) = slot.and_then(Slot::in_force) {
            return Some(record.scope());
        }
        let found = look.device(file, mount_table).ok()?;
        let steered = self.directory.find(found)?;
        let scope = steered.is_in_force().then(|| steered.record().scope());
        if let Some(mount) = mount.filter(|_| scope.is_some()) {
            let has_room = self.records.load(Ordering::Relaxed) < RECORDS_MAX;
            if has_room {
                self.records.fetch_add(1, Ordering::Relaxed);
                self.remember(slot, mount, steered.leak());
            }
        }
        scope
    }

    fn slot_of(&self, mount: u64) -> Option<&Slot> {
        let is_it = |slot: &&Slot| slot.mount_id.load(Ordering::Acquire) == mount;
        self.slots.iter().find(is_it)
    }

    fn remember(&self, slot: Option<&Slot>, mount: u64, record: &'static Record) {
        let record = std::ptr::from_ref(record).cast_mut();
        if let Some(slot) = slot {
            // It was withdrawn, and is published again.
            slot.record.store(record, Ordering::Release);
            return;
        }
        let claim = |slot: &&Slot| {
            let (done, not_done) = (Ordering::AcqRel, Ordering::Relaxed);
            let claimed = slot.mount_id.compare_exchange(0, BUSY, done, not_done);
            claimed.is_ok()
        };
        if let Some(slot) = self.slots.iter().find(claim) {
            slot.record.store(record, Ordering::Release);
            slot.mount_id.store(mount, Ordering::Release);
        }
    }
}

impl Slot {
    fn in_force(&self) -> Option<&Record> {
        let record = self.record.load(Ordering::Acquire);
        // SAFETY: the pointer is null or of a mapping that stays as long as the process.
        unsafe { record.as_ref() }.filter(|record| record.is_in_force())
    }
}

/// The answer of a call that need not be made, unless only the kernel can say what is wrong with it.
fn answer_of(file: impl AsFd) -> Option<Result<(), Errno>> {
    match pending_error(file) {
        // A descriptor for which the kernel makes no such call, as with O_PATH.
        Err(Errno::BADF | Errno::SPIPE | Errno::INVAL | Errno::NOSYS) => None,
        answer => Some(answer),
    }
}

/// The error that the filesystem has met when it wrote this file back, and that this open file
/// description has not reported yet; as `fsync` does it, which takes it from there.
///
/// # Errors
/// That error, or the kernel's refusal to ask it.
pub fn pending_error(file: impl AsFd) -> Result<(), Errno> {
    // Not by the C library's function: the preloaded library stands before it, and calls this.
    // SAFETY: the descriptor is open, and the call touches no memory.
    let answer = unsafe { probe(file.as_fd().as_raw_fd()) };
    if answer == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

#[cfg(target_pointer_width = "64")]
unsafe fn probe(number: RawFd) -> libc::c_long {
    // SAFETY: the caller's.
    unsafe {
        libc::syscall(
            libc::SYS_sync_file_range,
            number,
            PROBE_OFFSET,
            PROBE_BYTES,
            PROBE_FLAGS,
        )
    }
}

/// `sync_file_range2`, with numbers of 64 bits in two registers each.
#[cfg(target_arch = "arm")]
unsafe fn probe(number: RawFd) -> libc::c_long {
    let low = |wide: i64| wide as u32;
    let high = |wide: i64| (wide >> 32) as u32;
    // SAFETY: the caller's.
    unsafe {
        libc::syscall(
            341,
            number,
            PROBE_FLAGS,
            low(PROBE_OFFSET),
            high(PROBE_OFFSET),
            low(PROBE_BYTES),
            high(PROBE_BYTES),
        )
    }
}

/// On other machines errors cannot be asked for, and no call is skipped.
#[cfg(not(any(target_pointer_width = "64", target_arch = "arm")))]
unsafe fn probe(_number: RawFd) -> libc::c_long {
    // SAFETY: the C library gives each thread a place for it.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::registration::{Registration, VALID_S};

    const TABLE: &str = "/proc/self/mountinfo";

    #[test]
    fn a_decision_follows_the_promise() {
        let base = tempfile::tempdir().unwrap();
        let directory = Directory::at(&base.path().join("steered")).unwrap();
        let file = tempfile::tempfile_in(base.path()).unwrap();
        let device = Device::of(&file).unwrap();
        let decisions = Decisions::by(directory.clone());
        assert_eq!(decisions.answer(&file, TABLE), None);
        for _ in 0..3 {
            let promise = Registration::claim_in(&directory, device).unwrap();
            assert_eq!(decisions.answer(&file, TABLE), None);
            promise.promise(VALID_S).unwrap();
            for _ in 0..2 {
                assert_eq!(decisions.answer(&file, TABLE), Some(Ok(())));
                assert!(decisions.is_relaxed(&file, TABLE));
            }
            promise.withdraw().unwrap();
            assert_eq!(decisions.answer(&file, TABLE), None);
        }
        let used = |slot: &&Slot| slot.mount_id.load(Ordering::Acquire) != 0;
        assert_eq!(decisions.slots.iter().filter(used).count(), 1);
    }

    /// Tests of `scripts/native-guest.sh` have files with the flag, for which this process has no right.
    #[test]
    fn a_promise_for_some_files_is_none_for_the_others() {
        let base = tempfile::tempdir().unwrap();
        let directory = Directory::at(&base.path().join("steered")).unwrap();
        let file = tempfile::tempfile_in(base.path()).unwrap();
        let device = Device::of(&file).unwrap();
        let scope = Scope::JournalledFiles;
        let promise = Registration::claim_scope(&directory, device, scope).unwrap();
        promise.promise(VALID_S).unwrap();
        let found = directory.find(device).unwrap();
        assert!(found.is_in_force() && found.record().scope() == scope);
        let decisions = Decisions::by(directory.clone());
        assert!(!is_journalled(&file));
        for _ in 0..2 {
            assert_eq!(decisions.answer(&file, TABLE), None);
            assert_eq!(decisions.answer_whole(&file, TABLE), None);
            assert!(!decisions.is_relaxed(&file, TABLE));
            assert!(!decisions.is_in_force(device));
        }
        drop(promise);
        let whole = Registration::claim_in(&directory, device).unwrap();
        whole.promise(VALID_S).unwrap();
        assert_eq!(decisions.answer_whole(&file, TABLE), Some(Ok(())));
        assert!(decisions.is_in_force(device));
    }

    #[test]
    fn only_files_and_directories_have_something_to_make_durable() {
        let decisions = Decisions::for_all();
        let directory = File::open("/").unwrap();
        assert_eq!(decisions.answer(&directory, TABLE), Some(Ok(())));
        assert!(!decisions.is_relaxed(&directory, TABLE));
        let (pipe, _other) = std::io::pipe().unwrap();
        assert_eq!(decisions.answer(&pipe, TABLE), None);
        let path = rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
        assert_eq!(decisions.answer(path.unwrap(), TABLE), None);
    }
}
