//! A program that writes to three files in turn, in three ways, so that the order of what it has
//! written can be seen in any state of them.

use std::alloc::{Layout, alloc_zeroed};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::fixture::{PROGRAM, wait_until};

/// Where it is to write.
const DIRECTORY: &str = "MOBIFS_TEST_WRITER";
const PAGE: usize = 4096;

#[test]
fn writes_in_order() {
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return mobifs_skip::no_test();
    };
    write_for_ever(Path::new(&directory));
}

/// Counts up: the number goes to the buffered file, then to the mapped, then to the direct one.
fn write_for_ever(directory: &Path) -> ! {
    let open = |name: &str, flags: i32| -> File {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(flags);
        options.open(directory.join(name)).unwrap()
    };
    let (buffered, mapped) = (open("buffered", 0), open("mapped", 0));
    let direct = open("direct", libc::O_DIRECT);
    let layout = Layout::from_size_align(PAGE, PAGE).unwrap();
    // SAFETY: the layout is not empty; the page is never freed.
    let page = unsafe { std::slice::from_raw_parts_mut(alloc_zeroed(layout), PAGE) };
    buffered.write_all_at(page, 0).unwrap();
    mapped.write_all_at(page, 0).unwrap();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (shared, fd) = (libc::MAP_SHARED, mapped.as_raw_fd());
    // SAFETY: the kernel chooses a range that nothing else has.
    let mapping = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, shared, fd, 0) };
    assert_ne!(mapping, libc::MAP_FAILED);
    let number = mapping.cast::<u64>();
    for round in 1_u64.. {
        buffered.write_all_at(&round.to_ne_bytes(), 0).unwrap();
        if round % 3 != 0 {
            // Makes the kernel write this file at once, ahead of the others.
            // SAFETY: the calls take no memory.
            unsafe {
                libc::posix_fadvise(buffered.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
                if round % 50 == 1 {
                    libc::sync_file_range(buffered.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE);
                }
            }
        }
        // SAFETY: the mapping is a page long and stays.
        unsafe { number.write_volatile(round) };
        page[..8].copy_from_slice(&round.to_ne_bytes());
        direct.write_all_at(page, 0).unwrap();
    }
    unreachable!("it counts for centuries")
}

/// The writer, which ends with the value.
pub(super) struct Writer {
    process: Child,
}

impl Writer {
    /// In this directory, and if a name is given started by `mobifs run`.
    pub(super) fn start(directory: &Path, app: Option<&str>) -> Self {
        fs::create_dir_all(directory).unwrap();
        let own = std::env::current_exe().unwrap();
        let mut command = match app {
            Some(app) => {
                let mut command = Command::new(PROGRAM);
                command
                    .args(["run", "--mechanism", "seccomp", "--app", app, "--"])
                    .arg(own);
                command
            }
            None => Command::new(own),
        };
        command.args(["--exact", "steer::history::writer::writes_in_order"]);
        command.env(DIRECTORY, directory).stdout(Stdio::null());
        let process = command.spawn().unwrap();
        let writer = Self { process };
        wait_until(|| State::of(directory).is_some_and(|state| state.direct > 0));
        writer
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _ended = self.process.wait();
    }
}

/// What the three files have.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) buffered: u64,
    pub(super) mapped: u64,
    pub(super) direct: u64,
}

impl State {
    pub(super) fn of(directory: &Path) -> Option<Self> {
        let number = |name: &str| {
            let content = fs::read(directory.join(name)).ok()?;
            Some(u64::from_ne_bytes(content.get(..8)?.try_into().ok()?))
        };
        Some(Self {
            direct: number("direct")?,
            mapped: number("mapped")?,
            buffered: number("buffered")?,
        })
    }

    /// Whether there was a moment at which they had that.
    pub(super) fn existed(self) -> bool {
        let Self {
            buffered,
            mapped,
            direct,
        } = self;
        buffered >= mapped && mapped >= direct && direct + 1 >= buffered
    }
}
