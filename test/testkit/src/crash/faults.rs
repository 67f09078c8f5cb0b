//! Calls that fail: which, how often, with which error, and what they did before.

use std::io;

use mobifs_base::SpaceInfo;

use super::{CrashLower, Filesystem};

/// What a call to the filesystem does, as far as faults distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Changes nothing.
    Look,
    /// Changes names or attributes and needs no room.
    Change,
    /// Needs a new inode, entry or block.
    Grow,
    /// Writes content where there are blocks already.
    Overwrite,
    /// Writes content that needs blocks.
    Extend,
    /// Makes something durable.
    Sync,
    /// Writes the journal, or makes it durable; its blocks are there already.
    Journal,
    /// Does the second half of a durable write of the journal, or flushes it.
    JournalSync,
}

/// Which calls a [`Fault`] concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Every call, those that only look included.
    All,
    /// Calls that change something or make it durable.
    Changes,
    /// Writes and flushes of the journal.
    Journal,
    /// Calls that make something durable.
    Syncs,
    /// Calls that need room, as when another program has filled the filesystem; it then reports no
    /// free space.
    Growing,
}

/// What a failing call does before it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Nothing.
    Nothing,
    /// A write does its first half, anything else nothing.
    Half,
    /// A write or a sync does all of it.
    Everything,
    /// A sync gives up the content it should have made durable: memory shows it, and it
    /// never reaches the medium unless it is written again. Linux does so when writing
    /// back fails.
    Lost,
}

/// A fault: calls that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The first call that may fail, counted from 1 over all calls.
    pub first: u64,
    /// How many of the calls concerned fail; of [`Calls::Growing`]: for how many calls,
    /// of any kind, nothing is free.
    pub count: u64,
    /// Which calls are concerned.
    pub calls: Calls,
    /// The error.
    pub errno: i32,
    /// What they do all the same.
    pub harm: Harm,
}

/// Call counting and planned faults of one filesystem.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Calls so far, those that only look included.
    calls: u64,
    planned: Option<Fault>,
    /// Calls that failed by plan.
    fired: u64,
    /// Nothing is counted and nothing fails.
    paused: bool,
    /// More calls than this are a panic; none: as many as there are.
    calls_max: Option<u64>,
}

impl Calls {
    const fn concerns(self, call: Call) -> bool {
        match self {
            Self::All => true,
            Self::Changes => !matches!(call, Call::Look),
            Self::Journal => matches!(call, Call::Journal | Call::JournalSync),
            Self::Syncs => matches!(call, Call::Sync | Call::JournalSync),
            Self::Growing => matches!(call, Call::Grow | Call::Extend),
        }
    }
}

impl Faults {
    /// Counts a call; returns how it has to fail, if it has to.
    pub(super) fn next(&mut self, call: Call) -> Option<(i32, Harm)> {
        if self.paused {
            return None;
        }
        self.calls += 1;
        let ends = self.calls_max.is_none_or(|max| self.calls <= max);
        assert!(ends, "{} calls, and no end in sight", self.calls);
        let fault = self.planned.as_mut()?;
        if self.calls < fault.first || fault.count == 0 {
            return None;
        }
        let fails = fault.calls.concerns(call);
        if fails || fault.calls == Calls::Growing {
            // A fault without end stays one.
            fault.count -= u64::from(fault.count != u64::MAX);
        }
        self.fired += u64::from(fails);
        fails.then_some((fault.errno, fault.harm))
    }

    /// Whether the planned fault is one of a device that does not write content, and all else goes on.
    pub(super) fn fails_only_syncs(&self) -> bool {
        let planned = self.planned.as_ref();
        planned.is_some_and(|fault| fault.calls == Calls::Syncs)
    }

    /// Whether a planned fault has taken all room.
    pub(super) fn is_full(&self) -> bool {
        let full = |fault: &Fault| {
            fault.calls == Calls::Growing && self.calls >= fault.first && fault.count > 0
        };
        !self.paused && self.planned.as_ref().is_some_and(full)
    }
}

/// Runs a call that fails this way; its result is dropped.
pub(super) fn fail<T>(
    filesystem: &mut Filesystem,
    (kind, errno, harm): (Call, i32, Harm),
    call: impl FnOnce(&mut Filesystem) -> io::Result<T>,
) -> io::Result<T> {
    let writes = matches!(kind, Call::Overwrite | Call::Extend | Call::Journal);
    let syncs = matches!(kind, Call::Sync | Call::JournalSync);
    match harm {
        Harm::Half if writes => {
            filesystem.writes_half = true;
            let done = call(filesystem);
            filesystem.writes_half = false;
            done?;
        }
        Harm::Everything if writes || syncs => drop(call(filesystem)?),
        Harm::Lost if syncs => {
            filesystem.gives_up = true;
            let done = call(filesystem);
            filesystem.gives_up = false;
            done?;
        }
        _ => {}
    }
    Err(io::Error::from_raw_os_error(errno))
}

/// The reported space while a planned fault has taken all room.
pub(super) const fn without_room(space: SpaceInfo) -> SpaceInfo {
    SpaceInfo {
        free_bytes: 0,
        available_bytes: 0,
        free_inodes: 0,
        ..space
    }
}

impl CrashLower {
    /// Plans a fault in the place of the one planned before; none: nothing fails.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.0.filesystem.lock().faults.planned = fault;
    }

    /// Calls so far, those that only look included.
    pub fn calls(&self) -> u64 {
        self.0.filesystem.lock().faults.calls
    }

    /// Calls that a planned fault made fail.
    pub fn failed_calls(&self) -> u64 {
        self.0.filesystem.lock().faults.fired
    }

    /// Whether a [`Calls::Growing`] fault has taken all room at the moment.
    pub fn is_full(&self) -> bool {
        self.0.filesystem.lock().faults.is_full()
    }

    /// Panics at the first call after this many: the caller loops.
    pub fn limit_calls(&self, count: u64) {
        self.0.filesystem.lock().faults.calls_max = Some(count);
    }

    /// Runs `look` while nothing fails and no call is counted.
    pub fn unharmed<T>(&self, look: impl FnOnce() -> T) -> T {
        self.0.filesystem.lock().faults.paused = true;
        let seen = look();
        self.0.filesystem.lock().faults.paused = false;
        seen
    }

    /// The `operation`th mutating call fails with `errno` and has no effect.
    pub fn fail_operation(&self, operation: u64, errno: i32) {
        self.0
            .filesystem
            .lock()
            .refused_operations
            .insert(operation, errno);
    }
}
