//! From requests to the [`FileServer`].

use std::sync::{Arc, OnceLock, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::answer::{Answer, Wanted};
use super::listing::listing;
use super::{Clear, FileServer, Incarnation};
use crate::negotiation::DirectIo;
use crate::protocol::{
    Attr, AttrReply, EntryReply, FallocateArgs, ROOT_NODE, ReadArgs, StatFsReply, syscall,
};
use crate::reply::Reply;
use crate::request::{Operation, Request};
use crate::session::{Handler, Shared};
use crate::transport::Transport;

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
    session: OnceLock<Weak<Shared>>,
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
            session: OnceLock::new(),
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

    fn look_up(&self, name: &[u8], reply: Reply<'_>) {
        if name != self.name {
            return reply.error(Errno::NOENT);
        }
        let node = self.current_node();
        // The name may lead to another node any time.
        reply.value(&EntryReply {
            node,
            attr_valid_seconds: ATTR_VALID_SECONDS,
            attr: self.attr(node),
            ..EntryReply::default()
        });
    }

    fn list(&self, args: &ReadArgs, plus: bool, reply: Reply<'_>) {
        reply.bytes(&listing(&self.name, self.current_node(), args, plus));
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

    /// The end of the session may overtake a request; then nobody waits any more.
    fn answer(&self, unique: u64, wanted: Wanted) -> Option<Answer> {
        let shared = self.session.get()?.upgrade()?;
        Some(Answer::new(shared, unique, wanted))
    }

    /// Bytes of `offset..offset + bytes` that lie in the file.
    fn clip(&self, offset: u64, bytes: u64) -> u64 {
        bytes.min(self.server.size_bytes().saturating_sub(offset))
    }

    /// Requests for the content of a file.
    fn content(&self, request: &Request<'_>) -> Result<(), Errno> {
        let node = request.header.node;
        let file = Incarnation(node.checked_sub(FIRST_FILE_NODE).ok_or(Errno::ISDIR)?);
        let later = |wanted| self.answer(request.header.unique, wanted).ok_or(Errno::IO);
        match request.operation {
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
}

fn clear_of(args: &FallocateArgs) -> Result<Clear, Errno> {
    match args.mode & !syscall::FALLOC_KEEP_SIZE {
        syscall::FALLOC_PUNCH_HOLE => Ok(Clear::Discard),
        syscall::FALLOC_ZERO_RANGE => Ok(Clear::Zero),
        _ => Err(Errno::OPNOTSUPP),
    }
}

impl Handler for OneFile {
    /// A loop device uses the file, past the cache, and its queue is as deep as a device's.
    fn direct_io(&self) -> DirectIo {
        DirectIo::SideBySide
    }

    fn connected(&self, session: Weak<Shared>) {
        // Called once for each handler.
        let _first = self.session.set(session);
    }

    fn handle(&self, transport: &dyn Transport, request: &Request<'_>, _: &mut [u8]) {
        let reply = Reply::new(transport, request.header.unique);
        match request.operation {
            Operation::Forget { .. } | Operation::BatchForget { .. } => {}
            Operation::Lookup { name } => self.look_up(name, reply),
            Operation::GetAttr => reply.value(&AttrReply {
                attr_valid_seconds: ATTR_VALID_SECONDS,
                attr: self.attr(request.header.node),
                ..AttrReply::default()
            }),
            Operation::ReadDir(args) => self.list(&args, false, reply),
            Operation::ReadDirPlus(args) => self.list(&args, true, reply),
            Operation::StatFs => reply.value(&self.stat_fs()),
            Operation::Read(_)
            | Operation::Write { .. }
            | Operation::Fsync(_)
            | Operation::Fallocate(_) => {
                if let Err(errno) = self.content(request) {
                    reply.error(errno);
                }
            }
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
        }
    }
}
