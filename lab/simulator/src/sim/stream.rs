//! A trace as a simulation sees it: objects and names by number, and only what concerns
//! storage.
//!
//! A trace names files by path, and a path means another file after a rename. Both sides of
//! a comparison need the same answer to "which file is this", so it is found once, here.
//! Names are numbered too, one number for each place where a directory entry was; the tree
//! they lie in does not matter to when something is written, so each app's names lie in one
//! directory.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use mobifs_base::{MonotonicNs, PAGE_BYTES_U64, PageIndex};
use mobifs_engine::policy::prediction::Bursts;
use mobifs_trace::{
    AllocateMode, AppIndex, DeviceState, Event, EventKind, OpenFlags, PathIndex, Trace,
};

/// An object of a [`Stream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectNumber(pub u32);

/// A directory entry of a [`Stream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameNumber(pub u32);

/// An app of a [`Stream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppNumber(pub u32);

impl AppNumber {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl ObjectNumber {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Something that changes storage, asks for durability, or concerns the user or the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An object comes into being.
    Create {
        /// The object.
        object: ObjectNumber,
        /// Its name.
        name: NameNumber,
    },
    /// An object gets a further name.
    Link {
        /// The object.
        object: ObjectNumber,
        /// Its new name.
        name: NameNumber,
    },
    /// A name goes.
    Remove {
        /// What had the name.
        object: ObjectNumber,
        /// The name.
        name: NameNumber,
        /// The name was the object's last one.
        is_last: bool,
        /// A program goes on using the object; [`Action::Release`] ends that.
        is_open: bool,
    },
    /// A name is changed to one that was free; what had the new one was removed just before.
    Rename {
        /// What has the name.
        object: ObjectNumber,
        /// The old name.
        from: NameNumber,
        /// The new name.
        to: NameNumber,
    },
    /// No program uses an object without names any more.
    Release {
        /// The object.
        object: ObjectNumber,
    },
    /// Content is written.
    Write {
        /// The file.
        object: ObjectNumber,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes; not 0.
        length: u64,
    },
    /// The size is set.
    Resize {
        /// The file.
        object: ObjectNumber,
        /// The new size in bytes.
        bytes: u64,
    },
    /// A range loses its content.
    Punch {
        /// The file.
        object: ObjectNumber,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes; not 0.
        length: u64,
    },
    /// Attributes are set.
    SetAttributes {
        /// The object.
        object: ObjectNumber,
    },
    /// One object is asked to be durable.
    Sync {
        /// The object.
        object: ObjectNumber,
    },
    /// Everything is asked to be durable.
    SyncAll,
    /// The user does something.
    User,
    /// The device's state changes.
    Device(DeviceState),
}

impl Action {
    /// The object that it concerns, if it is one.
    pub const fn object(&self) -> Option<ObjectNumber> {
        match *self {
            Self::Create { object, .. }
            | Self::Link { object, .. }
            | Self::Remove { object, .. }
            | Self::Rename { object, .. }
            | Self::Release { object }
            | Self::Write { object, .. }
            | Self::Resize { object, .. }
            | Self::Punch { object, .. }
            | Self::SetAttributes { object }
            | Self::Sync { object } => Some(object),
            Self::SyncAll | Self::User | Self::Device(_) => None,
        }
    }

    /// The object of which it changes a name or attributes.
    pub const fn changed_entry(&self) -> Option<ObjectNumber> {
        match *self {
            Self::Create { object, .. }
            | Self::Link { object, .. }
            | Self::Remove { object, .. }
            | Self::Rename { object, .. }
            | Self::Resize { object, .. }
            | Self::Punch { object, .. }
            | Self::SetAttributes { object } => Some(object),
            Self::Release { .. }
            | Self::Write { .. }
            | Self::Sync { .. }
            | Self::SyncAll
            | Self::User
            | Self::Device(_) => None,
        }
    }

    /// What it does to the content of a file, if it does anything.
    pub fn page_change(&self) -> Option<PageChange> {
        let (object, is_written, pages) = match *self {
            Self::Write {
                object,
                offset,
                length,
            } => {
                let last = PageIndex::of_offset(offset + length - 1).0;
                (object, true, PageIndex::of_offset(offset).0..last + 1)
            }
            Self::Resize { object, bytes } => {
                (object, false, bytes.div_ceil(PAGE_BYTES_U64)..u64::MAX)
            }
            Self::Punch {
                object,
                offset,
                length,
            } => {
                // A page that keeps a part of its content is kept.
                let first = offset.div_ceil(PAGE_BYTES_U64);
                let end = offset.saturating_add(length) / PAGE_BYTES_U64;
                (object, false, first..end.max(first))
            }
            Self::Remove {
                object,
                is_last: true,
                is_open: false,
                ..
            }
            | Self::Release { object } => (object, false, 0..u64::MAX),
            _ => return None,
        };
        Some(PageChange {
            object,
            is_written,
            pages,
        })
    }
}

/// What an action does to the content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageChange {
    /// The file.
    pub object: ObjectNumber,
    /// The pages are written; otherwise their content goes.
    pub is_written: bool,
    /// Which pages, by index.
    pub pages: Range<u64>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When, in nanoseconds since the trace's start.
    pub time_ns: u64,
    /// The app that does it.
    pub app: AppNumber,
    /// What happens.
    pub action: Action,
}

/// What a file or directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectFacts {
    /// The app that mentioned it first.
    pub app: AppNumber,
    /// The object is a directory.
    pub is_directory: bool,
}

/// What was there before a trace began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialObject {
    /// The object.
    pub object: ObjectNumber,
    /// Its name.
    pub name: NameNumber,
    /// How large a file was at least: the trace shows what is read of it that the trace has not
    /// written, and where writes begin that do not begin in what is known.
    pub bytes: u64,
}

/// A trace made ready for simulation.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// Names of the apps.
    pub apps: Vec<String>,
    /// What each object is.
    pub objects: Vec<ObjectFacts>,
    /// The app in whose directory each name lies.
    pub names: Vec<AppNumber>,
    /// Objects that were there before the trace began.
    pub initial: Vec<InitialObject>,
    /// What happens, by time.
    pub steps: Vec<Step>,
    /// When something was looked up, opened or read, which does not change storage, in nanoseconds
    /// since the trace's start; and the app.
    pub requests: Vec<(u64, AppNumber)>,
    /// How long the trace takes, in nanoseconds.
    pub duration_ns: u64,
    /// Commands to block devices, which say nothing about files and are left out.
    pub block_commands: u64,
}

impl Stream {
    /// Reads a trace.
    pub fn new(trace: &Trace) -> Self {
        let mut reader = Reader::new(trace);
        for event in trace.events.iter().filter(|event| event.has_succeeded()) {
            reader.read(event);
        }
        reader.stream.duration_ns = trace.duration_ns();
        reader.stream
    }

    /// This stream with an operation of the user at each burst of requests, as a mount sees them
    /// with `user_events = "bursts"`.
    #[must_use]
    pub fn with_bursts(&self) -> Self {
        let mut stream = self.clone();
        let mut bursts = Bursts::default();
        let begins_burst =
            |&&(time_ns, _): &&(u64, AppNumber)| bursts.request(MonotonicNs(time_ns));
        let found = self.requests.iter().filter(begins_burst);
        stream.steps.extend(found.map(|&(time_ns, app)| Step {
            time_ns,
            app,
            action: Action::User,
        }));
        // Stable: what comes at the same moment stays in its order.
        stream.steps.sort_by_key(|step| step.time_ns);
        stream
    }

    /// This stream without a user: what is closed is committed at once, as where S0 looks at
    /// transactions alone (§7.3).
    #[must_use]
    pub fn without_user(&self) -> Self {
        let mut stream = self.clone();
        stream.steps.retain(|step| step.action != Action::User);
        stream
    }
}

/// What a path means at the moment.
#[derive(Clone, Copy, Debug)]
struct Meaning {
    object: ObjectNumber,
    name: NameNumber,
}

/// A file of before the trace, of whose size only a part may be known.
#[derive(Clone, Copy, Debug)]
struct UnsizedFile {
    /// Its index in [`Stream::initial`].
    initial: usize,
    /// What is known to be in it now, in bytes.
    known_bytes: u64,
}

struct Reader<'t> {
    trace: &'t Trace,
    stream: Stream,
    meanings: HashMap<Vec<u8>, Meaning>,
    /// Objects that are used without a name, by the path that the trace gives them.
    unnamed: HashMap<Vec<u8>, ObjectNumber>,
    links: HashMap<ObjectNumber, u32>,
    /// How far files were read that no other event has mentioned yet, in bytes.
    read_bytes: HashMap<&'t [u8], u64>,
    /// Files of before whose size no event has set.
    unsized_files: HashMap<ObjectNumber, UnsizedFile>,
    /// Paths of files that are used without a name at some time.
    used_unnamed: HashSet<&'t [u8]>,
}

impl<'t> Reader<'t> {
    fn new(trace: &'t Trace) -> Self {
        let apps = trace.apps.iter();
        let apps = apps.map(|(_, name)| String::from_utf8_lossy(name).into_owned());
        let paths = trace.paths.iter().map(|(_, path)| path);
        Self {
            trace,
            stream: Stream {
                apps: apps.collect(),
                ..Stream::default()
            },
            meanings: HashMap::new(),
            unnamed: HashMap::new(),
            links: HashMap::new(),
            read_bytes: HashMap::new(),
            unsized_files: HashMap::new(),
            used_unnamed: paths.filter_map(|path| path.strip_suffix(b"\0")).collect(),
        }
    }

    fn read(&mut self, event: &Event) {
        if matches!(
            event.kind,
            EventKind::Open { .. }
                | EventKind::Read { .. }
                | EventKind::Stat { .. }
                | EventKind::ReadDirectory { .. }
        ) {
            let request = (event.time.0, AppNumber(event.app.0));
            self.stream.requests.push(request);
        }
        match event.kind {
            EventKind::Create { path, .. } => self.create(event, path, false),
            EventKind::MakeDirectory { path, .. } => self.create(event, path, true),
            EventKind::Symlink { path, .. } => self.create(event, path, false),
            EventKind::Open { path, flags } => self.open(event, path, flags),
            EventKind::Close { path } => self.close(event, path),
            EventKind::Write { path, offset, .. } => self.write(event, path, offset),
            EventKind::Truncate { path, length } => {
                let object = self.object(event, path);
                self.resize(event, object, length);
            }
            EventKind::Allocate {
                path,
                mode,
                offset,
                length,
            } => self.allocate(event, path, mode, offset, length),
            EventKind::Sync { path, .. } => {
                let object = self.object(event, path);
                self.push(event, Action::Sync { object });
            }
            EventKind::SyncAll => self.push(event, Action::SyncAll),
            EventKind::Link { from, to } => self.link(event, from, to),
            EventKind::Rename { from, to, exchange } => self.rename(event, from, to, exchange),
            EventKind::Unlink { path } | EventKind::RemoveDirectory { path } => {
                self.meaning(event, path);
                let path = self.trace.paths.get(path);
                self.remove(event, path);
            }
            EventKind::SetAttributes { path, .. }
            | EventKind::SetXattr { path, .. }
            | EventKind::RemoveXattr { path } => {
                let object = self.object(event, path);
                self.push(event, Action::SetAttributes { object });
            }
            EventKind::ReadDirectory { path } => {
                let path = self.trace.paths.get(path);
                if !self.meanings.contains_key(path) {
                    self.find_initial(event.app, path, true);
                }
            }
            EventKind::Block { .. } => self.stream.block_commands += 1,
            EventKind::User(_) => self.push(event, Action::User),
            EventKind::Device(state) => self.push(event, Action::Device(state)),
            EventKind::Read { path, offset, .. } => {
                self.read_content(path, offset.saturating_add(event.result.unsigned_abs()));
            }
            EventKind::Stat { .. } => {}
        }
    }

    fn push(&mut self, event: &Event, action: Action) {
        self.stream.steps.push(Step {
            time_ns: event.time.0,
            app: AppNumber(event.app.0),
            action,
        });
    }

    fn new_object(&mut self, app: AppIndex, is_directory: bool) -> ObjectNumber {
        let app = AppNumber(app.0);
        self.stream.objects.push(ObjectFacts { app, is_directory });
        ObjectNumber(self.stream.objects.len() as u32 - 1)
    }

    fn new_name(&mut self, app: AppIndex) -> NameNumber {
        self.stream.names.push(AppNumber(app.0));
        NameNumber(self.stream.names.len() as u32 - 1)
    }

    /// An object that must have been there when the trace began.
    fn find_initial(&mut self, app: AppIndex, path: &[u8], is_directory: bool) -> Meaning {
        let object = self.new_object(app, is_directory);
        let name = self.new_name(app);
        let bytes = self.read_bytes.remove(path).unwrap_or(0);
        let unsized_file = UnsizedFile {
            initial: self.stream.initial.len(),
            known_bytes: bytes,
        };
        self.unsized_files.insert(object, unsized_file);
        self.stream.initial.push(InitialObject {
            object,
            name,
            bytes,
        });
        self.links.insert(object, 1);
        let meaning = Meaning { object, name };
        self.meanings.insert(path.to_vec(), meaning);
        meaning
    }

    fn meaning(&mut self, event: &Event, path: PathIndex) -> Meaning {
        let path = self.trace.paths.get(path);
        match self.meanings.get(path) {
            Some(&meaning) => meaning,
            None => self.find_initial(event.app, path, false),
        }
    }

    fn object(&mut self, event: &Event, path: PathIndex) -> ObjectNumber {
        match self.unnamed.get(self.trace.paths.get(path)) {
            Some(&object) => object,
            None => self.meaning(event, path).object,
        }
    }

    fn create(&mut self, event: &Event, path: PathIndex, is_directory: bool) {
        let path = self.trace.paths.get(path);
        if self.meanings.contains_key(path) {
            // The trace does not show its removal; for storage it is the same file.
            return;
        }
        let object = self.new_object(event.app, is_directory);
        let name = self.new_name(event.app);
        self.links.insert(object, 1);
        self.meanings
            .insert(path.to_vec(), Meaning { object, name });
        self.push(event, Action::Create { object, name });
    }

    fn open(&mut self, event: &Event, path: PathIndex, flags: OpenFlags) {
        if flags.contains(OpenFlags::CREATE) {
            self.create(event, path, false);
        }
        if flags.contains(OpenFlags::TRUNCATE) {
            let object = self.object(event, path);
            self.resize(event, object, 0);
        }
    }

    fn close(&mut self, event: &Event, path: PathIndex) {
        let path = self.trace.paths.get(path);
        if let Some(object) = self.unnamed.remove(path) {
            self.push(event, Action::Release { object });
        }
    }

    /// A file is read as far as `end`.
    fn read_content(&mut self, path: PathIndex, end: u64) {
        let path = self.trace.paths.get(path);
        let unnamed = self.unnamed.get(path).copied();
        let named = || self.meanings.get(path).map(|meaning| meaning.object);
        match unnamed.or_else(named) {
            Some(object) => self.was_there(object, end, end),
            None => {
                let bytes = self.read_bytes.entry(path).or_default();
                *bytes = end.max(*bytes);
            }
        }
    }

    /// What is in a file before the trace changes its size was there before the trace: as far as
    /// `old_end`. It has `end` bytes now, at least.
    fn was_there(&mut self, object: ObjectNumber, old_end: u64, end: u64) {
        if let Some(file) = self.unsized_files.get_mut(&object) {
            if old_end > file.known_bytes {
                self.stream.initial[file.initial].bytes = old_end;
            }
            file.known_bytes = end.max(file.known_bytes);
        }
    }

    fn resize(&mut self, event: &Event, object: ObjectNumber, bytes: u64) {
        self.unsized_files.remove(&object);
        self.push(event, Action::Resize { object, bytes });
    }

    fn write(&mut self, event: &Event, path: PathIndex, offset: u64) {
        let length = event.result.unsigned_abs();
        let object = self.object(event, path);
        if length > 0 && offset.checked_add(length).is_some() {
            self.was_there(object, offset, offset + length);
            self.push(
                event,
                Action::Write {
                    object,
                    offset,
                    length,
                },
            );
        }
    }

    fn allocate(
        &mut self,
        event: &Event,
        path: PathIndex,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    ) {
        let object = self.object(event, path);
        let gone = matches!(
            mode,
            AllocateMode::PunchHole | AllocateMode::ZeroRange | AllocateMode::CollapseRange
        );
        let action = if gone && length > 0 {
            Action::Punch {
                object,
                offset,
                length,
            }
        } else {
            Action::SetAttributes { object }
        };
        self.push(event, action);
    }

    fn link(&mut self, event: &Event, from: PathIndex, to: PathIndex) {
        let object = self.object(event, from);
        self.unnamed.remove(self.trace.paths.get(from));
        let to = self.trace.paths.get(to);
        self.remove(event, to);
        let name = self.new_name(event.app);
        *self.links.entry(object).or_insert(0) += 1;
        self.meanings.insert(to.to_vec(), Meaning { object, name });
        self.push(event, Action::Link { object, name });
    }

    /// Takes away what a path means, if it means something.
    fn remove(&mut self, event: &Event, path: &[u8]) {
        let Some(Meaning { object, name }) = self.meanings.remove(path) else {
            return;
        };
        let links = self.links.entry(object).or_insert(1);
        *links -= 1;
        let is_last = *links == 0;
        let is_open = is_last && self.used_unnamed.contains(path);
        if is_open {
            let unnamed = [path, b"\0"].concat();
            // What was there under this path is forgotten without its last close.
            if let Some(object) = self.unnamed.insert(unnamed, object) {
                self.push(event, Action::Release { object });
            }
        }
        self.push(
            event,
            Action::Remove {
                object,
                name,
                is_last,
                is_open,
            },
        );
    }

    fn rename(&mut self, event: &Event, from: PathIndex, to: PathIndex, exchange: bool) {
        if from == to {
            return;
        }
        let moved = self.meaning(event, from);
        if exchange {
            self.exchange(event, (from, moved), to);
            return;
        }
        let (from, to) = (self.trace.paths.get(from), self.trace.paths.get(to));
        let replaced = self.meanings.get(to).map(|meaning| meaning.object);
        if replaced == Some(moved.object) {
            // Two names of one file: nothing happens.
            return;
        }
        self.remove(event, to);
        self.meanings.remove(from);
        let name = self.new_name(event.app);
        let object = moved.object;
        self.meanings.insert(to.to_vec(), Meaning { object, name });
        if self.stream.objects[object.index()].is_directory {
            self.move_below(from, to);
        }
        self.push(
            event,
            Action::Rename {
                object,
                from: moved.name,
                to: name,
            },
        );
    }

    /// Both change places; to storage each is a changed name.
    fn exchange(&mut self, event: &Event, (from, moved): (PathIndex, Meaning), to: PathIndex) {
        let other = self.meaning(event, to);
        let (from, to) = (self.trace.paths.get(from), self.trace.paths.get(to));
        for (path, meaning) in [(to, moved), (from, other)] {
            let name = self.new_name(event.app);
            let object = meaning.object;
            self.meanings
                .insert(path.to_vec(), Meaning { object, name });
            self.push(
                event,
                Action::Rename {
                    object,
                    from: meaning.name,
                    to: name,
                },
            );
        }
        let below_from = self.take_below(from);
        self.move_below(to, from);
        for (rest, meaning) in below_from {
            self.meanings.insert([to, &rest].concat(), meaning);
        }
    }

    /// What lies below a directory has other paths now.
    fn move_below(&mut self, from: &[u8], to: &[u8]) {
        for (rest, meaning) in self.take_below(from) {
            self.meanings.insert([to, &rest].concat(), meaning);
        }
    }

    /// Takes out what lies below a directory, by the rest of its path.
    fn take_below(&mut self, directory: &[u8]) -> Vec<(Vec<u8>, Meaning)> {
        let prefix = [directory, b"/"].concat();
        let below: Vec<Vec<u8>> = self
            .meanings
            .keys()
            .filter(|path| path.starts_with(&prefix))
            .cloned()
            .collect();
        let taken = below.into_iter().filter_map(|path| {
            let meaning = self.meanings.remove(&path)?;
            Some((path[directory.len()..].to_vec(), meaning))
        });
        taken.collect()
    }
}
