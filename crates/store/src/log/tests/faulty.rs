//! A lower filesystem that fails on request.

use std::collections::VecDeque;
use std::io;

use mobifs_base::{ByteRange, SpaceInfo, Xattr};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::Capabilities;
use crate::lower::{
    Blocks, Create, JournalBuffer, Lower, LowerEntry, LowerStat, PosixHandle, PosixLower,
    SetAttributes, WrittenBack,
};

/// The outcome of one journal write or flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// Nothing is written and the call fails so.
    Refused(Errno),
    /// It is written, and fails nevertheless.
    DoneButFails,
}

pub(super) struct Faulty {
    lower: PosixLower,
    plan: Mutex<Plan>,
}

struct Plan {
    /// Changes that still succeed; then the power is cut.
    changes_left: u64,
    /// For the next journal writes and flushes, in order; later ones succeed.
    journal: VecDeque<Outcome>,
    /// The journal's writes and flushes, in order: offset, bytes, durable; none: flush.
    log: Vec<Option<(u64, usize, bool)>>,
}

impl Faulty {
    pub(super) fn new(lower: PosixLower) -> Self {
        let plan = Plan {
            changes_left: u64::MAX,
            journal: VecDeque::new(),
            log: Vec::new(),
        };
        Self {
            lower,
            plan: Mutex::new(plan),
        }
    }

    /// The power is cut after this many changes.
    pub(super) fn cut_power_after(&self, changes: u64) {
        self.plan.lock().changes_left = changes;
    }

    pub(super) fn plan(&self, outcomes: &[Outcome]) {
        self.plan.lock().journal = outcomes.iter().copied().collect();
    }

    /// The journal's writes and flushes since the last call.
    pub(super) fn take_log(&self) -> Vec<Option<(u64, usize, bool)>> {
        std::mem::take(&mut self.plan.lock().log)
    }

    fn change(&self) -> io::Result<()> {
        let mut plan = self.plan.lock();
        plan.changes_left = plan.changes_left.checked_sub(1).ok_or(Errno::IO)?;
        Ok(())
    }

    fn journal_call(
        &self,
        entry: Option<(u64, usize, bool)>,
        call: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.change()?;
        let outcome = {
            let mut plan = self.plan.lock();
            plan.log.push(entry);
            plan.journal.pop_front().unwrap_or(Outcome::Done)
        };
        match outcome {
            Outcome::Done => call(),
            Outcome::Refused(errno) => Err(errno.into()),
            Outcome::DoneButFails => call().and(Err(Errno::IO.into())),
        }
    }
}

/// Calls that only read are passed on, calls that change are counted.
macro_rules! pass_on {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> io::Result<$result> {
            self.lower.$name($($argument),*)
        })*
    };
}
macro_rules! count {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> io::Result<()> {
            self.change()?;
            self.lower.$name($($argument),*)
        })*
    };
}

type Handle = PosixHandle;

impl Lower for Faulty {
    type Handle = PosixHandle;

    fn handles_max(&self) -> usize {
        usize::MAX
    }
    fn is_in_scope(&self, name: &[u8]) -> bool {
        self.lower.is_in_scope(name)
    }

    fn device_identity(&self) -> Option<String> {
        None
    }
    fn keeps_preallocation(&self) -> bool {
        self.lower.keeps_preallocation()
    }

    fn moves_content(&self) -> bool {
        self.lower.moves_content()
    }
    fn move_content(
        &self,
        own: &Handle,
        file: &Handle,
        content: &[u8],
        bytes: u64,
    ) -> io::Result<Option<Handle>> {
        self.change()?;
        self.lower.move_content(own, file, content, bytes)
    }

    pass_on! {
        root() -> Handle;
        open(directory: &Handle, name: &[u8], write: bool) -> Handle;
        stat(object: &Handle) -> LowerStat;
        stat_at(directory: &Handle, name: &[u8]) -> LowerStat;
        list(directory: &Handle) -> Vec<LowerEntry>;
        read_link(directory: &Handle, name: &[u8]) -> Vec<u8>;
        read_at(file: &Handle, out: &mut [u8], offset: u64) -> usize;
        read_cached(file: &Handle, out: &mut [u8], offset: u64) -> usize;
        is_scattered(file: &Handle) -> bool;
        allocated_after(file: &Handle, offset: u64) -> Option<u64>;
        is_in_place(file: &Handle, range: ByteRange, counted: Blocks) -> bool;
        seek_data(file: &Handle, offset: u64) -> Option<u64>;
        seek_hole(file: &Handle, offset: u64) -> Option<u64>;
        xattrs(object: &Handle) -> Vec<Xattr>;
        space() -> SpaceInfo;
        capabilities(scratch_directory: &Handle) -> Capabilities;
    }

    count! {
        move_back(file: &Handle, donor: &Handle);
        create(directory: &Handle, name: &[u8], what: Create<'_>);
        link(directory: &Handle, name: &[u8], to_directory: &Handle, to_name: &[u8]);
        rename(directory: &Handle, name: &[u8], to_directory: &Handle, to_name: &[u8]);
        unlink(directory: &Handle, name: &[u8]);
        remove_directory(directory: &Handle, name: &[u8]);
        write_at(file: &Handle, content: &[u8], offset: u64);
        truncate(file: &Handle, size: u64);
        zero_range(file: &Handle, range: ByteRange);
        preallocate(file: &Handle, range: ByteRange);
        set_attributes(object: &Handle, attributes: &SetAttributes);
        set_xattr(object: &Handle, name: &[u8], value: Option<&[u8]>);
        sync(object: &Handle);
        sync_content(file: &Handle);
        write_back(file: &Handle, until: WrittenBack);
        sync_all();
    }

    fn open_journal(&self, directory: &Handle, name: &[u8]) -> io::Result<(Handle, bool)> {
        if self.lower.stat_at(directory, name).is_err() {
            self.change()?;
        }
        self.lower.open_journal(directory, name)
    }

    fn journal_write(
        &self,
        journal: &Handle,
        blocks: &JournalBuffer,
        offset: u64,
        durable: bool,
    ) -> io::Result<()> {
        let entry = Some((offset, blocks.as_bytes().len(), durable));
        self.journal_call(entry, || {
            self.lower.journal_write(journal, blocks, offset, durable)
        })
    }

    fn journal_flush(&self, journal: &Handle) -> io::Result<()> {
        self.journal_call(None, || self.lower.journal_flush(journal))
    }
}
