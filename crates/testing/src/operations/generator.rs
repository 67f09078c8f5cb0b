//! Random but realistic sequences of events.

use mobifs_types::{FileKind, Timestamp};

use super::{
    AllocateMode, Event, FileRef, NodeKind, Operation, Payload, RenameMode, Slot, XattrMode,
};
use crate::model::{Body, Inode, Model, State};
use crate::random::Random;

/// Names are few, so that operations meet.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Numbers of open files.
const SLOTS: u64 = 4;
/// Directories are not made deeper than this.
const DEPTH_MAX: usize = 5;

/// What is read and written past the cache is made of these.
const PAGE_BYTES: u32 = 4096;
/// At most so many at a time.
const DIRECT_PAGES_MAX: u64 = 64;

/// What kind of scripts to generate.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Top-level directories that exist from the start.
    pub apps: Vec<String>,
    /// Number of events.
    pub length: usize,
    /// Percentage of paths that are drawn from all apps and not from the current one.
    pub cross_percent: u64,
    /// Whether checkpoints, syncs and applies happen.
    pub checkpoints: bool,
    /// How many cuts happen, at random places; the last is at the end.
    pub cuts: usize,
    /// How many times the daemon is killed, at random places.
    pub kills: usize,
    /// Whether holes of gigabytes and writes of a megabyte happen.
    pub large: bool,
    /// Whether files are read and written past the cache, too.
    pub direct: bool,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            apps: ["alpha", "beta", "gamma"].map(String::from).to_vec(),
            length: 100,
            cross_percent: 10,
            checkpoints: false,
            cuts: 0,
            kills: 0,
            large: true,
            direct: false,
        }
    }
}

/// The events that `profile` and `seed` stand for.
pub fn generate(profile: &Profile, seed: u64) -> Vec<Event> {
    generate_on(profile, State::default(), seed)
}

/// The same for a filesystem that holds something already.
pub fn generate_on(profile: &Profile, state: State, seed: u64) -> Vec<Event> {
    let mut generator = Generator {
        random: Random::new(seed),
        profile,
        model: Model::new(state),
        events: Vec::new(),
        app: String::new(),
        tag: 0,
    };
    for app in &profile.apps {
        generator.run(Operation::MakeDirectory {
            path: app.clone(),
            mode: 0o755,
        });
    }
    while generator.events.len() < profile.length {
        generator.step();
    }
    let mut events = generator.events;
    let prelude = profile.apps.len() as u64;
    for _ in 0..profile.kills {
        let at = prelude + generator.random.below(events.len() as u64 - prelude + 1);
        // A commit takes more than most operations, an apply even more.
        let most = *generator.random.pick(&[60, 60, 300]);
        let steps = generator.random.below(most);
        events.insert(at as usize, Event::Kill(steps));
    }
    if profile.cuts > 0 {
        for _ in 1..profile.cuts {
            let at = prelude + generator.random.below(events.len() as u64 - prelude + 1);
            events.insert(at as usize, Event::Cut);
        }
        events.push(Event::Cut);
    }
    events
}

/// Makes the events one by one, and a model of what they do beside it.
pub(super) struct Generator<'p> {
    pub(super) random: Random,
    profile: &'p Profile,
    model: Model,
    events: Vec<Event>,
    /// The app that works at the moment.
    app: String,
    tag: u32,
}

impl Generator<'_> {
    /// Adds an operation; whether it succeeds does not matter.
    pub(super) fn run(&mut self, operation: Operation) {
        // An error is as good as a success: it must be the same everywhere.
        let _outcome = self.model.execute(&operation);
        self.events.push(Event::Do(operation));
    }

    fn step(&mut self) {
        if self.app.is_empty() || self.random.chance(15) {
            self.app = self.random.pick(&self.profile.apps).clone();
        }
        let checkpoints = if self.profile.checkpoints { 8 } else { 0 };
        let direct = if self.profile.direct { 20 } else { 0 };
        match self
            .random
            .weighted(&[26, 18, 40, 10, 12, 8, 5, checkpoints, direct])
        {
            0 => self.make(),
            1 => self.move_or_remove(),
            2 => self.change_content(),
            3 => self.change_attributes(),
            4 => self.use_handle(),
            5 => self.pattern(),
            6 => self.anything(),
            7 => self.checkpoint(),
            _ => self.use_direct_io(),
        }
    }

    fn make(&mut self) {
        let path = self.new_path();
        let mode = *self
            .random
            .pick(&[0o644, 0o600, 0o777, 0o755, 0o4755, 0o2751]);
        let operation = match self.random.weighted(&[14, 6, 2, 2, 4]) {
            0 => Operation::CreateFile {
                path,
                mode: mode & 0o777,
            },
            1 => Operation::MakeDirectory {
                path,
                mode: mode & 0o777,
            },
            2 => {
                let target = self
                    .random
                    .pick(&["a", "../b", "nowhere/at/all"])
                    .to_string();
                Operation::MakeSymlink { path, target }
            }
            3 => {
                let kind = *self.random.pick(&[
                    NodeKind::Fifo,
                    NodeKind::Socket,
                    NodeKind::CharDevice(1, 3),
                    NodeKind::BlockDevice(259, 70_000),
                ]);
                Operation::MakeNode {
                    path,
                    mode: mode & 0o777,
                    kind,
                }
            }
            _ => {
                let from = self.existing(|kind| kind != FileKind::Directory);
                Operation::Link { from, to: path }
            }
        };
        self.run(operation);
    }

    fn move_or_remove(&mut self) {
        let operation = match self.random.weighted(&[8, 3, 9, 3]) {
            0 => Operation::Unlink {
                path: self.existing(|kind| kind != FileKind::Directory),
            },
            1 => {
                let only_empty = self.random.chance(60);
                let path = self.existing_inode(|inode| match &inode.body {
                    Body::Directory(entries) => entries.is_empty() || !only_empty,
                    _ => false,
                });
                Operation::RemoveDirectory { path }
            }
            2 => {
                let from = self.existing(|_| true);
                let exists = self.random.chance(50);
                let to = if exists {
                    self.existing(|_| true)
                } else {
                    self.new_path()
                };
                let mode = *self.random.pick(&[
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                    RenameMode::Whiteout,
                ]);
                Operation::Rename { from, to, mode }
            }
            _ => {
                // A directory goes somewhere else.
                let from = self.existing(is_directory);
                Operation::Rename {
                    from,
                    to: self.new_path(),
                    mode: RenameMode::Replace,
                }
            }
        };
        self.run(operation);
    }

    fn change_content(&mut self) {
        let file = self.file();
        let operation = match self.random.weighted(&[20, 8, 4, 6, 5, 3, 3]) {
            0 => {
                let offset = self.offset(&file);
                Operation::Write {
                    offset,
                    data: self.payload(),
                    file,
                }
            }
            1 => Operation::Append {
                data: self.payload(),
                file,
            },
            2 => {
                let (offset, length) = (self.offset(&file), self.length());
                Operation::Read {
                    file,
                    offset,
                    length,
                }
            }
            3 => Operation::Truncate {
                size: self.offset(&file),
                file,
            },
            4 => {
                let keep_size = self.random.chance(50);
                let mode = *self.random.pick(&[
                    AllocateMode::Allocate { keep_size },
                    AllocateMode::PunchHole,
                    AllocateMode::ZeroRange { keep_size },
                ]);
                let (offset, length) = (self.offset(&file), u64::from(self.length()));
                Operation::Allocate {
                    file,
                    mode,
                    offset,
                    length,
                }
            }
            5 => {
                let to = if self.random.chance(30) {
                    file.clone()
                } else {
                    self.file()
                };
                let (from_offset, to_offset) = (self.offset(&file), self.offset(&to));
                let length = self.length();
                Operation::CopyRange {
                    from: file,
                    from_offset,
                    to,
                    to_offset,
                    length,
                }
            }
            _ => Operation::Fsync { file },
        };
        self.run(operation);
    }

    /// Whole pages past the cache; now and then what others use stands beside it.
    fn use_direct_io(&mut self) {
        let file = self.file();
        let page = u64::from(PAGE_BYTES);
        let offset = self.random.below(self.size(&file) / page + 2) * page;
        let pages = 1 + self.random.below(DIRECT_PAGES_MAX) as u32;
        let length = pages * PAGE_BYTES;
        if self.random.chance(30) {
            return self.run(Operation::ReadDirect {
                file,
                offset,
                length,
            });
        }
        let tag = self.next_tag();
        let data = Payload { tag, length };
        self.run(Operation::WriteDirect {
            file: file.clone(),
            offset,
            data,
        });
        // Through the cache, by whoever looks next.
        self.run(Operation::Read {
            file,
            offset,
            length,
        });
    }

    fn change_attributes(&mut self) {
        let path = self.existing(|_| true);
        let mode = *self
            .random
            .pick(&[0o644, 0o600, 0o4755, 0o2755, 0o2644, 0o1777, 0o6711]);
        let ids = [None, Some(0), Some(1), Some(1000), Some(65_534)];
        let operation = match self.random.weighted(&[3, 2, 3, 4, 2]) {
            0 => Operation::SetMode { path, mode },
            1 => {
                let (uid, gid) = (*self.random.pick(&ids), *self.random.pick(&ids));
                // Changing neither is no call that a filesystem sees.
                Operation::SetOwner {
                    path,
                    uid: uid.or(Some(0)),
                    gid,
                }
            }
            2 => {
                let seconds = 1_000_000_000 + self.random.below(500_000_000) as i64;
                let set = Timestamp::new(seconds, self.random.below(1_000_000_000) as u32);
                let mtime = self.random.chance(80).then_some(set);
                Operation::SetMtime { path, mtime }
            }
            3 => {
                let mode = *self.random.pick(&[
                    XattrMode::Any,
                    XattrMode::Any,
                    XattrMode::Create,
                    XattrMode::Replace,
                ]);
                let length = *self.random.pick(&[0, 1, 20, 200]);
                let value = Payload {
                    tag: self.next_tag(),
                    length,
                };
                Operation::SetXattr {
                    path,
                    name: self.xattr_name(),
                    value,
                    mode,
                }
            }
            _ => {
                let with_one = self.existing_inode(|inode| !inode.xattrs.is_empty());
                let path = if self.random.chance(80) {
                    with_one
                } else {
                    path
                };
                Operation::RemoveXattr {
                    path,
                    name: self.xattr_name(),
                }
            }
        };
        self.run(operation);
    }

    fn use_handle(&mut self) {
        let slot = self.slot();
        let operation = match self.random.weighted(&[4, 2, 2, 2]) {
            0 => Operation::Open {
                slot,
                path: self.existing(|kind| kind == FileKind::Regular),
            },
            1 => Operation::OpenUnnamed {
                slot,
                directory: self.existing(is_directory),
                mode: 0o640,
            },
            2 => Operation::LinkHandle {
                slot: self.open_slot(),
                to: self.new_path(),
            },
            _ => Operation::Close {
                slot: self.open_slot(),
            },
        };
        self.run(operation);
    }

    /// A call with any arguments; most fail.
    fn anything(&mut self) {
        let (path, other) = (self.any_path(), self.any_path());
        let operation = match self.random.below(10) {
            0 => Operation::CreateFile { path, mode: 0o644 },
            1 => Operation::MakeDirectory { path, mode: 0o755 },
            2 => Operation::Link {
                from: path,
                to: other,
            },
            3 => Operation::Unlink { path },
            4 => Operation::RemoveDirectory { path },
            5 => Operation::Rename {
                from: path,
                to: other,
                mode: RenameMode::Replace,
            },
            6 => Operation::Rename {
                from: path,
                to: other,
                mode: RenameMode::Exchange,
            },
            7 => Operation::Truncate {
                file: FileRef::Path(path),
                size: 0,
            },
            8 => Operation::Write {
                file: FileRef::Path(path),
                offset: 0,
                data: Payload {
                    tag: self.next_tag(),
                    length: 100,
                },
            },
            _ => Operation::SetMode { path, mode: 0o700 },
        };
        self.run(operation);
    }

    fn checkpoint(&mut self) {
        let app = self.random.pick(&self.profile.apps).clone();
        let event = match self.random.weighted(&[10, 8, 4, 3, 2, 3]) {
            0 => Event::Close(app),
            1 => Event::CommitNext,
            2 => Event::TidyUp,
            3 => Event::SyncApp(app),
            4 => Event::SyncAll,
            _ => Event::Apply,
        };
        self.events.push(event);
    }

    pub(super) const fn next_tag(&mut self) -> u32 {
        self.tag += 1;
        self.tag
    }

    fn slot(&mut self) -> Slot {
        self.random.below(SLOTS) as Slot
    }

    /// A slot that holds an open file, if there is one.
    fn open_slot(&mut self) -> Slot {
        let open: Vec<Slot> = self.model.open_slots().collect();
        if open.is_empty() {
            self.slot()
        } else {
            *self.random.pick(&open)
        }
    }

    fn xattr_name(&mut self) -> String {
        self.random
            .pick(&["user.a", "user.b", "user.c"])
            .to_string()
    }

    fn payload(&mut self) -> Payload {
        // Zeros now and then: they look like holes.
        let tag = if self.random.chance(5) {
            0
        } else {
            self.next_tag()
        };
        Payload {
            tag,
            length: self.length(),
        }
    }

    fn length(&mut self) -> u32 {
        let large = u32::from(self.profile.large);
        match self.random.weighted(&[12, 12, 4, 1 + 3 * large, large]) {
            0 => *self.random.pick(&[0, 1, 7, 100, 511, 512, 1000]),
            1 => *self.random.pick(&[4095, 4096, 4097, 8192, 10_000]),
            2 => 16_384 + self.random.below(32_768) as u32,
            3 => 65_536 + self.random.below(100_000) as u32,
            _ => 1_000_000 + self.random.below(300_000) as u32,
        }
    }

    fn offset(&mut self, file: &FileRef) -> u64 {
        let size = self.size(file);
        let gigabytes = u32::from(self.profile.large);
        match self.random.weighted(&[8, 8, 8, 8, 6, 2, gigabytes]) {
            0 => 0,
            1 => size,
            2 => self.random.below(size + 1),
            3 => self.random.below(size / 4096 + 1) * 4096,
            4 => size + self.random.below(6000),
            5 => size + self.random.below(300_000),
            _ => *self.random.pick(&[(5 << 30) + 123, (1 << 32) - 5, 1 << 33]),
        }
    }

    fn size(&self, file: &FileRef) -> u64 {
        let FileRef::Path(path) = file else {
            return 10_000;
        };
        let paths = self.model.state().paths();
        let found = paths.get(path).map(|(_, inode)| &inode.body);
        match found {
            Some(Body::Regular(content)) => content.size(),
            _ => 0,
        }
    }

    fn file(&mut self) -> FileRef {
        if self.random.chance(25) && self.model.open_slots().next().is_some() {
            return FileRef::Handle(self.open_slot());
        }
        FileRef::Path(self.existing(|kind| kind == FileKind::Regular))
    }

    /// Where paths are drawn from: the app that works, or anywhere.
    fn scope(&mut self) -> String {
        if self.random.chance(self.profile.cross_percent) {
            String::new()
        } else {
            self.app.clone()
        }
    }

    /// A path that exists and is of that kind, if there is one.
    fn existing(&mut self, accept: impl Fn(FileKind) -> bool) -> String {
        self.existing_inode(|inode| accept(inode.kind()))
    }

    /// A path whose object is accepted, if there is one.
    fn existing_inode(&mut self, accept: impl Fn(&Inode) -> bool) -> String {
        let scope = self.scope();
        let paths = self.model.state().paths();
        let is_inside = |path: &str| {
            path.strip_prefix(scope.as_str())
                .is_some_and(|rest| scope.is_empty() || rest.starts_with('/'))
        };
        let found: Vec<&String> = paths
            .iter()
            .filter(|(path, (_, inode))| !path.is_empty() && is_inside(path) && accept(inode))
            .map(|(path, _)| path)
            .collect();
        if found.is_empty() {
            return self.new_path();
        }
        (*self.random.pick(&found)).clone()
    }

    /// A name in a directory that exists; the name may exist, too.
    fn new_path(&mut self) -> String {
        let scope = self.scope();
        let paths = self.model.state().paths();
        let directories: Vec<&String> = paths
            .iter()
            .filter(|(path, (_, inode))| {
                is_directory(inode.kind())
                    && (scope.is_empty()
                        || **path == scope
                        || path.starts_with(&format!("{scope}/")))
                    && path.split('/').count() < DEPTH_MAX
            })
            .map(|(path, _)| path)
            .collect();
        let directory = if directories.is_empty() {
            scope
        } else {
            (*self.random.pick(&directories)).clone()
        };
        let name = self.name();
        if directory.is_empty() {
            name
        } else {
            format!("{directory}/{name}")
        }
    }

    fn name(&mut self) -> String {
        if self.random.chance(2) {
            let longest = if self.random.chance(50) { 255 } else { 256 };
            return "n".repeat(longest);
        }
        self.random.pick(&NAMES).to_string()
    }

    fn any_path(&mut self) -> String {
        let mut path = self.random.pick(&self.profile.apps).clone();
        for _ in 0..self.random.below(4) {
            path.push('/');
            path.push_str(&self.name());
        }
        path
    }

    /// A directory of the app that works, to put a pattern's files in.
    pub(super) fn working_directory(&self) -> String {
        self.app.clone()
    }
}

fn is_directory(kind: FileKind) -> bool {
    kind == FileKind::Directory
}
