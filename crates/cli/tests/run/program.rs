//! The program that tests run: this one, with steps to do.
//!
//! A step is a word with a path, which it does [`TIMES`] times to a file there; it tells the error, and
//! whether the filesystem has flushed its device each time. libtest runs it in a thread of its own.
#![allow(unsafe_code, reason = "these are the calls that are tested")]

use std::ffi::{CString, c_int, c_void};
use std::fs::{File, OpenOptions, read_to_string};
use std::io::{Error, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::Command;
use std::ptr::{null, null_mut};

const STEPS: &str = "MOBIFS_RUN_STEPS";
const MARK: &str = "OUTCOME ";
/// How often a step is done.
const TIMES: u32 = 8;
/// Flushes that come of themselves.
const OTHER_FLUSHES_MAX: u64 = 2;

/// Makes a command run this program with these steps.
pub(crate) fn add_to(command: &mut Command, steps: &str) {
    command
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "program::does_steps", "--nocapture"])
        .env(STEPS, steps);
}

/// What the program has said, in one line.
pub(crate) fn outcomes(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let outcomes = text.lines().filter_map(|line| line.split(MARK).nth(1));
    outcomes.collect::<Vec<_>>().join(", ")
}

#[test]
fn does_steps() {
    let Ok(steps) = std::env::var(STEPS) else {
        return mobifs_skip::no_test();
    };
    for step in steps.split(';') {
        let (name, place) = step.split_once(' ').unwrap_or((step, "/"));
        let path = Path::new(place).join("file");
        let before = flushes(Path::new(place));
        let mut result = Ok(());
        // Syncing a whole machine takes long.
        let (times, others_max) = if name == "sync" {
            (1, 0)
        } else {
            (TIMES, OTHER_FLUSHES_MAX)
        };
        for round in 0..times {
            result = do_step(name, &path, round);
        }
        let delta = flushes(Path::new(place)).saturating_sub(before);
        let how = match result {
            Ok(()) if name.starts_with("cost-") => cost(name, &path),
            Err(error) => format!("errno {}", error.raw_os_error().unwrap_or(-1)),
            Ok(()) if delta >= u64::from(times) => "flushed".to_owned(),
            Ok(()) if delta <= others_max => "skipped".to_owned(),
            Ok(()) => format!("{delta} flushes"),
        };
        println!("{MARK}{name} {how}");
    }
}

/// How often the device of the filesystem at a place was flushed.
pub(crate) fn flushes(place: &Path) -> u64 {
    let Ok(about) = std::fs::metadata(place) else {
        return 0;
    };
    let (major, minor) = (libc::major(about.dev()), libc::minor(about.dev()));
    let stat = read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap_or_default();
    let field = stat.split_whitespace().nth(15);
    field.and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn check(answer: i64) -> Result<(), Error> {
    if answer < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(())
    }
}

fn do_step(name: &str, path: &Path, round: u32) -> Result<(), Error> {
    match name {
        "fsync" | "raw-fsync" | "fdatasync" | "raw-fdatasync" | "syncfs" | "raw-syncfs"
        | "range" | "raw-range" | "sync" | "child-fsync" => {
            let file = written(path, round)?;
            by_descriptor(name, file.as_raw_fd())
        }
        "cancel-fsync" | "cancel-fdatasync" | "cancel-range" => {
            cancel_in(name.trim_start_matches("cancel-"), &written(path, round)?)
        }
        "directory" => {
            written(path, round)?;
            std::fs::rename(path, path.with_extension(round.to_string()))?;
            File::open(path.parent().unwrap())?.sync_all()
        }
        "bad" => by_descriptor("fsync", 9_999),
        "raw-bad" => by_descriptor("raw-fsync", 9_999),
        "bad-range" => {
            let file = written(path, round)?;
            // SAFETY: the call touches no memory.
            check(unsafe { libc::sync_file_range(file.as_raw_fd(), -1, 1, 2) }.into())
        }
        "path-only" | "raw-path-only" => {
            written(path, round)?;
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_PATH)
                .open(path)?;
            let name = name.replace("path-only", "fsync");
            by_descriptor(&name, file.as_raw_fd())
        }
        #[cfg(target_arch = "x86_64")]
        "compat" => {
            let file = written(path, round)?;
            compat_fsync(file.as_raw_fd())
        }
        "broken" | "raw-broken" if round > 0 => Ok(()),
        "broken" | "raw-broken" => meet_error(name, path, round),
        "pipe" | "raw-pipe" => {
            let (read, _write) = std::io::pipe()?;
            by_descriptor(&name.replace("pipe", "fsync"), read.as_raw_fd())
        }
        "o-sync" | "o-dsync" | "raw-o-sync" | "raw-new-o-sync" => {
            open_synchronous(name, path, round)
        }
        "locks" => keep_locks(path, round),
        "stages" if round > 0 => Ok(()),
        "stages" => write_in_stages(path),
        "full-table" => open_with_full_table(path, round),
        "long-path" => open_by_long_path(path),
        "open-how" => open_with_mode(path),
        "storm" | "raw-storm" | "storm-map" => sync_in_a_storm(name, path, round),
        "rwf" | "raw-rwf" => write_durably(name, path, round),
        "hold-mapped" => hold_mapping(path, round),
        "msync" | "raw-msync" | "msync-hole" => sync_memory(name, path, round),
        name if name.contains("mapped-") || name == "upgraded-fsync" || name == "forked-fsync" => {
            sync_with_mapping(name, path, round)
        }
        "aio" | "aio-write" => submit(name, path, round),
        // Timed below.
        name if name.starts_with("cost-") => written(path, round).map(drop),
        "rings" => {
            let mut parameters = [0_u8; 120];
            let call = libc::SYS_io_uring_setup;
            // SAFETY: the kernel's structure is as long.
            check(unsafe { libc::syscall(call, 1, parameters.as_mut_ptr()) } as i64)
        }
        other => panic!("no such step: {other}"),
    }
}

/// Cancels a thread that makes a call again and again.
fn cancel_in(name: &str, file: &File) -> Result<(), Error> {
    type Start = extern "C" fn(*mut c_void) -> *mut c_void;
    extern "C-unwind" fn fsync(file: *mut c_void) -> *mut c_void {
        loop {
            // SAFETY: the call touches no memory.
            unsafe { libc::fsync(file as RawFd) };
        }
    }
    extern "C-unwind" fn fdatasync(file: *mut c_void) -> *mut c_void {
        loop {
            // SAFETY: as above.
            unsafe { libc::fdatasync(file as RawFd) };
        }
    }
    extern "C-unwind" fn range(file: *mut c_void) -> *mut c_void {
        loop {
            // SAFETY: as above.
            unsafe { libc::sync_file_range(file as RawFd, 0, 0, 2) };
        }
    }
    let start: extern "C-unwind" fn(*mut c_void) -> *mut c_void = match name {
        "fsync" => fsync,
        "fdatasync" => fdatasync,
        _ => range,
    };
    // SAFETY: the two differ in that a cancelled thread may leave the function, which has nothing to drop.
    let start: Start = unsafe { std::mem::transmute(start) };
    let argument = file.as_raw_fd() as usize as *mut c_void;
    let mut thread = 0;
    // SAFETY: the function takes what it is given for a number.
    let made = unsafe { libc::pthread_create(&mut thread, null(), start, argument) };
    assert_eq!(made, 0);
    std::thread::sleep(std::time::Duration::from_millis(5));
    let mut until = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the thread is there until it is joined, and the time is the function's to set.
    let joined = unsafe {
        libc::clock_gettime(libc::CLOCK_REALTIME, &mut until);
        until.tv_sec += 20;
        libc::pthread_cancel(thread);
        pthread_timedjoin_np(thread, null_mut(), &until)
    };
    if joined == 0 {
        Ok(())
    } else {
        Err(Error::from_raw_os_error(joined))
    }
}

unsafe extern "C" {
    fn pthread_timedjoin_np(
        thread: libc::pthread_t,
        result: *mut *mut c_void,
        until: *const libc::timespec,
    ) -> c_int;
}

/// Writes, waits until what was written could not be committed, and calls twice.
fn meet_error(name: &str, path: &Path, round: u32) -> Result<(), Error> {
    let file = written(path, round)?;
    for place in 1..13 {
        file.write_all_at(&vec![1; 1 << 20], place << 20)?;
    }
    let beside = path.parent().unwrap().parent().unwrap();
    File::create(beside.join("written"))?;
    while !beside.join("committed").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let name = name.replace("broken", "fsync");
    let first = by_descriptor(&name, file.as_raw_fd());
    let second = by_descriptor(&name, file.as_raw_fd());
    println!("{MARK}{first:?} {second:?}");
    Ok(())
}

/// How long a call takes, the least of many rounds: other work on the machine only adds.
fn cost(name: &str, path: &Path) -> String {
    const CALLS: u32 = 500;
    let file = written(path, 0).unwrap();
    let call = name.trim_start_matches("cost-");
    let rounds = (0..200).map(|_| {
        let start = std::time::Instant::now();
        for _ in 0..CALLS {
            match call {
                "getppid" => {
                    // SAFETY: a call without arguments.
                    let answer = unsafe { libc::syscall(libc::SYS_getppid) };
                    check(answer as i64)
                }
                "openat" => File::open(path).map(drop),
                call => by_descriptor(call, file.as_raw_fd()),
            }
            .unwrap();
        }
        start.elapsed().as_nanos() / u128::from(CALLS)
    });
    format!("{} ns", rounds.min().unwrap())
}

fn written(path: &Path, round: u32) -> Result<File, Error> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    file.write_all_at(&round.to_ne_bytes(), u64::from(round) * 4096)?;
    Ok(file)
}

fn by_descriptor(name: &str, number: RawFd) -> Result<(), Error> {
    // SAFETY: the calls touch no memory but a status; the child makes system calls only.
    check(unsafe {
        match name {
            "fsync" => libc::fsync(number).into(),
            "raw-fsync" => libc::syscall(libc::SYS_fsync, number) as i64,
            "fdatasync" => libc::fdatasync(number).into(),
            "raw-fdatasync" => libc::syscall(libc::SYS_fdatasync, number) as i64,
            "syncfs" => libc::syncfs(number).into(),
            "raw-syncfs" => libc::syscall(libc::SYS_syncfs, number) as i64,
            "range" => libc::sync_file_range(number, 0, 0, 7).into(),
            "raw-range" => libc::syscall(libc::SYS_sync_file_range, number, 0_i64, 0_i64, 7) as i64,
            "sync" => {
                libc::sync();
                0
            }
            _ => match libc::fork() {
                0 => libc::_exit(i32::from(libc::syscall(libc::SYS_fsync, number) != 0)),
                child => {
                    let mut status = -1;
                    libc::waitpid(child, &raw mut status, 0);
                    if status == 0 { 0 } else { -1 }
                }
            },
        }
    })
}

/// `fsync` as programs of 32 bits call it, in a child: without support in the kernel, it is killed.
#[cfg(target_arch = "x86_64")]
fn compat_fsync(number: RawFd) -> Result<(), Error> {
    // SAFETY: the child makes system calls only; the register that the compiler keeps for itself is as
    // it was afterwards.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut answer: i64 = 118;
            std::arch::asm!(
                "xchg {number}, rbx",
                "int 0x80",
                "xchg {number}, rbx",
                number = inout(reg) i64::from(number) => _,
                inout("rax") answer,
            );
            libc::_exit(-(answer as i32));
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        match status {
            0 => Ok(()),
            status if libc::WIFEXITED(status) => {
                Err(Error::from_raw_os_error(libc::WEXITSTATUS(status)))
            }
            _ => Err(Error::from_raw_os_error(libc::ENOSYS)),
        }
    }
}

/// The locks that a process has on a file stay when it opens the file again.
fn keep_locks(path: &Path, round: u32) -> Result<(), Error> {
    let file = written(path, round)?;
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the structure lives here.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) }.into())?;
    let _again = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_SYNC)
        .open(path)?;
    // Another process sees the lock. SAFETY: the child makes two system calls only.
    let status = unsafe {
        match libc::fork() {
            0 => {
                libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock);
                libc::_exit(i32::from(lock.l_type == libc::F_UNLCK as libc::c_short));
            }
            child => {
                let mut status = -1;
                libc::waitpid(child, &raw mut status, 0);
                status
            }
        }
    };
    assert_eq!(status, 0, "another process sees the lock");
    Ok(())
}

fn open_synchronous(name: &str, path: &Path, round: u32) -> Result<(), Error> {
    let flag = if name == "o-dsync" {
        libc::O_DSYNC
    } else {
        libc::O_SYNC
    };
    let mut file = if name.starts_with("raw") {
        let path = if name == "raw-new-o-sync" {
            path.with_extension(format!("new{round}"))
        } else {
            path.to_owned()
        };
        File::from(open_directly(&path, flag | libc::O_CREAT)?)
    } else {
        let options = &mut OpenOptions::new();
        options
            .write(true)
            .create(true)
            .custom_flags(flag)
            .open(path)?
    };
    let mode = file.metadata()?.mode() & 0o7777;
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    assert_eq!(mode, 0o666 & !mask.bits(), "made as the program asked");
    // SAFETY: the call touches no memory.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) };
    assert_eq!(flags, libc::FD_CLOEXEC);
    file.write_all(&round.to_ne_bytes())
}

/// Opens files to be durable, and writes to each when the test says so, until it says that it is the end.
fn write_in_stages(path: &Path) -> Result<(), Error> {
    let place = path.parent().unwrap();
    let names = read_to_string(place.join("names"))?;
    let names: Vec<&str> = names.split_whitespace().collect();
    let open = |name: &&str| {
        let options = &mut OpenOptions::new();
        let file = options.write(true).custom_flags(libc::O_DSYNC);
        file.open(place.join(name)).unwrap()
    };
    let files: Vec<File> = names.iter().map(open).collect();
    let many = read_to_string(place.join("closed")).map_or(0, |text| text.parse().unwrap());
    let before = flushes(place);
    for number in 0..many {
        let mut file = File::from(open_directly(
            &place.join(format!("closed-{number}")),
            libc::O_DSYNC | libc::O_CREAT,
        )?);
        file.write_all(b"text")?;
    }
    // A full journal is committed, too.
    assert!(flushes(place) - before <= many / 10);
    for stage in 0.. {
        let said = |what: &str| place.join(format!("{what}-{stage}"));
        while !said("begin").exists() {
            if place.join("end").exists() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        for (file, name) in files.iter().zip(&names) {
            let before = flushes(place);
            for round in 0..TIMES {
                file.write_all_at(&round.to_ne_bytes(), u64::from(round) * 4096)?;
            }
            let waits = flushes(place) - before >= u64::from(TIMES);
            println!("{MARK}{name} {}", if waits { "waits" } else { "returns" });
        }
        std::fs::rename(said("begin"), said("done"))?;
    }
    Ok(())
}

fn open_directly(path: &Path, flags: libc::c_int) -> Result<OwnedFd, Error> {
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    let (directory, flags) = (libc::AT_FDCWD, flags | libc::O_WRONLY | libc::O_CLOEXEC);
    // SAFETY: the path ends with a NUL.
    let number = unsafe { libc::syscall(libc::SYS_openat, directory, path.as_ptr(), flags, 0o666) };
    check(number as i64)?;
    // SAFETY: the kernel has just made the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(number as RawFd) })
}

/// What cannot be opened for want of descriptors is neither truncated nor made.
fn open_with_full_table(path: &Path, round: u32) -> Result<(), Error> {
    let file = written(path, round)?;
    let bytes = file.metadata()?.len();
    let new = path.with_extension("never");
    let mut taken = Vec::new();
    while let Ok(another) = file.try_clone() {
        taken.push(another);
    }
    for synchronous in [libc::O_SYNC, libc::O_DSYNC] {
        let truncated = open_directly(path, synchronous | libc::O_TRUNC);
        let made = open_directly(&new, synchronous | libc::O_CREAT | libc::O_EXCL);
        for refused in [truncated, made] {
            let error = refused.unwrap_err().raw_os_error();
            assert_eq!(error, Some(libc::EMFILE));
        }
    }
    drop(taken);
    assert_eq!(file.metadata()?.len(), bytes);
    assert!(!new.exists());
    Ok(())
}

/// The longest path that the kernel takes opens the file; the error is that of one that is longer by one.
fn open_by_long_path(path: &Path) -> Result<(), Error> {
    written(path, 0)?;
    let place = path.parent().unwrap().to_str().unwrap();
    let with = |length: usize| {
        let slashes = "/".repeat(length - place.len() - "file".len());
        open_directly(Path::new(&format!("{place}{slashes}file")), libc::O_SYNC)
    };
    with(4095)?;
    with(4096).map(drop)
}

/// `openat2` refuses a mode where no file is made, and one with other bits.
fn open_with_mode(path: &Path) -> Result<(), Error> {
    written(path, 0)?;
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    let (writes, creates) = (libc::O_WRONLY | libc::O_SYNC, libc::O_CREAT);
    for (flags, mode) in [(writes, 0o644), (writes | creates, 0o10_644)] {
        let how = [flags as u64, mode, 0];
        // SAFETY: the path ends with a NUL, and the structure is as long as is said.
        let number = unsafe {
            libc::syscall(
                libc::SYS_openat2,
                libc::AT_FDCWD,
                path.as_ptr(),
                how.as_ptr(),
                24,
            )
        };
        assert_eq!(number, -1, "{flags:o} {mode:o}");
    }
    Err(Error::last_os_error())
}

extern "C" fn ignore(_signal: libc::c_int) {}

/// Maps a page of a file, for reading and writing, and takes the mapping away.
unsafe fn map_shared(number: libc::c_int) -> Result<(), Error> {
    const BYTES: usize = 4096;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is the kernel's choice, and nothing refers to it.
    unsafe {
        let place = libc::mmap(null_mut(), BYTES, access, libc::MAP_SHARED, number, 0);
        if place == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        check(libc::munmap(place, BYTES).into())
    }
}

/// Calls while signals come that have a handler without `SA_RESTART`.
fn sync_in_a_storm(name: &str, path: &Path, round: u32) -> Result<(), Error> {
    const CALLS: u32 = 500;
    let file = written(path, round)?;
    // SAFETY: the structure is filled before it is passed; the handler does nothing; the thread that
    // gets the signals waits for the one that sends them.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as *const () as usize;
        check(libc::sigaction(libc::SIGALRM, &raw const action, null_mut()).into())?;
        let target = libc::pthread_self();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let ordering = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(ordering) {
                    libc::pthread_kill(target, libc::SIGALRM);
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
            });
            let call = name.replace("storm", "fsync");
            let interrupted = |_: &u32| {
                let result = if name == "storm-map" {
                    map_shared(file.as_raw_fd())
                } else {
                    by_descriptor(&call, file.as_raw_fd())
                };
                result.is_err_and(|error| error.raw_os_error() == Some(libc::EINTR))
            };
            let count = (0..CALLS).filter(interrupted).count();
            is_over.store(true, ordering);
            println!("interrupted: {count} of {CALLS}");
            if count == 0 {
                Ok(())
            } else {
                Err(Error::from_raw_os_error(libc::EINTR))
            }
        })
    }
}

fn write_durably(name: &str, path: &Path, round: u32) -> Result<(), Error> {
    let file = written(path, round)?;
    let bytes = round.to_ne_bytes();
    let piece = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let (number, piece, flags) = (file.as_raw_fd(), &raw const piece, libc::RWF_DSYNC);
    // SAFETY: one piece of memory that lives.
    let count = unsafe {
        if name == "rwf" {
            libc::pwritev2(number, piece, 1, 123, flags) as i64
        } else {
            libc::syscall(libc::SYS_pwritev2, number, piece, 1, 123, 0, flags) as i64
        }
    };
    check(count)?;
    let mut read = [0; 4];
    file.read_exact_at(&mut read, 123)?;
    assert_eq!((count, read), (4, bytes));
    Ok(())
}

fn sync_memory(name: &str, path: &Path, round: u32) -> Result<(), Error> {
    const BYTES: usize = 1 << 16;
    let file = written(path, round)?;
    file.set_len(BYTES as u64)?;
    let (both, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a mapping of a file that is as long, taken away at the end.
    unsafe {
        let start = libc::mmap(null_mut(), BYTES, both, shared, file.as_raw_fd(), 0);
        start.cast::<u32>().write_volatile(round + 1);
        if name == "msync-hole" {
            libc::munmap(start.cast::<u8>().add(4096).cast(), 4096);
        }
        let answer = if name == "raw-msync" {
            libc::syscall(libc::SYS_msync, start, BYTES, libc::MS_SYNC) as i64
        } else {
            libc::msync(start, BYTES, libc::MS_SYNC).into()
        };
        let result = check(answer);
        libc::munmap(start, BYTES);
        result
    }
}

/// Makes a file durable while another one is mapped; "unmapped": after it was; "forked": in a child.
fn sync_with_mapping(name: &str, path: &Path, round: u32) -> Result<(), Error> {
    const BYTES: usize = 4096;
    let file = written(path, round)?;
    let (kind, call) = name.rsplit_once('-').unwrap();
    let (raw, kind) = kind
        .strip_prefix("raw-")
        .map_or(("", kind), |kind| ("raw-", kind));
    let mapped_name = if kind == "shm-mapped" {
        "db-shm"
    } else {
        "mapped"
    };
    let mapped = written(&path.with_file_name(mapped_name), 0)?;
    let protection = match kind {
        "read-mapped" | "upgraded" => libc::PROT_READ,
        _ => libc::PROT_READ | libc::PROT_WRITE,
    };
    let (shared, number) = (libc::MAP_SHARED, mapped.as_raw_fd());
    // SAFETY: a mapping of a file that is as long, taken away at the end.
    unsafe {
        let start = if raw.is_empty() && kind != "direct-mapped" {
            libc::mmap(null_mut(), BYTES, protection, shared, number, 0)
        } else {
            let none = null_mut::<libc::c_void>();
            let call = libc::SYS_mmap;
            let start = libc::syscall(call, none, BYTES, protection, shared, number, 0_i64);
            std::ptr::with_exposed_provenance_mut(start as usize)
        };
        drop(mapped);
        match kind {
            "upgraded" => {
                libc::mprotect(start, BYTES, libc::PROT_READ | libc::PROT_WRITE);
            }
            "unmapped" => {
                libc::munmap(start, BYTES);
            }
            _ => {}
        }
        let result = match call {
            "rwf" => write_durably(&format!("{raw}rwf"), path, round),
            _ if kind == "forked" => by_descriptor("child-fsync", file.as_raw_fd()),
            call => by_descriptor(&format!("{raw}{call}"), file.as_raw_fd()),
        };
        if kind != "unmapped" {
            libc::munmap(start, BYTES);
        }
        result
    }
}

/// Maps a file and leaves it so.
fn hold_mapping(path: &Path, round: u32) -> Result<(), Error> {
    let file = written(path, round)?;
    let (both, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a mapping of a file that is as long, which nothing uses.
    let start = unsafe { libc::mmap(null_mut(), 4096, both, shared, file.as_raw_fd(), 0) };
    assert_ne!(start, libc::MAP_FAILED);
    by_descriptor("fsync", file.as_raw_fd())
}

/// `struct iocb`, as far as it is used.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    write_flags: i32,
    operation: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

fn submit(name: &str, path: &Path, round: u32) -> Result<(), Error> {
    let file = written(path, round)?;
    let bytes = round.to_ne_bytes();
    let mut request = Request {
        data: 77,
        descriptor: file.as_raw_fd() as u32,
        ..Request::default()
    };
    if name == "aio" {
        request.operation = 2;
    } else {
        request.operation = 1;
        request.write_flags = libc::RWF_DSYNC;
        request.buffer = bytes.as_ptr() as u64;
        request.bytes = 4;
    }
    let mut context = 0_u64;
    let mut event = [0_i64; 4];
    let mut requests = [&raw mut request];
    // SAFETY: the kernel's structures, which live until the event has come.
    unsafe {
        check(libc::syscall(libc::SYS_io_setup, 4, &raw mut context) as i64)?;
        let submitted = libc::syscall(libc::SYS_io_submit, context, 1, requests.as_mut_ptr());
        check(submitted as i64)?;
        let none = null::<libc::timespec>();
        let events = event.as_mut_ptr();
        libc::syscall(libc::SYS_io_getevents, context, 1, 1, events, none);
        libc::syscall(libc::SYS_io_destroy, context);
    }
    assert_eq!(event[0], 77);
    assert_eq!(event[2], if name == "aio" { 0 } else { 4 }, "{event:?}");
    Ok(())
}
