//! What is written past the kernel's cache while others read through it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use mobifs_testkit::direct_io::{self, AlignedBuffer};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Gate, Served, Shared, attr, can_mount, ordinary};
use crate::protocol::{AttrReply, EntryReply, WriteReply};
use crate::request::Operation;
use crate::{Call, Filesystem};

const FILE_NAME: &[u8] = b"file";
const FILE_NODE: u64 = 2;
const PAGE_BYTES: usize = direct_io::ALIGNMENT;
/// What the kernel knows stays true for longer than the test lasts.
const VALID_SECONDS: u64 = 3_600;

/// A file of one page. A write of it waits until the test lets it happen.
struct HeldFile {
    content: Mutex<Vec<u8>>,
    writes: Gate,
}

impl Shared for HeldFile {
    fn gate(&self) -> &Gate {
        &self.writes
    }
}

struct Server(Arc<HeldFile>);

impl Filesystem for Server {
    fn handle(&self, call: &Call<'_>, _: &mut [u8]) {
        let reply = call.reply();
        match *call.operation() {
            Operation::Forget { .. } | Operation::BatchForget { .. } => return,
            Operation::Lookup { name: FILE_NAME } => reply.value(&EntryReply {
                node: FILE_NODE,
                entry_valid_seconds: VALID_SECONDS,
                attr_valid_seconds: VALID_SECONDS,
                attr: attr(FILE_NODE, PAGE_BYTES),
                ..EntryReply::default()
            }),
            Operation::GetAttr => reply.value(&AttrReply {
                attr_valid_seconds: VALID_SECONDS,
                attr: attr(call.header().node, PAGE_BYTES),
                ..AttrReply::default()
            }),
            Operation::Read(_) => {
                let content = self.0.content.lock().clone();
                reply.bytes(&content)
            }
            Operation::Write { args, data } => {
                self.0.writes.pass();
                self.0.content.lock().copy_from_slice(data);
                reply.value(&WriteReply {
                    size: args.size,
                    padding: 0,
                })
            }
            _ => reply.error(Errno::NOSYS),
        };
    }
}

fn serve() -> Served<HeldFile> {
    let file = Arc::new(HeldFile {
        content: Mutex::new(vec![1; PAGE_BYTES]),
        writes: Gate::default(),
    });
    let filesystem = Server(Arc::clone(&file));
    Served::serving(file, filesystem, &ordinary())
}

/// Writes the page asynchronously; `meanwhile` happens while the write is under way.
fn write_while(served: &Served<HeldFile>, file: &File, meanwhile: impl FnOnce()) {
    let direct = direct_io::reopen(file).unwrap();
    let writer = std::thread::spawn(move || {
        let data = AlignedBuffer::holding(&[2; PAGE_BYTES]);
        direct_io::write_together(&direct, 0, &data)
    });
    served.seen.writes.wait_for(1);
    meanwhile();
    served.seen.writes.open();
    assert_eq!(writer.join().unwrap(), Ok(PAGE_BYTES as u64));
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
    let served = serve();
    let file = File::options()
        .read(true)
        .write(true)
        .open(served.path().join("file"))
        .unwrap();
    write_while(&served, &file, || {
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
    let served = serve();
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
    write_while(&served, &file, || assert_eq!(mapped(), 1));
    assert_eq!(mapped(), 2, "the mapping has the old content");
    // SAFETY: nothing uses the mapping any more.
    unsafe { munmap(mapping, bytes) }.unwrap();
}
