//! A program that may write to the store, and other users of the machine.

use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, ResolveFlags, fchmod, ftruncate, mkdirat, openat,
    openat2, renameat, renameat_with, unlinkat,
};

use crate::fixture::{Fixture, mobifs, needs_mounts};

/// The attacker, which changes places in the store all the time.
struct Attacker {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Attacker {
    /// Exchanges each pair of names again and again, as fast as it goes.
    fn start(store: &Path, pairs: &[(&str, &str)]) -> Self {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(one, other)| (store.join(one), store.join(other)))
            .collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut exchanged = 0;
            while !stopping.load(Ordering::SeqCst) {
                for (one, other) in &pairs {
                    // Fails while the daemon has just removed one of them.
                    let done = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
                    exchanged += u64::from(done.is_ok());
                }
            }
            exchanged
        });
        Self { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        assert!(self.thread.join().unwrap() > 0, "it did nothing");
    }
}

/// What the attacker wants the daemon to change.
struct Outside {
    directory: std::path::PathBuf,
    before: Vec<(String, u32, i64, i64, Vec<u8>)>,
}

impl Outside {
    fn new(fixture: &Fixture) -> Self {
        let directory = fixture.directory("outside");
        fs::create_dir(directory.join("inner")).unwrap();
        for name in ["secret", "inner/secret"] {
            let path = directory.join(name);
            fs::write(&path, "secret").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        }
        let before = Self::state(&directory);
        Self { directory, before }
    }

    fn state(directory: &Path) -> Vec<(String, u32, i64, i64, Vec<u8>)> {
        let mut found = Vec::new();
        for name in ["", "secret", "inner", "inner/secret"] {
            let path = directory.join(name);
            let about = fs::symlink_metadata(&path).unwrap();
            let content = if about.is_dir() {
                let count = fs::read_dir(&path).unwrap().count();
                vec![u8::try_from(count).unwrap()]
            } else {
                fs::read(&path).unwrap()
            };
            let times = (about.mtime(), about.mtime_nsec());
            found.push((name.to_owned(), about.mode(), times.0, times.1, content));
        }
        found
    }

    #[track_caller]
    fn is_untouched(&self) {
        assert_eq!(self.before, Self::state(&self.directory));
    }
}

/// A directory below the mount point, if no symlink is on the way: it is the daemon that must
/// not follow one, and not this process instead of it.
fn directory(mountpoint: &Path, below: &str) -> Option<OwnedFd> {
    let root = fs::File::open(mountpoint).ok()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    openat2(root, below, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()
}

/// Uses everything that the attacker changes. It is not promised to work: the store
/// is not to be changed from outside.
fn use_mount(mountpoint: &Path, round: u32) {
    let text = format!("round {round}");
    let write = |place: &OwnedFd, name: &str| {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW;
        if let Ok(file) = openat(place, name, flags, Mode::from_raw_mode(0o644)) {
            let _written = rustix::io::pwrite(&file, text.as_bytes(), 0);
            let _changed = fchmod(&file, Mode::from_raw_mode(0o777));
            let _truncated = ftruncate(&file, 2);
        }
    };
    let places = ["app", "app/directory", "app/third", "app/third/inner"];
    let places = places.map(|below| directory(mountpoint, below));
    for place in places.iter().flatten() {
        for name in ["file", "secret", "new"] {
            write(place, name);
        }
        let _made = mkdirat(place, "made", Mode::from_raw_mode(0o777));
        let _listed = Dir::read_from(place).map(Iterator::count);
    }
    if let [Some(app), Some(directory), Some(third), inner] = &places {
        let _moved = renameat(app, "file", directory, "moved");
        write(app, "file");
        if let Some(inner) = inner {
            for name in ["file", "secret", "new"] {
                let _removed = unlinkat(inner, name, AtFlags::empty());
            }
            let _removed = unlinkat(inner, "made", AtFlags::REMOVEDIR);
        }
        let _removed = unlinkat(third, "inner", AtFlags::REMOVEDIR);
        let _removed = unlinkat(directory, "moved", AtFlags::empty());
        let _made = mkdirat(third, "inner", Mode::from_raw_mode(0o777));
    }
    let _applied = mobifs(&["sync"], mountpoint);
}

fn attack(pairs: &[(&str, &str)], prepare: impl Fn(&Path, &Path)) {
    let fixture = Fixture::new();
    let outside = Outside::new(&fixture);
    fs::create_dir_all(fixture.store.join("app/directory")).unwrap();
    fs::create_dir_all(fixture.store.join("app/third/inner")).unwrap();
    fs::write(fixture.store.join("app/file"), "inside").unwrap();
    fs::write(fixture.store.join("app/directory/secret"), "inside").unwrap();
    fixture.mount(&[]);
    prepare(&fixture.store, &outside.directory);
    for round in 0..6 {
        let attacker = Attacker::start(&fixture.store, pairs);
        for step in 0..20 {
            use_mount(&fixture.mountpoint, round * 100 + step);
        }
        // Recovery and apply have to do with what was exchanged, too.
        if round % 2 == 0 {
            fixture.cut_power();
        } else {
            let _ended = mobifs(&["umount"], &fixture.mountpoint);
        }
        attacker.end();
        outside.is_untouched();
        if !fixture.is_mounted() && !fixture.try_mount(&[]).status.success() {
            // It may refuse a store that was changed like this.
            break;
        }
    }
    outside.is_untouched();
}

#[test]
fn exchanging_files_for_symlinks_does_not_lead_the_daemon_outside() {
    needs_mounts!();
    let pairs = [
        ("app/file", "file-link"),
        ("app/directory", "directory-link"),
        // Not below one of the others, or the attacker would go outside by itself.
        ("app/third/inner", "inner-link"),
    ];
    attack(&pairs, |store, outside| {
        symlink(outside.join("secret"), store.join("file-link")).unwrap();
        symlink(outside, store.join("directory-link")).unwrap();
        symlink(outside.join("inner"), store.join("inner-link")).unwrap();
    });
}

#[test]
fn exchanging_the_own_directory_does_not_lead_the_daemon_outside() {
    needs_mounts!();
    attack(&[(".mobifs", "mobifs-link")], |store, outside| {
        symlink(outside, store.join("mobifs-link")).unwrap();
    });
}

#[test]
fn the_files_of_a_daemon_are_private() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let pid = fixture.daemon_pid();
    let forbidden = |path: &Path| {
        let mode = fs::symlink_metadata(path).unwrap().mode();
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
    };
    let own = fixture.store.join(".mobifs");
    forbidden(&own);
    for name in ["journal", "id", "lock", "stage", "limbo", "lost"] {
        forbidden(&own.join(name));
    }
    // With a `status_group`, as another test has, its members pass through, and see no names.
    let sockets = Path::new("/run/mobifs");
    let mode = fs::metadata(sockets).unwrap().mode();
    assert_eq!(mode & 0o066, 0, "{}: {mode:o}", sockets.display());
    let about = fs::metadata(&fixture.mountpoint).unwrap();
    let (major, minor) = (
        rustix::fs::major(about.dev()),
        rustix::fs::minor(about.dev()),
    );
    forbidden(&sockets.join(format!("{major}-{minor}.sock")));
    // The files of users are in the daemon's memory; a core dump must not have them.
    let filter = fs::read_to_string(format!("/proc/{pid}/coredump_filter")).unwrap();
    assert_eq!(u32::from_str_radix(filter.trim(), 16), Ok(0));
    fixture.umount();
}
