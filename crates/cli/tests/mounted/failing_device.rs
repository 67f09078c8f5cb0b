//! A block device whose writes fail where a test says so: a file in memory, served by FUSE, under a loop device.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use mobifs_fuse::{Answer, Clear, FileServer, Incarnation, MountOptions, Session, SyncFsMode};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::fixture::Fixture;

const BLOCK_BYTES: u64 = 4096;
/// How many writes may be under way.
const ENDS: usize = 16;
const FILE_NAME: &str = "device";

/// Which writes fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failing {
    None,
    /// One in so many of those to blocks that were free when they were last discarded (`fstrim`).
    OfFreeBlocks {
        one_in: u64,
    },
    /// All, once so many have succeeded.
    AllAfter {
        writes: u64,
    },
}

struct Content {
    bytes: Vec<u8>,
    /// Blocks that were discarded and not written since.
    is_free: Vec<bool>,
    failing: Failing,
    random: u64,
    /// Where the last writes have ended.
    ends: VecDeque<u64>,
    /// Since the failures began: what the device has written, in its order, and how many writes it refused.
    written: Vec<(u64, Vec<u8>)>,
    failed: u64,
}

impl Content {
    fn blocks(offset: u64, bytes: u64) -> std::ops::Range<usize> {
        (offset / BLOCK_BYTES) as usize..(offset + bytes).div_ceil(BLOCK_BYTES) as usize
    }

    /// A write that goes on where one has ended does not fail: it may be the rest of one, which the kernel has divided,
    /// and a loop device takes one that is written in part for one that is written.
    fn fails(&mut self, offset: u64, bytes: u64) -> bool {
        if self.ends.contains(&offset) {
            return false;
        }
        match &mut self.failing {
            Failing::None => false,
            Failing::OfFreeBlocks { one_in } => {
                let one_in = *one_in;
                let is_new = self.is_free[Self::blocks(offset, bytes)].contains(&true);
                // Xorshift.
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                is_new && self.random.is_multiple_of(one_in)
            }
            Failing::AllAfter { writes: 0 } => true,
            Failing::AllAfter { writes } => {
                *writes -= 1;
                false
            }
        }
    }

    fn put(&mut self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if self.fails(offset, data.len() as u64) {
            self.failed += 1;
            return Err(Errno::IO);
        }
        self.bytes[offset as usize..][..data.len()].copy_from_slice(data);
        self.is_free[Self::blocks(offset, data.len() as u64)].fill(false);
        self.ends.push_back(offset + data.len() as u64);
        if self.ends.len() > ENDS {
            self.ends.pop_front();
        }
        if self.failing != Failing::None {
            self.written.push((offset, data.to_vec()));
        }
        Ok(())
    }
}

/// The device. What it has written survives; it has no cache.
pub(crate) struct FailingDevice(Mutex<Content>);

impl FailingDevice {
    /// From now on these writes fail.
    pub(crate) fn fail(&self, failing: Failing, seed: u64) {
        let mut content = self.0.lock();
        content.failing = failing;
        content.random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        content.written.clear();
        content.failed = 0;
    }

    /// What the device has.
    pub(crate) fn image(&self) -> Vec<u8> {
        self.0.lock().bytes.clone()
    }

    /// What it has written since the failures began.
    pub(crate) fn written(&self) -> Vec<(u64, Vec<u8>)> {
        self.0.lock().written.clone()
    }

    /// How many writes it has refused since then.
    pub(crate) fn failed(&self) -> u64 {
        self.0.lock().failed
    }
}

impl FileServer for FailingDevice {
    fn size_bytes(&self) -> u64 {
        self.0.lock().bytes.len() as u64
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(0)
    }

    fn read(&self, _: Incarnation, offset: u64, bytes: usize, answer: Answer) {
        let data = self.0.lock().bytes[offset as usize..][..bytes].to_vec();
        answer.data(&data);
    }

    fn write(&self, _: Incarnation, offset: u64, data: &[u8], answer: Answer) {
        let put = self.0.lock().put(offset, data);
        match put {
            Ok(()) => answer.done(),
            Err(errno) => answer.fail(errno),
        }
    }

    fn sync(&self, _: Incarnation, answer: Answer) {
        answer.done();
    }

    fn clear(&self, _: Incarnation, how: Clear, offset: u64, bytes: u64, answer: Answer) {
        let put = self.0.lock().put(offset, &vec![0; bytes as usize]);
        if how == Clear::Discard {
            let whole = offset.div_ceil(BLOCK_BYTES)..(offset + bytes) / BLOCK_BYTES;
            self.0.lock().is_free[whole.start as usize..whole.end as usize].fill(true);
        }
        match put {
            Ok(()) => answer.done(),
            Err(errno) => answer.fail(errno),
        }
    }
}

/// Puts the store on a new ext4 on such a device; none, with a message, if that cannot be.
pub(crate) fn put_store_on_failing_device(
    fixture: &mut Fixture,
    bytes: u64,
) -> Option<Arc<FailingDevice>> {
    let image = fixture.path("image");
    fs::File::create(&image).unwrap().set_len(bytes).unwrap();
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-m", "0", "-E", "lazy_itable_init=0"])
        .arg(&image);
    if !mobifs_skip::can(mobifs_skip::why_fails(&mut make)) {
        return None;
    }
    let device = Arc::new(FailingDevice(Mutex::new(Content {
        bytes: fs::read(&image).unwrap(),
        is_free: vec![false; (bytes / BLOCK_BYTES) as usize],
        failing: Failing::None,
        random: 1,
        ends: VecDeque::new(),
        written: Vec::new(),
        failed: 0,
    })));
    let front = fixture.directory("front");
    let options = MountOptions {
        source_name: FILE_NAME.to_owned(),
        subtype: "failing".to_owned(),
        sync_fs: SyncFsMode::Off,
        ..MountOptions::default()
    };
    let served = Arc::clone(&device) as Arc<dyn FileServer>;
    let session = Session::mount_file(served, FILE_NAME, &front, &options).unwrap();
    fixture.unmount_at_end(&front);
    thread::spawn(move || session.run());
    let disk = fixture.directory("disk");
    if !mobifs_skip::can(why_no_loop(&front.join(FILE_NAME), &disk)) {
        return None;
    }
    fixture.unmount_at_end(&disk);
    fixture.store = disk.join("store");
    fs::create_dir(&fixture.store).unwrap();
    Some(device)
}

fn why_no_loop(image: &Path, at: &Path) -> Option<String> {
    mobifs_skip::why_fails(
        Command::new("mount")
            .args(["-o", "loop"])
            .arg(image)
            .arg(at),
    )
}
