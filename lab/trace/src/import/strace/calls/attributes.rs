//! Calls that read or change attributes, and directories that are read.

use super::super::files::FileId;
use super::super::value::{descriptor, field, string};
use super::super::{Call, Import, Moment};
use super::Taken;
use crate::import::ImportReport;
use crate::model::{Attribute, EventKind, PathIndex};

/// What a call names its file by.
enum Named<'a> {
    Path(Option<&'a [u8]>, &'a [u8]),
    Descriptor(&'a [u8]),
}

/// What is done to the file.
enum Action {
    Stat,
    Set(Attribute),
    SetXattr(u64),
    RemoveXattr,
    ReadDirectory,
}

impl Action {
    const fn kind(&self, path: PathIndex) -> EventKind {
        match *self {
            Self::Stat => EventKind::Stat { path },
            Self::Set(attribute) => EventKind::SetAttributes { path, attribute },
            Self::SetXattr(length) => EventKind::SetXattr { path, length },
            Self::RemoveXattr => EventKind::RemoveXattr { path },
            Self::ReadDirectory => EventKind::ReadDirectory { path },
        }
    }
}

impl Import {
    pub(super) fn attribute_call(
        &mut self,
        call: &Call<'_>,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Taken {
        let Some((named, action)) = meaning(call) else {
            return Some(false);
        };
        let result = Self::result(&call.outcome, 0);
        let sizes = call.arguments.iter().skip(1);
        let size = sizes
            .clone()
            .find_map(|argument| field(argument, "st_size="));
        let size = size.or_else(|| {
            sizes
                .clone()
                .find_map(|argument| field(argument, "stx_size="))
        });
        match named {
            Named::Descriptor(file) => {
                let file = descriptor(file)?;
                if let Some(open) = self.descriptor(moment.task, &file) {
                    let file = self.tasks.open_file(open).file;
                    self.learn(file, size);
                    self.push_file(moment, file, result, report, |path| action.kind(path));
                }
            }
            Named::Path(directory, path) => {
                let Some(path) = string(path) else {
                    // NULL with a directory's descriptor is that descriptor.
                    return Some(true);
                };
                if path.is_empty() {
                    return self.attribute_of_descriptor(
                        directory?, size, &action, result, moment, report,
                    );
                }
                if let Some(path) = self.resolve(moment.task, directory, &path, report) {
                    if call.outcome.error.as_deref() == Some("ENOENT") {
                        self.files.note_missing(&path);
                    } else if let (Some(0), Some(_)) = (result, size) {
                        let file = self.files.at(&path);
                        self.learn(file, size);
                    }
                    self.push_path(moment, &path, result, report, |path| action.kind(path));
                }
            }
        }
        Some(true)
    }

    /// `AT_EMPTY_PATH`: the descriptor itself.
    fn attribute_of_descriptor(
        &mut self,
        file: &[u8],
        size: Option<u64>,
        action: &Action,
        result: Option<i64>,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Taken {
        let file = descriptor(file)?;
        if let Some(open) = self.descriptor(moment.task, &file) {
            let file = self.tasks.open_file(open).file;
            self.learn(file, size);
            self.push_file(moment, file, result, report, |path| action.kind(path));
        }
        Some(true)
    }

    fn learn(&mut self, file: FileId, size: Option<u64>) {
        if let Some(size) = size {
            self.files.set_size(file, size);
        }
    }
}

fn meaning<'a>(call: &Call<'a>) -> Option<(Named<'a>, Action)> {
    let arguments = call.arguments.as_slice();
    let first = *arguments.first()?;
    let second = arguments.get(1).copied();
    let length = || {
        arguments
            .get(3)
            .copied()
            .and_then(super::super::value::unsigned)
    };
    let by_path = Named::Path(None, first);
    let by_descriptor = Named::Descriptor(first);
    let at = second.map(|second| Named::Path(Some(first), second));
    Some(match call.name {
        "stat" | "lstat" | "stat64" | "lstat64" | "access" | "readlink" | "getxattr"
        | "lgetxattr" | "listxattr" | "llistxattr" => (by_path, Action::Stat),
        "fstat" | "fstat64" | "fgetxattr" | "flistxattr" => (by_descriptor, Action::Stat),
        "newfstatat" | "fstatat64" | "statx" | "faccessat" | "faccessat2" | "readlinkat" => {
            (at?, Action::Stat)
        }
        "chmod" => (by_path, Action::Set(Attribute::Mode)),
        "fchmod" => (by_descriptor, Action::Set(Attribute::Mode)),
        "fchmodat" | "fchmodat2" => (at?, Action::Set(Attribute::Mode)),
        "chown" | "lchown" => (by_path, Action::Set(Attribute::Owner)),
        "fchown" => (by_descriptor, Action::Set(Attribute::Owner)),
        "fchownat" => (at?, Action::Set(Attribute::Owner)),
        "utime" | "utimes" => (by_path, Action::Set(Attribute::Times)),
        "utimensat" | "futimesat" if second == Some(b"NULL") => {
            (by_descriptor, Action::Set(Attribute::Times))
        }
        "utimensat" | "futimesat" => (at?, Action::Set(Attribute::Times)),
        "setxattr" | "lsetxattr" => (by_path, Action::SetXattr(length()?)),
        "fsetxattr" => (by_descriptor, Action::SetXattr(length()?)),
        "removexattr" | "lremovexattr" => (by_path, Action::RemoveXattr),
        "fremovexattr" => (by_descriptor, Action::RemoveXattr),
        "getdents" | "getdents64" => (by_descriptor, Action::ReadDirectory),
        _ => return None,
    })
}
