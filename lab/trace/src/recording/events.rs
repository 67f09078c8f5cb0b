//! Observations as events.

use mobifs_base::{
    AttributeGroup, FoundObject, ObjectId, ObservedOperation, Operation as Observed,
};
use mobifs_recording::{LogHeader, Observation};

use super::apps::{Apps, NO_APP};
use super::tree::{NoPath, Tree};
use crate::import::ImportReport;
use crate::model::{
    AllocateMode, Attribute, Event, EventKind, Header, OpenFlags, PathIndex, Trace, TraceBuilder,
    TraceNs,
};

/// `ENOENT`
const NO_ENTRY: i64 = 2;

/// Makes events of observations that come in the order in which they began.
pub(super) struct Translator {
    started_ns: u64,
    tree: Tree,
    apps: Apps,
    builder: TraceBuilder,
    header: Header,
    pub(super) report: ImportReport,
}

/// What all events of an observation have in common.
#[derive(Clone, Copy)]
struct Moment {
    time: TraceNs,
    process: u32,
    thread: u32,
    error: u32,
    duration_ns: u64,
}

impl Moment {
    /// What it came to, if it would come to `success`.
    fn result(&self, success: i64) -> i64 {
        if self.error == 0 {
            success
        } else {
            -i64::from(self.error)
        }
    }
}

impl Translator {
    pub(super) fn new(header: &LogHeader) -> Self {
        let trace_header = Header {
            source: "mount".to_owned(),
            tool: header.tool.clone(),
            notes: header.notes.clone(),
        };
        Self {
            started_ns: header.started_at.0,
            tree: Tree::new(),
            apps: Apps::new(&header.apps),
            builder: TraceBuilder::new(trace_header.clone()),
            header: trace_header,
            report: ImportReport::default(),
        }
    }

    /// What is known of the trace at its beginning.
    pub(super) const fn header(&self) -> &Header {
        &self.header
    }

    /// These directories are apps from now on.
    pub(super) fn set_apps(&mut self, globs: &[String]) {
        self.apps = Apps::new(globs);
    }

    /// Observations are missing.
    pub(super) const fn gap(&mut self) {
        self.tree.keep_all();
    }

    /// How many events wait to be taken.
    pub(super) fn len(&self) -> usize {
        self.builder.len()
    }

    /// What was made since the last time.
    pub(super) fn take(&mut self) -> Trace {
        let next = TraceBuilder::new(self.header.clone());
        std::mem::replace(&mut self.builder, next).finish()
    }

    /// Takes an observation.
    pub(super) fn add(&mut self, observation: &Observation<'_>) {
        match *observation {
            Observation::Operation { process, observed } => self.operation(process, &observed),
            Observation::User { at, operation } => {
                self.push_alone(at.0, EventKind::User(operation));
            }
            Observation::Device { at, state } => self.push_alone(at.0, EventKind::Device(state)),
        }
    }

    fn push_alone(&mut self, at_ns: u64, kind: EventKind) {
        let app = self.builder.app(NO_APP);
        self.builder.push(Event {
            time: TraceNs(at_ns.saturating_sub(self.started_ns)),
            app,
            process: 0,
            thread: 0,
            kind,
            result: 0,
            duration_ns: 0,
        });
    }

    fn operation(&mut self, process: u32, observed: &ObservedOperation<'_>) {
        let moment = Moment {
            time: TraceNs(observed.begun_at.0.saturating_sub(self.started_ns)),
            process,
            thread: observed.thread,
            error: observed.error,
            duration_ns: observed.duration_ns,
        };
        let object = observed.object;
        match observed.operation {
            Observed::Listed { name, found } => self.tree.found(object, name, found),
            Observed::Forget { lookups } => {
                if let Some(closed) = self.tree.forget(object, lookups) {
                    let (process, thread) = closed.user;
                    let moment = Moment {
                        process,
                        thread,
                        ..moment
                    };
                    let close = |path| EventKind::Close { path };
                    self.push(moment, &closed.path, false, 0, close);
                }
            }
            Observed::SyncAll => {
                let app = self.builder.app(NO_APP);
                self.push_event(moment, app, EventKind::SyncAll, 0);
            }
            operation if is_about_names(&operation) => self.on_names(moment, object, &operation),
            operation => {
                self.tree.used(object, (process, observed.thread));
                self.on_object(moment, object, &operation);
            }
        }
    }

    /// What is done to one object.
    fn on_object(&mut self, moment: Moment, object: ObjectId, operation: &Observed<'_>) {
        let path = match self.tree.path(object) {
            Ok(path) => path,
            Err(why) => return self.leave_out(why),
        };
        let is_directory = self.tree.is_directory(object);
        let mut push = |result: i64, kind: &dyn Fn(PathIndex) -> EventKind| {
            self.push(moment, &path, is_directory, result, kind);
        };
        match *operation {
            Observed::Look => push(0, &|path| EventKind::Stat { path }),
            Observed::Read {
                offset,
                length,
                moved,
            } => push(moved as i64, &|path| EventKind::Read {
                path,
                offset,
                length,
            }),
            Observed::Write {
                offset,
                length,
                moved,
            } => push(moved as i64, &|path| EventKind::Write {
                path,
                offset,
                length,
            }),
            Observed::Copy {
                offset,
                target,
                target_offset,
                length,
                moved,
            } => {
                push(moved as i64, &|path| EventKind::Read {
                    path,
                    offset,
                    length,
                });
                self.copied_to(moment, target, (target_offset, length), moved);
            }
            Observed::Truncate { size_bytes } => push(0, &|path| EventKind::Truncate {
                path,
                length: size_bytes,
            }),
            Observed::Allocate {
                mode,
                offset,
                length,
            } => self.allocate((moment, &path), mode, (offset, length)),
            Observed::SetAttributes { group } => push(0, &|path| EventKind::SetAttributes {
                path,
                attribute: attribute(group),
            }),
            Observed::SetXattr { length } => push(0, &|path| EventKind::SetXattr { path, length }),
            Observed::RemoveXattr => push(0, &|path| EventKind::RemoveXattr { path }),
            Observed::ReadDirectory => push(0, &|path| EventKind::ReadDirectory { path }),
            Observed::Sync { is_data_only } => push(0, &|path| EventKind::Sync {
                path,
                data_only: is_data_only,
            }),
            Observed::Release => {
                push(0, &|path| EventKind::Close { path });
                self.tree.released(object);
            }
            _ => {}
        }
    }

    fn allocate(
        &mut self,
        (moment, path): (Moment, &[u8]),
        mode: u32,
        (offset, length): (u64, u64),
    ) {
        let Some(mode) = allocate_mode(mode) else {
            let reason = "fallocate in a mode that traces do not have";
            return self.report.leave_out(reason);
        };
        self.push(moment, path, false, 0, |path| EventKind::Allocate {
            path,
            mode,
            offset,
            length,
        });
    }

    /// The second half of a copy.
    fn copied_to(&mut self, moment: Moment, target: ObjectId, range: (u64, u64), moved: u64) {
        let (offset, length) = range;
        match self.tree.path(target) {
            Ok(path) => self.push(moment, &path, false, moved as i64, |path| {
                EventKind::Write {
                    path,
                    offset,
                    length,
                }
            }),
            Err(why) => self.leave_out(why),
        }
    }

    /// What is done to names in a directory. The tree changes after the event was named.
    fn on_names(&mut self, moment: Moment, directory: ObjectId, operation: &Observed<'_>) {
        match *operation {
            Observed::Lookup { name, found } => {
                let is_directory = found.is_some_and(|found| found.is_directory);
                let result = if found.is_some() { 0 } else { -NO_ENTRY };
                self.push_child(moment, (directory, name), is_directory, result, |path| {
                    EventKind::Stat { path }
                });
                self.found(directory, name, found);
            }
            Observed::MakeFile { name, mode, made } => {
                self.push_child(moment, (directory, name), false, 0, |path| {
                    EventKind::Create { path, mode }
                });
                self.found(directory, name, made);
            }
            Observed::MakeSpecial { name, made } => {
                self.report
                    .leave_out("pipes, sockets and device nodes made");
                self.found(directory, name, made);
            }
            Observed::MakeDirectory { name, mode, made } => {
                self.push_child(moment, (directory, name), true, 0, |path| {
                    EventKind::MakeDirectory { path, mode }
                });
                self.found(directory, name, made);
            }
            Observed::MakeSymlink { name, target, made } => {
                let target = self.builder.path(target);
                self.push_child(moment, (directory, name), false, 0, |path| {
                    EventKind::Symlink { path, target }
                });
                self.found(directory, name, made);
            }
            Observed::MakeUnnamed { mode, flags, made } => {
                self.make_unnamed(moment, directory, (mode, flags), made);
            }
            Observed::Link { of, name } => self.link(moment, of, directory, name),
            Observed::Unlink { name } => {
                self.push_child(moment, (directory, name), false, 0, |path| {
                    EventKind::Unlink { path }
                });
                if moment.error == 0 {
                    self.tree.unlink(directory, name);
                }
            }
            Observed::RemoveDirectory { name } => {
                self.push_child(moment, (directory, name), true, 0, |path| {
                    EventKind::RemoveDirectory { path }
                });
                if moment.error == 0 {
                    self.tree.unlink(directory, name);
                }
            }
            Observed::Rename {
                name,
                new_directory,
                new_name,
                is_exchange,
            } => {
                let (from, to) = ((directory, name), (new_directory, new_name));
                self.rename(moment, from, to, is_exchange);
            }
            _ => {}
        }
    }

    fn found(&mut self, directory: ObjectId, name: &[u8], found: Option<FoundObject>) {
        if let Some(found) = found {
            self.tree.found(directory, name, found);
        }
    }

    fn make_unnamed(
        &mut self,
        moment: Moment,
        directory: ObjectId,
        (mode, flags): (u32, u32),
        made: Option<FoundObject>,
    ) {
        let number = made.map_or(0, |made| made.id.0);
        let name = format!("#{number}\0");
        let path = match self.tree.child_path(directory, name.as_bytes()) {
            Ok(path) => path,
            Err(why) => return self.leave_out(why),
        };
        let create = Moment {
            duration_ns: 0,
            ..moment
        };
        self.push(create, &path, false, 0, |path| EventKind::Create {
            path,
            mode,
        });
        let flags = open_flags(flags);
        self.push(moment, &path, false, 0, |path| EventKind::Open {
            path,
            flags,
        });
        if let Some(made) = made {
            self.tree.made_unnamed(made, path);
        }
    }

    fn link(&mut self, moment: Moment, of: ObjectId, directory: ObjectId, name: &[u8]) {
        let (from, to) = (self.tree.path(of), self.tree.child_path(directory, name));
        match (from, to) {
            (Ok(from), Ok(to)) => {
                let to = self.builder.path(&to);
                self.push(moment, &from, false, 0, |from| EventKind::Link { from, to });
            }
            (Err(why), _) | (_, Err(why)) => self.leave_out(why),
        }
        if moment.error == 0 {
            let is_directory = false;
            self.tree.found(
                directory,
                name,
                FoundObject {
                    id: of,
                    is_directory,
                },
            );
        }
    }

    fn rename(
        &mut self,
        moment: Moment,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        exchange: bool,
    ) {
        match self.tree.child_path(to.0, to.1) {
            Ok(path) => {
                let to = self.builder.path(&path);
                self.push_child(moment, from, false, 0, |from| EventKind::Rename {
                    from,
                    to,
                    exchange,
                });
            }
            Err(why) => self.leave_out(why),
        }
        if moment.error != 0 {
            return;
        }
        if exchange {
            self.tree.exchange(from, to);
        } else {
            self.tree.rename(from, to);
        }
    }

    fn leave_out(&mut self, why: NoPath) {
        self.report.leave_out(match why {
            NoPath::Unknown => "what was done to files whose names were not recorded",
            NoPath::TooLong => "what was done to files whose paths are longer than 4095 bytes",
        });
    }

    fn push_child(
        &mut self,
        moment: Moment,
        (directory, name): (ObjectId, &[u8]),
        is_directory: bool,
        result: i64,
        kind: impl FnOnce(PathIndex) -> EventKind,
    ) {
        match self.tree.child_path(directory, name) {
            Ok(path) => self.push(moment, &path, is_directory, result, kind),
            Err(why) => self.leave_out(why),
        }
    }

    fn push(
        &mut self,
        moment: Moment,
        path: &[u8],
        is_directory: bool,
        result: i64,
        kind: impl FnOnce(PathIndex) -> EventKind,
    ) {
        let app = self.builder.app(self.apps.of(path, is_directory));
        let path = self.builder.path(path);
        self.push_event(moment, app, kind(path), result);
    }

    fn push_event(
        &mut self,
        moment: Moment,
        app: crate::model::AppIndex,
        kind: EventKind,
        success: i64,
    ) {
        self.builder.push(Event {
            time: moment.time,
            app,
            process: moment.process,
            thread: moment.thread,
            kind,
            result: moment.result(success),
            duration_ns: moment.duration_ns,
        });
    }
}

const fn is_about_names(operation: &Observed<'_>) -> bool {
    matches!(
        operation,
        Observed::Lookup { .. }
            | Observed::MakeFile { .. }
            | Observed::MakeSpecial { .. }
            | Observed::MakeDirectory { .. }
            | Observed::MakeSymlink { .. }
            | Observed::MakeUnnamed { .. }
            | Observed::Link { .. }
            | Observed::Unlink { .. }
            | Observed::RemoveDirectory { .. }
            | Observed::Rename { .. }
    )
}

const fn attribute(group: AttributeGroup) -> Attribute {
    match group {
        AttributeGroup::Mode => Attribute::Mode,
        AttributeGroup::Owner => Attribute::Owner,
        AttributeGroup::Times => Attribute::Times,
    }
}

/// Flags of `fallocate(2)`.
const fn allocate_mode(mode: u32) -> Option<AllocateMode> {
    const KEEP_SIZE: u32 = 1;
    Some(match mode {
        0 => AllocateMode::Extend,
        KEEP_SIZE => AllocateMode::KeepSize,
        0x03 => AllocateMode::PunchHole,
        0x08 => AllocateMode::CollapseRange,
        0x10 | 0x11 => AllocateMode::ZeroRange,
        0x20 => AllocateMode::InsertRange,
        _ => return None,
    })
}

/// Flags of `open(2)`, as far as they matter for a file that was just made.
fn open_flags(flags: u32) -> OpenFlags {
    let access = match flags & 3 {
        1 => OpenFlags::WRITE,
        2 => OpenFlags::READ | OpenFlags::WRITE,
        _ => OpenFlags::READ,
    };
    const DATA_SYNC: u32 = 0o10_000;
    if flags & DATA_SYNC == 0 {
        access
    } else {
        access | OpenFlags::SYNCHRONOUS
    }
}
