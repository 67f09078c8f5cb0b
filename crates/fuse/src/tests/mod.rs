//! Tests on real mounts of a small filesystem: the mount, the transport, the negotiation and
//! the workers are what is tested.

mod direct_io;
mod life;
mod sync_fs;
mod unprivileged;
mod waiting;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) use mobifs_skip::can_mount;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::error::SessionError;
use crate::mount::UnmountError;
use crate::options::{MountOptions, SyncFsMode};
use crate::protocol::{Attr, AttrReply, EntryReply, ROOT_NODE, StatFsReply};
use crate::request::Operation;
use crate::session::{Session, SessionHandle, SessionHooks};
use crate::{Call, Filesystem};

/// Files are named `hello`, `hello1`, … `hello99`; their nodes count from here.
const FILE_NODE: u64 = 2;
const FILE_NAME: &[u8] = b"hello";
const FILE_CONTENT: &[u8] = b"hello, world\n";
/// A lookup of this makes the worker panic.
const POISON_NAME: &[u8] = b"poison";

/// Holds requests back until the test opens it.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    arrived: usize,
    is_open: bool,
}

impl Gate {
    /// A request comes, and goes on when the gate is open.
    fn pass(&self) {
        let mut state = self.state.lock();
        state.arrived += 1;
        self.changed.notify_all();
        while !state.is_open {
            self.changed.wait(&mut state);
        }
    }

    fn wait_for(&self, requests: usize) {
        let mut state = self.state.lock();
        while state.arrived < requests {
            self.changed.wait(&mut state);
        }
    }

    fn open(&self) {
        self.state.lock().is_open = true;
        self.changed.notify_all();
    }

    /// None has come, and none passes until it is opened again.
    fn close(&self) {
        *self.state.lock() = GateState::default();
    }
}

/// What a test and its filesystem share.
trait Shared: Send + Sync + 'static {
    /// What holds requests back, to be opened when the test ends.
    fn gate(&self) -> &Gate;
}

/// What the filesystem saw, and what holds its answers back.
#[derive(Default)]
struct Seen {
    sync_fs: AtomicUsize,
    destroyed: AtomicUsize,
    fsyncs: Gate,
}

impl Shared for Seen {
    fn gate(&self) -> &Gate {
        &self.fsyncs
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

struct OneFile(Arc<Seen>);

/// Attributes of the root, or of a file of this size.
fn attr(node: u64, file_bytes: usize) -> Attr {
    let (mode, size) = match node {
        ROOT_NODE => (0o040_755, 0),
        _ => (0o100_644, file_bytes as u64),
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

impl Filesystem for OneFile {
    fn handle(&self, call: &Call<'_>, _: &mut [u8]) {
        let reply = call.reply();
        match *call.operation() {
            Operation::Forget { .. } | Operation::BatchForget { .. } => return,
            Operation::Lookup { name: POISON_NAME } => panic!("as the test wanted"),
            Operation::Lookup { name } => match file_node(name) {
                Some(node) => {
                    let attr = attr(node, FILE_CONTENT.len());
                    reply.value(&EntryReply {
                        node,
                        attr,
                        ..EntryReply::default()
                    })
                }
                None => reply.error(Errno::NOENT),
            },
            Operation::GetAttr => reply.value(&AttrReply {
                attr: attr(call.header().node, FILE_CONTENT.len()),
                ..AttrReply::default()
            }),
            Operation::Read(args) => {
                let start = (args.offset as usize).min(FILE_CONTENT.len());
                reply.bytes(&FILE_CONTENT[start..])
            }
            Operation::StatFs => reply.value(&StatFsReply {
                blocks: 1000,
                block_bytes: 4096,
                fragment_bytes: 4096,
                name_bytes_max: 255,
                ..StatFsReply::default()
            }),
            Operation::Fsync(_) => {
                self.0.fsyncs.pass();
                reply.done()
            }
            Operation::SyncFs => {
                self.0.sync_fs.fetch_add(1, Ordering::SeqCst);
                reply.done()
            }
            Operation::Destroy => {
                self.0.destroyed.fetch_add(1, Ordering::SeqCst);
                reply.done()
            }
            _ => reply.error(Errno::NOSYS),
        };
    }
}

/// A mount that is served until the test ends it; a test that fails ends it, too.
struct Served<S: Shared = Seen> {
    seen: Arc<S>,
    handle: SessionHandle,
    directory: TempDir,
    sync_reaches: bool,
    thread: Option<JoinHandle<Result<(), SessionError>>>,
}

impl Served {
    fn new(options: &MountOptions) -> Self {
        let seen = Arc::new(Seen::default());
        let filesystem = OneFile(Arc::clone(&seen));
        Self::serving(seen, filesystem, options)
    }
}

impl<S: Shared> Served<S> {
    /// Unmounts. A program that looks at all mounts of the machine (`df`, another daemon) may
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

    fn serving(seen: Arc<S>, filesystem: impl Filesystem, options: &MountOptions) -> Self {
        Self::with_hooks(seen, filesystem, options, SessionHooks::default())
    }

    fn with_hooks(
        seen: Arc<S>,
        filesystem: impl Filesystem,
        options: &MountOptions,
        hooks: SessionHooks,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let session = Session::mount(filesystem, directory.path(), options, hooks).unwrap();
        let (handle, sync_reaches) = (session.handle(), session.sync_reaches());
        let thread = Some(std::thread::spawn(move || session.run()));
        Self {
            seen,
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

impl<S: Shared> Drop for Served<S> {
    fn drop(&mut self) {
        self.seen.gate().open();
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
