//! What ext4 does beyond POSIX: it exchanges blocks of files, and says how it keeps content.
#![allow(unsafe_code)]

use std::fs;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{fstat, major, minor};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

/// `struct move_extent` (`fs/ext4/ext4.h`).
#[repr(C)]
struct MoveExtent {
    reserved: u32,
    donor: u32,
    from_block: u64,
    donor_block: u64,
    blocks: u64,
    moved_blocks: u64,
}

const MOVE_EXT: rustix::ioctl::Opcode = opcode::read_write::<MoveExtent>(b'f', 15);

/// Blocks did not move, or not all of them.
#[derive(Clone, Copy, Debug)]
pub struct PartlyMoved {
    /// Those that have.
    pub moved_blocks: u64,
    /// Why the next did not.
    pub errno: Errno,
}

/// Exchanges blocks of an ext4 file with those of a donor, whose content is then that of the file
/// (`EXT4_IOC_MOVE_EXT`). Numbers are in blocks. Says how many have moved.
///
/// The donor has the blocks of before, as ones that were never written: the content is in them, and nothing reads it
/// there. When they are exchanged again, what memory has of the file's content is written to them.
///
/// The kernel holds both files meanwhile, and copies through the page cache: a write of another program comes
/// before or after, and mappings stay valid. With data=ordered it writes the content to its new place before it
/// commits that, and the blocks before are the donor's until then: a power cut finds the old places or the new
/// ones. Times stay.
///
/// # Errors
/// Of the ioctl, with how many had moved before: they stay moved.
pub fn move_extents(
    file: BorrowedFd<'_>,
    donor: BorrowedFd<'_>,
    from_block: u64,
    donor_block: u64,
    blocks: u64,
) -> Result<u64, PartlyMoved> {
    let mut request = MoveExtent {
        reserved: 0,
        donor: donor.as_raw_fd().cast_unsigned(),
        from_block,
        donor_block,
        blocks,
        moved_blocks: 0,
    };
    // SAFETY: the request's number is computed from the structure that the kernel reads and
    // writes, and any bytes are such a structure.
    let moved = unsafe { ioctl(file, Updater::<{ MOVE_EXT }, MoveExtent>::new(&mut request)) };
    let moved_blocks = request.moved_blocks.min(blocks);
    match moved {
        Ok(()) => Ok(moved_blocks),
        Err(errno) => Err(PartlyMoved {
            moved_blocks,
            errno,
        }),
    }
}

/// Whether the ext4 that this file is on writes content before it commits the metadata that refers to it
/// (data=ordered, also where that is the default), and chooses places when it writes (delalloc). False where the
/// kernel does not say so.
///
/// The table of mounts does not tell: it leaves out what the superblock has as a default.
#[must_use]
pub fn is_ext4_ordered(file: BorrowedFd<'_>) -> bool {
    let Ok(stat) = fstat(file) else { return false };
    let device = format!(
        "/sys/dev/block/{}:{}",
        major(stat.st_dev),
        minor(stat.st_dev)
    );
    let Ok(device) = fs::read_link(device) else {
        return false;
    };
    let Some(name) = device.file_name() else {
        return false;
    };
    let options = Path::new("/proc/fs/ext4").join(name).join("options");
    fs::read_to_string(options).is_ok_and(|options| is_ordered(&options))
}

fn is_ordered(options: &str) -> bool {
    let has = |wanted: &str| options.lines().any(|option| option == wanted);
    let is_read_from_memory = has("dax") || has("dax=always");
    has("data=ordered") && has("delalloc") && has("rw") && !is_read_from_memory
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::Duration;

    use rustix::fs::{FallocateFlags, fallocate, ftruncate};

    use super::*;

    const PIECE: usize = 16 << 10;
    const PIECES: usize = 8;

    /// An ext4 of its own, mounted until this is dropped.
    struct Disk {
        at: PathBuf,
        _directory: tempfile::TempDir,
    }

    impl Disk {
        /// None, with a message, if that cannot be.
        fn new() -> Option<Self> {
            let directory = tempfile::tempdir().unwrap();
            let (image, at) = (directory.path().join("image"), directory.path().join("at"));
            File::create(&image).unwrap().set_len(64 << 20).unwrap();
            fs::create_dir(&at).unwrap();
            let made = mobifs_skip::why_fails(Command::new("mkfs.ext4").arg("-q").arg(&image));
            let mut mount = Command::new("mount");
            mount.args(["-o", "loop"]).arg(&image).arg(&at);
            let why_not = made.or_else(|| mobifs_skip::why_fails(&mut mount));
            mobifs_skip::can(why_not).then_some(Self {
                at,
                _directory: directory,
            })
        }

        fn file(&self, name: &str) -> File {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true);
            options.open(self.at.join(name)).unwrap()
        }
    }

    impl Drop for Disk {
        fn drop(&mut self) {
            let unmounted = Command::new("umount").arg(&self.at).status();
            assert!(unmounted.unwrap().success());
        }
    }

    /// All of a file, mapped to be shared.
    fn map(file: &File, length: usize) -> &'static mut [u8] {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (null, shared) = (std::ptr::null_mut(), libc::MAP_SHARED);
        // SAFETY: a new mapping, of a file that is not made shorter; only the caller uses it, who unmaps it.
        unsafe {
            let at = libc::mmap(null, length, protection, shared, file.as_raw_fd(), 0);
            assert!(at != libc::MAP_FAILED);
            std::slice::from_raw_parts_mut(at.cast(), length)
        }
    }

    #[test]
    fn content_times_descriptors_and_mappings_stay_when_blocks_move() {
        let Some(disk) = Disk::new() else { return };
        let (file, other) = (disk.file("file"), disk.file("other"));
        for number in 0..PIECES {
            for grown in [&file, &other] {
                grown
                    .write_all_at(&[number as u8 + 1; PIECE], (number * PIECE) as u64)
                    .unwrap();
                grown.sync_all().unwrap();
            }
        }
        assert!(is_ext4_ordered(file.as_fd()));
        let length = PIECES * PIECE;
        let mapped = map(&file, length);
        assert_eq!(mapped[0], 1);
        let about = |file: &File| {
            let about = file.metadata().unwrap();
            let modified = (about.mtime(), about.mtime_nsec());
            let changed = (about.ctime(), about.ctime_nsec());
            (about.ino(), about.size(), about.mode(), modified, changed)
        };
        let before = about(&file);
        // Whole seconds would not differ otherwise.
        std::thread::sleep(Duration::from_millis(20));
        let donor = disk.file("donor");
        fallocate(&donor, FallocateFlags::KEEP_SIZE, 0, 2 * length as u64).unwrap();
        ftruncate(&donor, length as u64).unwrap();
        let blocks = (length / 4096) as u64;
        let mut done = 0;
        while done < blocks {
            done += move_extents(file.as_fd(), donor.as_fd(), done, done, blocks - done).unwrap();
        }
        assert_eq!(about(&file), before);
        file.sync_all().unwrap();
        assert_eq!(about(&file), before);
        let mut content = vec![0; length];
        file.read_exact_at(&mut content, 0).unwrap();
        for (number, piece) in content.chunks(PIECE).enumerate() {
            assert!(
                piece.iter().all(|&byte| byte == number as u8 + 1),
                "{number}"
            );
        }
        assert!(mapped == content.as_slice());
        mapped[PIECE] = 99;
        let mut seen = [0];
        file.read_exact_at(&mut seen, PIECE as u64).unwrap();
        assert_eq!(seen, [99]);
        // SAFETY: nothing refers to it any more. Mapped, the filesystem could not be unmounted.
        unsafe { libc::munmap(mapped.as_mut_ptr().cast(), length) };
    }

    #[test]
    fn the_structure_has_the_size_of_the_kernel() {
        assert_eq!(size_of::<MoveExtent>(), 40);
    }

    #[test]
    fn only_ordered_and_delayed_is_ordered() {
        let usual = "rw\nbsddf\ndelalloc\nbarrier\ndata=ordered\n";
        assert!(is_ordered(usual));
        for (from, to) in [
            ("data=ordered", "data=writeback"),
            ("data=ordered", "data=journal"),
            // Without a journal there is no such line.
            ("data=ordered\n", ""),
            ("delalloc", "nodelalloc"),
            ("rw", "ro"),
            ("barrier", "dax=always"),
        ] {
            assert!(!is_ordered(&usual.replace(from, to)), "{to}");
        }
    }
}
