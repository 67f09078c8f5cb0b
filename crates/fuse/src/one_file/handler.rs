//! From requests to the [`FileServer`].

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::answer::{Answer, Wanted};
use super::listing::listing;
use super::server::{Clear, FileServer, Incarnation};
use crate::call::Call;
use crate::connection::Connection;
use crate::filesystem::Filesystem;
use crate::negotiation::DirectIo;
use crate::protocol::{
    Attr, AttrReply, EntryReply, FallocateArgs, ROOT_NODE, ReadArgs, StatFsReply, syscall,
};
use crate::request::Operation;

/// Node of the first incarnation; later ones follow.
const FIRST_FILE_NODE: u64 = ROOT_NODE + 1;
/// How long the kernel may keep attributes: the size never changes.
const ATTR_VALID_SECONDS: u64 = 86_400;
/// `st_blksize`, and the granularity of discards that the loop driver announces.
const BLOCK_BYTES: u32 = 4096;
const MODE_DIRECTORY: u32 = 0o040_700;
const MODE_FILE: u32 = 0o100_600;

/// Answers requests about a directory with one file.
pub(super) struct OneFile {
    server: Arc<dyn FileServer>,
    name: Vec<u8>,
    made_at_seconds: i64,
    owner: (u32, u32),
    /// Known once the mount is made, before its first request.
    connection: OnceLock<Connection>,
}

impl OneFile {
    pub(super) fn new(server: Arc<dyn FileServer>, name: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            server,
            name: name.as_bytes().to_owned(),
            made_at_seconds: now.map_or(0, |age| i64::try_from(age.as_secs()).unwrap_or(0)),
            owner: (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
            connection: OnceLock::new(),
        }
    }

    fn current_node(&self) -> u64 {
        FIRST_FILE_NODE + self.server.incarnation().0
    }

    fn attr(&self, node: u64) -> Attr {
        let is_root = node == ROOT_NODE;
        let size = if is_root { 0 } else { self.server.size_bytes() };
        Attr {
            inode: node,
            size,
            blocks: size.div_ceil(512),
            atime: self.made_at_seconds,
            mtime: self.made_at_seconds,
            ctime: self.made_at_seconds,
            mode: if is_root { MODE_DIRECTORY } else { MODE_FILE },
            nlink: if is_root { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            block_bytes: BLOCK_BYTES,
            ..Attr::default()
        }
    }

    fn look_up(&self, name: &[u8]) -> Result<EntryReply, Errno> {
        if name != self.name {
            return Err(Errno::NOENT);
        }
        let node = self.current_node();
        // The name may lead to another node any time.
        Ok(EntryReply {
            node,
            attr_valid_seconds: ATTR_VALID_SECONDS,
            attr: self.attr(node),
            ..EntryReply::default()
        })
    }

    fn list(&self, args: &ReadArgs, plus: bool) -> Vec<u8> {
        listing(&self.name, self.current_node(), args, plus)
    }

    fn stat_fs(&self) -> StatFsReply {
        StatFsReply {
            blocks: self.server.size_bytes() / u64::from(BLOCK_BYTES),
            files: 1,
            block_bytes: BLOCK_BYTES,
            fragment_bytes: BLOCK_BYTES,
            name_bytes_max: 255,
            ..StatFsReply::default()
        }
    }

    /// For answering later. The end of the session may overtake a request; then it is answered
    /// with an error, which no caller waits for any more.
    fn answer(&self, call: &Call<'_>, wanted: Wanted) -> Result<Answer, Errno> {
        let connection = self.connection.get().ok_or(Errno::IO)?;
        let reply = call.reply().defer(connection).ok_or(Errno::IO)?;
        Ok(Answer::new(reply, wanted))
    }

    /// Bytes of `offset..offset + bytes` that lie in the file.
    fn clip(&self, offset: u64, bytes: u64) -> u64 {
        bytes.min(self.server.size_bytes().saturating_sub(offset))
    }

    /// Requests for the content of a file.
    fn content(&self, call: &Call<'_>) -> Result<(), Errno> {
        let node = call.header().node;
        let file = Incarnation(node.checked_sub(FIRST_FILE_NODE).ok_or(Errno::ISDIR)?);
        let later = |wanted| self.answer(call, wanted);
        match *call.operation() {
            Operation::Read(args) => {
                let bytes = self.clip(args.offset, u64::from(args.size));
                // At most what the request says, which is a `u32`.
                self.server
                    .read(file, args.offset, bytes as usize, later(Wanted::Data)?);
            }
            Operation::Write { args, data } => {
                if self.clip(args.offset, u64::from(args.size)) < u64::from(args.size) {
                    return Err(Errno::NOSPC);
                }
                self.server
                    .write(file, args.offset, data, later(Wanted::Written(args.size))?);
            }
            Operation::Fsync(_) => self.server.sync(file, later(Wanted::Nothing)?),
            Operation::Fallocate(args) => {
                let how = clear_of(&args)?;
                let bytes = self.clip(args.offset, args.length);
                self.server
                    .clear(file, how, args.offset, bytes, later(Wanted::Nothing)?);
            }
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    /// Requests about names and attributes, which are answered at once.
    fn metadata(&self, call: &Call<'_>) {
        let reply = call.reply();
        match *call.operation() {
            Operation::Lookup { name } => match self.look_up(name) {
                Ok(entry) => reply.value(&entry),
                Err(errno) => reply.error(errno),
            },
            Operation::GetAttr => reply.value(&AttrReply {
                attr_valid_seconds: ATTR_VALID_SECONDS,
                attr: self.attr(call.header().node),
                ..AttrReply::default()
            }),
            Operation::ReadDir(args) => reply.bytes(&self.list(&args, false)),
            Operation::ReadDirPlus(args) => reply.bytes(&self.list(&args, true)),
            Operation::StatFs => reply.value(&self.stat_fs()),
            Operation::FsyncDir(_) | Operation::Release | Operation::Destroy => reply.done(),
            // One file of fixed size, and nothing else, ever.
            Operation::SetAttr(_)
            | Operation::Unlink { .. }
            | Operation::RmDir { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Symlink { .. }
            | Operation::MkNod { .. }
            | Operation::MkDir { .. } => reply.error(Errno::PERM),
            Operation::Init(_) => reply.error(Errno::INVAL),
            Operation::Ioctl => reply.error(Errno::NOTTY),
            _ => reply.error(Errno::NOSYS),
        };
    }
}

fn clear_of(args: &FallocateArgs) -> Result<Clear, Errno> {
    match args.mode & !syscall::FALLOC_KEEP_SIZE {
        syscall::FALLOC_PUNCH_HOLE => Ok(Clear::Discard),
        syscall::FALLOC_ZERO_RANGE => Ok(Clear::Zero),
        _ => Err(Errno::OPNOTSUPP),
    }
}

impl Filesystem for OneFile {
    /// A loop device uses the file, past the cache, and its queue is as deep as a device's.
    fn direct_io(&self) -> DirectIo {
        DirectIo::Parallel
    }

    fn connected(&self, connection: Connection) {
        let first = self.connection.set(connection).is_ok();
        debug_assert!(first, "a filesystem is served by one session");
    }

    fn handle(&self, call: &Call<'_>, _: &mut [u8]) {
        match call.operation() {
            Operation::Forget { .. } | Operation::BatchForget { .. } => {}
            Operation::Read(_)
            | Operation::Write { .. }
            | Operation::Fsync(_)
            | Operation::Fallocate(_) => {
                if let Err(errno) = self.content(call) {
                    call.reply().error(errno);
                }
            }
            _ => self.metadata(call),
        }
    }
}
