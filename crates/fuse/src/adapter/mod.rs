//! From requests to [`Volume`] calls and back.
//!
//! # Nothing is kept for open files
//!
//! OPEN, CREATE, OPENDIR and FLUSH are answered with `ENOSYS`, after which the kernel
//! opens files without asking (it makes new ones with MKNOD) and no longer sends
//! RELEASE. That is correct, because an open file needs nothing from us:
//!
//! * Permissions are checked by the kernel (`default_permissions`).
//! * A file that is unlinked while open stays: its inode is in use, so the kernel does
//!   not FORGET it, and the volume keeps an object as long as its lookup count is not
//!   zero.
//! * `O_TRUNC` arrives as SETATTR; `O_APPEND` is resolved by the kernel, which alone
//!   changes sizes; `O_SYNC` comes with each WRITE; a listing continues by cookie.
//!
//! TMPFILE opens a file, too. Whether its RELEASE comes depends on whether the kernel has
//! met an OPEN before, so nothing waits for it: the reference that TMPFILE hands over keeps
//! the file, as it keeps all others.
//!
//! It saves two requests for each file that is opened, and leaves a daemon that takes
//! over a mount nothing to reconstruct; [`left`] tells what becomes of requests under way.
//!
//! # How long the kernel may remember
//!
//! Nobody else changes the tree, so what the kernel knows stays true until it sends a
//! change itself; it invalidates by itself what its own requests change (times, sizes,
//! link counts, parents). One exception is handled here, see [`set_id`]. Where its cache keeps
//! too many objects in memory, it is asked to forget some, see [`kernel_cache`].

mod attributes;
mod data;
mod directory;
mod kernel_cache;
mod left;
mod namespace;
mod set_id;
mod xattr;

use std::sync::{Arc, Weak};

use mobifs_base::ObjectId;
use mobifs_volume::{Caller, FsError, Node, Volume};
use rustix::io::Errno;

use crate::errno::errno_of;
use crate::observer::{ObservedTransport, OperationObserver};
use crate::protocol::{Attr, AttrReply, EntryReply, PAYLOAD_BYTES_MAX, RequestHeader};
use crate::reply::Reply;
use crate::request::{Operation, Request, forget_entries};
use crate::session::{Handler, Shared};
use crate::transport::{NotedTransport, Transport};
pub(crate) use directory::behind_name;
use set_id::SetIdFiles;

/// How long the kernel may keep a name, present or absent: as long as it likes.
const ENTRY_VALID_SECONDS: u64 = 86_400;
/// How long the kernel may keep attributes. They stay true, except that the space a
/// file occupies is an estimate until its content has reached the lower filesystem.
const ATTR_VALID_SECONDS: u64 = 3_600;
/// `st_blksize`.
const BLOCK_BYTES: u32 = 4096;

/// Serves requests from a volume.
pub(crate) struct Adapter {
    volume: Arc<Volume>,
    set_id_files: SetIdFiles,
    /// Is told of everything.
    observer: Option<Arc<dyn OperationObserver>>,
}

/// What an operation ends with: an errno is sent as such.
type Outcome<T> = Result<T, Errno>;

/// What every operation knows of its request.
#[derive(Clone, Copy)]
struct Context<'a> {
    transport: &'a dyn Transport,
    header: RequestHeader,
}

impl Context<'_> {
    fn object(&self) -> ObjectId {
        ObjectId(self.header.node)
    }

    fn caller(&self, umask: u32) -> Caller {
        // The mask covers permission bits only, so it fits.
        Caller {
            uid: self.header.uid,
            gid: self.header.gid,
            umask: (umask & 0o7777) as u16,
        }
    }
}

fn fs(error: FsError) -> Errno {
    errno_of(error)
}

impl Adapter {
    pub(crate) fn new(volume: Arc<Volume>) -> Self {
        Self {
            volume,
            set_id_files: SetIdFiles::default(),
            observer: None,
        }
    }

    /// For a mount that another process has served before.
    pub(crate) fn inheriting(volume: Arc<Volume>) -> Self {
        Self {
            volume,
            set_id_files: SetIdFiles::inherited(),
            observer: None,
        }
    }

    /// The same, watched.
    pub(crate) fn observed(mut self, observer: Option<Arc<dyn OperationObserver>>) -> Self {
        self.observer = observer;
        self
    }

    fn entry(&self, node: &Node) -> EntryReply {
        EntryReply {
            node: node.id.0,
            entry_valid_seconds: ENTRY_VALID_SECONDS,
            attr_valid_seconds: ATTR_VALID_SECONDS,
            attr: self.attr(node),
            ..EntryReply::default()
        }
    }

    fn attr_reply(&self, node: &Node) -> AttrReply {
        AttrReply {
            attr_valid_seconds: ATTR_VALID_SECONDS,
            attr: self.attr(node),
            ..AttrReply::default()
        }
    }

    fn attr(&self, node: &Node) -> Attr {
        self.set_id_files.shown(node);
        let attributes = &node.attributes;
        Attr {
            inode: node.id.0,
            size: attributes.size,
            blocks: node.allocated_bytes.div_ceil(512),
            atime: attributes.atime.seconds,
            mtime: attributes.mtime.seconds,
            ctime: attributes.ctime.seconds,
            atime_ns: attributes.atime.nanoseconds,
            mtime_ns: attributes.mtime.nanoseconds,
            ctime_ns: attributes.ctime.nanoseconds,
            mode: attributes.kind.mode_bits() | u32::from(attributes.mode),
            nlink: attributes.nlink,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: attributes.rdev.0,
            block_bytes: BLOCK_BYTES,
            flags: 0,
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.volume.forget(ObjectId(node), lookups);
    }

    /// The kernel is done with the mount: everything goes to its place, so that the
    /// store directory is plain files when `umount` returns.
    fn destroy(&self) {
        if let Err(error) = self.volume.sync_app(None, true) {
            tracing::error!(%error, "not everything could be committed at unmount");
        }
    }
}

/// Sends what an operation ended with.
fn answer<T>(reply: Reply<'_>, outcome: Outcome<T>, send: impl FnOnce(Reply<'_>, T)) {
    match outcome {
        Ok(value) => send(reply, value),
        Err(errno) => reply.error(errno),
    }
}

impl Handler for Adapter {
    fn connected(&self, session: Weak<Shared>) {
        let cache = kernel_cache::SessionCache::new(session);
        if let Err(error) = self.volume.set_kernel_cache(Arc::new(cache)) {
            tracing::error!(%error, "objects leave memory only when commits are made");
        }
    }

    fn handle_in_slot(
        &self,
        slot: usize,
        transport: &NotedTransport<'_>,
        request: &Request<'_>,
        scratch: &mut [u8],
    ) {
        let handle = || self.handle(transport, request, scratch);
        self.volume.serving(slot, request.header.unique, handle);
    }

    fn finish_left(
        &self,
        slot: usize,
        transport: &NotedTransport<'_>,
        request: &Request<'_>,
        scratch: &mut [u8],
    ) {
        let unique = request.header.unique;
        let left = self.volume.left_by(slot, unique);
        let finish = || self.finish(transport, request, &left, scratch);
        self.volume.serving(slot, unique, finish);
    }

    fn handle(&self, transport: &dyn Transport, request: &Request<'_>, scratch: &mut [u8]) {
        match &self.observer {
            None => self.execute(transport, request, scratch),
            Some(observer) => {
                let observed = ObservedTransport::new(transport, &**observer, request);
                self.execute(&observed, request, scratch);
                observed.unanswered();
            }
        }
    }
}

impl Adapter {
    fn execute(&self, transport: &dyn Transport, request: &Request<'_>, scratch: &mut [u8]) {
        let context = Context {
            transport,
            header: request.header,
        };
        let context = &context;
        let reply = Reply::new(transport, request.header.unique);
        match request.operation {
            Operation::Forget { lookups } => self.forget(context.header.node, lookups),
            Operation::BatchForget { entries } => {
                forget_entries(entries).for_each(|one| self.forget(one.node, one.lookups));
            }
            Operation::Read(args) => self.read(context, &args, scratch, reply),
            Operation::ReadDir(args) => {
                answer(reply, self.read_directory(context, &args), |r, b| {
                    r.bytes(&b)
                });
            }
            Operation::ReadDirPlus(args) => {
                answer(reply, self.read_directory_plus(context, &args), |r, b| {
                    r.bytes(&b)
                });
            }
            Operation::ReadLink => {
                let target = self.volume.read_link(context.object()).map_err(fs);
                answer(reply, target, |r, target| r.bytes(&target));
            }
            Operation::Write { args, data } => {
                answer(reply, self.write(context, &args, data), |r, w| r.value(&w));
            }
            Operation::Lseek(args) => {
                answer(reply, self.seek(context, &args), |r, s| r.value(&s));
            }
            Operation::CopyFileRange { args, wide_reply } => {
                let bytes = self.copy_range(context, &args);
                answer(reply, bytes, |r, n| data::send_copied(r, n, wide_reply));
            }
            Operation::GetAttr => {
                let node = self.volume.attributes(context.object()).map_err(fs);
                answer(reply, node, |r, node| r.value(&self.attr_reply(&node)));
            }
            Operation::SetAttr(args) => {
                let node = self.set_attributes(context, &args);
                answer(reply, node, |r, node| r.value(&self.attr_reply(&node)));
            }
            Operation::StatFs => answer(reply, self.stat_fs(), |r, s| r.value(&s)),
            Operation::GetXattr { size, name } => self.get_xattr(context, size, name, reply),
            Operation::ListXattr { size } => self.list_xattrs(context, size, reply),
            // The session negotiated long ago, and answers parsed requests only.
            Operation::Init(_) => reply.error(Errno::INVAL),
            Operation::Ioctl => reply.error(Errno::NOTTY),
            Operation::NotOffered => reply.error(Errno::NOSYS),
            Operation::Release => reply.done(),
            Operation::Destroy => {
                self.destroy();
                reply.done();
            }
            Operation::Lookup { .. }
            | Operation::Symlink { .. }
            | Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Link { .. } => {
                let entry = self.make_entry(context, &request.operation);
                answer(reply, entry, |r, entry| r.value(&entry));
            }
            Operation::TmpFile(args) => self.unnamed_file(context, &args, reply),
            Operation::Unlink { .. }
            | Operation::RmDir { .. }
            | Operation::Rename { .. }
            | Operation::Fsync(_)
            | Operation::FsyncDir(_)
            | Operation::SyncFs
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. }
            | Operation::Fallocate(_) => {
                answer(reply, self.change(context, &request.operation), |r, ()| {
                    r.done()
                });
            }
        }
    }
}

impl Adapter {
    /// Operations whose success says nothing more.
    fn change(&self, context: &Context<'_>, operation: &Operation<'_>) -> Outcome<()> {
        let object = context.object();
        match *operation {
            Operation::Unlink { name } => self.volume.unlink(object, name).map_err(fs),
            Operation::RmDir { name } => self.volume.remove_directory(object, name).map_err(fs),
            Operation::Rename {
                new_directory,
                flags,
                name,
                new_name,
            } => {
                let mode = namespace::rename_mode(flags, context.caller(0))?;
                let target = ObjectId(new_directory);
                self.volume
                    .rename(object, name, target, new_name, mode)
                    .map_err(fs)
            }
            // Where no app is durable nor can become so, fsync has nothing to do, and
            // the kernel need not ask again. An observer wants to hear of it.
            Operation::Fsync(_) | Operation::FsyncDir(_)
                if !self.volume.has_durable_apps() && self.observer.is_none() =>
            {
                Err(Errno::NOSYS)
            }
            Operation::Fsync(_) | Operation::FsyncDir(_) => self.volume.fsync(object).map_err(fs),
            Operation::SyncFs => self.volume.sync_all().map_err(fs),
            Operation::SetXattr { args, name, value } => {
                self.set_xattr(context, &args, name, value)
            }
            Operation::RemoveXattr { name } => self.volume.remove_xattr(object, name).map_err(fs),
            Operation::Fallocate(args) => self.allocate(context, &args),
            _ => Err(Errno::NOSYS),
        }
    }
}

/// Room for the largest READ.
pub(crate) const SCRATCH_BYTES: usize = PAYLOAD_BYTES_MAX;
