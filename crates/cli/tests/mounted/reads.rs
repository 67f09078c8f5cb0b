//! Reads that take more than one request of the kernel.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, fadvise};

use crate::fixture::{Fixture, needs_mounts, wait_until};
use crate::kills::kill;

/// More than the kernel asks for at once.
const FILE_BYTES: usize = 168_991;
/// What is read first, and stays in the kernel's cache.
const HEAD_BYTES: usize = 131_072;
/// Daemons that are killed under a reader.
const KILLS: usize = 8;

fn content() -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at / 7 % 251) as u8).collect()
}

fn with_file(options: &[&str]) -> (Fixture, File) {
    let fixture = Fixture::new();
    fixture.mount(options);
    let path = fixture.mountpoint.join("file");
    fs::write(&path, content()).unwrap();
    // Nothing of it in the kernel's cache, and nothing read ahead.
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    (fixture, file)
}

/// Seen once by users: a read was short at the end of a request when its mount ended. The kernel
/// decides how much it returns then, on every filesystem, and the next read says why.
#[test]
fn a_read_is_short_only_where_the_mount_ends_under_it() {
    needs_mounts!();
    let (fixture, file) = with_file(&["-o", "nosupervise,syncfs=off"]);
    let mut out = vec![0; FILE_BYTES];
    file.read_exact_at(&mut out[..HEAD_BYTES], 0).unwrap();
    let daemon = fixture.daemon_pid();
    kill(daemon);
    // The connection ends with the process.
    let tail = FILE_BYTES as u64 - 1;
    wait_until(|| file.read_at(&mut [0], tail).is_err());
    assert_eq!(file.read_at(&mut out, 0).unwrap(), HEAD_BYTES);
    assert!(out[..HEAD_BYTES] == content()[..HEAD_BYTES]);
    let error = file.read_at(&mut [0], HEAD_BYTES as u64).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);
}

/// As long as another daemon goes on, every read is whole.
#[test]
fn reads_are_whole_while_daemons_are_killed() {
    needs_mounts!();
    let (fixture, file) = with_file(&[]);
    let expected = content();
    let is_over = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            let mut out = vec![0; FILE_BYTES];
            while !is_over.load(Ordering::Relaxed) {
                fadvise(&file, 0, None, Advice::DontNeed).unwrap();
                assert_eq!(file.read_at(&mut out, 0).unwrap(), FILE_BYTES);
                assert!(out == expected);
                reads += 1;
            }
            reads
        });
        for _ in 0..KILLS {
            let daemon = fixture.daemon_pid();
            kill(daemon);
            wait_until(|| fixture.daemon_pid() != daemon);
        }
        is_over.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(reads > 0);
    drop(file);
    fixture.umount();
}
