//! The output of strace, of any program that was run under
//! `strace -f -ttt -T -y -s 0 -e trace=file,desc,process -o FILE`.
//!
//! `-y` is not needed: descriptors, working directories and processes are followed. What cannot
//! be known without it are descriptors that were there from the start, and where `..` leads
//! after a symbolic link. Offsets are followed from calls that move them.

mod calls;
mod errno;
mod files;
mod line;
mod tasks;
mod value;

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::text::{TextImport, content, shown};
use super::{ImportReport, LoadOptions};
use crate::edit::tool;
use crate::lines::Line;
use crate::model::{
    AppIndex, Event, EventKind, Header, PathIndex, Trace, TraceBuilder, TraceNs, UserOperation,
};
use files::{FileId, Namespace, joined};
use line::{Body, Call, Outcome, call, task_line};
use tasks::{OpenId, Pending, Tasks};
use value::DescriptorArgument;

const DAY_NS: u64 = 86_400_000_000_000;
/// A clock of the day that jumps back by more than this has passed midnight.
const HALF_DAY_NS: u64 = DAY_NS / 2;

/// Whether a line is one of this format.
pub(super) fn recognises(line: &[u8]) -> bool {
    task_line(line).is_some_and(|line| match line.body {
        Body::Call(text) => call(text).is_some(),
        Body::Unfinished(_) => true,
        Body::Resumed(_) | Body::Exit | Body::Other => false,
    })
}

/// When something was done, and by which task.
#[derive(Clone, Copy, Debug)]
struct Moment {
    task: u32,
    time_ns: u64,
    duration_ns: u64,
}

/// A path that is part of the trace, and the app it belongs to.
#[derive(Clone, Copy, Debug)]
struct Place {
    path: PathIndex,
    app: AppIndex,
}

/// Follows the calls.
pub(super) struct Import {
    builder: TraceBuilder,
    root: Option<Vec<u8>>,
    app_depth: usize,
    user_operations: Vec<(u64, UserOperation)>,
    tasks: Tasks,
    files: Namespace,
    /// Shared mappings for writing: process, address, length, file.
    mappings: Vec<(u32, u64, u64, FileId)>,
    /// The earliest time, which events are counted from in the end.
    start_ns: Option<u64>,
    midnights: u64,
    last_time_of_day_ns: u64,
}

impl TextImport for Import {
    const LINE_BYTES_MAX: usize = 1 << 20;

    fn new(_path: &Path, options: &LoadOptions) -> Self {
        let absolute = |path: &std::path::PathBuf| joined(b"/", path.as_os_str().as_bytes());
        Self {
            builder: TraceBuilder::new(Header {
                source: "strace".to_owned(),
                tool: tool(),
                notes: Vec::new(),
            }),
            root: options.root.as_ref().map(absolute),
            app_depth: options.app_depth,
            user_operations: options.user_operations.clone(),
            tasks: Tasks::new(options.directory.as_ref().map(absolute)),
            files: Namespace::default(),
            mappings: Vec::new(),
            start_ns: None,
            midnights: 0,
            last_time_of_day_ns: 0,
        }
    }

    fn line(
        &mut self,
        _number: u64,
        line: Line<'_>,
        report: &mut ImportReport,
    ) -> Result<(), String> {
        let line = content(line, Self::LINE_BYTES_MAX)?;
        if line.is_empty() || line.starts_with(b"strace: ") {
            return Ok(());
        }
        let Some(parsed) = task_line(line) else {
            return Err(format!(
                "'{}' is not: task, time, call (strace -f -ttt -T)",
                shown(line)
            ));
        };
        let task = parsed.task;
        let time_ns = self.time(parsed.time_ns, parsed.is_time_of_day);
        self.start_ns = Some(self.start_ns.unwrap_or(time_ns).min(time_ns));
        match parsed.body {
            Body::Call(text) => self.call(text, task, time_ns, report),
            Body::Unfinished(begin) => {
                let text = begin.to_vec();
                self.tasks.task(task).pending = Some(Pending { text, time_ns });
                Ok(())
            }
            Body::Resumed(end) => {
                let Some(pending) = self.tasks.task(task).pending.take() else {
                    return Err("the end of a call that never began".to_owned());
                };
                let text = [pending.text.as_slice(), end].concat();
                self.call(&text, task, pending.time_ns, report)
            }
            Body::Exit => {
                let closed = self.tasks.exit(task);
                let moment = Moment {
                    task,
                    time_ns,
                    duration_ns: 0,
                };
                self.closed(closed, moment, report);
                Ok(())
            }
            Body::Other => Ok(()),
        }
    }

    fn finish(self, _report: &mut ImportReport) -> Trace {
        let mut builder = self.builder;
        let start_ns = self.start_ns.unwrap_or(0);
        for (time_ns, operation) in self.user_operations {
            let app = builder.app(b".");
            builder.push(Event {
                time: TraceNs(time_ns),
                app,
                process: 0,
                thread: 0,
                kind: EventKind::User(operation),
                result: 0,
                duration_ns: 0,
            });
        }
        let mut trace = builder.finish();
        for event in &mut trace.events {
            event.time.0 = event.time.0.saturating_sub(start_ns);
        }
        trace
    }
}

impl Import {
    /// A time that only rises over midnight.
    fn time(&mut self, time_ns: u64, is_time_of_day: bool) -> u64 {
        if !is_time_of_day {
            return time_ns;
        }
        if time_ns + HALF_DAY_NS < self.last_time_of_day_ns {
            self.midnights += 1;
        }
        self.last_time_of_day_ns = time_ns;
        time_ns + self.midnights * DAY_NS
    }

    fn call(
        &mut self,
        text: &[u8],
        task: u32,
        time_ns: u64,
        report: &mut ImportReport,
    ) -> Result<(), String> {
        let Some(call) = call(text) else {
            return Err(format!("'{}' is no whole call", shown(text)));
        };
        self.tasks.task(task);
        if let Some(error) = &call.outcome.error
            && errno::number(error).is_none()
        {
            return Err(format!("there is no error {error}"));
        }
        let moment = Moment {
            task,
            time_ns,
            duration_ns: call.duration_ns,
        };
        self.dispatch(&call, moment, report)
            .ok_or_else(|| format!("the arguments of '{}' cannot be understood", shown(text)))
    }

    /// The result of a call as an event has it: −errno, or `value` if it did not fail. None if
    /// it was not seen to end.
    fn result(outcome: &Outcome, value: i64) -> Option<i64> {
        match (&outcome.error, outcome.value) {
            (Some(error), _) => errno::number(error).map(|number| -number),
            (None, Some(_)) => Some(value),
            (None, None) => None,
        }
    }

    /// Where a path belongs in the trace; none if it does not.
    fn place(
        &mut self,
        path: &[u8],
        is_directory: bool,
        report: &mut ImportReport,
    ) -> Option<Place> {
        let inside = match &self.root {
            None => {
                let kernel = [&b"/dev/"[..], b"/proc/", b"/sys/"];
                if kernel.iter().any(|directory| path.starts_with(directory)) {
                    report.leave_out("file of the kernel: /dev, /proc, /sys");
                    return None;
                }
                path
            }
            Some(root) => {
                let rest = if root == b"/" {
                    Some(path)
                } else {
                    path.strip_prefix(root.as_slice())
                };
                match rest {
                    Some([]) => b".",
                    Some([b'/', rest @ ..]) => rest,
                    _ => {
                        report.leave_out("outside the root");
                        return None;
                    }
                }
            }
        };
        let app = app_of(inside, self.app_depth, is_directory, self.root.is_some()).to_vec();
        Some(Place {
            path: self.builder.path(inside),
            app: self.builder.app(&app),
        })
    }

    fn push(&mut self, moment: Moment, app: AppIndex, kind: EventKind, result: i64) {
        let process = self.tasks.task(moment.task).process;
        self.builder.push(Event {
            time: TraceNs(moment.time_ns),
            app,
            process,
            thread: moment.task,
            kind,
            result,
            duration_ns: moment.duration_ns,
        });
    }

    /// An event about a path, if the path is part of the trace and the call was seen to end.
    fn push_path(
        &mut self,
        moment: Moment,
        path: &[u8],
        result: Option<i64>,
        report: &mut ImportReport,
        kind: impl FnOnce(PathIndex) -> EventKind,
    ) {
        let Some(result) = result else {
            report.leave_out("call that was not seen to end");
            return;
        };
        if let Some(place) = self.place(path, false, report) {
            let kind = kind(place.path);
            let is_directory = matches!(
                kind,
                EventKind::MakeDirectory { .. }
                    | EventKind::RemoveDirectory { .. }
                    | EventKind::ReadDirectory { .. }
            );
            let app = match is_directory {
                true => self
                    .place(path, true, report)
                    .map_or(place.app, |place| place.app),
                false => place.app,
            };
            self.push(moment, app, kind, result);
        }
    }

    /// An event about an open file.
    fn push_file(
        &mut self,
        moment: Moment,
        file: FileId,
        result: Option<i64>,
        report: &mut ImportReport,
        kind: impl FnOnce(PathIndex) -> EventKind,
    ) {
        let path = self.files.path(file);
        self.push_path(moment, &path, result, report, kind);
    }

    fn closed(
        &mut self,
        files: impl IntoIterator<Item = FileId>,
        moment: Moment,
        report: &mut ImportReport,
    ) {
        for file in files {
            self.push_file(moment, file, Some(0), report, |path| EventKind::Close {
                path,
            });
        }
    }

    /// The absolute path of an argument, below the directory of another.
    fn resolve(
        &mut self,
        task: u32,
        directory: Option<&[u8]>,
        path: &[u8],
        report: &mut ImportReport,
    ) -> Option<Vec<u8>> {
        if path.starts_with(b"/") {
            return Some(joined(b"/", path));
        }
        let base = match directory.and_then(value::descriptor) {
            Some(argument) if argument.number.is_some() => {
                let open = self.descriptor(task, &argument);
                open.map(|open| self.files.path(self.tasks.open_file(open).file))
            }
            Some(DescriptorArgument {
                annotation: Some(path),
                ..
            }) => {
                self.tasks.set_directory(task, path.clone());
                Some(path)
            }
            _ => self.tasks.directory(task),
        };
        if base.is_none() {
            report.leave_out("relative path of an unknown directory");
        }
        base.map(|base| joined(&base, path))
    }

    /// The open file of a descriptor. What `-y` says of it goes before what was followed.
    fn descriptor(&mut self, task: u32, argument: &DescriptorArgument) -> Option<OpenId> {
        let number = argument.number?;
        let known = self.tasks.find(task, number);
        let Some(path) = &argument.annotation else {
            return known;
        };
        if !path.starts_with(b"/") {
            return None;
        }
        if let Some(open) = known {
            let file = self.tasks.open_file(open).file;
            if argument.is_deleted || self.files.find(path) == Some(file) {
                return Some(open);
            }
        }
        let file = self.files.at(path);
        if argument.is_deleted {
            self.files.remove(path);
        }
        Some(self.tasks.open(task, number, file, b""))
    }
}

/// The app of a path: its first directories. What lies above is in the app `.`.
fn app_of(path: &[u8], depth: usize, is_directory: bool, is_below_root: bool) -> &[u8] {
    let start = usize::from(!is_below_root && path.starts_with(b"/"));
    if depth == 0 || (!is_below_root && depth == 1) {
        // Without a root, the first directory says no more than `/usr`.
        return b".";
    }
    let mut parts = 0;
    for (at, &byte) in path.iter().enumerate().skip(start) {
        if byte == b'/' {
            parts += 1;
            if parts == depth {
                return &path[..at];
            }
        }
    }
    if is_directory && parts + 1 == depth && path != b"." {
        path
    } else {
        b"."
    }
}
