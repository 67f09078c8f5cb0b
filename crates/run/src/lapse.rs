//! Files that were opened without `O_SYNC` become synchronous when the promise lapses.
//!
//! A program that has such a descriptor relies on its writes, and makes no call that could wait instead; nor can
//! `O_SYNC` be set later (`F_SETFL` passes it over). But the inode can: with the flag `FS_SYNC_FL` (`chattr +S`) each
//! write to it waits, through whichever descriptor. So the worker remembers these files, waits for the promises of
//! their filesystems to change, sets the flag, and makes durable what was written before. When the promise holds
//! again, or no process has the file open for writing any more, it takes the flag away.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mobifs_steered::{Device, Directory, Scope};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{IFlags, fstat, fsync, inotify, ioctl_getflags, ioctl_setflags, syncfs};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};
use rustix::time::{ClockId, clock_gettime};

use crate::reach::{Identity, Search, by_path, path_of};
use crate::relaxed_files::{RelaxedFiles, Remembered, State};

/// When the worker looks again where the kernel does not report changes of registrations, or a flag cannot be set.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// While a promise does not hold: another `mobifs run` may take away a flag that it has set.
const LOOK_AT_FLAGS: Duration = Duration::from_millis(250);
/// While a promise does not hold, so often files are looked for that no process has open any more.
const LOOK_FOR_CLOSED: Duration = Duration::from_secs(10);
/// How many flags are taken away between two looks at the promises: ext4 waits for a commit for each, as the file is
/// synchronous, and a promise that lapses meanwhile must not wait for all of them.
const RELAXED_AT_A_TIME: usize = 4;
/// The same for files that no process has open any more, for which all processes have to be looked at each time.
const CLOSED_AT_A_TIME: usize = 64;
/// The clock of promises may be so much behind.
const CLOCK_STEP: Duration = Duration::from_millis(10);
/// How long no room is made after there was none.
const NO_ROOM: Duration = Duration::from_secs(1);
/// Whom files belong to that are of no user of this namespace.
const OVERFLOW_USER: u32 = 65_534;

/// What changes where registrations lie: a promise is made or withdrawn, a daemon begins or ends.
const CHANGES: inotify::WatchFlags = inotify::WatchFlags::MODIFY
    .union(inotify::WatchFlags::CLOSE_WRITE)
    .union(inotify::WatchFlags::MOVE)
    .union(inotify::WatchFlags::DELETE)
    .union(inotify::WatchFlags::DELETE_SELF)
    .union(inotify::WatchFlags::MOVE_SELF)
    .union(inotify::WatchFlags::ONLYDIR);

/// The files that were opened without `O_SYNC`, and what waits for their promises to lapse.
#[derive(Debug)]
pub(crate) struct Watch {
    /// None where there was no memory for them: then no file is opened so.
    files: Option<RelaxedFiles>,
    directory: Directory,
    turn: Mutex<Turn>,
    /// Held by who changes flags.
    changing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Turn {
    /// Wakes the thread that waits; none as long as there is none.
    wake: Option<OwnedFd>,
    had_no_room: Option<Instant>,
    /// No program is left.
    is_over: bool,
}

impl Watch {
    pub(crate) fn new(directory: Directory) -> Arc<Self> {
        Arc::new(Self {
            files: RelaxedFiles::create().ok(),
            directory,
            turn: Mutex::default(),
            changing: Mutex::default(),
        })
    }

    /// Remembers a file that is open without `O_SYNC`, before a program gets the descriptor. False: it must not get
    /// it, as writes through it could not be made to wait later.
    pub(crate) fn note(self: &Arc<Self>, file: &OwnedFd, device: Device) -> bool {
        let Some(files) = self.files.as_ref().filter(|_| can_become_synchronous(file)) else {
            return false;
        };
        let (Ok(identity), Some(path)) = (Identity::of(file), path_of(file)) else {
            return false;
        };
        let mut turn = lock(&self.turn);
        if turn.is_over || !self.is_started(&mut turn) {
            return false;
        }
        let is_first = !files.has_any_of(device);
        let is_noted = files.note(device, identity, &path)
            || (make_room(files, &mut turn) && files.note(device, identity, &path));
        if !is_noted {
            return false;
        }
        if is_first {
            // The thread waits for the next promise to lapse, which may be this one.
            wake(&turn);
        }
        drop(turn);
        // If it has lapsed before the note, the thread may have passed the file over.
        self.promised_until_s(device).is_some()
    }

    /// Goes on with files that a worker has remembered which was killed.
    pub(crate) fn resume(self: &Arc<Self>) {
        let are_there = self.files.as_ref().is_some_and(|files| !files.is_empty());
        let mut turn = lock(&self.turn);
        // Without memory for a thread, the next open tries it again.
        let _started = are_there && self.is_started(&mut turn);
    }

    /// Takes all flags away: no program is left that could write.
    pub(crate) fn finish(&self) {
        lock(&self.turn).is_over = true;
        let _changing = lock(&self.changing);
        let Some(files) = &self.files else {
            return;
        };
        let (ours, others): (Vec<_>, Vec<_>) =
            files.all().into_iter().partition(|it| it.state.is_ours());
        let mut work = Work::new(files);
        // The programs may have ended before the thread has seen that a promise has lapsed.
        let has_lapsed = |file: &Remembered| {
            file.state == State::Relaxed && self.promised_until_s(file.device).is_none()
        };
        let lapsed = others.into_iter().filter(has_lapsed);
        work.reach(lapsed.collect(), Work::is_to_be_synced);
        work.sync();
        work.relax(ours);
    }

    fn is_started(self: &Arc<Self>, turn: &mut Turn) -> bool {
        if turn.wake.is_some() {
            return true;
        }
        let Ok((woken, wake)) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) else {
            return false;
        };
        let watch = Arc::clone(self);
        let started = std::thread::Builder::new().spawn(move || watch.wait_and_look(&woken));
        if started.is_ok() {
            turn.wake = Some(wake);
        }
        turn.wake.is_some()
    }

    fn wait_and_look(&self, woken: &OwnedFd) {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let reports = inotify::init(flags).ok();
        let mut looked_for_closed = None;
        loop {
            // Each time, as another program may have removed the directory, and the daemon made another.
            let is_reported = reports.as_ref().is_some_and(|reports| {
                inotify::add_watch(reports, self.directory.path(), CHANGES).is_ok()
            });
            let Some(next) = self.look(&mut looked_for_closed) else {
                return;
            };
            let next = match next {
                Next::Promise(_) if !is_reported => Some(LOOK_AGAIN),
                Next::Promise(time) => time,
                Next::Look(time) => Some(time),
            };
            wait([Some(woken), reports.as_ref()], next);
        }
    }

    /// Gives each file the flag that it needs now; `None` when no program is left.
    fn look(&self, looked_for_closed: &mut Option<Instant>) -> Option<Next> {
        let _changing = lock(&self.changing);
        let files = self.files.as_ref()?;
        let all = {
            let turn = lock(&self.turn);
            (!turn.is_over).then(|| files.all())?
        };
        if all.is_empty() {
            return Some(Next::Promise(None));
        }
        let mut promises = HashMap::new();
        for file in &all {
            let promise = || self.promised_until_s(file.device);
            promises.entry(file.device).or_insert_with(promise);
        }
        let holds = |file: &Remembered| promises.get(&file.device).is_some_and(Option::is_some);
        let (promised, lapsed): (Vec<_>, Vec<_>) = all.into_iter().partition(holds);
        let mut work = Work::new(files);
        let is_waiting = !lapsed.is_empty();
        let are_new = lapsed.iter().any(|file| file.state == State::Relaxed);
        work.make_synchronous(lapsed);
        // Files first get the flag, as looking for who has them open takes longer.
        let is_recent = |then: Instant| then.elapsed() < LOOK_FOR_CLOSED;
        if is_waiting && (are_new || !looked_for_closed.is_some_and(is_recent)) {
            let changed = files.all().into_iter();
            work.relax_closed(changed.filter(|it| it.state != State::Relaxed).collect());
            *looked_for_closed = (!work.has_more).then(Instant::now);
        }
        let mut flagged = promised.into_iter().filter(|it| it.state != State::Relaxed);
        work.relax(flagged.by_ref().take(RELAXED_AT_A_TIME).collect());
        work.has_more |= flagged.next().is_some();
        Some(if work.has_failed {
            Next::Look(LOOK_AGAIN)
        } else if work.has_more {
            Next::Look(Duration::ZERO)
        } else if is_waiting {
            Next::Look(LOOK_AT_FLAGS)
        } else {
            Next::Promise(promises.into_values().flatten().min().map(time_until))
        })
    }

    /// Until when the promise holds for all of a filesystem, in seconds of `CLOCK_MONOTONIC`, if it holds now.
    fn promised_until_s(&self, device: Device) -> Option<u32> {
        let steered = self.directory.find(device)?;
        let record = steered.record();
        let holds = record.is_in_force() && record.scope() == Scope::Whole;
        holds.then(|| record.valid_until_s())
    }
}

/// When the thread looks again, unless a registration changes before.
enum Next {
    /// When a promise lapses that is not renewed.
    Promise(Option<Duration>),
    /// After this time, whatever is reported.
    Look(Duration),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wake(turn: &Turn) {
    if let Some(wake) = &turn.wake {
        // If it is full, the thread is woken already.
        let _woken = rustix::io::write(wake, &[0]);
    }
}

/// Forgets files that no process has open any more; whether there is room then.
fn make_room(files: &RelaxedFiles, turn: &mut Turn) -> bool {
    if turn
        .had_no_room
        .is_some_and(|then| then.elapsed() < NO_ROOM)
    {
        return false;
    }
    let all = files.all();
    let relaxed = all.iter().filter(|file| file.state == State::Relaxed);
    let wanted = relaxed.clone().map(|file| file.identity).collect();
    let search = Search::of(wanted);
    let mut has_room = false;
    for file in relaxed.filter(|file| search.is_closed(file.identity)) {
        files.forget(file);
        has_room = true;
    }
    turn.had_no_room = (!has_room).then(Instant::now);
    has_room
}

/// Waits until one of them can be read, and reads all that is there.
fn wait(sources: [Option<&OwnedFd>; 2], timeout: Option<Duration>) {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let sources = sources.into_iter().flatten();
    let mut waited: Vec<_> = sources
        .clone()
        .map(|source| PollFd::new(source, PollFlags::IN))
        .collect();
    if poll(&mut waited, timeout.as_ref()).is_err() {
        std::thread::sleep(CLOCK_STEP);
    }
    let mut buffer = [MaybeUninit::uninit(); 4096];
    for source in sources {
        while rustix::io::read(source, &mut buffer).is_ok_and(|(read, _)| !read.is_empty()) {}
    }
}

/// How long it is until a promise lapses.
fn time_until(until_s: u32) -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
    Duration::from_secs(until_s.into()).saturating_sub(now) + CLOCK_STEP
}

/// Whether this process may set flags of the file, and its filesystem has them.
fn can_become_synchronous(file: &OwnedFd) -> bool {
    let is_owner = || {
        let owner = fstat(file).ok()?.st_uid;
        let may_for_others = || {
            let own = capabilities(None).ok()?;
            let has_right = own.effective.contains(CapabilitySet::FOWNER);
            (has_right && owner != OVERFLOW_USER).then_some(())
        };
        (owner == geteuid().as_raw())
            .then_some(())
            .or_else(may_for_others)
    };
    ioctl_getflags(file).is_ok() && is_owner().is_some()
}

/// A look at some files.
struct Work<'a> {
    files: &'a RelaxedFiles,
    /// Files that have the flag and are to be made durable, …
    unsynced: Vec<(Remembered, State)>,
    /// … and one of them of each filesystem.
    filesystems: HashMap<Device, OwnedFd>,
    has_failed: bool,
    /// Not all was done, so that it is looked at the promises in between.
    has_more: bool,
}

impl<'a> Work<'a> {
    fn new(files: &'a RelaxedFiles) -> Self {
        Self {
            files,
            unsynced: Vec::new(),
            filesystems: HashMap::new(),
            has_failed: false,
            has_more: false,
        }
    }

    fn make_synchronous(&mut self, files: Vec<Remembered>) {
        for file in self.reach(files, Self::set) {
            // No process can write to it.
            self.files.forget(&file);
        }
        self.sync();
    }

    fn relax(&mut self, files: Vec<Remembered>) {
        for file in self.reach(files, Self::take_away) {
            self.files.forget(&file);
        }
    }

    /// Does this to each file; which of them are neither where they were nor open.
    fn reach(
        &mut self,
        files: Vec<Remembered>,
        act: fn(&mut Self, &Remembered, OwnedFd),
    ) -> Vec<Remembered> {
        let mut missing = Vec::new();
        for file in files {
            match by_path(&file.path, file.identity) {
                Some(opened) => act(self, &file, opened),
                None => missing.push(file),
            }
        }
        if missing.is_empty() {
            return missing;
        }
        let search = Search::of(missing.iter().map(|file| file.identity).collect());
        missing.retain(|file| {
            let Some(holder) = search.holder(file.identity) else {
                return true;
            };
            match holder.open() {
                Some(opened) => {
                    if let Some(path) = path_of(&opened) {
                        self.files.set_path(file, &path);
                    }
                    act(self, file, opened);
                }
                None => self.has_failed = true,
            }
            false
        });
        missing
    }

    fn set(&mut self, file: &Remembered, opened: OwnedFd) {
        let flags = ioctl_getflags(&opened);
        let is_set = flags.is_ok_and(|flags| flags.contains(IFlags::SYNC));
        let state = match (file.state, is_set) {
            (State::Ours | State::Theirs, true) => return,
            (State::Relaxed, true) => State::Theirs,
            _ => State::Ours,
        };
        if !is_set {
            // First: who is killed after it has left a flag that the next one takes away.
            if !self.files.set_state(file, State::Setting) {
                return;
            }
            let set = flags.and_then(|flags| ioctl_setflags(&opened, flags | IFlags::SYNC));
            if set.is_err() {
                // Until it can be set, what was written is made durable at each look.
                self.has_failed = true;
                let _synced = fsync(&opened);
                return;
            }
        }
        self.unsynced.push((file.clone(), state));
        self.is_to_be_synced(file, opened);
    }

    fn is_to_be_synced(&mut self, file: &Remembered, opened: OwnedFd) {
        self.filesystems.insert(file.device, opened);
    }

    /// Makes durable what was written before files had the flag: by one commit, where one for each file would take
    /// seconds.
    fn sync(&mut self) {
        for (_, opened) in self.filesystems.drain() {
            // An error is one of the filesystem, which the program's own descriptors still report.
            let _synced = syncfs(opened);
        }
        for (file, state) in self.unsynced.drain(..) {
            self.files.set_state(&file, state);
        }
    }

    fn take_away(&mut self, file: &Remembered, opened: OwnedFd) {
        if file.state.is_ours() {
            let flags = ioctl_getflags(&opened);
            let done = flags.and_then(|flags| ioctl_setflags(&opened, flags - IFlags::SYNC));
            if done.is_err() {
                self.has_failed = true;
                return;
            }
        }
        self.files.set_state(file, State::Relaxed);
    }

    /// Takes the flags of files away that no process has open for writing, and forgets them.
    fn relax_closed(&mut self, files: Vec<Remembered>) {
        let search = Search::of(files.iter().map(|file| file.identity).collect());
        let mut closed = files.iter().filter(|it| search.is_closed(it.identity));
        for file in closed.by_ref().take(CLOSED_AT_A_TIME) {
            if let Some(opened) = by_path(&file.path, file.identity) {
                self.take_away(file, opened);
            }
            self.files.forget(file);
        }
        self.has_more |= closed.next().is_some();
    }
}
