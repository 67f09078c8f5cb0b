//! Calls that make, copy and close descriptors.

use super::super::value::{descriptor, has_flag, integer, string};
use super::super::{Call, Import, Moment};
use super::Taken;
use crate::import::ImportReport;
use crate::model::{EventKind, OpenFlags};

impl Import {
    pub(super) fn descriptor_call(
        &mut self,
        call: &Call<'_>,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Taken {
        let arguments = call.arguments.as_slice();
        match (call.name, arguments) {
            ("open", [path, flags, rest @ ..]) => {
                self.open(
                    call,
                    None,
                    path,
                    flags,
                    rest.first().copied(),
                    moment,
                    report,
                )?;
            }
            ("openat", [directory, path, flags, rest @ ..]) => {
                let mode = rest.first().copied();
                self.open(call, Some(directory), path, flags, mode, moment, report)?;
            }
            ("openat2", [directory, path, how, ..]) => {
                self.open(call, Some(directory), path, how, None, moment, report)?;
            }
            ("creat", [path, mode]) => {
                let flags = b"O_WRONLY|O_CREAT|O_TRUNC";
                self.open(call, None, path, flags, Some(mode), moment, report)?;
            }
            ("close", [number]) => {
                let number = descriptor(number)?.number?;
                let closed = self.tasks.close(moment.task, number);
                self.closed(closed, moment, report);
            }
            ("close_range", [first, last, flags]) => {
                if call.outcome.error.is_none() && !has_flag(flags, "CLOSE_RANGE_CLOEXEC") {
                    let range = (integer(first)?, integer(last)?.min(i64::from(u32::MAX)));
                    for number in self.tasks.descriptors(moment.task, range.0, range.1) {
                        let closed = self.tasks.close(moment.task, number);
                        self.closed(closed, moment, report);
                    }
                }
            }
            ("dup", [old]) => self.duplicate(call, old, b"", moment, report)?,
            ("dup2", [old, _]) => self.duplicate(call, old, b"", moment, report)?,
            ("dup3", [old, _, flags]) => self.duplicate(call, old, flags, moment, report)?,
            ("fcntl" | "fcntl64", [old, command, rest @ ..]) => match *command {
                b"F_DUPFD" => self.duplicate(call, old, b"", moment, report)?,
                b"F_DUPFD_CLOEXEC" => self.duplicate(call, old, b"O_CLOEXEC", moment, report)?,
                b"F_SETFL" if call.outcome.error.is_none() => {
                    let old = descriptor(old)?;
                    if let Some(open) = self.descriptor(moment.task, &old) {
                        let flags = rest.first().copied().unwrap_or_default();
                        self.tasks.open_file(open).is_appending = has_flag(flags, "O_APPEND");
                    }
                }
                _ => {}
            },
            _ => return Some(false),
        }
        Some(true)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "these are the arguments of openat(2)"
    )]
    fn open(
        &mut self,
        call: &Call<'_>,
        directory: Option<&[u8]>,
        path: &[u8],
        words: &[u8],
        mode: Option<&[u8]>,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        let path = string(path)?;
        let Some(mut path) = self.resolve(moment.task, directory, &path, report) else {
            return Some(());
        };
        let mut flags = open_flags(words);
        let result = Self::result(&call.outcome, 0);
        if result == Some(0) {
            let number = call.outcome.value?;
            // Only the kernel knows where symbolic links lead.
            if let Some(real) = &call.outcome.annotation
                && real.starts_with(b"/")
            {
                path.clone_from(real);
            }
            let is_new = flags.contains(OpenFlags::CREATE)
                && (flags.contains(OpenFlags::EXCLUSIVE) || self.files.is_missing(&path));
            if has_flag(words, "O_TMPFILE") {
                // It never had a name.
                path.extend_from_slice(format!("/#{}\0", self.builder.len()).as_bytes());
                flags = flags.without(OpenFlags::DIRECTORY);
            }
            let file = if is_new {
                let mode = mode.and_then(integer).unwrap_or(0o644) as u32 & 0o7777;
                let create = |path| EventKind::Create { path, mode };
                let moment = Moment {
                    duration_ns: 0,
                    ..moment
                };
                self.push_path(moment, &path, result, report, create);
                self.files.make(&path)
            } else {
                self.files.at(&path)
            };
            if flags.contains(OpenFlags::TRUNCATE) {
                self.files.set_size(file, 0);
            }
            self.tasks.open(moment.task, number, file, words);
        } else if call.outcome.error.as_deref() == Some("ENOENT") {
            self.files.note_missing(&path);
        }
        self.push_path(moment, &path, result, report, |path| EventKind::Open {
            path,
            flags,
        });
        Some(())
    }

    /// The new descriptor is what the call returned.
    fn duplicate(
        &mut self,
        call: &Call<'_>,
        old: &[u8],
        flags: &[u8],
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        let old = descriptor(old)?;
        let (None, Some(new)) = (&call.outcome.error, call.outcome.value) else {
            return Some(());
        };
        if old.number == Some(new) {
            return Some(());
        }
        let closed = match self.descriptor(moment.task, &old) {
            Some(open) => {
                let closes_on_exec = has_flag(flags, "O_CLOEXEC");
                self.tasks.set(moment.task, new, open, closes_on_exec)
            }
            // Something else than a file takes the place.
            None => self.tasks.close(moment.task, new),
        };
        self.closed(closed, moment, report);
        Some(())
    }
}

fn open_flags(words: &[u8]) -> OpenFlags {
    let mut flags = OpenFlags::NONE;
    for (word, flag) in [
        ("O_RDONLY", OpenFlags::READ),
        ("O_WRONLY", OpenFlags::WRITE),
        ("O_RDWR", OpenFlags::READ | OpenFlags::WRITE),
        ("O_APPEND", OpenFlags::APPEND),
        ("O_TRUNC", OpenFlags::TRUNCATE),
        ("O_CREAT", OpenFlags::CREATE),
        ("O_EXCL", OpenFlags::EXCLUSIVE),
        ("O_SYNC", OpenFlags::SYNCHRONOUS),
        ("O_DSYNC", OpenFlags::SYNCHRONOUS),
        ("O_DIRECT", OpenFlags::DIRECT),
        ("O_DIRECTORY", OpenFlags::DIRECTORY),
    ] {
        if has_flag(words, word) {
            flags |= flag;
        }
    }
    flags
}
