//! From requests to [`Volume`] calls and back.
//!
//! # Nothing is kept for open files
//!
//! OPEN, CREATE, OPENDIR and FLUSH are answered with `ENOSYS`, after which the kernel
//! opens files without asking (it makes new ones with MKNOD) and no longer sends
//! RELEASE. That is correct, because an open file needs nothing from the daemon:
//!
//! * Permissions are checked by the kernel (`default_permissions`).
//! * A file that is unlinked while open stays: its inode is in use, so the kernel does
//!   not FORGET it, and the volume keeps an object as long as its lookup count is not
//!   zero.
//! * `O_TRUNC` arrives as SETATTR; `O_APPEND` is resolved by the kernel, which alone
//!   changes sizes; `O_SYNC` comes with each WRITE; a listing continues by cookie.
//!
//! TMPFILE opens a file, too. Whether its RELEASE comes depends on whether the kernel has sent an
//! OPEN before, so the daemon does not wait for it: the reference that TMPFILE hands over keeps the
//! file, as references keep all other objects.
//!
//! It saves two requests for each file that is opened, and leaves a daemon that takes
//! over a mount nothing to reconstruct; [`in_flight`] says what becomes of requests in flight.
//!
//! # How long the kernel may cache
//!
//! Only the kernel's requests change the tree, so what the kernel knows stays true until it sends a
//! change itself; it invalidates by itself what its own requests change (times, sizes,
//! link counts, parents). One exception is handled here, see [`set_id`]. Where its cache keeps
//! too many objects in memory, it is asked to forget some, see [`kernel_cache`].

mod attributes;
mod data;
mod directory;
mod errno;
mod file_locks;
mod in_flight;
mod kernel_cache;
mod ledger;
mod namespace;
mod observer;
mod session;
mod session_record;
mod set_id;
mod waiting;
mod wire;
mod xattr;

use std::sync::{Arc, OnceLock};

use mobifs_base::ObjectId;
use mobifs_fuse::protocol::{Attr, AttrReply, EntryReply};
use mobifs_fuse::{Call, Connection, Delivery, Filesystem, Operation, Reply, forget_entries};
use mobifs_volume::{Caller, FsError, Node, SyncCaller, Volume, WRITER_LOCK_AT};
use rustix::io::Errno;

use errno::errno_of;
use file_locks::FileLocks;
pub(crate) use observer::OperationTranslator;
pub use observer::{OperationObserver, observation_clock};
pub use session::{VolumeMountError, VolumeSession};
pub use session_record::{TakeoverError, begin_takeover, postpone_takeover};
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
    file_locks: FileLocks,
    /// An observer wants to see each `fsync`, also where it has nothing to do.
    is_observed: bool,
    /// With the kernel, once the session is established.
    connection: OnceLock<Connection>,
}

/// What an operation ends with: an errno is sent as such.
type Outcome<T> = Result<T, Errno>;

fn object(call: &Call<'_>) -> ObjectId {
    ObjectId(call.header().node)
}

fn caller(call: &Call<'_>, umask: u32) -> Caller {
    let header = call.header();
    // The mask covers permission bits only, so it fits.
    Caller {
        uid: header.uid,
        gid: header.gid,
        umask: (umask & 0o7777) as u16,
    }
}

fn fs(error: FsError) -> Errno {
    errno_of(error)
}

impl Adapter {
    pub(crate) fn new(volume: Arc<Volume>, is_observed: bool) -> Self {
        Self {
            volume,
            set_id_files: SetIdFiles::default(),
            file_locks: FileLocks::default(),
            is_observed,
            connection: OnceLock::new(),
        }
    }

    /// For a mount that another process has served before.
    pub(crate) fn inheriting(volume: Arc<Volume>, is_observed: bool) -> Self {
        Self {
            volume,
            set_id_files: SetIdFiles::inherited(),
            file_locks: FileLocks::default(),
            is_observed,
            connection: OnceLock::new(),
        }
    }

    /// For the mount at this place.
    pub(crate) fn at(self, mountpoint: &std::path::Path) -> Self {
        Self {
            file_locks: FileLocks::of(mountpoint),
            ..self
        }
    }

    fn fsync(&self, call: &Call<'_>) -> Outcome<()> {
        let thread = call.header().pid;
        let is_writer =
            &|file| thread != 0 && self.file_locks.has_writer(file, WRITER_LOCK_AT, thread);
        let caller = SyncCaller { thread, is_writer };
        self.volume.fsync_by(object(call), caller).map_err(fs)
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
            tracing::error!(%error, "the daemon could not commit everything at unmount");
        }
    }
}

/// Sends what an operation ended with.
fn answer<T>(
    call: &Call<'_>,
    outcome: Outcome<T>,
    send: impl FnOnce(Reply<'_>, T) -> Delivery,
) -> Delivery {
    match outcome {
        Ok(value) => send(call.reply(), value),
        Err(errno) => call.reply().error(errno),
    }
}

impl Filesystem for Adapter {
    fn connected(&self, connection: Connection) {
        self.connection.get_or_init(|| connection.clone());
        let workers = waiting::SessionWorkers::new(connection.clone());
        self.volume.set_calling_threads(Arc::new(workers));
        let cache = kernel_cache::SessionCache::new(connection);
        if let Err(error) = self.volume.set_kernel_cache(Arc::new(cache)) {
            tracing::error!(
                %error,
                "cannot start the thread that evicts: objects leave memory only at commits"
            );
        }
    }

    fn handle(&self, call: &Call<'_>, scratch: &mut [u8]) {
        match call.slot() {
            None => self.execute(call, scratch),
            Some(slot) => {
                let execute = || self.execute(call, scratch);
                self.volume.serving(slot, call.header().unique, execute);
            }
        }
    }

    fn finish_in_flight(&self, call: &Call<'_>, scratch: &mut [u8]) {
        let Some(slot) = call.slot() else {
            return self.execute(call, scratch);
        };
        let unique = call.header().unique;
        let executed = self.volume.in_flight_request(slot, unique);
        let finish = || self.finish(call, &executed, scratch);
        self.volume.serving(slot, unique, finish);
    }
}

impl Adapter {
    fn execute(&self, call: &Call<'_>, scratch: &mut [u8]) {
        match call.operation() {
            &Operation::Forget { lookups } => self.forget(call.header().node, lookups),
            Operation::BatchForget { entries } => {
                forget_entries(entries).for_each(|one| self.forget(one.node, one.lookups));
            }
            _ => {
                self.execute_and_answer(call, scratch);
            }
        }
    }

    fn execute_and_answer(&self, call: &Call<'_>, scratch: &mut [u8]) -> Delivery {
        match *call.operation() {
            Operation::Read(args) => self.read(call, &args, scratch),
            Operation::ReadDir(args) => {
                answer(call, self.read_directory(call, &args), |r, b| r.bytes(&b))
            }
            Operation::ReadDirPlus(args) => {
                answer(call, self.read_directory_plus(call, &args), |r, b| {
                    r.bytes(&b)
                })
            }
            Operation::ReadLink => {
                let target = self.volume.read_link(object(call)).map_err(fs);
                answer(call, target, |r, target| r.bytes(&target))
            }
            Operation::Write { args, data } => {
                answer(call, self.write(call, &args, data), |r, w| r.value(&w))
            }
            Operation::Lseek(args) => answer(call, self.seek(call, &args), |r, s| r.value(&s)),
            Operation::CopyFileRange { args, wide_reply } => {
                let bytes = self.copy_range(call, &args);
                answer(call, bytes, |r, n| wire::send_copied(r, n, wide_reply))
            }
            Operation::GetAttr => {
                let node = self.volume.attributes(object(call)).map_err(fs);
                answer(call, node, |r, node| r.value(&self.attr_reply(&node)))
            }
            Operation::SetAttr(args) => {
                let node = self.set_attributes(call, &args);
                answer(call, node, |r, node| r.value(&self.attr_reply(&node)))
            }
            Operation::StatFs => answer(call, self.stat_fs(), |r, s| r.value(&s)),
            Operation::GetXattr { size, name } => self.get_xattr(call, size, name),
            Operation::ListXattr { size } => self.list_xattrs(call, size),
            // The session negotiated long ago, and answers parsed requests only.
            Operation::Init(_) => call.reply().error(Errno::INVAL),
            Operation::Ioctl => call.reply().error(Errno::NOTTY),
            Operation::Release => call.reply().done(),
            Operation::Destroy => {
                self.destroy();
                call.reply().done()
            }
            Operation::Lookup { .. }
            | Operation::Symlink { .. }
            | Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Link { .. } => {
                answer(call, self.make_entry(call), |r, entry| r.value(&entry))
            }
            Operation::TmpFile(args) => self.unnamed_file(call, &args),
            _ => answer(call, self.change(call), |r, ()| r.done()),
        }
    }
}

impl Adapter {
    /// Operations whose success says nothing more.
    fn change(&self, call: &Call<'_>) -> Outcome<()> {
        let object = object(call);
        match *call.operation() {
            Operation::Unlink { name } => {
                let removed = self.volume.unlink(object, name);
                self.after_removal(removed, &[(object, name)])
            }
            Operation::RmDir { name } => self.volume.remove_directory(object, name).map_err(fs),
            Operation::Rename {
                new_directory,
                flags,
                name,
                new_name,
            } => {
                let mode = wire::rename_mode(flags, caller(call, 0))?;
                let target = ObjectId(new_directory);
                let renamed = self.volume.rename(object, name, target, new_name, mode);
                self.after_removal(renamed, &[(object, name), (target, new_name)])
            }
            // Where no app is durable nor can become so, fsync has nothing to do, and
            // the kernel need not ask again.
            Operation::Fsync(_) | Operation::FsyncDir(_)
                if !self.volume.has_durable_apps() && !self.is_observed =>
            {
                Err(Errno::NOSYS)
            }
            Operation::Fsync(_) | Operation::FsyncDir(_) => self.fsync(call),
            Operation::SyncFs => self.volume.sync_all().map_err(fs),
            Operation::SetXattr { args, name, value } => self.set_xattr(call, &args, name, value),
            Operation::RemoveXattr { name } => self.volume.remove_xattr(object, name).map_err(fs),
            Operation::Fallocate(args) => self.allocate(call, &args),
            // What this filesystem does not offer; the kernel does without from then on.
            _ => Err(Errno::NOSYS),
        }
    }
}
