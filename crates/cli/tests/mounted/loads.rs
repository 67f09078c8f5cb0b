//! Programs that work on a mount, know what must be there, and fail at the first error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mobifs_numerics::Random;
use rustix::fs::{
    Advice, AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RawDir, XattrFlags,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// Looks at the directory of a program that has ended, on whatever filesystem.
pub(crate) type Check = Box<dyn Fn(&Path) + Send>;
/// Works in a directory of its own until it is stopped.
pub(crate) type Load = fn(&Path, &AtomicBool, Random) -> Check;

/// Everything that can run here. Directories have these names.
pub(crate) fn available() -> Vec<(&'static str, Load)> {
    let mut loads: Vec<(&'static str, Load)> = vec![
        ("writer", write_anywhere),
        ("durable", write_durably),
        ("names", change_names),
        ("lister", list),
        ("deleted", use_deleted),
        ("unnamed", use_unnamed),
        ("mapped", write_mapped),
        ("locks", hold_locks),
    ];
    let others: [(&str, &str, Load); 2] =
        [("python3", "sqlite", use_sqlite), ("git", "git", use_git)];
    for (program, name, load) in others {
        if Command::new(program).arg("--version").output().is_ok() {
            loads.push((name, load));
        } else {
            eprintln!("without {program}: it is not installed");
        }
    }
    loads
}

fn bytes(random: &mut Random, count: usize) -> Vec<u8> {
    (0..count).map(|_| random.next_u64() as u8).collect()
}

fn goes_on(stop: &AtomicBool) -> bool {
    !stop.load(Ordering::SeqCst)
}

/// Makes the kernel ask the daemon for content again.
fn drop_cached(file: &File) {
    file.sync_data().unwrap();
    rustix::fs::fadvise(file, 0, None, Advice::DontNeed).unwrap();
}

#[track_caller]
fn same(found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len());
    let mut pairs = found.iter().zip(expected);
    if let Some(first) = pairs.position(|(a, b)| a != b) {
        let others = pairs.rposition(|(a, b)| a != b);
        let last = others.map_or(first, |behind| first + 1 + behind);
        panic!(
            "of {} bytes some from {first} to {last} differ",
            found.len()
        );
    }
}

/// Largest file of [`write_anywhere`].
const FILE_BYTES_MAX: u64 = 3 << 20;

/// Everything that changes content: at random places, at the end, synchronously, by copies,
/// holes, truncation.
fn write_anywhere(directory: &Path, stop: &AtomicBool, mut random: Random) -> Check {
    let path = directory.join("f");
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.custom_flags(flags.bits() as i32);
        options.open(&path).unwrap()
    };
    let mut file = open(OFlags::empty());
    let mut expected: Vec<u8> = Vec::new();
    while goes_on(stop) {
        let size = expected.len() as u64;
        let offset = random.below(size + 1);
        match random.below(10) {
            0..4 => {
                let most = if random.below(20) == 0 { 2 << 20 } else { 9000 };
                let length = 1 + random.below(most);
                let data = bytes(&mut random, length as usize);
                let offset = offset.min(FILE_BYTES_MAX);
                file.write_all_at(&data, offset).unwrap();
                put(&mut expected, offset, &data);
            }
            4 => {
                let data = bytes(&mut random, 3000);
                let mut appending = open(OFlags::APPEND);
                appending.write_all(&data).unwrap();
                expected.extend(&data);
            }
            5 => {
                let data = bytes(&mut random, 500);
                open(OFlags::SYNC).write_all_at(&data, offset).unwrap();
                put(&mut expected, offset, &data);
            }
            6 => {
                let size = random.below(FILE_BYTES_MAX);
                file.set_len(size).unwrap();
                expected.resize(size as usize, 0);
            }
            7 => copy_within(&file, &mut expected, &mut random),
            8 => {
                let length = 1 + random.below(20_000);
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, flags, offset, length).unwrap();
                let end = (offset + length).min(size);
                expected[offset as usize..end as usize].fill(0);
            }
            _ => {
                drop_cached(&file);
                let mut found = Vec::new();
                file = open(OFlags::empty());
                file.read_to_end(&mut found).unwrap();
                same(&found, &expected);
            }
        }
        if expected.len() as u64 > FILE_BYTES_MAX {
            file.set_len(0).unwrap();
            expected.clear();
        }
    }
    Box::new(move |directory| same(&fs::read(directory.join("f")).unwrap(), &expected))
}

fn put(content: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + data.len());
    content.resize(content.len().max(end), 0);
    content[start..end].copy_from_slice(data);
}

/// `copy_file_range` from the first half of a file to its end.
fn copy_within(file: &File, expected: &mut Vec<u8>, random: &mut Random) {
    let size = expected.len() as u64;
    let length = size / 2;
    if length == 0 {
        return;
    }
    let mut from = random.below(length);
    let mut to = size;
    let source = expected[from as usize..length as usize].to_vec();
    let mut left = source.len();
    while left > 0 {
        let copied =
            rustix::fs::copy_file_range(file, Some(&mut from), file, Some(&mut to), left).unwrap();
        assert!(copied > 0, "the source does not end here");
        left -= copied;
    }
    put(expected, size, &source);
}

/// An app whose fsync means something.
fn write_durably(directory: &Path, stop: &AtomicBool, mut random: Random) -> Check {
    let mut last = BTreeMap::new();
    let mut round = 0_u64;
    while goes_on(stop) {
        let name = format!("f{}", random.below(5));
        let content = format!("{round} {}", random.next_u64());
        let temporary = directory.join("new");
        let mut file = File::create(&temporary).unwrap();
        file.write_all(content.as_bytes()).unwrap();
        file.sync_all().unwrap();
        fs::rename(&temporary, directory.join(&name)).unwrap();
        File::open(directory).unwrap().sync_all().unwrap();
        last.insert(name, content);
        round += 1;
    }
    Box::new(move |directory| {
        for (name, content) in &last {
            assert_eq!(&fs::read_to_string(directory.join(name)).unwrap(), content);
        }
    })
}

/// Makes, links, renames and removes names, each of which either must work or must not.
fn change_names(directory: &Path, stop: &AtomicBool, mut random: Random) -> Check {
    const NAMES: u64 = 40;
    // What each name holds.
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut round = 0_u64;
    while goes_on(stop) {
        round += 1;
        let one = format!("n{}", random.below(NAMES));
        let other = format!("n{}", random.below(NAMES));
        let (path, target) = (directory.join(&one), directory.join(&other));
        match random.below(7) {
            0 | 1 => {
                // Twice would be EEXIST.
                let made = OpenOptions::new().write(true).create_new(true).open(&path);
                assert_eq!(made.is_err(), names.contains_key(&one), "{made:?}");
                if let Ok(mut file) = made {
                    let content = round.to_string();
                    file.write_all(content.as_bytes()).unwrap();
                    names.insert(one, content);
                }
            }
            2 => {
                let removed = fs::remove_file(&path);
                assert_eq!(removed.is_ok(), names.remove(&one).is_some(), "{removed:?}");
            }
            3 => {
                let renamed = fs::rename(&path, &target);
                assert_eq!(renamed.is_ok(), names.contains_key(&one), "{renamed:?}");
                if one != other
                    && let Some(content) = names.remove(&one)
                {
                    names.insert(other, content);
                }
            }
            4 => {
                let linked = fs::hard_link(&path, &target);
                let possible = names.contains_key(&one) && !names.contains_key(&other);
                assert_eq!(linked.is_ok(), possible, "{linked:?}");
                if possible {
                    // Renaming one name of a file to another name of it does nothing, so
                    // they are made files of their own at once.
                    let content = names[&one].clone();
                    fs::remove_file(&target).unwrap();
                    fs::write(&target, &content).unwrap();
                    names.insert(other, content);
                }
            }
            5 => change_directory(&directory.join(format!("d{round}"))),
            _ => change_xattr(&path, names.contains_key(&one), round),
        }
    }
    Box::new(move |directory| {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            found.insert(name, fs::read_to_string(entry.path()).unwrap());
        }
        assert_eq!(found, names);
    })
}

/// Makes a directory with a symlink in it and removes both.
fn change_directory(inner: &Path) {
    fs::create_dir(inner).unwrap();
    std::os::unix::fs::symlink("somewhere", inner.join("link")).unwrap();
    let link = fs::read_link(inner.join("link")).unwrap();
    assert_eq!(link, Path::new("somewhere"));
    let busy = fs::remove_dir(inner).unwrap_err();
    assert_eq!(busy.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    fs::remove_file(inner.join("link")).unwrap();
    fs::remove_dir(inner).unwrap();
}

fn change_xattr(path: &Path, exists: bool, round: u64) {
    let value = round.to_string();
    let name = "user.round";
    let set = rustix::fs::setxattr(path, name, value.as_bytes(), XattrFlags::empty());
    assert_eq!(set.is_ok(), exists, "{set:?}");
    if exists {
        let mut found = [0; 64];
        let length = rustix::fs::getxattr(path, name, &mut found[..]).unwrap();
        assert_eq!(&found[..length], value.as_bytes());
        // Twice would be ENODATA.
        rustix::fs::removexattr(path, name).unwrap();
    }
}

/// Reads a directory in small pieces, with pauses: it keeps its place.
fn list(directory: &Path, stop: &AtomicBool, mut random: Random) -> Check {
    const FILES: usize = 1500;
    let names: BTreeSet<String> = (0..FILES)
        .map(|number| format!("a-file-with-a-longer-name-{number}"))
        .collect();
    for name in &names {
        File::create(directory.join(name)).unwrap();
    }
    while goes_on(stop) {
        let open = File::open(directory).unwrap();
        let mut found = Vec::new();
        let mut buffer = Vec::with_capacity(4096);
        let mut entries = RawDir::new(&open, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
            if name != "." && name != ".." {
                found.push(name);
            }
            if found.len().is_multiple_of(50) {
                std::thread::sleep(Duration::from_micros(random.below(3000)));
            }
        }
        assert_eq!(found.len(), FILES, "each once");
        assert!(found.into_iter().collect::<BTreeSet<_>>() == names);
    }
    Box::new(move |directory| {
        assert_eq!(fs::read_dir(directory).unwrap().count(), FILES);
    })
}

/// Goes on using files that have no name any more.
fn use_deleted(directory: &Path, stop: &AtomicBool, mut random: Random) -> Check {
    while goes_on(stop) {
        let path = directory.join("f");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(&path);
        let file = file.unwrap();
        let mut expected = bytes(&mut random, 20_000);
        file.write_all_at(&expected, 0).unwrap();
        fs::remove_file(&path).unwrap();
        use_open(&file, &mut expected, &mut random);
    }
    is_empty()
}

/// Uses files that never had a name; some get one.
fn use_unnamed(directory: &Path, stop: &AtomicBool, mut random: Random) -> Check {
    while goes_on(stop) {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::open(directory, flags, mode).unwrap();
        let file = File::from(file);
        let mut expected = bytes(&mut random, 20_000);
        file.write_all_at(&expected, 0).unwrap();
        use_open(&file, &mut expected, &mut random);
        if random.below(2) == 0 {
            let path = directory.join("named");
            rustix::fs::linkat(&file, "", CWD, &path, AtFlags::EMPTY_PATH).unwrap();
            drop(file);
            same(&fs::read(&path).unwrap(), &expected);
            fs::remove_file(&path).unwrap();
        }
    }
    is_empty()
}

fn use_open(file: &File, expected: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.below(10) {
        let data = bytes(random, 5000);
        let offset = random.below(30_000);
        file.write_all_at(&data, offset).unwrap();
        put(expected, offset, &data);
        drop_cached(file);
        let mut found = vec![0; expected.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        same(&found, expected);
        assert_eq!(file.metadata().unwrap().len(), expected.len() as u64);
    }
}

fn is_empty() -> Check {
    Box::new(|directory| assert_eq!(fs::read_dir(directory).unwrap().count(), 0))
}

/// Writes through a shared mapping.
fn write_mapped(directory: &Path, stop: &AtomicBool, mut random: Random) -> Check {
    const BYTES: usize = 64 << 10;
    let path = directory.join("f");
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(&path);
    let file = file.unwrap();
    file.set_len(BYTES as u64).unwrap();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of a file that keeps its size and that no other thread writes to.
    let address = unsafe {
        mmap(
            std::ptr::null_mut(),
            BYTES,
            protection,
            MapFlags::SHARED,
            &file,
            0,
        )
    };
    let address = address.unwrap();
    let mut expected = vec![0_u8; BYTES];
    while goes_on(stop) {
        let data = bytes(&mut random, 700);
        let offset = random.below((BYTES - data.len()) as u64) as usize;
        expected[offset..offset + data.len()].copy_from_slice(&data);
        // SAFETY: inside the mapping, which only this thread uses.
        unsafe {
            let to = address.cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
        }
        if random.below(8) == 0 {
            // SAFETY: the whole mapping.
            unsafe { msync(address, BYTES, MsyncFlags::SYNC) }.unwrap();
            same(&fs::read(&path).unwrap(), &expected);
        }
        std::thread::sleep(Duration::from_micros(random.below(500)));
    }
    // SAFETY: the mapping is not used any more.
    unsafe { munmap(address, BYTES) }.unwrap();
    file.sync_all().unwrap();
    Box::new(move |directory| same(&fs::read(directory.join("f")).unwrap(), &expected))
}

/// Locks last as long as their holders.
fn hold_locks(directory: &Path, stop: &AtomicBool, mut random: Random) -> Check {
    let path = directory.join("lock");
    let file = File::create(&path).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    while goes_on(stop) {
        let other = File::open(&path).unwrap();
        let refused = rustix::fs::flock(&other, FlockOperation::NonBlockingLockShared);
        assert_eq!(refused, Err(Errno::WOULDBLOCK));
        std::thread::sleep(Duration::from_micros(random.below(5000)));
    }
    Box::new(|directory| assert!(directory.join("lock").exists()))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const SQLITE: &str = "
import sqlite3, sys, random
path, mode, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
base = sqlite3.connect(path, timeout=60)
base.execute('pragma journal_mode=' + mode)
base.execute('create table if not exists t (k integer primary key, v blob)')
assert base.execute('select count(*), coalesce(max(k), -1) from t').fetchone() == (first, first - 1)
for k in range(first, first + count):
    with base:
        base.execute('insert into t values (?, randomblob(?))', (k, random.randrange(3000)))
        base.execute('update t set v = randomblob(100) where k = ?', (random.randrange(k + 1),))
assert base.execute('pragma integrity_check').fetchone() == ('ok',)
";

/// Two databases, one with each kind of journal.
fn use_sqlite(directory: &Path, stop: &AtomicBool, _: Random) -> Check {
    const ROWS: u64 = 20;
    let script = directory.join("script.py");
    fs::write(&script, SQLITE).unwrap();
    let mut rows = 0;
    let insert = |directory: &Path, first: u64, count: u64| {
        for mode in ["delete", "wal"] {
            let mut command = Command::new("python3");
            command
                .arg(directory.join("script.py"))
                .arg(directory.join(mode));
            run(command.args([mode, &first.to_string(), &count.to_string()]));
        }
    };
    while goes_on(stop) {
        insert(directory, rows, ROWS);
        rows += ROWS;
    }
    Box::new(move |directory| insert(directory, rows, 0))
}

/// A repository that grows.
fn use_git(directory: &Path, stop: &AtomicBool, mut random: Random) -> Check {
    let git = |directory: &Path, words: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(directory).args(words);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null");
        let identity = ["AUTHOR", "COMMITTER"];
        for role in identity {
            command.env(format!("GIT_{role}_NAME"), "a");
            command.env(format!("GIT_{role}_EMAIL"), "a@b");
        }
        run(&mut command)
    };
    git(directory, &["init", "--quiet"]);
    let mut commits = 0;
    while goes_on(stop) {
        let name = format!("f{}", random.below(10));
        fs::write(directory.join(&name), bytes(&mut random, 2000)).unwrap();
        git(directory, &["add", "--all"]);
        git(directory, &["commit", "--quiet", "--message", "m"]);
        commits += 1;
    }
    Box::new(move |directory| {
        git(directory, &["fsck", "--strict"]);
        // Where everything is slow there is no commit yet, and no HEAD.
        let count = git(directory, &["rev-list", "--count", "--all"]);
        assert_eq!(count.trim(), commits.to_string());
        assert_eq!(git(directory, &["status", "--porcelain"]), "");
    })
}
