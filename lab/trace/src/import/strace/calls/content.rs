//! Calls that move data or make it durable.

use super::super::tasks::OpenId;
use super::super::value::{boxed, descriptor, has_flag, integer, string, unsigned, vector_length};
use super::super::{Call, Import, Moment};
use super::Taken;
use crate::import::ImportReport;
use crate::model::{AllocateMode, EventKind};

/// Which way data goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

/// One half of a copy, or a plain read or write.
struct Transfer {
    way: Way,
    /// None: at the position of the open file.
    offset: Option<u64>,
    length: u64,
    result: Option<i64>,
}

impl Import {
    pub(super) fn content_call(
        &mut self,
        call: &Call<'_>,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Taken {
        let arguments = call.arguments.as_slice();
        match (call.name, arguments) {
            ("read" | "write", [file, _, length]) => {
                let length = unsigned(length)?;
                self.transfer(call, file, None, length, moment, report)?;
            }
            ("readv" | "writev", [file, vector, _]) => {
                let length = vector_length(vector);
                self.transfer(call, file, None, length, moment, report)?;
            }
            ("pread64" | "pwrite64" | "pread" | "pwrite", [file, _, length, offset]) => {
                let (length, offset) = (unsigned(length)?, unsigned(offset));
                self.transfer(call, file, offset, length, moment, report)?;
            }
            ("preadv" | "pwritev" | "preadv2" | "pwritev2", [file, vector, _, offset, ..]) => {
                // −1: at the position.
                let (length, offset) = (vector_length(vector), unsigned(offset));
                self.transfer(call, file, offset, length, moment, report)?;
            }
            ("copy_file_range", [from, from_offset, to, to_offset, length, ..]) => {
                let offsets = (boxed(from_offset), boxed(to_offset));
                self.copy(call, (from, to), offsets, unsigned(length)?, moment, report)?;
            }
            ("sendfile" | "sendfile64", [to, from, offset, length]) => {
                let offsets = (boxed(offset), None);
                self.copy(call, (from, to), offsets, unsigned(length)?, moment, report)?;
            }
            ("lseek" | "_llseek", [file, ..]) => {
                let file = descriptor(file)?;
                let position = match call.name {
                    "_llseek" => arguments.get(2).copied().and_then(boxed),
                    _ => call
                        .outcome
                        .value
                        .and_then(|value| u64::try_from(value).ok()),
                };
                if let (Some(open), Some(position), None) = (
                    self.descriptor(moment.task, &file),
                    position,
                    &call.outcome.error,
                ) {
                    self.tasks.open_file(open).position = position;
                }
            }
            _ => return self.space_call(call, moment, report),
        }
        Some(true)
    }

    /// Sizes, space, and making durable.
    fn space_call(&mut self, call: &Call<'_>, moment: Moment, report: &mut ImportReport) -> Taken {
        let result = Self::result(&call.outcome, 0);
        match (call.name, call.arguments.as_slice()) {
            ("ftruncate" | "ftruncate64", [file, length]) => {
                let (file, length) = (descriptor(file)?, unsigned(length)?);
                if let Some(open) = self.known(moment.task, &file, report) {
                    let file = self.tasks.open_file(open).file;
                    if result == Some(0) {
                        self.files.set_size(file, length);
                    }
                    let kind = |path| EventKind::Truncate { path, length };
                    self.push_file(moment, file, result, report, kind);
                }
            }
            ("truncate" | "truncate64", [path, length]) => {
                let (path, length) = (string(path)?, unsigned(length)?);
                if let Some(path) = self.resolve(moment.task, None, &path, report) {
                    if result == Some(0) {
                        let file = self.files.at(&path);
                        self.files.set_size(file, length);
                    }
                    let kind = |path| EventKind::Truncate { path, length };
                    self.push_path(moment, &path, result, report, kind);
                }
            }
            ("fallocate", [file, mode, offset, length]) => {
                self.allocate(
                    call,
                    file,
                    mode,
                    (unsigned(offset)?, unsigned(length)?),
                    moment,
                    report,
                )?;
            }
            ("fsync" | "fdatasync", [file]) => {
                let file = descriptor(file)?;
                let data_only = call.name == "fdatasync";
                if let Some(open) = self.known(moment.task, &file, report) {
                    let file = self.tasks.open_file(open).file;
                    let kind = |path| EventKind::Sync { path, data_only };
                    self.push_file(moment, file, result, report, kind);
                }
            }
            ("sync" | "syncfs", _) => {
                let app = self.builder.app(b".");
                self.push(moment, app, EventKind::SyncAll, result.unwrap_or(0));
            }
            ("mmap" | "mmap2", [_, length, protection, flags, file, _]) => {
                self.map(
                    call,
                    unsigned(length)?,
                    (protection, flags),
                    file,
                    moment,
                    report,
                )?;
            }
            ("msync", [address, _, _]) => {
                self.sync_mapping(integer(address)? as u64, result, moment, report)
            }
            _ => return Some(false),
        }
        Some(true)
    }

    /// The open file of a descriptor; counts those that are something else.
    fn known(
        &mut self,
        task: u32,
        file: &super::super::DescriptorArgument,
        report: &mut ImportReport,
    ) -> Option<OpenId> {
        let open = self.descriptor(task, file);
        if open.is_none() {
            report.leave_out("descriptor that is no file: a pipe, a socket, a terminal");
        }
        open
    }

    fn transfer(
        &mut self,
        call: &Call<'_>,
        file: &[u8],
        offset: Option<u64>,
        length: u64,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        let file = descriptor(file)?;
        let Some(open) = self.known(moment.task, &file, report) else {
            return Some(());
        };
        let way = if call.name.contains("read") {
            Way::Read
        } else {
            Way::Write
        };
        let result = Self::result(&call.outcome, call.outcome.value.unwrap_or(0));
        let transfer = Transfer {
            way,
            offset,
            length,
            result,
        };
        self.move_data(open, &transfer, moment, report);
        Some(())
    }

    fn copy(
        &mut self,
        call: &Call<'_>,
        (from, to): (&[u8], &[u8]),
        offsets: (Option<u64>, Option<u64>),
        length: u64,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        if call.outcome.error.is_some() {
            report.leave_out("copy in the kernel that failed: programs read and write then");
            return Some(());
        }
        let result = Self::result(&call.outcome, call.outcome.value.unwrap_or(0));
        let ends = [(Way::Read, from, offsets.0), (Way::Write, to, offsets.1)];
        for (way, file, offset) in ends {
            let file = descriptor(file)?;
            if let Some(open) = self.known(moment.task, &file, report) {
                let transfer = Transfer {
                    way,
                    offset,
                    length,
                    result,
                };
                self.move_data(open, &transfer, moment, report);
            }
        }
        Some(())
    }

    fn move_data(
        &mut self,
        open: OpenId,
        transfer: &Transfer,
        moment: Moment,
        report: &mut ImportReport,
    ) {
        let opened = self.tasks.open_file(open).clone();
        let (file, length) = (opened.file, transfer.length);
        let is_append = opened.is_appending && transfer.way == Way::Write;
        let offset = if is_append {
            let size = self.files.size(file);
            if size.is_none() {
                report.note_inexact("appended to a file of unknown size: offset 0");
            }
            size.unwrap_or(0)
        } else {
            transfer.offset.unwrap_or(opened.position)
        };
        let moved = transfer.result.and_then(|moved| u64::try_from(moved).ok());
        let end = offset.saturating_add(moved.unwrap_or(0));
        if transfer.offset.is_none() {
            self.tasks.open_file(open).position = end;
        }
        if transfer.way == Way::Write && moved.is_some_and(|moved| moved > 0) {
            self.files.grow(file, end);
        }
        let way = transfer.way;
        self.push_file(moment, file, transfer.result, report, |path| match way {
            Way::Read => EventKind::Read {
                path,
                offset,
                length,
            },
            Way::Write => EventKind::Write {
                path,
                offset,
                length,
            },
        });
    }

    fn allocate(
        &mut self,
        call: &Call<'_>,
        file: &[u8],
        words: &[u8],
        (offset, length): (u64, u64),
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        let file = descriptor(file)?;
        let mode = [
            ("FALLOC_FL_PUNCH_HOLE", AllocateMode::PunchHole),
            ("FALLOC_FL_ZERO_RANGE", AllocateMode::ZeroRange),
            ("FALLOC_FL_COLLAPSE_RANGE", AllocateMode::CollapseRange),
            ("FALLOC_FL_INSERT_RANGE", AllocateMode::InsertRange),
            ("FALLOC_FL_KEEP_SIZE", AllocateMode::KeepSize),
        ];
        let mode = mode.iter().find(|(word, _)| has_flag(words, word));
        let mode = mode.map_or(AllocateMode::Extend, |(_, mode)| *mode);
        let Some(open) = self.known(moment.task, &file, report) else {
            return Some(());
        };
        let file = self.tasks.open_file(open).file;
        let result = Self::result(&call.outcome, 0);
        let grows = !has_flag(words, "FALLOC_FL_KEEP_SIZE")
            && matches!(mode, AllocateMode::Extend | AllocateMode::ZeroRange);
        if result == Some(0) && grows {
            self.files.grow(file, offset.saturating_add(length));
        }
        self.push_file(moment, file, result, report, |path| EventKind::Allocate {
            path,
            mode,
            offset,
            length,
        });
        Some(())
    }

    fn map(
        &mut self,
        call: &Call<'_>,
        length: u64,
        (protection, flags): (&[u8], &[u8]),
        file: &[u8],
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        let is_shared = has_flag(flags, "MAP_SHARED") || has_flag(flags, "MAP_SHARED_VALIDATE");
        let is_written = is_shared && has_flag(protection, "PROT_WRITE");
        if !is_written || call.outcome.error.is_some() || has_flag(flags, "MAP_ANONYMOUS") {
            return Some(());
        }
        let file = descriptor(file)?;
        if let Some(open) = self.descriptor(moment.task, &file) {
            report
                .note_inexact("shared mapping for writing: what is written through it is not seen");
            let file = self.tasks.open_file(open).file;
            let process = self.tasks.task(moment.task).process;
            let address = call.outcome.value? as u64;
            self.mappings.push((process, address, length, file));
        }
        Some(())
    }

    fn sync_mapping(
        &mut self,
        address: u64,
        result: Option<i64>,
        moment: Moment,
        report: &mut ImportReport,
    ) {
        let process = self.tasks.task(moment.task).process;
        // The newest mapping at an address is the one that is there.
        let mapping = self
            .mappings
            .iter()
            .rev()
            .find(|(owner, start, length, _)| {
                *owner == process && address >= *start && address - *start < *length
            });
        if let Some(&(_, _, _, file)) = mapping {
            self.push_file(moment, file, result, report, |path| EventKind::Sync {
                path,
                data_only: true,
            });
        }
    }
}
