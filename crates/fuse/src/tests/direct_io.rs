//! What is written past the kernel's cache while others read through it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use mobifs_testing::direct_io::{self, AlignedBuffer};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use tempfile::TempDir;

use super::{can_mount, ordinary};
use crate::protocol::{Attr, AttrReply, EntryReply, ROOT_NODE, WriteReply};
use crate::reply::Reply;
use crate::request::{Operation, Request};
use crate::session::{Handler, Session, SessionError, SessionHandle};
use crate::transport::Transport;

const FILE_NAME: &[u8] = b"file";
const FILE_NODE: u64 = 2;
const PAGE_BYTES: usize = direct_io::ALIGNMENT;
/// What the kernel knows stays true for longer than the test lasts.
const VALID_SECONDS: u64 = 3_600;

/// A file of one page. A write of it waits until the test lets it happen.
#[derive(Default)]
struct HeldFile {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    content: Vec<u8>,
    has_arrived: bool,
    is_released: bool,
}

impl HeldFile {
    fn write(&self, data: &[u8]) {
        let mut state = self.state.lock();
        state.has_arrived = true;
        self.changed.notify_all();
        while !state.is_released {
            self.changed.wait(&mut state);
        }
        state.content.copy_from_slice(data);
    }

    fn wait_for_write(&self) {
        let mut state = self.state.lock();
        while !state.has_arrived {
            self.changed.wait(&mut state);
        }
    }

    fn release_write(&self) {
        self.state.lock().is_released = true;
        self.changed.notify_all();
    }
}

struct Server(Arc<HeldFile>);

fn attr(node: u64) -> Attr {
    let (mode, size) = match node {
        ROOT_NODE => (0o040_755, 0),
        _ => (0o100_644, PAGE_BYTES as u64),
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

impl Handler for Server {
    fn handle(&self, transport: &dyn Transport, request: &Request<'_>, _: &mut [u8]) {
        let reply = Reply::new(transport, request.header.unique);
        match request.operation {
            Operation::Forget { .. } | Operation::BatchForget { .. } => {}
            Operation::Lookup { name: FILE_NAME } => reply.value(&EntryReply {
                node: FILE_NODE,
                entry_valid_seconds: VALID_SECONDS,
                attr_valid_seconds: VALID_SECONDS,
                attr: attr(FILE_NODE),
                ..EntryReply::default()
            }),
            Operation::GetAttr => reply.value(&AttrReply {
                attr_valid_seconds: VALID_SECONDS,
                attr: attr(request.header.node),
                ..AttrReply::default()
            }),
            Operation::Read(_) => {
                let content = self.0.state.lock().content.clone();
                reply.bytes(&content);
            }
            Operation::Write { args, data } => {
                self.0.write(data);
                reply.value(&WriteReply {
                    size: args.size,
                    padding: 0,
                });
            }
            _ => reply.error(Errno::NOSYS),
        }
    }
}

/// The mount of the file; ended on drop.
struct Served {
    file: Arc<HeldFile>,
    handle: SessionHandle,
    directory: TempDir,
    thread: Option<JoinHandle<Result<(), SessionError>>>,
}

impl Served {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = Arc::new(HeldFile::default());
        file.state.lock().content = vec![1; PAGE_BYTES];
        let handler = Box::new(Server(Arc::clone(&file)));
        let session = Session::mount_handler(handler, directory.path(), &ordinary()).unwrap();
        let handle = session.handle();
        let thread = Some(std::thread::spawn(move || session.run()));
        Self {
            file,
            handle,
            directory,
            thread,
        }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes the page asynchronously; `meanwhile` happens while the write is under way.
    fn write_while(&self, file: &File, meanwhile: impl FnOnce()) {
        let direct = direct_io::reopen(file).unwrap();
        let writer = std::thread::spawn(move || {
            let data = AlignedBuffer::holding(&[2; PAGE_BYTES]);
            direct_io::write_together(&direct, 0, &data)
        });
        self.file.wait_for_write();
        meanwhile();
        self.file.release_write();
        assert_eq!(writer.join().unwrap(), Ok(PAGE_BYTES as u64));
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.file.release_write();
        if let Some(thread) = self.thread.take() {
            let _ = self.handle.abort();
            let _ = thread.join();
        }
    }
}

fn first_byte(file: &File) -> u8 {
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    byte[0]
}

#[test]
fn what_is_read_during_an_asynchronous_direct_write_does_not_stay() {
    if !can_mount() {
        return;
    }
    let served = Served::new();
    let file = File::options()
        .read(true)
        .write(true)
        .open(served.path().join("file"))
        .unwrap();
    served.write_while(&file, || {
        // The write has not happened yet, so the old content comes into the cache.
        assert_eq!(first_byte(&file), 1);
    });
    assert_eq!(first_byte(&file), 2, "the cache has the old content");
}

#[test]
fn what_is_mapped_during_an_asynchronous_direct_write_does_not_stay() {
    if !can_mount() {
        return;
    }
    let served = Served::new();
    let file = File::options()
        .read(true)
        .write(true)
        .open(served.path().join("file"))
        .unwrap();
    let (none, bytes) = (std::ptr::null_mut(), PAGE_BYTES);
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let mapping =
        unsafe { mmap(none, bytes, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.unwrap();
    // SAFETY: the mapping is there until the end of the test, and its file has a page. It
    // changes, which a volatile read allows.
    let mapped = || unsafe { mapping.cast::<u8>().read_volatile() };
    served.write_while(&file, || assert_eq!(mapped(), 1));
    assert_eq!(mapped(), 2, "the mapping has the old content");
    // SAFETY: nothing uses the mapping any more.
    unsafe { munmap(mapping, bytes) }.unwrap();
}
