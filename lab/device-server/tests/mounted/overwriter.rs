//! A file that is overwritten, extended, cut short and punched at random, with an fsync
//! now and then, as fsx does; and what it may contain after a power cut.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use fastrand::Rng;
use rustix::fs::{FallocateFlags, fallocate};

const FILE_BYTES_MAX: usize = 192 << 10;
const WRITE_BYTES_MAX: usize = 20_000;

/// What is known of the file: for each byte what it may be after a cut. The last of them
/// is what it is now.
pub(crate) struct Possible {
    bytes: Vec<Vec<u8>>,
    size_now: usize,
    size_min: usize,
    size_max: usize,
}

impl Possible {
    /// A file whose content is known and durable.
    fn known(content: &[u8]) -> Self {
        let mut bytes: Vec<_> = content.iter().map(|&byte| vec![byte]).collect();
        bytes.resize(FILE_BYTES_MAX, vec![0]);
        Self {
            bytes,
            size_now: content.len(),
            size_min: content.len(),
            size_max: content.len(),
        }
    }

    fn set_size(&mut self, size: usize) {
        // What lies between old and new size reads as zeros, now or when it is extended.
        for possible in &mut self.bytes[size.min(self.size_now)..] {
            if possible.last() != Some(&0) {
                possible.push(0);
            }
        }
        self.size_now = size;
        self.size_min = self.size_min.min(size);
        self.size_max = self.size_max.max(size);
    }

    fn put(&mut self, offset: usize, content: &[u8]) {
        if offset + content.len() > self.size_now {
            let size = offset + content.len();
            self.size_now = size;
            self.size_max = self.size_max.max(size);
        }
        for (possible, &byte) in self.bytes[offset..].iter_mut().zip(content) {
            if possible.last() != Some(&byte) {
                possible.push(byte);
            }
        }
    }

    fn fsynced(&mut self) {
        (self.size_min, self.size_max) = (self.size_now, self.size_now);
        for possible in &mut self.bytes {
            let newest = possible.len() - 1;
            possible.swap(0, newest);
            possible.truncate(1);
        }
    }

    /// Checks what a cut left, and takes it as known.
    pub(crate) fn check(self, path: &Path) -> Self {
        let Ok(found) = std::fs::read(path) else {
            assert_eq!(self.size_min, 0, "the file is gone");
            return Self::known(&[]);
        };
        assert!(
            (self.size_min..=self.size_max).contains(&found.len()),
            "{} bytes, possible are {} to {}",
            found.len(),
            self.size_min,
            self.size_max
        );
        for (offset, (byte, possible)) in found.iter().zip(&self.bytes).enumerate() {
            assert!(
                possible.contains(byte),
                "byte {offset} of {} is {byte}, possible are {possible:?}",
                found.len()
            );
        }
        Self::known(&found)
    }
}

/// A thread that works on the file until the disk fails or it is stopped.
pub(crate) struct Overwriter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Possible>,
}

impl Overwriter {
    pub(crate) fn start(root: &Path, seed: u64, known: Option<Possible>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, path) = (Arc::clone(&stop), path(root));
        let thread = std::thread::spawn(move || {
            let mut possible = known.unwrap_or_else(|| Possible::known(&[]));
            // The error that ends it is the power cut's.
            let _cut = work(&path, &mut possible, &mut Rng::with_seed(seed), &stopping);
            possible
        });
        Self { stop, thread }
    }

    /// What the file may contain.
    pub(crate) fn join(self) -> Possible {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

pub(crate) fn path(root: &Path) -> PathBuf {
    root.join("overwritten")
}

fn work(
    path: &Path,
    possible: &mut Possible,
    random: &mut Rng,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path)?;
    while !stop.load(Ordering::SeqCst) {
        match random.u8(0..16) {
            0 => shorten_or_extend(&file, possible, random)?,
            1 => punch(&file, possible, random)?,
            2..=4 => {
                file.sync_all()?;
                possible.fsynced();
            }
            _ => {
                let bytes = random.usize(1..=WRITE_BYTES_MAX);
                let offset = random.usize(0..=FILE_BYTES_MAX - bytes);
                let content: Vec<u8> = (0..bytes).map(|_| random.u8(1..)).collect();
                // Recorded before the write: a failed write may have had effect.
                possible.put(offset, &content);
                file.write_all_at(&content, offset as u64)?;
            }
        }
    }
    Ok(())
}

fn shorten_or_extend(
    file: &File,
    possible: &mut Possible,
    random: &mut Rng,
) -> std::io::Result<()> {
    let size = random.usize(0..=FILE_BYTES_MAX);
    possible.set_size(size);
    file.set_len(size as u64)
}

fn punch(file: &File, possible: &mut Possible, random: &mut Rng) -> std::io::Result<()> {
    let offset = random.usize(0..FILE_BYTES_MAX);
    let bytes = random.usize(1..=FILE_BYTES_MAX - offset);
    let inside = bytes.min(possible.size_now.saturating_sub(offset));
    if inside > 0 {
        possible.put(offset, &vec![0; inside]);
    }
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, how, offset as u64, bytes as u64)?)
}
