//! Random but realistic sequences of events.

mod operands;

use mobifs_base::{FileKind, Timestamp};

use super::{AllocateMode, Event, FileRef, NodeKind, Operation, Payload, RenameMode, XattrMode};
use crate::layout::ROOT_APP;
use crate::model::{Body, Inode, Model, State};
use crate::random::Random;

/// Names are few, so that operations meet.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

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

/// Generates events for a filesystem that holds something already.
pub fn generate_on(profile: &Profile, state: State, seed: u64) -> Vec<Event> {
    let mut generator = Generator {
        random: Random::new(seed),
        profile,
        model: Model::new(state),
        events: Vec::new(),
        app: String::new(),
        changed: String::new(),
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
    let mut events = std::mem::take(&mut generator.events);
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
            let at = generator.cut_place(&events, prelude);
            events.insert(at, Event::Cut);
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
    /// Where an entry changed last.
    changed: String,
    tag: u32,
}

impl Generator<'_> {
    /// Where the power is cut: half of the time just after an `fsync`, before anything else commits
    /// what that had to.
    fn cut_place(&mut self, events: &[Event], prelude: u64) -> usize {
        let is_fsync =
            |event: &Event| matches!(event, Event::Do(operation) if operation.is_fsync());
        let behind: Vec<usize> = events
            .iter()
            .enumerate()
            .filter(|(_, event)| is_fsync(event))
            .map(|(index, _)| index + 1)
            .collect();
        if !behind.is_empty() && self.random.chance(50) {
            return *self.random.pick(&behind);
        }
        (prelude + self.random.below(events.len() as u64 - prelude + 1)) as usize
    }

    /// Adds an operation; whether it succeeds does not matter.
    pub(super) fn run(&mut self, operation: Operation) {
        // An error is as good as a success: it must be the same everywhere.
        let outcome = self.model.execute(&operation);
        if outcome.is_ok()
            && let Some(path) = changed_entry(&operation)
        {
            path.clone_into(&mut self.changed);
        }
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
            .weighted(&[26, 18, 40, 10, 12, 8, 5, checkpoints, 8, 6, 8, direct])
        {
            0 => self.make(),
            1 => self.move_or_remove(),
            2 => self.change_content(),
            3 => self.change_attributes(),
            4 => self.use_handle(),
            5 => self.pattern(),
            6 => self.anything(),
            7 => self.checkpoint(),
            8 => self.hold(),
            9 => self.change_apps(),
            10 => self.make_durable(),
            _ => self.use_direct_io(),
        }
    }

    /// Objects other than files stay in use, whatever becomes of their names.
    fn hold(&mut self) {
        let slot = self.slot();
        let operation = match self.random.weighted(&[4, 3, 2, 2]) {
            0 => {
                let path = self.existing(|kind| kind != FileKind::Regular);
                Operation::Hold { slot, path }
            }
            1 => {
                // Soon it is removed.
                let is_empty = |inode: &Inode| match &inode.body {
                    Body::Directory(entries) => entries.is_empty(),
                    Body::Regular(_) => false,
                    _ => true,
                };
                let path = self.existing_inode(is_empty);
                self.run(Operation::Hold {
                    slot,
                    path: path.clone(),
                });
                let is_directory = self.model.state().paths().get(&path).map(|(_, i)| i.kind())
                    == Some(FileKind::Directory);
                if is_directory {
                    Operation::RemoveDirectory { path }
                } else {
                    Operation::Unlink { path }
                }
            }
            2 => Operation::FsyncHeld {
                slot: self.held_slot(),
            },
            _ => Operation::CloseHeld {
                slot: self.held_slot(),
            },
        };
        self.run(operation);
    }

    /// Apps, and what may be one, come, go and move.
    fn change_apps(&mut self) {
        if self.random.chance(40) {
            return self.move_work();
        }
        let path = self.app_path();
        let operation = match self.random.weighted(&[4, 2, 3, 2, 1]) {
            0 => Operation::MakeDirectory { path, mode: 0o755 },
            1 => Operation::RemoveDirectory { path },
            2 => Operation::Rename {
                from: path,
                to: self.app_path(),
                mode: *self
                    .random
                    .pick(&[RenameMode::Replace, RenameMode::Exchange]),
            },
            3 => Operation::CreateFile { path, mode: 0o644 },
            _ => Operation::Link {
                from: self.existing(|kind| kind == FileKind::Regular),
                to: path,
            },
        };
        self.run(operation);
    }

    /// A program's directory moves while it works on files in it, and its later changes there are
    /// made durable.
    fn move_work(&mut self) {
        let paths = self.model.state().paths();
        let is_deep = |path: &&String| path.matches('/').count() > 1;
        let files = paths
            .iter()
            .filter(|(_, (_, inode))| inode.kind() == FileKind::Regular);
        let deep: Vec<&String> = files.map(|(path, _)| path).filter(is_deep).collect();
        if deep.is_empty() {
            // For the next time.
            let path = format!("{}/{}", self.app, self.random.pick(&["a", "b"]));
            self.run(Operation::MakeDirectory {
                path: path.clone(),
                mode: 0o755,
            });
            let name = *self.random.pick(&NAMES);
            self.run(Operation::CreateFile {
                path: format!("{path}/{name}"),
                mode: 0o644,
            });
            return;
        }
        let file = (*self.random.pick(&deep)).clone();
        if self.profile.checkpoints && self.random.chance(80) {
            self.events.push(Event::SyncAll);
        }
        let ends: Vec<usize> = file.match_indices('/').map(|(at, _)| at).collect();
        let (from, rest) = file.split_at(*self.random.pick(&ends));
        let (from, to) = (from.to_owned(), self.app_path());
        let moved = format!("{to}{rest}");
        self.run(Operation::CreateFile {
            path: format!("{file}-new"),
            mode: 0o644,
        });
        self.run(Operation::Rename {
            from,
            to,
            mode: RenameMode::Replace,
        });
        let file = FileRef::Path(moved);
        let data = self.payload();
        self.run(Operation::Append {
            file: file.clone(),
            data,
        });
        self.run(Operation::Fsync { file });
        if self.profile.cuts > 0 && self.random.chance(30) {
            // Before anything commits the move.
            self.events.push(Event::Cut);
        }
    }

    /// Where apps are: at the top, or a few levels deeper.
    fn app_path(&mut self) -> String {
        let mut path = if self.random.chance(50) {
            self.random.pick(&self.profile.apps).clone()
        } else {
            self.random.pick(&NAMES).to_string()
        };
        for _ in 0..self.random.weighted(&[6, 4, 2]) {
            path.push('/');
            let name = *self.random.pick::<&str>(&["a", "b", "c"]);
            path.push_str(name);
        }
        path
    }

    /// A program asks for what it did to be durable: of all kinds of objects, wherever they
    /// are.
    fn make_durable(&mut self) {
        let path = match self.random.weighted(&[6, 2, 3, 3, 3, 1]) {
            // Where something has just been done.
            0 => match self.changed.rsplit_once('/') {
                Some((parent, _)) => parent.to_owned(),
                None => String::new(),
            },
            1 => String::new(),
            2 => self.random.pick(&self.profile.apps).clone(),
            3 => self.existing(is_directory),
            4 => {
                let file = FileRef::Path(self.file_of_several_names());
                self.run(Operation::Fsync { file });
                return;
            }
            _ => self.changed.clone(),
        };
        self.run(Operation::FsyncDirectory { path });
    }

    /// A path of a file that has several names, if there is one.
    fn file_of_several_names(&mut self) -> String {
        let paths = self.model.state().paths();
        let has_other_name = |path: &String, number| {
            let mut others = paths.iter();
            others.any(|(other, (found, _))| *found == number && other != path)
        };
        let files = paths.iter().filter(|(path, (number, inode))| {
            inode.kind() == FileKind::Regular && has_other_name(path, *number)
        });
        let files: Vec<&String> = files.map(|(path, _)| path).collect();
        if files.is_empty() {
            return self.existing(|kind| kind == FileKind::Regular);
        }
        (*self.random.pick(&files)).clone()
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

    /// Whole pages past the cache; now and then beside ordinary accesses.
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
        // Read through the cache afterwards.
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
        let app = match self.random.weighted(&[8, 1, 3]) {
            0 => self.random.pick(&self.profile.apps).clone(),
            1 => ROOT_APP.to_owned(),
            _ => self.app_path(),
        };
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

    /// A directory of the app that works, to put a pattern's files in.
    pub(super) fn working_directory(&self) -> String {
        self.app.clone()
    }

    /// An app, most times another one.
    pub(super) fn other_app(&mut self) -> String {
        self.random.pick(&self.profile.apps).clone()
    }
}

/// Path of an entry that an operation changes, if it changes any.
fn changed_entry(operation: &Operation) -> Option<&str> {
    match operation {
        Operation::CreateFile { path, .. }
        | Operation::MakeDirectory { path, .. }
        | Operation::MakeSymlink { path, .. }
        | Operation::MakeNode { path, .. }
        | Operation::Unlink { path }
        | Operation::RemoveDirectory { path }
        | Operation::Rename { from: path, .. }
        | Operation::Link { to: path, .. }
        | Operation::LinkHandle { to: path, .. } => Some(path),
        _ => None,
    }
}

fn is_directory(kind: FileKind) -> bool {
    kind == FileKind::Directory
}
