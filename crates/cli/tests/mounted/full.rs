//! Another program takes every block while changes are committed and not yet in their places: the
//! store can be mounted, what was acknowledged can be read, and deleting gives room back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};

use crate::filesystems::put_store_on_sized;
use crate::fixture::{Fixture, message, mobifs, needs_mounts, succeeds, wait_until};

pub(crate) const MIB: u64 = 1 << 20;
const FILES: usize = 100;
/// The content of each new file: more than a file system keeps in an inode.
static CONTENT: [u8; 20_000] = [3; 20_000];

pub(crate) const EXT4: [&str; 4] = ["mkfs.ext4", "-q", "-m", "0"];
const XFS: [&str; 3] = ["mkfs.xfs", "-q", "-f"];
const BTRFS: [&str; 3] = ["mkfs.btrfs", "-q", "-f"];
/// Data and metadata share their chunks.
const BTRFS_MIXED: [&str; 4] = ["mkfs.btrfs", "-q", "-f", "--mixed"];

/// Takes every block that is free for content, for a file that is there or a new one.
pub(crate) fn fill_disk(filler: &Path) {
    let options = OpenOptions::new().append(true).create(true).clone();
    let file = options.open(filler).unwrap();
    for shift in (20..40).rev() {
        let mut size = file.metadata().unwrap().len();
        while fallocate(&file, FallocateFlags::empty(), size, 1 << shift).is_ok() {
            size += 1 << shift;
        }
    }
    let mut file = OpenOptions::new().append(true).open(filler).unwrap();
    for bytes in [1 << 20, 4096, 1] {
        // What is written may wait for its blocks, and then find fewer than it seemed.
        while file
            .write_all(&vec![9; bytes])
            .and_then(|()| file.sync_all())
            .is_ok()
        {}
    }
    // On btrfs with mixed chunks that is its own reserve.
    let free = rustix::fs::statvfs(filler).unwrap().f_bavail;
    assert!(free < 600, "{free} blocks are free");
}

/// Takes what is free for names, inodes and what lies in them.
fn fill_with_names(directory: &Path) {
    const REFUSED_MAX: usize = 3;
    let make: [fn(&Path) -> io::Result<()>; 2] = [
        |path| symlink("x".repeat(1000), path),
        |path| File::create(path).map(drop),
    ];
    for (kind, make) in make.into_iter().enumerate() {
        let mut refused = 0;
        for number in 0.. {
            let name = format!("{kind}{number:0>200}");
            if let Err(error) = make(&directory.join(name)) {
                assert_eq!(error.kind(), ErrorKind::StorageFull);
                refused += 1;
                // Other reservations of the filesystem are released then.
                rustix::fs::syncfs(File::open(directory).unwrap()).unwrap();
            }
            if refused == REFUSED_MAX {
                break;
            }
        }
    }
}

/// A mount whose disk another program fills.
pub(crate) struct Filled {
    pub(crate) fixture: Fixture,
    config: PathBuf,
}

impl Filled {
    /// None, with a message, where the filesystem is not there.
    pub(crate) fn new(make: &[&str], bytes: u64) -> Option<Self> {
        let mut fixture = Fixture::new();
        if !put_store_on_sized(&mut fixture, make, bytes) {
            return None;
        }
        let config = fixture.config(
            "journal_bytes = \"8MiB\"\napply_idle_ms = 86400000\n[defaults]\nclass = \"durable\"\n",
        );
        Some(Self { fixture, config })
    }

    pub(crate) fn mount(&self) {
        self.fixture
            .mount(&["--config", self.config.to_str().unwrap()]);
    }

    /// Mounts, writes a file of 16 MiB to the app, and fills the disk before it is committed. Returns the
    /// app.
    pub(crate) fn write_without_room(&self) -> PathBuf {
        let config = self
            .fixture
            .config("[defaults]\nage_max_ms = 600000\ninterval_ms = 600000\n");
        self.fixture.mount(&["--config", config.to_str().unwrap()]);
        let app = self.app();
        fs::create_dir(&app).unwrap();
        fs::write(app.join("big"), vec![1; 16 << 20]).unwrap();
        fill_disk(&self.filler());
        app
    }

    fn sync(&self) -> std::process::Output {
        mobifs(&["sync"], &self.fixture.mountpoint)
    }

    /// Once there is room: XFS frees inodes in the background, and the kernel may still refer to
    /// what was just deleted.
    fn sync_at_last(&self) {
        const TRIES: usize = 50;
        for _ in 1..TRIES {
            if self.sync().status.success() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        succeeds(&self.sync());
    }

    pub(crate) fn app(&self) -> PathBuf {
        self.fixture.mountpoint.join("app")
    }

    fn moved(number: usize) -> String {
        format!("to/{number:0>200}")
    }

    fn new_file(number: usize) -> String {
        format!("new{number}")
    }

    /// Commits what waits to be applied: names that move, and content that needs blocks.
    fn commit_much(&self) {
        let (app, other) = (self.app(), self.fixture.mountpoint.join("other"));
        fs::create_dir_all(app.join("to")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), [1; 8192]).unwrap();
        for number in 0..FILES {
            fs::write(app.join(number.to_string()), number.to_string()).unwrap();
        }
        succeeds(&self.sync());
        for number in 0..FILES {
            let old = app.join(number.to_string());
            fs::rename(old, app.join(Self::moved(number))).unwrap();
            // One at a time: many new files would be written to their places at once.
            let mut new = File::create(app.join(Self::new_file(number))).unwrap();
            new.write_all(&CONTENT).unwrap();
            new.sync_all().unwrap();
        }
    }

    pub(crate) fn filler(&self) -> PathBuf {
        self.fixture.path("disk").join("filler")
    }

    fn check(&self, other: u8) {
        self.check_moved(&self.app());
        for number in 0..FILES {
            let new = self.app().join(Self::new_file(number));
            assert!(fs::read(new).unwrap() == CONTENT, "{number}");
        }
        let file = self.fixture.mountpoint.join("other/file");
        assert_eq!(fs::read(file).unwrap(), [other; 8192]);
    }

    fn check_moved(&self, app: &Path) {
        for number in 0..FILES {
            let content = fs::read(app.join(Self::moved(number))).unwrap();
            assert_eq!(content, number.to_string().as_bytes());
        }
    }

    fn delete_new(&self) {
        for number in 0..FILES {
            fs::remove_file(self.app().join(Self::new_file(number))).unwrap();
        }
    }

    /// Everything is in its place, and the new files are gone.
    fn umount_and_check(&self, other: u8) {
        self.fixture.umount();
        let lower = self.fixture.store.join("app");
        self.check_moved(&lower);
        assert_eq!(fs::read_dir(lower).unwrap().count(), 1);
        let file = self.fixture.store.join("other/file");
        assert_eq!(fs::read(file).unwrap(), [other; 8192]);
    }
}

/// Another program takes all room while files wait to be brought to their places: the store could
/// not be mounted, and deleting freed none.
fn disk_filled_by_others_leaves_the_store_usable(make: &[&str], bytes: u64) {
    let Some(filled) = Filled::new(make, bytes) else {
        return;
    };
    filled.mount();
    filled.commit_much();
    fill_disk(&filled.filler());
    let refused = filled.sync();
    assert!(!refused.status.success(), "{make:?}: there is no room");
    assert!(message(&refused).contains("\"app/"), "{refused:?}");
    filled.check(1);
    // Another app goes on, and what it commits stays.
    let file = filled.fixture.mountpoint.join("other/file");
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(&[2; 8192], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);

    filled.fixture.cut_power();
    filled.mount();
    filled.check(2);
    filled.delete_new();
    filled.sync_at_last();
    filled.umount_and_check(2);
}

#[test]
fn an_ext4_that_others_fill_leaves_the_store_usable() {
    needs_mounts!();
    disk_filled_by_others_leaves_the_store_usable(&EXT4, 64 * MIB);
}

#[test]
fn an_xfs_that_others_fill_leaves_the_store_usable() {
    needs_mounts!();
    disk_filled_by_others_leaves_the_store_usable(&XFS, 320 * MIB);
}

/// An apply that found no room had made new files, which took the reserve. They were deleted, and
/// nothing could be applied before the next mount: the useless files stayed.
fn deleting_frees_objects_that_could_not_be_applied(make: &[&str], bytes: u64) {
    let Some(filled) = Filled::new(make, bytes) else {
        return;
    };
    filled.mount();
    filled.commit_much();
    fill_disk(&filled.filler());
    assert!(!filled.sync().status.success(), "{make:?}: there is room");
    filled.delete_new();
    filled.sync_at_last();
    filled.umount_and_check(1);
}

#[test]
fn deleting_on_a_full_ext4_frees_objects_that_could_not_be_applied() {
    needs_mounts!();
    deleting_frees_objects_that_could_not_be_applied(&EXT4, 64 * MIB);
}

#[test]
fn deleting_on_a_full_xfs_frees_objects_that_could_not_be_applied() {
    needs_mounts!();
    deleting_frees_objects_that_could_not_be_applied(&XFS, 320 * MIB);
}

/// Each apply finishes what needs no room, however often another program takes all there is: the
/// second one gave up the room for what is carried over, to see whether directories could grow, and
/// did not get it back.
fn deletions_reach_a_full_store_in_every_apply(make: &[&str], bytes: u64) {
    const ROUNDS: usize = 5;
    const NEW: usize = 10;
    let Some(filled) = Filled::new(make, bytes) else {
        return;
    };
    filled.mount();
    let app = filled.app();
    fs::create_dir(&app).unwrap();
    for round in 0..ROUNDS {
        File::create(app.join(format!("old{round}"))).unwrap();
    }
    succeeds(&filled.sync());
    for number in 0..NEW {
        fs::write(app.join(Filled::new_file(number)), [7; 16 << 10]).unwrap();
    }
    File::create(filled.filler()).unwrap();
    take_inodes(&filled);
    for round in 0..ROUNDS {
        fill_disk(&filled.filler());
        let old = format!("old{round}");
        fs::remove_file(app.join(&old)).unwrap();
        let refused = filled.sync();
        assert!(message(&refused).contains("stay in .mobifs"), "{refused:?}");
        let old = filled.fixture.store.join("app").join(old);
        assert!(!old.exists(), "round {round}: {refused:?}");
    }
}

#[test]
fn deletions_reach_a_full_ext4_in_every_apply() {
    needs_mounts!();
    let ext4 = ["mkfs.ext4", "-q", "-m", "0", "-N", "200"];
    deletions_reach_a_full_store_in_every_apply(&ext4, 64 * MIB);
}

#[test]
fn deletions_reach_a_full_xfs_in_every_apply() {
    needs_mounts!();
    deletions_reach_a_full_store_in_every_apply(&XFS, 320 * MIB);
}

/// A program writes one large file until there is no room. The mount acknowledged more than the disk
/// had, because `statfs` of btrfs does not show what is durable and not yet in its own transaction;
/// then it refused to delete that file, to sync, and to unmount.
fn one_large_file_fills_the_disk(make: &[&str], bytes: u64) {
    let Some(filled) = Filled::new(make, bytes) else {
        return;
    };
    filled.fixture.mount(&[]);
    let app = filled.app();
    fs::create_dir(&app).unwrap();
    fs::write(app.join("old"), CONTENT).unwrap();
    for round in 0..2 {
        let mut big = File::create(app.join("big")).unwrap();
        let piece = vec![round; 1 << 20];
        let refused = (0..).find_map(|_| big.write_all(&piece).err()).unwrap();
        assert_eq!(refused.kind(), ErrorKind::StorageFull, "{make:?}");
        drop(big);
        succeeds(&filled.sync());
        fs::remove_file(app.join("big")).unwrap();
        fs::rename(app.join("old"), app.join("moved")).unwrap();
        fs::rename(app.join("moved"), app.join("old")).unwrap();
        succeeds(&filled.sync());
    }
    filled.fixture.umount();
    let lower = filled.fixture.store.join("app");
    assert!(fs::read(lower.join("old")).unwrap() == CONTENT);
    assert_eq!(fs::read_dir(lower).unwrap().count(), 1);
}

#[test]
fn one_large_file_fills_a_btrfs_and_is_deleted_again() {
    needs_mounts!();
    one_large_file_fills_the_disk(&BTRFS, 600 * MIB);
}

/// Small writes of zeros were never refused: each one that found no room was committed by itself, and
/// what it had been promised was free again.
#[test]
fn zeros_fill_an_ext4() {
    const COMMITS_MAX: u64 = 300;
    needs_mounts!();
    let Some(filled) = Filled::new(&EXT4, 64 * MIB) else {
        return;
    };
    let config = filled.fixture.config("journal_bytes = \"8MiB\"\n");
    filled
        .fixture
        .mount(&["--config", config.to_str().unwrap()]);
    let app = filled.app();
    fs::create_dir(&app).unwrap();
    let mut file = File::create(app.join("zeros")).unwrap();
    let refused = (0..64 * MIB / 8192).find_map(|_| file.write_all(&[0; 8192]).err());
    let refused = refused.expect("as much as the disk has, and the journal lies there, too");
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    let commits = filled.fixture.status()["store"]["commits"]
        .as_u64()
        .unwrap();
    assert!(commits < COMMITS_MAX, "{commits}");
    drop(file);
    fs::remove_file(app.join("zeros")).unwrap();
    succeeds(&filled.sync());
    filled.fixture.umount();
}

/// The mount stayed in the tree, and with it everything that it lies on.
#[test]
fn a_mount_with_content_without_room_leaves_the_tree_when_asked_to_lazily() {
    needs_mounts!();
    let Some(filled) = Filled::new(&EXT4, 128 * MIB) else {
        return;
    };
    let app = filled.write_without_room();
    let unmounted = mobifs(&["umount"], &filled.fixture.mountpoint);
    let said = message(&unmounted);
    assert!(said.contains("not unmounted"), "{said}");
    // Only a drill was named, which loses what is not committed; and the file had a number.
    let [room, drill] = ["free space where the store is", "drill power-cut"].map(|w| said.find(w));
    assert!(room.is_some() && room < drill, "{said}");
    assert!(
        said.contains("/big\": ") && !said.contains("object+"),
        "{said}"
    );
    let unmounted = mobifs(&["umount", "--lazy"], &filled.fixture.mountpoint);
    assert!(
        message(&unmounted).contains("out of the tree"),
        "{unmounted:?}"
    );
    assert!(!filled.fixture.is_mounted());
    // The daemon goes on trying, and nothing is lost.
    fs::remove_file(filled.filler()).unwrap();
    filled.mount();
    assert!(fs::read(app.join("big")).unwrap() == vec![1; 16 << 20]);
    filled.fixture.umount();
}

/// The next mount waited, and said that the daemon brings to the store what was changed; the status
/// said that programs use the mount.
#[test]
fn what_a_full_disk_keeps_from_the_store_is_said_after_an_unmount_by_the_system() {
    needs_mounts!();
    let Some(filled) = Filled::new(&EXT4, 128 * MIB) else {
        return;
    };
    let app = filled.write_without_room();
    let unmounted = std::process::Command::new("umount")
        .arg(&filled.fixture.mountpoint)
        .status();
    assert!(unmounted.unwrap().success());
    let store = filled.fixture.store.display().to_string();
    let line = || {
        let status = std::process::Command::new(crate::fixture::PROGRAM)
            .arg("status")
            .output();
        let text = String::from_utf8(status.unwrap().stdout).unwrap();
        let line = text.lines().find(|line| line.contains(&store));
        line.unwrap_or_default().to_owned()
    };
    wait_until(|| line().contains("cannot end yet"));
    let said = line();
    for needle in [
        "NOT IN THE TREE",
        "big",
        "No space left",
        "free space where the store is",
    ] {
        assert!(said.contains(needle), "{needle}: {said}");
    }
    assert!(said.contains("1 app READ-ONLY"), "{said}");
    let by_name = mobifs(&["status"], &filled.fixture.mountpoint);
    succeeds(&by_name);
    let by_name = String::from_utf8(by_name.stdout).unwrap();
    assert!(
        by_name.starts_with("NOT IN THE TREE: its daemon cannot end yet"),
        "{by_name}"
    );
    let refused = filled.fixture.try_mount(&["-o", "wait=2"]);
    let needles = [
        "cannot bring everything",
        "No space left",
        "free space where the store is",
    ];
    crate::fixture::fails(&refused, 3, &needles);
    fs::remove_file(filled.filler()).unwrap();
    filled.mount();
    assert!(fs::read(app.join("big")).unwrap() == vec![1; 16 << 20]);
    filled.fixture.umount();
}

/// Another program takes the room that was reserved. The app without room discards its uncommitted
/// content by deleting it, or truncating it. That was refused, or freed nothing: no sync and no
/// unmount succeeded any more.
fn content_without_room_is_given_up(make: &[&str], bytes: u64, give_up: fn(&Path)) {
    let Some(filled) = Filled::new(make, bytes) else {
        return;
    };
    let config = filled
        .fixture
        .config("[defaults]\nage_max_ms = 600000\ninterval_ms = 600000\n");
    filled
        .fixture
        .mount(&["--config", config.to_str().unwrap()]);
    let (app, other) = (filled.app(), filled.fixture.mountpoint.join("other"));
    fs::create_dir(&app).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(app.join("old"), CONTENT).unwrap();
    succeeds(&filled.sync());
    fs::write(app.join("big"), vec![1; 16 << 20]).unwrap();
    fill_disk(&filled.filler());
    let refused = filled.sync();
    let said = message(&refused);
    assert!(said.contains("big"), "{said}");
    assert!(said.contains("free space where the store is"), "{said}");
    let refused = fs::write(app.join("new"), CONTENT).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    let status = filled.fixture.status();
    assert!(
        status["apps"].to_string().contains("No space left"),
        "{status}"
    );
    // Other apps are not blocked.
    fs::remove_dir(&other).unwrap();
    succeeds(&mobifs(
        &["sync", "--app", "other"],
        &filled.fixture.mountpoint,
    ));
    give_up(&app);
    succeeds(&filled.sync());
    filled.fixture.umount();
    let lower = filled.fixture.store.join("app");
    assert!(fs::read(lower.join("old")).unwrap() == CONTENT);
    assert!(fs::metadata(lower.join("big")).map_or(0, |big| big.len()) == 0);
    // What the attempt to commit it had written is gone, too.
    fs::remove_file(filled.filler()).unwrap();
    let own = fs::read_dir(filled.fixture.store.join(".mobifs/stage")).unwrap();
    assert_eq!(own.count(), 0);
}

fn delete(app: &Path) {
    fs::remove_file(app.join("big")).unwrap();
}

fn truncate(app: &Path) {
    let big = OpenOptions::new().write(true).open(app.join("big"));
    big.unwrap().set_len(0).unwrap();
}

#[test]
fn content_without_room_on_ext4_is_given_up_by_its_app() {
    needs_mounts!();
    content_without_room_is_given_up(&EXT4, 128 * MIB, delete);
    content_without_room_is_given_up(&EXT4, 128 * MIB, truncate);
}

#[test]
fn content_without_room_on_xfs_is_given_up_by_its_app() {
    needs_mounts!();
    content_without_room_is_given_up(&XFS, 320 * MIB, delete);
}

/// A file with so many holes, and as many blocks of 4 KiB between them.
fn make_full_of_holes(path: &Path, blocks: u64) {
    let file = File::create(path).unwrap();
    for block in 0..blocks {
        let at = 2 * block * 4096;
        fallocate(&file, FallocateFlags::empty(), at, 4096).unwrap();
    }
    file.sync_all().unwrap();
}

/// XFS frees the blocks of deleted files in the background, and the more extents they have the longer
/// it takes. An app that went on writing got `ENOSPC` for up to three minutes: the apply that deletes
/// saw no room, and so waited the longer for the next one.
#[test]
fn what_is_deleted_on_a_full_xfs_is_free_for_the_next_write() {
    const ROUNDS: usize = 6;
    needs_mounts!();
    let Some(filled) = Filled::new(&XFS, 320 * MIB) else {
        return;
    };
    let lower = filled.fixture.store.join("app");
    fs::create_dir(&lower).unwrap();
    let old = |round: usize| format!("old{round}");
    for round in 0..ROUNDS {
        make_full_of_holes(&lower.join(old(round)), 16 * MIB / 4096);
    }
    filled.mount();
    fill_disk(&filled.filler());
    // The mount does not ask all the time.
    wait_until(|| {
        let mount = rustix::fs::statvfs(&filled.fixture.mountpoint).unwrap();
        mount.f_bavail < 300
    });
    let app = filled.app();
    for round in 0..ROUNDS {
        fs::remove_file(app.join(old(round))).unwrap();
        let written = fs::write(app.join(round.to_string()), vec![7; 12 << 20]);
        written.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    succeeds(&filled.sync());
    filled.fixture.umount();
}

/// The daemon is gone when the disk is filled: there is no block, no inode, and no room for a name
/// when the store is mounted. On btrfs that was refused: the journal was written elsewhere each time.
fn store_is_mounted_when_others_filled_the_disk(make: &[&str], bytes: u64, with_names: bool) {
    let Some(filled) = Filled::new(make, bytes) else {
        return;
    };
    filled.mount();
    filled.commit_much();
    filled.fixture.cut_power();
    let names = filled.fixture.path("disk").join("names");
    fs::create_dir(&names).unwrap();
    fill_disk(&filled.filler());
    if with_names {
        fill_with_names(&names);
    }

    let is_mounted = || {
        filled.mount();
        filled.check(1);
        let refused = fs::write(filled.app().join("fresh"), CONTENT).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StorageFull, "{make:?}");
    };
    succeeds(&mobifs(&["check"], &filled.fixture.store));
    is_mounted();
    filled.fixture.cut_power();
    let recovered = mobifs(&["recover"], &filled.fixture.store);
    let said = message(&recovered);
    let says_disk_full =
        said.contains("No space left on device") && !said.contains("cannot be used");
    assert!(
        recovered.status.success() || says_disk_full,
        "{make:?}: {said}"
    );
    is_mounted();
    // Deletions are committed, although there is no room for other changes.
    filled.delete_new();
    File::open(filled.app()).unwrap().sync_all().unwrap();
    filled.fixture.cut_power();
    fs::remove_file(filled.filler()).unwrap();
    fs::remove_dir_all(names).unwrap();
    filled.mount();
    filled.umount_and_check(1);
}

#[test]
fn a_store_on_an_ext4_that_is_full_after_a_crash_is_mounted() {
    needs_mounts!();
    store_is_mounted_when_others_filled_the_disk(&EXT4, 64 * MIB, true);
}

#[test]
fn a_store_on_an_xfs_that_is_full_after_a_crash_is_mounted() {
    needs_mounts!();
    store_is_mounted_when_others_filled_the_disk(&XFS, 320 * MIB, true);
}

#[test]
fn a_store_on_a_btrfs_that_is_full_after_a_crash_is_mounted() {
    needs_mounts!();
    store_is_mounted_when_others_filled_the_disk(&BTRFS, 112 * MIB, false);
    store_is_mounted_when_others_filled_the_disk(&BTRFS_MIXED, 64 * MIB, true);
}

/// Other programs take the last of something while many small files wait. These cannot be made, are
/// kept beside the journal, and block no other app: a failed attempt releases what it had taken,
/// which was the last there was. The journal filled up, and no app could commit any more.
fn small_files_without_room_delay_no_others(
    make: &[&str],
    bytes: u64,
    rounds: u8,
    take: fn(&Filled),
) {
    const FILES: usize = 1500;
    const PIECE_BYTES: usize = 256 << 10;
    let Some(filled) = Filled::new(make, bytes) else {
        return;
    };
    filled.mount();
    let (app, other) = (filled.app(), filled.fixture.mountpoint.join("other"));
    fs::create_dir(&app).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), vec![1; PIECE_BYTES]).unwrap();
    succeeds(&filled.sync());
    for number in 0..FILES {
        fs::write(app.join(number.to_string()), number.to_string()).unwrap();
    }
    File::open(&app).unwrap().sync_all().unwrap();
    take(&filled);

    let refused = filled.sync();
    assert!(message(&refused).contains("stay in .mobifs"), "{refused:?}");
    let file = OpenOptions::new().write(true).open(other.join("file"));
    let file = file.unwrap();
    for round in 0..rounds {
        file.write_all_at(&vec![round; PIECE_BYTES], 0).unwrap();
        file.sync_all().unwrap();
    }
    drop(file);
    filled.fixture.cut_power();
    filled.mount();
    assert!(fs::read(other.join("file")).unwrap() == vec![rounds - 1; PIECE_BYTES]);
    for number in 0..FILES {
        let path = app.join(number.to_string());
        assert_eq!(fs::read(&path).unwrap(), number.to_string().as_bytes());
        fs::remove_file(path).unwrap();
    }
    filled.sync_at_last();
    filled.fixture.umount();
    assert_eq!(
        fs::read_dir(filled.fixture.store.join("app"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn small_files_without_blocks_delay_no_others() {
    needs_mounts!();
    // Each file takes much more than what the journal says of it.
    let ext4 = ["mkfs.ext4", "-q", "-m", "0", "-b", "4096"];
    for (make, bytes) in [(&ext4[..], 64 * MIB), (&XFS, 320 * MIB)] {
        // More than the journal holds.
        small_files_without_room_delay_no_others(make, bytes, 40, |filled| {
            fill_disk(&filled.filler());
        });
    }
}

#[test]
fn small_files_without_inodes_delay_no_others() {
    needs_mounts!();
    let make = ["mkfs.ext4", "-q", "-m", "0", "-N", "4096"];
    small_files_without_room_delay_no_others(&make, 64 * MIB, 20, take_inodes);
}

/// Every later sync failed at the new files, because there was no inode for their overflow file:
/// deletions were never applied, and so never freed inodes. Neither sync nor umount succeeded
/// again.
fn deletions_give_inodes_back(make: &[&str], bytes: u64, deleted: usize) {
    const OLD: usize = 40;
    const NEW: usize = 15;
    let Some(filled) = Filled::new(make, bytes) else {
        return;
    };
    filled.mount();
    let app = filled.app();
    fs::create_dir(&app).unwrap();
    for number in 0..OLD {
        File::create(app.join(format!("old{number}"))).unwrap();
    }
    succeeds(&filled.sync());
    for number in 0..NEW {
        fs::write(app.join(format!("new{number}")), number.to_string()).unwrap();
    }
    take_inodes(&filled);
    let refused = filled.sync();
    let said = message(&refused);
    assert!(said.contains("stay in .mobifs"), "{refused:?}");
    // Regression: space was to be freed, of which there was enough.
    assert!(
        said.contains("no inodes left") && !said.contains("free space"),
        "{said}"
    );
    for number in 0..deleted {
        fs::remove_file(app.join(format!("old{number}"))).unwrap();
    }
    let synced = filled.sync();
    assert_eq!(synced.status.success(), deleted > NEW, "{synced:?}");
    let lower: Vec<_> = fs::read_dir(filled.fixture.store.join("app"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let old = lower.iter().filter(|name| name.starts_with("old")).count();
    assert_eq!(old, OLD - deleted, "{lower:?}");
    assert!(lower.len() - old >= deleted.min(NEW), "{lower:?}");
    for number in 0..NEW {
        let content = fs::read(app.join(format!("new{number}"))).unwrap();
        assert_eq!(content, number.to_string().as_bytes());
    }
    if deleted > NEW {
        filled.fixture.umount();
    }
}

/// Another program makes files until it gets no inode.
fn take_inodes(filled: &Filled) {
    let directory = filled.fixture.path("disk").join("inodes");
    fs::create_dir(&directory).unwrap();
    let refused =
        (0..).find_map(|number: usize| File::create(directory.join(number.to_string())).err());
    assert_eq!(refused.unwrap().kind(), ErrorKind::StorageFull);
}

#[test]
fn deletions_give_inodes_back_where_there_are_none() {
    needs_mounts!();
    let ext4 = ["mkfs.ext4", "-q", "-m", "0", "-N", "200"];
    for deleted in [6, 30] {
        deletions_give_inodes_back(&ext4, 64 * MIB, deleted);
    }
}
