//! Blocks beyond the ends of growing files, on real filesystems.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Pid, Signal, kill_process};

use crate::filesystems::{put_store_mounted, put_store_on, put_store_on_sized};
use crate::fixture::{Fixture, mobifs, needs_mounts, succeeds, wait_until};

const KIB: u64 = 1 << 10;

/// Bytes of blocks beyond what the size needs, without what lists of extents take.
fn unused(path: &Path) -> u64 {
    let about = fs::metadata(path).unwrap();
    let needed = about.size().next_multiple_of(4 * KIB);
    (about.blocks() * 512).saturating_sub(needed) / (16 * KIB) * (16 * KIB)
}

/// A database of 8 KiB, by its name.
fn make(path: &Path) -> File {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    file.write_all_at(&[7; 8 << 10], 0).unwrap();
    file
}

/// What is preallocated is given back at unmount, after a kill and at the next unmount, and after a
/// power cut by the next mount; room that a program requested stays; the status counts.
fn blocks_come_and_go(make_filesystem: &[&str], keeps: bool) {
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, make_filesystem) {
        return;
    }
    let config = fixture
        .config("preallocate_database_bytes = \"128KiB\"\npreallocate_large_bytes = \"1MiB\"\n");
    let words = ["--config", config.to_str().unwrap()];
    fixture.mount(&words);
    let lower = |name: &str| fixture.store.join("app").join(name);
    let on_mount = |name: &str| fixture.mountpoint.join("app").join(name);
    let sync = || succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    let file = make(&on_mount("a.db"));
    let requested = make(&on_mount("b.db"));
    fallocate(&requested, FallocateFlags::KEEP_SIZE, 0, 300 * KIB).unwrap();
    sync();
    let step = if keeps { 112 * KIB } else { 0 };
    assert_eq!(unused(&lower("a.db")), step);
    let counted = fixture.status()["store"]["preallocated_unused_bytes"].as_u64();
    assert_eq!(counted, Some(if keeps { 120 * KIB } else { 0 }));
    file.write_all_at(&[7; 8 << 10], 8 << 10).unwrap();
    drop((file, requested));
    sync();
    fixture.umount();
    assert_eq!(unused(&lower("a.db")), 0, "after the unmount");
    assert!(unused(&lower("b.db")) >= 272 * KIB, "it was requested");

    fixture.mount(&words);
    make(&on_mount("c.db"));
    sync();
    assert_eq!(unused(&lower("c.db")), step);
    let killed = fixture.daemon_pid();
    kill_process(Pid::from_raw(killed as i32).unwrap(), Signal::KILL).unwrap();
    wait_until(|| fs::metadata(on_mount("c.db")).is_ok() && fixture.daemon_pid() != killed);
    fixture.umount();
    assert_eq!(unused(&lower("c.db")), 0, "after a kill and an unmount");

    fixture.mount(&words);
    make(&on_mount("d.db"));
    sync();
    let written = fs::metadata(lower("d.db")).unwrap().modified().unwrap();
    fixture.cut_power();
    assert_eq!(unused(&lower("d.db")), step);
    fixture.mount(&words);
    sync();
    assert_eq!(unused(&lower("d.db")), 0, "after a power cut");
    let after = fs::metadata(lower("d.db")).unwrap().modified().unwrap();
    assert_eq!(after, written);
    fixture.umount();
    assert!(unused(&lower("b.db")) >= 272 * KIB, "it was requested");
}

/// At the unmount, the database was cut to the size of a file that was mounted over it in the store.
#[test]
fn blocks_are_given_back_by_a_database_over_which_another_file_is_mounted() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, &["mkfs.ext4", "-q"]) {
        return;
    }
    let config = fixture.config("preallocate_database_bytes = \"128KiB\"\n");
    let words = ["--config", config.to_str().unwrap()];
    fixture.mount(&words);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    drop(make(&fixture.mountpoint.join("app/a.db")));
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    let lower = fixture.store.join("app/a.db");
    assert_eq!(unused(&lower), 112 * KIB);
    let other = fixture.path("other");
    fs::write(&other, "short").unwrap();
    let mounted = Command::new("mount")
        .arg("--bind")
        .args([&other, &lower])
        .status();
    assert!(mounted.unwrap().success());
    fixture.umount();
    let unmounted = Command::new("umount").arg(&lower).status();
    assert!(unmounted.unwrap().success());
    let content = fs::read(&lower).unwrap();
    assert!(content == [7; 8 << 10], "{} bytes", content.len());
    fixture.mount(&words);
    assert!(fs::read(fixture.mountpoint.join("app/a.db")).unwrap() == content);
    fixture.umount();
}

#[test]
fn blocks_beyond_the_ends_of_files_come_and_go_on_ext4() {
    needs_mounts!();
    blocks_come_and_go(&["mkfs.ext4", "-q"], true);
}

#[test]
fn blocks_beyond_the_ends_of_files_come_and_go_on_xfs() {
    needs_mounts!();
    blocks_come_and_go(&["mkfs.xfs", "-q"], true);
}

#[test]
fn on_btrfs_nothing_is_preallocated() {
    needs_mounts!();
    blocks_come_and_go(&["mkfs.btrfs", "-q"], false);
}

/// Pieces of a file on the disk, from its first block to its last one.
fn pieces(path: &Path) -> Option<usize> {
    let looked = Command::new("filefrag").arg(path).output().ok()?;
    let said = String::from_utf8(looked.stdout).ok()?;
    let count = said.rsplit_once(": ")?.1.split_whitespace().next()?;
    count.parse().ok()
}

/// Databases that grow by turns, a sync after each turn, among other files that take what follows them; returns
/// their content.
fn grow_by_turns(fixture: &Fixture, turns: u64) -> Vec<(String, Vec<u8>)> {
    const TURN: usize = 24 << 10;
    let app = fixture.mountpoint.join("app");
    fs::create_dir_all(&app).unwrap();
    let names = ["a.db", "b.db", "c.db", "d.db"];
    let mut contents = vec![Vec::new(); names.len()];
    for turn in 0..turns {
        for (name, content) in names.iter().zip(&mut contents) {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(false);
            let file = file.open(app.join(name)).unwrap();
            let more = vec![turn as u8 + 1; TURN];
            file.write_all_at(&more, content.len() as u64).unwrap();
            content.extend(more);
            fs::write(app.join(format!("{name}-{turn}.jpg")), vec![9; 40 << 10]).unwrap();
        }
        succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    }
    let names = names.map(str::to_owned).into_iter();
    names.zip(contents).collect()
}

fn moved(fixture: &Fixture) -> u64 {
    let status = fixture.status();
    status["store"]["moved_bytes"].as_u64().unwrap()
}

/// What the store has is what was written, with the times that the mount has shown.
fn check_databases(fixture: &mut Fixture, databases: &[(String, Vec<u8>)]) {
    let app = fixture.mountpoint.join("app");
    let time = |directory: &Path, name: &str| {
        let about = fs::metadata(directory.join(name)).unwrap();
        (about.modified().unwrap(), about.ino())
    };
    let shown: Vec<_> = databases
        .iter()
        .map(|(name, _)| time(&app, name).0)
        .collect();
    fixture.umount();
    let app = fixture.store.join("app");
    for ((name, content), shown) in databases.iter().zip(shown) {
        assert_eq!(time(&app, name).0, shown, "{name}");
        assert!(fs::read(app.join(name)).unwrap() == *content, "{name}");
    }
}

/// Each step that such a database outgrew lay elsewhere, although the disk was almost empty. From 1 MiB on a second
/// piece may be left.
#[test]
fn databases_that_grow_beside_other_files_lie_in_one_or_two_pieces_on_ext4() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, &["mkfs.ext4", "-q"]) {
        return;
    }
    fixture.mount(&[]);
    // A descriptor of the file in the store, as passthrough has it, reads what is written and moved after it.
    let first = grow_by_turns(&fixture, 1);
    let before = File::open(fixture.store.join("app/a.db")).unwrap();
    let inode = before.metadata().unwrap().ino();
    let databases = grow_by_turns(&fixture, 60);
    let moved_bytes = moved(&fixture);
    let content_bytes: usize = databases.iter().map(|(_, content)| content.len()).sum();
    assert!(moved_bytes > 0);
    // Each place is twice as large as the one before.
    assert!(
        moved_bytes <= 2 * content_bytes as u64,
        "{moved_bytes} moved"
    );
    check_databases(&mut fixture, &databases);
    let mut found = vec![0; databases[0].1.len()];
    before.read_exact_at(&mut found, 0).unwrap();
    assert!(found == databases[0].1, "through a descriptor of before");
    assert_eq!(before.metadata().unwrap().ino(), inode);
    assert!(first[0].1.len() < found.len());
    for (name, _) in &databases {
        match pieces(&fixture.store.join("app").join(name)) {
            Some(count) => assert!(count <= 2, "{name}: {count}"),
            None => mobifs_skip::skip_part("no filefrag"),
        }
    }
}

/// There a cut could take content that was durable.
#[test]
fn nothing_moves_on_an_ext4_that_does_not_write_content_first() {
    needs_mounts!();
    let ways: [(&[&str], &str); 4] = [
        (&["mkfs.ext4", "-q"], "loop,data=writeback"),
        (&["mkfs.ext4", "-q"], "loop,data=journal"),
        (&["mkfs.ext4", "-q", "-O", "^has_journal"], "loop"),
        (
            &["mkfs.ext4", "-q", "-E", "mount_opts=data=writeback"],
            "loop",
        ),
    ];
    for (make, options) in ways {
        let mut fixture = Fixture::new();
        if !put_store_mounted(&mut fixture, make, 512 << 20, options) {
            return;
        }
        fixture.mount(&[]);
        let databases = grow_by_turns(&fixture, 20);
        assert_eq!(moved(&fixture), 0, "{make:?} {options}");
        check_databases(&mut fixture, &databases);
    }
}

/// What cannot move grows as it can: a disk with room for what is written and not for a second copy.
#[test]
fn nothing_moves_on_a_disk_that_is_almost_full() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, &["mkfs.ext4", "-q", "-m", "0"]) {
        return;
    }
    fixture.mount(&[]);
    let databases = grow_by_turns(&fixture, 10);
    let disk = fixture.store.parent().unwrap().to_owned();
    let available = || {
        let about = rustix::fs::statvfs(&disk).unwrap();
        about.f_bavail * about.f_frsize
    };
    let filler = File::create(disk.join("filler")).unwrap();
    let left = 1 << 20;
    fallocate(&filler, FallocateFlags::empty(), 0, available() - left).unwrap();
    let before = moved(&fixture);
    let app = fixture.mountpoint.join("app");
    let mut grown = databases;
    for (name, content) in &mut grown {
        let file = OpenOptions::new()
            .write(true)
            .open(app.join(&*name))
            .unwrap();
        let more = vec![77; 40 << 10];
        file.write_all_at(&more, content.len() as u64).unwrap();
        content.extend(more);
        drop(file);
        succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    }
    assert_eq!(moved(&fixture), before);
    check_databases(&mut fixture, &grown);
}

/// Beyond 8 MiB each batch lay in two pieces of its own: steps of 1 MiB were smaller than a batch, and what a commit
/// brings to its place was allocated wherever there was room.
#[test]
fn large_files_that_grow_in_batches_lie_in_few_pieces_on_ext4() {
    needs_mounts!();
    for class in ["relaxed", "durable"] {
        let mut fixture = Fixture::new();
        if !put_store_on_sized(&mut fixture, &["mkfs.ext4", "-q"], 1 << 30) {
            return;
        }
        let config = fixture.config(&format!("[defaults]\nclass = \"{class}\"\n"));
        fixture.mount(&["--config", config.to_str().unwrap()]);
        let app = fixture.mountpoint.join("app");
        fs::create_dir(&app).unwrap();
        let names = ["a.db", "b.db", "c.bin"];
        let files = names.map(|name| File::create(app.join(name)).unwrap());
        for turn in 0..10 {
            for file in &files {
                file.write_all_at(&vec![turn + 1; 2 << 20], u64::from(turn) * (2 << 20))
                    .unwrap();
                file.sync_all().unwrap();
            }
            fs::write(app.join(format!("{turn}.jpg")), vec![9; 40 << 10]).unwrap();
            succeeds(&mobifs(&["sync"], &fixture.mountpoint));
        }
        drop(files);
        fixture.umount();
        for name in names {
            match pieces(&fixture.store.join("app").join(name)) {
                Some(count) => assert!(count <= 6, "{class} {name}: {count}"),
                None => mobifs_skip::skip_part("no filefrag"),
            }
        }
    }
}

/// The blocks of what a short commit had left to the apply were freed by it, and others taken that lay elsewhere: each
/// short commit between long ones made two pieces more.
#[test]
fn files_that_grow_by_short_and_long_commits_lie_in_few_pieces_on_ext4() {
    const PAGE: usize = 4 << 10;
    needs_mounts!();
    // What comes first is short: it is in the journal when the file gets its first blocks.
    for (name, commits) in [("a.bin", [5, 20]), ("b.db", [5, 80]), ("c.bin", [20, 5])] {
        let mut fixture = Fixture::new();
        if !put_store_on(&mut fixture, &["mkfs.ext4", "-q"]) {
            return;
        }
        let config = fixture.config("[defaults]\nclass = \"durable\"\n");
        fixture.mount(&["--config", config.to_str().unwrap()]);
        let app = fixture.mountpoint.join("app");
        fs::create_dir(&app).unwrap();
        let [file, log] = [name, "log"].map(|name| File::create(app.join(name)).unwrap());
        let mut content = Vec::new();
        // The file is new in the first half, and there in the second one.
        for half in 0..2 {
            for turn in 0..12_u8 {
                for pages in commits {
                    let more = vec![half * 12 + turn + 1; pages * PAGE];
                    file.write_all_at(&more, content.len() as u64).unwrap();
                    file.sync_all().unwrap();
                    content.extend(more);
                }
                let at = u64::from(half * 12 + turn) * (40 << 10);
                log.write_all_at(&[9; 40 << 10], at).unwrap();
                log.sync_all().unwrap();
            }
            succeeds(&mobifs(&["sync"], &fixture.mountpoint));
            let lower = fixture.store.join("app").join(name);
            match pieces(&lower) {
                Some(count) => assert!(count <= 5, "{name}: {count} in half {half}"),
                None => mobifs_skip::skip_part("no filefrag"),
            }
        }
        drop((file, log));
        fixture.umount();
        let found = fs::read(fixture.store.join("app").join(name)).unwrap();
        assert!(found == content, "{name}");
    }
}

/// What a file grew by when it was written anew was a piece of its own beside the old blocks.
#[test]
fn files_that_are_replaced_by_longer_ones_lie_in_one_piece_on_ext4() {
    const FILES: u64 = 60;
    needs_mounts!();
    for class in ["relaxed", "durable"] {
        let mut fixture = Fixture::new();
        if !put_store_on(&mut fixture, &["mkfs.ext4", "-q"]) {
            return;
        }
        let config = fixture.config(&format!("[defaults]\nclass = \"{class}\"\n"));
        fixture.mount(&["--config", config.to_str().unwrap()]);
        let app = fixture.mountpoint.join("app");
        fs::create_dir(&app).unwrap();
        for round in 1..=3 {
            for file in 0..FILES {
                let file = File::create(app.join(format!("{file}.bin"))).map(|it| (it, file));
                let (file, number) = file.unwrap();
                let bytes = 20_000 + (number * 7919 + round * 60_000) % 180_000;
                file.write_all_at(&vec![round as u8; bytes as usize], 0)
                    .unwrap();
                file.sync_all().unwrap();
            }
            succeeds(&mobifs(&["sync"], &fixture.mountpoint));
        }
        fixture.umount();
        let names = (0..FILES).map(|file| fixture.store.join(format!("app/{file}.bin")));
        let counts: Option<Vec<_>> = names.map(|name| pieces(&name)).collect();
        match counts {
            Some(counts) => {
                let several = counts.iter().filter(|&&count| count > 1).count();
                assert!(
                    several <= 2,
                    "{class}: {several} of {FILES} in several pieces"
                );
            }
            None => mobifs_skip::skip_part("no filefrag"),
        }
    }
}
