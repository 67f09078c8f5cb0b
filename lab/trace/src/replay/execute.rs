//! One thread of a replay.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, lchown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FallocateFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags,
};

use super::files::Directory;
use super::options::ReplaySpeed;
use super::order::Order;
use super::plan::is_nameless;
use super::report::{Difference, Recorder};
use crate::model::{AllocateMode, Attribute, Event, EventKind, OpenFlags, PathIndex, Trace};

/// A file that the trace has open.
#[derive(Debug)]
struct Handle {
    file: File,
    flags: OpenFlags,
}

/// A process, and the path of a file that it has open.
type Owner = (u32, Vec<u8>);

/// Open files of all processes; the last ones were opened last.
#[derive(Debug, Default)]
pub(super) struct Handles {
    open: Mutex<HashMap<Owner, Vec<Arc<Handle>>>>,
}

impl Handles {
    fn add(&self, process: u32, path: &[u8], handle: Arc<Handle>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.entry((process, path.to_vec()))
            .or_default()
            .push(handle);
    }

    /// One that allows what is wanted.
    fn find(&self, process: u32, path: &[u8], wanted: OpenFlags) -> Option<Arc<Handle>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let handles = open.get(&(process, path.to_vec()))?;
        handles
            .iter()
            .rev()
            .find(|handle| handle.flags.contains(wanted))
            .cloned()
    }

    /// The one that was opened last.
    fn take(&self, process: u32, path: &[u8]) -> Option<Arc<Handle>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get_mut(&(process, path.to_vec()))?.pop()
    }

    /// Names have changed: of a file, or of a directory with all below it.
    fn rename(&self, from: &[u8], to: &[u8]) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = open.keys().filter_map(|(process, path)| {
            let rest = path.strip_prefix(from)?;
            let is_below = rest.is_empty() || rest[0] == b'/';
            is_below.then(|| (*process, path.clone(), [to, rest].concat()))
        });
        let moved: Vec<_> = moved.collect();
        for (process, old, new) in moved {
            if let Some(handles) = open.remove(&(process, old)) {
                open.entry((process, new)).or_default().extend(handles);
            }
        }
    }
}

/// What a thread works with.
pub(super) struct Worker<'a> {
    trace: &'a Trace,
    directory: &'a Directory,
    handles: &'a Handles,
    order: &'a Order,
    speed: ReplaySpeed,
    start: Instant,
    recorder: Recorder,
}

/// Events between two reports of progress.
const PROGRESS_EVENTS: usize = 256;

impl<'a> Worker<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        directory: &'a Directory,
        handles: &'a Handles,
        order: &'a Order,
        speed: ReplaySpeed,
        start: Instant,
    ) -> Self {
        Self {
            trace,
            directory,
            handles,
            order,
            speed,
            start,
            recorder: Recorder::default(),
        }
    }

    /// Does the events of a thread.
    pub(super) fn run(
        mut self,
        events: &[usize],
        recorder: &Mutex<Recorder>,
        is_given_up: &AtomicBool,
        progress: &dyn Fn(u64),
    ) {
        for &index in events {
            if is_given_up.load(Ordering::Acquire) || !self.order.wait(index) {
                break;
            }
            let event = &self.trace.events[index];
            self.wait_for_time(event);
            self.execute(event);
            let ended = self.order.end(index);
            if ended.is_multiple_of(PROGRESS_EVENTS) {
                progress(ended as u64);
            }
        }
        let mut all = recorder.lock().unwrap_or_else(PoisonError::into_inner);
        all.merge(self.recorder);
    }

    fn wait_for_time(&mut self, event: &Event) {
        let ReplaySpeed::Scaled(factor) = self.speed else {
            return;
        };
        let due = Duration::from_secs_f64(event.time.0 as f64 / 1e9 / factor);
        let elapsed = self.start.elapsed();
        if let Some(early) = due.checked_sub(elapsed) {
            sleep(early);
        } else {
            let late_ns = u64::try_from((elapsed - due).as_nanos()).unwrap_or(u64::MAX);
            self.recorder.late_max_ns = self.recorder.late_max_ns.max(late_ns);
        }
    }

    fn execute(&mut self, event: &Event) {
        let Some(path) = self.trace.path_of(event) else {
            if event.kind == EventKind::SyncAll {
                let begin = Instant::now();
                let result = rustix::fs::syncfs(self.directory.handle()).map_err(io::Error::from);
                self.record(event, begin, result.map(|()| 0));
            }
            return;
        };
        // What is needed to do it, data and open files, is not measured.
        let process = event.process;
        match event.kind {
            EventKind::Open { flags, .. } => self.open(event, path, flags),
            EventKind::Close { .. } => {
                let handle = self.handles.take(process, path);
                let begin = Instant::now();
                drop(handle);
                self.record(event, begin, Ok(0));
            }
            EventKind::Read { offset, length, .. } => self.read(event, path, offset, length),
            EventKind::Write {
                path: index,
                offset,
                length,
            } => self.write(event, path, index, offset, length),
            EventKind::Truncate { length, .. } => {
                self.with_file(event, path, OpenFlags::WRITE, |file| file.set_len(length));
            }
            EventKind::Allocate {
                mode,
                offset,
                length,
                ..
            } => {
                let flags = allocate_flags(mode);
                self.with_file(event, path, OpenFlags::WRITE, |file| {
                    Ok(rustix::fs::fallocate(file, flags, offset, length)?)
                });
            }
            EventKind::Sync { data_only, .. } => {
                self.with_file(event, path, OpenFlags::NONE, |file| match data_only {
                    true => file.sync_data(),
                    false => file.sync_all(),
                });
            }
            _ => {
                let target = event
                    .kind
                    .target()
                    .map(|target| self.trace.paths.get(target));
                let begin = Instant::now();
                let result = self.by_name(event, path, target);
                self.record(event, begin, result.map(|()| 0));
                self.follow_names(event, path, target);
            }
        }
    }

    /// Open files go on under the names that the trace has for them.
    fn follow_names(&self, event: &Event, path: &[u8], target: Option<&[u8]>) {
        if !event.has_succeeded() {
            return;
        }
        let nameless = |path: &[u8]| [path, b"\0"].concat();
        match (event.kind, target) {
            (
                EventKind::Rename {
                    exchange: false, ..
                },
                Some(to),
            ) => {
                self.handles.rename(to, &nameless(to));
                self.handles.rename(path, to);
            }
            (EventKind::Rename { exchange: true, .. }, Some(to)) => {
                let aside = nameless(&nameless(path));
                self.handles.rename(path, &aside);
                self.handles.rename(to, path);
                self.handles.rename(&aside, to);
            }
            (EventKind::Unlink { .. }, _) => self.handles.rename(path, &nameless(path)),
            _ => {}
        }
    }

    fn open(&mut self, event: &Event, path: &[u8], flags: OpenFlags) {
        // A file without a name is made under some name, and loses it.
        let is_nameless = is_nameless(path);
        let (flags, mode) = match is_nameless {
            true => (flags | OpenFlags::CREATE, 0o600),
            // The create before it has made it.
            false if self.has_just_made(event) => (flags.without(OpenFlags::EXCLUSIVE), 0o644),
            false => (flags, 0o644),
        };
        let begin = Instant::now();
        let result = self.directory.open_file(path, flags, mode);
        let result = result.map(|file| {
            let handle = Handle { file, flags };
            self.handles.add(event.process, path, Arc::new(handle));
            0
        });
        self.record(event, begin, result);
        if is_nameless {
            let removed = fs::remove_file(self.directory.shown(path));
            // It may have lost its name already; then there is nothing to do.
            drop(removed);
        }
    }

    /// Whether an exclusive open is the second half of a create.
    fn has_just_made(&self, event: &Event) -> bool {
        let path = event.kind.path();
        let first = self
            .trace
            .events
            .partition_point(|other| other.time < event.time);
        let same_time = self.trace.events[first..].iter();
        let mut same_time = same_time.take_while(|other| other.time == event.time);
        same_time.any(|other| {
            matches!(other.kind, EventKind::Create { .. })
                && other.thread == event.thread
                && other.kind.path() == path
        })
    }

    /// An open file: one that the trace has open, or one for this event.
    fn handle(&self, process: u32, path: &[u8], wanted: OpenFlags) -> io::Result<Arc<Handle>> {
        if let Some(handle) = self.handles.find(process, path, wanted) {
            return Ok(handle);
        }
        let flags = if wanted == OpenFlags::NONE {
            OpenFlags::READ
        } else {
            wanted
        };
        let creates = if wanted.contains(OpenFlags::WRITE) && !is_nameless(path) {
            OpenFlags::CREATE
        } else {
            OpenFlags::NONE
        };
        let file = self.directory.open_file(path, flags | creates, 0o644)?;
        let handle = Arc::new(Handle { file, flags });
        self.handles.add(process, path, Arc::clone(&handle));
        Ok(handle)
    }

    fn with_file(
        &mut self,
        event: &Event,
        path: &[u8],
        wanted: OpenFlags,
        operation: impl FnOnce(&File) -> io::Result<()>,
    ) {
        let handle = self.handle(event.process, path, wanted);
        let begin = Instant::now();
        let result = handle.and_then(|handle| operation(&handle.file));
        self.record(event, begin, result.map(|()| 0));
    }

    fn read(&mut self, event: &Event, path: &[u8], offset: u64, length: u64) {
        let handle = self.handle(event.process, path, OpenFlags::READ);
        let mut buffer = vec![0; transfer_bytes(length)];
        let begin = Instant::now();
        let result = handle.and_then(|handle| handle.file.read_at(&mut buffer, offset));
        let result = result.map(|read| read as i64);
        if event.has_succeeded() && result.as_ref().is_ok_and(|read| *read != event.result) {
            self.recorder.short_reads += 1;
        }
        self.record(event, begin, result);
    }

    fn write(&mut self, event: &Event, path: &[u8], index: PathIndex, offset: u64, length: u64) {
        let handle = self.handle(event.process, path, OpenFlags::WRITE);
        // What was not taken in the trace is not offered.
        let length = if event.result > 0 {
            event.result as u64
        } else {
            length
        };
        let data = self.directory.data(index.0, offset, transfer_bytes(length));
        let begin = Instant::now();
        let result = handle.and_then(|handle| handle.file.write_at(&data, offset));
        self.record(event, begin, result.map(|written| written as i64));
    }

    fn by_name(&mut self, event: &Event, path: &[u8], target: Option<&[u8]>) -> io::Result<()> {
        let shown = self.directory.shown(path);
        let to = target.map(|target| self.directory.shown(target));
        match (event.kind, &to) {
            (EventKind::Create { mode, .. }, _) => {
                let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
                self.directory
                    .open_file(path, flags, mode | 0o600)
                    .map(drop)
            }
            (EventKind::MakeDirectory { mode, .. }, _) => {
                fs::create_dir(&shown)?;
                fs::set_permissions(&shown, Permissions::from_mode(mode | 0o700))
            }
            (EventKind::Symlink { .. }, _) => self.symlink(&shown, target.unwrap_or_default()),
            (EventKind::Link { .. }, Some(to)) => fs::hard_link(&shown, to),
            (EventKind::Rename { exchange: true, .. }, Some(to)) => {
                let directory = self.directory.handle();
                let names = (shown.as_path(), to.as_path());
                let flags = RenameFlags::EXCHANGE;
                Ok(rustix::fs::renameat_with(
                    directory, names.0, directory, names.1, flags,
                )?)
            }
            (EventKind::Rename { .. }, Some(to)) => fs::rename(&shown, to),
            (EventKind::Unlink { .. }, _) => fs::remove_file(&shown),
            (EventKind::RemoveDirectory { .. }, _) => fs::remove_dir(&shown),
            (EventKind::SetAttributes { attribute, .. }, _) => set_attribute(&shown, attribute),
            (EventKind::SetXattr { length, .. }, _) => {
                let value = self.directory.data(0, 0, transfer_bytes(length));
                Ok(rustix::fs::lsetxattr(
                    &shown,
                    XATTR,
                    &value,
                    XattrFlags::empty(),
                )?)
            }
            (EventKind::RemoveXattr { .. }, _) => Ok(rustix::fs::lremovexattr(&shown, XATTR)?),
            (EventKind::ReadDirectory { .. }, _) => fs::read_dir(&shown).map(|entries| {
                entries.for_each(drop);
            }),
            _ => fs::symlink_metadata(&shown).map(drop),
        }
    }

    /// A symbolic link that would lead out of the directory gets another target.
    fn symlink(&mut self, path: &Path, target: &[u8]) -> io::Result<()> {
        let leads_out = target.starts_with(b"/")
            || target.split(|&byte| byte == b'/').any(|part| part == b"..");
        if leads_out || target.is_empty() {
            self.recorder.links_changed += 1;
            return std::os::unix::fs::symlink("elsewhere", path);
        }
        std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target), path)
    }

    fn record(&mut self, event: &Event, begin: Instant, result: io::Result<i64>) {
        let latency_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let operation = event.kind.name();
        self.recorder.latency(operation, latency_ns);
        let errno = match result {
            Ok(_) => 0,
            Err(error) => i64::from(error.raw_os_error().unwrap_or(-1)),
        };
        let recorded_errno = event.result.min(0).saturating_neg();
        if errno != recorded_errno {
            let difference = Difference {
                operation,
                recorded_errno,
                errno,
            };
            *self.recorder.differences.entry(difference).or_default() += 1;
        }
    }
}

/// The name of all extended attributes: the trace has none.
const XATTR: &str = "user.mobifs.replay";

/// Linux moves no more in one call.
const TRANSFER_BYTES_MAX: u64 = 0x7fff_f000;

fn transfer_bytes(length: u64) -> usize {
    length.min(TRANSFER_BYTES_MAX) as usize
}

fn set_attribute(path: &Path, attribute: Attribute) -> io::Result<()> {
    match attribute {
        Attribute::Mode => {
            let mode = fs::symlink_metadata(path)?.permissions().mode();
            fs::set_permissions(path, Permissions::from_mode(mode | 0o600))
        }
        Attribute::Owner => lchown(path, None, None),
        Attribute::Times => {
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_NOW,
            };
            let times = Timestamps {
                last_access: now,
                last_modification: now,
            };
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            Ok(rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags)?)
        }
    }
}

const fn allocate_flags(mode: AllocateMode) -> FallocateFlags {
    match mode {
        AllocateMode::Extend => FallocateFlags::empty(),
        AllocateMode::KeepSize => FallocateFlags::KEEP_SIZE,
        AllocateMode::PunchHole => FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE),
        AllocateMode::ZeroRange => FallocateFlags::ZERO_RANGE,
        AllocateMode::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
        AllocateMode::InsertRange => FallocateFlags::INSERT_RANGE,
    }
}
