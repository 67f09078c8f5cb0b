//! Calls that change names.

use super::super::value::{has_flag, integer, string};
use super::super::{Call, Import, Moment};
use super::Taken;
use crate::import::ImportReport;
use crate::model::EventKind;

/// A path argument, with the descriptor of the directory that it is relative to.
type PathArgument<'a> = (Option<&'a [u8]>, &'a [u8]);

impl Import {
    pub(super) fn name_call(
        &mut self,
        call: &Call<'_>,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Taken {
        match (call.name, call.arguments.as_slice()) {
            ("unlink", [path]) => self.unlink(call, (None, path), false, moment, report)?,
            ("rmdir", [path]) => self.unlink(call, (None, path), true, moment, report)?,
            ("unlinkat", [directory, path, flags]) => {
                let is_directory = has_flag(flags, "AT_REMOVEDIR");
                self.unlink(call, (Some(directory), path), is_directory, moment, report)?;
            }
            ("rename", [from, to]) => {
                self.rename(call, (None, from), (None, to), b"", moment, report)?;
            }
            ("renameat", [from_in, from, to_in, to]) => {
                let (from, to) = ((Some(*from_in), *from), (Some(*to_in), *to));
                self.rename(call, from, to, b"", moment, report)?;
            }
            ("renameat2", [from_in, from, to_in, to, flags]) => {
                let (from, to) = ((Some(*from_in), *from), (Some(*to_in), *to));
                self.rename(call, from, to, flags, moment, report)?;
            }
            ("link", [from, to]) => self.link(call, (None, from), (None, to), moment, report)?,
            ("linkat", [from_in, from, to_in, to, ..]) => {
                let (from, to) = ((Some(*from_in), *from), (Some(*to_in), *to));
                self.link(call, from, to, moment, report)?;
            }
            _ => return self.making_call(call, moment, report),
        }
        Some(true)
    }

    /// Calls that make something new.
    fn making_call(&mut self, call: &Call<'_>, moment: Moment, report: &mut ImportReport) -> Taken {
        match (call.name, call.arguments.as_slice()) {
            ("mkdir", [path, mode]) => {
                self.make_directory(call, (None, path), mode, moment, report)?;
            }
            ("mkdirat", [directory, path, mode]) => {
                self.make_directory(call, (Some(directory), path), mode, moment, report)?;
            }
            ("mknod", [path, mode, ..]) => {
                self.make_node(call, (None, path), mode, moment, report)?;
            }
            ("mknodat", [directory, path, mode, ..]) => {
                self.make_node(call, (Some(directory), path), mode, moment, report)?;
            }
            ("symlink", [target, path]) => {
                self.symlink(call, target, (None, path), moment, report)?;
            }
            ("symlinkat", [target, directory, path]) => {
                self.symlink(call, target, (Some(directory), path), moment, report)?;
            }
            _ => return Some(false),
        }
        Some(true)
    }

    /// The absolute path of an argument; counted if it is unknown.
    fn named(
        &mut self,
        (directory, path): PathArgument<'_>,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<Option<Vec<u8>>> {
        let path = string(path)?;
        Some(self.resolve(moment.task, directory, &path, report))
    }

    /// As [`Self::named`] for both names of a call; nothing unless both are known.
    fn both_named(
        &mut self,
        from: PathArgument<'_>,
        to: PathArgument<'_>,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<Option<(Vec<u8>, Vec<u8>)>> {
        let from = self.named(from, moment, report)?;
        let to = self.named(to, moment, report)?;
        Some(from.zip(to))
    }

    fn unlink(
        &mut self,
        call: &Call<'_>,
        path: PathArgument<'_>,
        is_directory: bool,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        let Some(path) = self.named(path, moment, report)? else {
            return Some(());
        };
        let result = Self::result(&call.outcome, 0);
        self.push_path(moment, &path, result, report, |path| match is_directory {
            true => EventKind::RemoveDirectory { path },
            false => EventKind::Unlink { path },
        });
        if result == Some(0) {
            self.files.remove(&path);
        }
        Some(())
    }

    fn rename(
        &mut self,
        call: &Call<'_>,
        from: PathArgument<'_>,
        to: PathArgument<'_>,
        flags: &[u8],
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        let Some((from, to)) = self.both_named(from, to, moment, report)? else {
            return Some(());
        };
        let result = Self::result(&call.outcome, 0);
        let exchange = has_flag(flags, "RENAME_EXCHANGE");
        let places = (
            self.place(&from, false, report),
            self.place(&to, false, report),
        );
        let kind = match places {
            (Some(from), Some(to)) => Some((
                from.app,
                EventKind::Rename {
                    from: from.path,
                    to: to.path,
                    exchange,
                },
            )),
            // What leaves the root is gone; what comes in is new.
            (Some(from), None) => Some((from.app, EventKind::Unlink { path: from.path })),
            (None, Some(to)) => Some((
                to.app,
                EventKind::Create {
                    path: to.path,
                    mode: 0o644,
                },
            )),
            (None, None) => None,
        };
        if let (Some((app, kind)), Some(result)) = (kind, result) {
            self.push(moment, app, kind, result);
            if let (EventKind::Create { path, .. }, 0) = (kind, result) {
                let file = self.files.at(&from);
                let length = self.files.size(file).unwrap_or(0);
                let write = EventKind::Write {
                    path,
                    offset: 0,
                    length,
                };
                self.push(moment, app, write, length as i64);
            }
        }
        if result == Some(0) {
            if exchange {
                self.files.exchange(&from, &to);
            } else {
                self.files.rename(&from, &to);
            }
        }
        Some(())
    }

    fn link(
        &mut self,
        call: &Call<'_>,
        from: PathArgument<'_>,
        to: PathArgument<'_>,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        let Some((from, to)) = self.both_named(from, to, moment, report)? else {
            return Some(());
        };
        let result = Self::result(&call.outcome, 0);
        let places = (
            self.place(&from, false, report),
            self.place(&to, false, report),
        );
        if let (Some(from), Some(to)) = places
            && let Some(result) = result
        {
            let kind = EventKind::Link {
                from: from.path,
                to: to.path,
            };
            self.push(moment, from.app, kind, result);
        }
        if result == Some(0) {
            self.files.link(&from, &to);
        }
        Some(())
    }

    fn make_directory(
        &mut self,
        call: &Call<'_>,
        path: PathArgument<'_>,
        mode: &[u8],
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        let mode = integer(mode)? as u32 & 0o7777;
        let result = Self::result(&call.outcome, 0);
        if let Some(path) = self.named(path, moment, report)? {
            if result == Some(0) {
                self.files.make(&path);
            }
            let kind = |path| EventKind::MakeDirectory { path, mode };
            self.push_path(moment, &path, result, report, kind);
        }
        Some(())
    }

    fn make_node(
        &mut self,
        call: &Call<'_>,
        path: PathArgument<'_>,
        mode: &[u8],
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        let Some(bits) = mode.strip_prefix(b"S_IFREG|") else {
            report.leave_out("a pipe, socket or device that was made");
            return Some(());
        };
        let mode = integer(bits)? as u32 & 0o7777;
        let result = Self::result(&call.outcome, 0);
        if let Some(path) = self.named(path, moment, report)? {
            if result == Some(0) {
                self.files.make(&path);
            }
            self.push_path(moment, &path, result, report, |path| EventKind::Create {
                path,
                mode,
            });
        }
        Some(())
    }

    fn symlink(
        &mut self,
        call: &Call<'_>,
        target: &[u8],
        path: PathArgument<'_>,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        let target = string(target)?;
        let result = Self::result(&call.outcome, 0);
        if let Some(path) = self.named(path, moment, report)? {
            if result == Some(0) {
                self.files.make(&path);
            }
            let target = self.builder.path(&target);
            let kind = |path| EventKind::Symlink { path, target };
            self.push_path(moment, &path, result, report, kind);
        }
        Some(())
    }
}
