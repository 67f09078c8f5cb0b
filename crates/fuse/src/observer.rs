//! Telling somebody what programs do: each request with its answer.
//!
//! The observer sits between the adapter and the transport, because there both are known and
//! the adapter need not care. It is told just before the answer leaves: who asked still waits,
//! so it can be seen who that is, and what it does next is told later.

use std::io::IoSlice;

use mobifs_base::{
    AttributeGroup, FileKind, FoundObject, MonotonicNs, ObjectId, ObservedOperation, Operation,
};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use zerocopy::FromBytes as _;

use crate::adapter::behind_name;
use crate::protocol::{
    CopyFileRangeReply, DirectoryEntryHeader, EntryReply, ReplyHeader, SetAttrArgs, WriteReply,
    fsync, set_attr, syscall,
};
use crate::request::{Operation as Asked, Request, forget_entries};
use crate::transport::Transport;

/// Is told what programs do with a mount. Called by any number of threads at the same time,
/// between one request and the next: what it does must be short and must never wait.
pub trait OperationObserver: Send + Sync {
    /// Takes note of an operation. Operations of one thread come in their order; others may
    /// come later than such that began after them.
    fn observe(&self, operation: &ObservedOperation<'_>);
}

/// The moment that [`ObservedOperation::begun_at`] is compared with.
pub fn observation_clock() -> MonotonicNs {
    let now = clock_gettime(ClockId::Monotonic);
    // The kernel keeps it positive and the nanoseconds below a second.
    let seconds_ns = (now.tv_sec as u64).saturating_mul(1_000_000_000);
    MonotonicNs(seconds_ns.saturating_add(now.tv_nsec as u64))
}

/// Answers one request, and tells the observer what it was.
pub(crate) struct ObservedTransport<'a> {
    inner: &'a dyn Transport,
    observer: &'a dyn OperationObserver,
    request: &'a Request<'a>,
    begun_at: MonotonicNs,
    /// A predecessor has read the request, and may have answered it.
    is_left: bool,
}

impl<'a> ObservedTransport<'a> {
    pub(crate) fn new(
        inner: &'a dyn Transport,
        observer: &'a dyn OperationObserver,
        request: &'a Request<'a>,
    ) -> Self {
        Self {
            inner,
            observer,
            request,
            begun_at: observation_clock(),
            is_left: false,
        }
    }

    /// The same for a request that a predecessor has left.
    pub(crate) const fn left(mut self) -> Self {
        self.is_left = true;
        self
    }

    /// Tells of requests that are not answered, once they are done.
    pub(crate) fn unanswered(&self) {
        match self.request.operation {
            Asked::Forget { lookups } => self.forget(self.request.header.node, lookups),
            Asked::BatchForget { entries } => {
                forget_entries(entries).for_each(|one| self.forget(one.node, one.lookups));
            }
            _ => {}
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.tell(ObjectId(node), Operation::Forget { lookups }, 0, 0);
    }

    fn tell(&self, object: ObjectId, operation: Operation<'_>, error: u32, duration_ns: u64) {
        self.observer.observe(&ObservedOperation {
            begun_at: self.begun_at,
            duration_ns,
            thread: self.request.header.pid,
            object,
            operation,
            error,
        });
    }

    fn answered(&self, parts: &[IoSlice<'_>], ended_at: MonotonicNs) {
        let Some(Ok((header, _))) = parts
            .first()
            .map(|part| ReplyHeader::read_from_prefix(part))
        else {
            return;
        };
        let payload: &[u8] = parts.get(1).map_or(&[], |part| part);
        let object = ObjectId(self.request.header.node);
        let duration_ns = ended_at.0.saturating_sub(self.begun_at.0);
        let error = header.error.unsigned_abs();
        if let Some(operation) = operation(&self.request.operation, payload) {
            self.tell(object, operation, error, duration_ns);
        }
        if let Asked::ReadDirPlus(_) = self.request.operation {
            for (name, found) in listed(payload) {
                self.tell(object, Operation::Listed { name, found }, 0, 0);
            }
        }
    }
}

impl Transport for ObservedTransport<'_> {
    fn try_receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        self.inner.try_receive(buffer)
    }

    fn sleep(&self) -> Result<(), Errno> {
        self.inner.sleep()
    }

    fn reply(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        let ended_at = observation_clock();
        if self.is_left {
            let sent = self.inner.reply(parts);
            // Nobody waits: the predecessor had answered, and told of it before.
            if sent != Err(Errno::NOENT) {
                self.answered(parts, ended_at);
            }
            return sent;
        }
        self.answered(parts, ended_at);
        self.inner.reply(parts)
    }

    fn notify(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        self.inner.notify(parts)
    }
}

/// What a request and its answer's payload come to; none if it is nothing that programs do to
/// files.
fn operation<'a>(asked: &Asked<'a>, payload: &[u8]) -> Option<Operation<'a>> {
    Some(match *asked {
        Asked::GetAttr
        | Asked::ReadLink
        | Asked::GetXattr { .. }
        | Asked::ListXattr { .. }
        | Asked::Lseek(_) => Operation::Look,
        Asked::SetAttr(args) => set_attributes(&args),
        Asked::Read(args) => Operation::Read {
            offset: args.offset,
            length: args.size.into(),
            moved: payload.len() as u64,
        },
        Asked::Write { args, .. } => Operation::Write {
            offset: args.offset,
            length: args.size.into(),
            moved: first::<WriteReply>(payload).map_or(0, |reply| reply.size.into()),
        },
        Asked::CopyFileRange { args, wide_reply } => Operation::Copy {
            offset: args.offset_in,
            target: ObjectId(args.node_out),
            target_offset: args.offset_out,
            length: args.length,
            moved: copied(payload, wide_reply),
        },
        Asked::Fallocate(args) => Operation::Allocate {
            mode: args.mode,
            offset: args.offset,
            length: args.length,
        },
        Asked::SetXattr { args, .. } => Operation::SetXattr {
            length: args.size.into(),
        },
        Asked::RemoveXattr { .. } => Operation::RemoveXattr,
        Asked::ReadDir(_) | Asked::ReadDirPlus(_) => Operation::ReadDirectory,
        Asked::Fsync(args) | Asked::FsyncDir(args) => Operation::Sync {
            is_data_only: args.flags & fsync::DATA_ONLY != 0,
        },
        Asked::SyncFs => Operation::SyncAll,
        Asked::Release => Operation::Release,
        _ => return named(asked, payload),
    })
}

/// The operations that have to do with names.
fn named<'a>(asked: &Asked<'a>, payload: &[u8]) -> Option<Operation<'a>> {
    let made = || found(payload);
    let mode_of = |asked: u32, umask: u32| {
        // What became of it, where anything did: a directory's own rules may have a say.
        let given = first::<EntryReply>(payload).map(|entry| entry.attr.mode);
        given.unwrap_or(asked & !umask) & 0o7777
    };
    Some(match *asked {
        Asked::Lookup { name } => Operation::Lookup {
            name,
            found: found(payload),
        },
        Asked::MkNod { args, name } => match FileKind::from_mode(args.mode) {
            Some(FileKind::Regular) => Operation::MakeFile {
                name,
                mode: mode_of(args.mode, args.umask),
                made: made(),
            },
            _ => Operation::MakeSpecial { name, made: made() },
        },
        Asked::MkDir { args, name } => Operation::MakeDirectory {
            name,
            mode: mode_of(args.mode, args.umask),
            made: made(),
        },
        Asked::Symlink { name, target } => Operation::MakeSymlink {
            name,
            target,
            made: made(),
        },
        Asked::TmpFile(args) => Operation::MakeUnnamed {
            mode: mode_of(args.mode, args.umask),
            flags: args.flags,
            made: made(),
        },
        Asked::Link { node, name } => Operation::Link {
            of: ObjectId(node),
            name,
        },
        Asked::Unlink { name } => Operation::Unlink { name },
        Asked::RmDir { name } => Operation::RemoveDirectory { name },
        Asked::Rename {
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

/// One system call sets one of these; what else is marked is what the kernel does with it.
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
            listing = behind_name(rest)?;
            if let Some(found) = found {
                return Some((name, found));
            }
        }
    })
}

#[cfg(test)]
#[path = "observer_tests.rs"]
mod tests;
