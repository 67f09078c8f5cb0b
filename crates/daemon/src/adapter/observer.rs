//! Translating requests and their answers into the operations that an observer of the mount
//! wants to see: what programs do to files.

use std::sync::Arc;

use mobifs_base::{
    AttributeGroup, FileKind, FoundObject, MonotonicNs, ObjectId, ObservedOperation, Operation,
};
use mobifs_fuse::protocol::{
    CopyFileRangeReply, DirectoryEntryHeader, EntryReply, SetAttrArgs, WriteReply, fsync, set_attr,
    syscall,
};
use mobifs_fuse::{
    Completion, Operation as Requested, Request, RequestObserver, forget_entries, monotonic_ns,
};
use zerocopy::FromBytes as _;

use super::directory::after_name;

/// Learns what programs do with a mount. Called by any number of threads at the same time,
/// between one request and the next: what it does must be short and must never wait.
pub trait OperationObserver: Send + Sync {
    /// Records an operation. Operations of one thread come in their order; others may
    /// come later than such that began after them.
    fn observe(&self, operation: &ObservedOperation<'_>);
}

/// The moment that [`ObservedOperation::begun_at`] is compared with.
pub fn observation_clock() -> MonotonicNs {
    MonotonicNs(monotonic_ns())
}

/// Reports to an [`OperationObserver`].
pub(crate) struct OperationTranslator(pub(crate) Arc<dyn OperationObserver>);

impl RequestObserver for OperationTranslator {
    fn completed(&self, request: &Request<'_>, completion: &Completion<'_>) {
        let node = request.header.node;
        let forget = |node: u64, lookups: u64| {
            let operation = Operation::Forget { lookups };
            self.report(request, completion, ObjectId(node), operation);
        };
        match request.operation {
            Requested::Forget { lookups } => return forget(node, lookups),
            Requested::BatchForget { entries } => {
                return forget_entries(entries).for_each(|one| forget(one.node, one.lookups));
            }
            _ => {}
        }
        if let Some(operation) = operation(&request.operation, completion) {
            self.report(request, completion, ObjectId(node), operation);
        }
        if let Requested::ReadDirPlus(_) = request.operation {
            // They are part of the listing: no error and no duration of their own.
            let part = Completion {
                ended_at_ns: completion.begun_at_ns,
                error: 0,
                ..*completion
            };
            for (name, found) in listed(completion.payload) {
                let operation = Operation::Listed { name, found };
                self.report(request, &part, ObjectId(node), operation);
            }
        }
    }
}

impl OperationTranslator {
    fn report(
        &self,
        request: &Request<'_>,
        completion: &Completion<'_>,
        object: ObjectId,
        operation: Operation<'_>,
    ) {
        self.0.observe(&ObservedOperation {
            begun_at: MonotonicNs(completion.begun_at_ns),
            duration_ns: completion
                .ended_at_ns
                .saturating_sub(completion.begun_at_ns),
            thread: request.header.pid,
            object,
            operation,
            error: completion.error.unsigned_abs(),
        });
    }
}

/// What a request and its answer's payload come to; none if it is nothing that programs do to
/// files.
fn operation<'a>(requested: &Requested<'a>, completion: &Completion<'_>) -> Option<Operation<'a>> {
    let payload = completion.payload;
    Some(match *requested {
        Requested::GetAttr
        | Requested::ReadLink
        | Requested::GetXattr { .. }
        | Requested::ListXattr { .. }
        | Requested::Lseek(_) => Operation::Look,
        Requested::SetAttr(args) => set_attributes(&args),
        Requested::Read(args) => Operation::Read {
            offset: args.offset,
            length: args.size.into(),
            moved: completion.payload_bytes as u64,
        },
        Requested::Write { args, .. } => Operation::Write {
            offset: args.offset,
            length: args.size.into(),
            moved: first::<WriteReply>(payload).map_or(0, |reply| reply.size.into()),
        },
        Requested::CopyFileRange { args, wide_reply } => Operation::Copy {
            offset: args.offset_in,
            target: ObjectId(args.node_out),
            target_offset: args.offset_out,
            length: args.length,
            moved: copied(payload, wide_reply),
        },
        Requested::Fallocate(args) => Operation::Allocate {
            mode: args.mode,
            offset: args.offset,
            length: args.length,
        },
        Requested::SetXattr { args, .. } => Operation::SetXattr {
            length: args.size.into(),
        },
        Requested::RemoveXattr { .. } => Operation::RemoveXattr,
        Requested::ReadDir(_) | Requested::ReadDirPlus(_) => Operation::ReadDirectory,
        Requested::Fsync(args) | Requested::FsyncDir(args) => Operation::Sync {
            is_data_only: args.flags & fsync::DATA_ONLY != 0,
        },
        Requested::SyncFs => Operation::SyncAll,
        Requested::Release => Operation::Release,
        _ => return named(requested, payload),
    })
}

/// The operations on names.
fn named<'a>(requested: &Requested<'a>, payload: &[u8]) -> Option<Operation<'a>> {
    let made = || found(payload);
    let mode_of = |requested: u32, umask: u32| {
        // The mode that the object got, if it was made: a default ACL of the directory may change
        // it.
        let given = first::<EntryReply>(payload).map(|entry| entry.attr.mode);
        given.unwrap_or(requested & !umask) & 0o7777
    };
    Some(match *requested {
        Requested::Lookup { name } => Operation::Lookup {
            name,
            found: found(payload),
        },
        Requested::MkNod { args, name } => match FileKind::from_mode(args.mode) {
            Some(FileKind::Regular) => Operation::MakeFile {
                name,
                mode: mode_of(args.mode, args.umask),
                made: made(),
            },
            _ => Operation::MakeSpecial { name, made: made() },
        },
        Requested::MkDir { args, name } => Operation::MakeDirectory {
            name,
            mode: mode_of(args.mode, args.umask),
            made: made(),
        },
        Requested::Symlink { name, target } => Operation::MakeSymlink {
            name,
            target,
            made: made(),
        },
        Requested::TmpFile(args) => Operation::MakeUnnamed {
            mode: mode_of(args.mode, args.umask),
            flags: args.flags,
            made: made(),
        },
        Requested::Link { node, name } => Operation::Link {
            of: ObjectId(node),
            name,
        },
        Requested::Unlink { name } => Operation::Unlink { name },
        Requested::RmDir { name } => Operation::RemoveDirectory { name },
        Requested::Rename {
            new_directory,
            flags,
            name,
            new_name,
        } => Operation::Rename {
            name,
            new_directory: ObjectId(new_directory),
            new_name,
            is_exchange: flags & syscall::RENAME_EXCHANGE != 0,
        },
        _ => return None,
    })
}

/// One system call sets one of these; the kernel adds the other marks.
const fn set_attributes(args: &SetAttrArgs) -> Operation<'static> {
    let group = if args.valid & set_attr::SIZE != 0 {
        return Operation::Truncate {
            size_bytes: args.size,
        };
    } else if args.valid & (set_attr::UID | set_attr::GID) != 0 {
        AttributeGroup::Owner
    } else if args.valid & set_attr::MODE != 0 {
        AttributeGroup::Mode
    } else {
        AttributeGroup::Times
    };
    Operation::SetAttributes { group }
}

fn first<T: zerocopy::FromBytes>(payload: &[u8]) -> Option<T> {
    T::read_from_prefix(payload).ok().map(|(value, _)| value)
}

fn copied(payload: &[u8], is_wide: bool) -> u64 {
    let bytes = if is_wide {
        first::<CopyFileRangeReply>(payload).map(|reply| reply.bytes_copied)
    } else {
        first::<WriteReply>(payload).map(|reply| reply.size.into())
    };
    bytes.unwrap_or(0)
}

/// The object that an answer hands over.
fn found(payload: &[u8]) -> Option<FoundObject> {
    let entry = first::<EntryReply>(payload).filter(|entry| entry.node != 0)?;
    Some(FoundObject {
        id: ObjectId(entry.node),
        is_directory: FileKind::from_mode(entry.attr.mode) == Some(FileKind::Directory),
    })
}

/// Names and objects that a READDIRPLUS answer hands over.
fn listed(mut listing: &[u8]) -> impl Iterator<Item = (&[u8], FoundObject)> {
    std::iter::from_fn(move || {
        loop {
            let (_, rest) = EntryReply::read_from_prefix(listing).ok()?;
            let found = found(listing);
            let (header, name) = DirectoryEntryHeader::read_from_prefix(rest).ok()?;
            let name = name.get(..header.name_bytes as usize)?;
            listing = after_name(rest)?;
            if let Some(found) = found {
                return Some((name, found));
            }
        }
    })
}

#[cfg(test)]
#[path = "observer_tests.rs"]
mod tests;
