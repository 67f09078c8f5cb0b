//! Tests on real mounts, served by a small handler instead of a volume: the mount, the
//! transport, the negotiation and the workers are what is tested.

mod direct_io;
mod life;
mod sync_fs;
mod unprivileged;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) use mobifs_skip::can_mount;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::mount::UnmountError;
use crate::options::{MountOptions, SyncFsMode};
use crate::protocol::{Attr, AttrReply, EntryReply, StatFsReply};
use crate::reply::Reply;
use crate::request::{Operation, Request};
use crate::session::{Handler, Session, SessionError, SessionHandle};
use crate::transport::Transport;

/// Files are named `hello`, `hello1`, … `hello99`; their nodes count from here.
const FILE_NODE: u64 = 2;
const FILE_NAME: &[u8] = b"hello";
const FILE_CONTENT: &[u8] = b"hello, world\n";
/// Whoever looks this up makes the worker panic.
const POISON_NAME: &[u8] = b"poison";

/// What the handler saw, and what holds its answers back.
#[derive(Default)]
struct Witness {
    sync_fs: AtomicUsize,
    destroyed: AtomicUsize,
    fsyncs: Mutex<Fsyncs>,
    changed: Condvar,
}

#[derive(Default)]
struct Fsyncs {
    arrived: usize,
    released: bool,
}

impl Witness {
    /// An fsync that takes as long as the test likes.
    fn fsync(&self) {
        let mut fsyncs = self.fsyncs.lock();
        fsyncs.arrived += 1;
        self.changed.notify_all();
        while !fsyncs.released {
            self.changed.wait(&mut fsyncs);
        }
    }

    fn wait_for_fsyncs(&self, count: usize) {
        let mut fsyncs = self.fsyncs.lock();
        while fsyncs.arrived < count {
            self.changed.wait(&mut fsyncs);
        }
    }

    fn release_fsyncs(&self) {
        self.fsyncs.lock().released = true;
        self.changed.notify_all();
    }
}

/// The node of a file by its name.
fn file_node(name: &[u8]) -> Option<u64> {
    let number = std::str::from_utf8(name.strip_prefix(FILE_NAME)?).ok()?;
    match number {
        "" => Some(FILE_NODE),
        _ => number
            .parse::<u64>()
            .ok()
            .filter(|&n| n < 100)
            .map(|n| FILE_NODE + n),
    }
}

struct OneFile(Arc<Witness>);

fn attr(node: u64) -> Attr {
    let (mode, size) = match node {
        1 => (0o040_755, 0),
        _ => (0o100_644, FILE_CONTENT.len() as u64),
    };
    Attr {
        inode: node,
        mode,
        size,
        nlink: 1,
        block_bytes: 4096,
        ..Attr::default()
    }
}

impl Handler for OneFile {
    fn handle(&self, transport: &dyn Transport, request: &Request<'_>, _: &mut [u8]) {
        let reply = Reply::new(transport, request.header.unique);
        match request.operation {
            Operation::Forget { .. } | Operation::BatchForget { .. } => {}
            Operation::Lookup { name: POISON_NAME } => panic!("as the test wanted"),
            Operation::Lookup { name } => match file_node(name) {
                Some(node) => {
                    let attr = attr(node);
                    reply.value(&EntryReply {
                        node,
                        attr,
                        ..EntryReply::default()
                    });
                }
                None => reply.error(Errno::NOENT),
            },
            Operation::GetAttr => reply.value(&AttrReply {
                attr: attr(request.header.node),
                ..AttrReply::default()
            }),
            Operation::Read(args) => {
                let start = (args.offset as usize).min(FILE_CONTENT.len());
                reply.bytes(&FILE_CONTENT[start..]);
            }
            Operation::StatFs => reply.value(&StatFsReply {
                blocks: 1000,
                block_bytes: 4096,
                fragment_bytes: 4096,
                name_bytes_max: 255,
                ..StatFsReply::default()
            }),
            Operation::Fsync(_) => {
                self.0.fsync();
                reply.done();
            }
            Operation::SyncFs => {
                self.0.sync_fs.fetch_add(1, Ordering::SeqCst);
                reply.done();
            }
            Operation::Destroy => {
                self.0.destroyed.fetch_add(1, Ordering::SeqCst);
                reply.done();
            }
            _ => reply.error(Errno::NOSYS),
        }
    }
}

/// A mount that is served until the test ends it; a test that fails ends it, too.
struct Served {
    witness: Arc<Witness>,
    handle: SessionHandle,
    directory: TempDir,
    sync_reaches: bool,
    thread: Option<JoinHandle<Result<(), SessionError>>>,
}

impl Served {
    /// Unmounts. Whoever looks at all mounts of the machine (`df`, another daemon) may
    /// be inside for a moment, which makes the mount busy.
    fn unmount(&self) {
        for _ in 0..200 {
            match self.handle.unmount(false) {
                Err(UnmountError::Busy(_)) => std::thread::sleep(Duration::from_millis(10)),
                other => return other.unwrap(),
            }
        }
        panic!("the mount stays busy");
    }

    fn new(options: &MountOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let witness = Arc::new(Witness::default());
        let handler = Box::new(OneFile(Arc::clone(&witness)));
        let session = Session::mount_handler(handler, directory.path(), options).unwrap();
        let (handle, sync_reaches) = (session.handle(), session.sync_reaches());
        let thread = Some(std::thread::spawn(move || session.run()));
        Self {
            witness,
            handle,
            directory,
            sync_reaches,
            thread,
        }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// What serving ended with.
    fn join(&mut self) -> Result<(), SessionError> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.witness.release_fsyncs();
        if let Some(thread) = self.thread.take() {
            let _ = self.handle.abort();
            let _ = thread.join();
        }
    }
}

fn ordinary() -> MountOptions {
    MountOptions {
        sync_fs: SyncFsMode::Off,
        ..MountOptions::default()
    }
}
