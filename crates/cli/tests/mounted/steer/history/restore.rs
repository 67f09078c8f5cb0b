//! The way back to a snapshot.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use mobifs_host::Descent;
use rustix::fs::{AtFlags, IFlags, Mode, OFlags, XattrFlags, ioctl_getflags, lsetxattr};

use super::super::{BTRFS, Disk, EXT4};
use super::tree::{describe, make};
use super::{history, keeping, sync};
use crate::fixture::{IN_USE, fails, mobifs, needs_mounts, succeeds, wait_until};

/// A filesystem whose last snapshot has a tree that is not there any more.
fn with_past() -> Option<(Disk, Vec<String>, String)> {
    let disk = Disk::new(BTRFS)?;
    disk.steer(&keeping(20));
    let app = disk.at.join("app");
    make(&app);
    sync(&disk);
    let before = describe(&app);
    let time = history(&disk.at).pop().unwrap().time;
    fs::remove_dir_all(&app).unwrap();
    fs::create_dir(&app).unwrap();
    fs::write(app.join("new"), "later").unwrap();
    sync(&disk);
    Some((disk, before, time))
}

fn restore(disk: &Disk, words: &[&str]) -> std::process::Output {
    let words: Vec<_> = ["restore"].iter().chain(words).copied().collect();
    mobifs(&words, &disk.at)
}

fn entries_shared(output: &std::process::Output) -> (u64, u64) {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |before: &str| {
        let text = said.split(before).next().unwrap();
        text.rsplit(' ').next().unwrap().parse().unwrap()
    };
    (number(" bytes shared"), number(" copied"))
}

#[test]
fn a_copy_is_as_the_original_was() {
    needs_mounts!();
    let Some((disk, before, time)) = with_past() else {
        return;
    };
    let within = disk.at.join("restored");
    let outside = disk.fixture.path("restored");
    for (to, shares) in [(&within, true), (&outside, false)] {
        let words = ["--at", &time, "--app", "app", "--to", to.to_str().unwrap()];
        let output = restore(&disk, &words);
        succeeds(&output);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert_eq!(describe(to), before);
        let (shared, copied) = entries_shared(&output);
        assert_eq!((shared > 0, copied > 0), (shares, !shares));
    }
    // The whole filesystem, without its history.
    let whole = disk.fixture.path("whole");
    succeeds(&restore(
        &disk,
        &["--at", &time, "--to", whole.to_str().unwrap()],
    ));
    assert_eq!(describe(&whole.join("app")), before);
    assert!(!whole.join(".mobifs-history").exists());
    // What is there is there still.
    assert_eq!(fs::read(disk.at.join("app/new")).unwrap(), b"later");
}

/// "The snapshot has no directory" was said of a file that it has.
#[test]
fn a_file_is_not_restored_and_its_place_is_said() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(2));
    fs::create_dir(disk.at.join("app")).unwrap();
    fs::write(disk.at.join("app/file"), "content").unwrap();
    sync(&disk);
    let copy = history(&disk.at).pop().unwrap().path.join("app/file");
    let to = disk.fixture.path("to");
    let to = ["--to", to.to_str().unwrap()];
    for how in [&to[..], &["--in-place"]] {
        let words = [&["--at", "-0s", "--app", "app/file"], how].concat();
        let said = ["is a file in the snapshot", copy.to_str().unwrap()];
        fails(&restore(&disk, &words), 1, &said);
    }
    assert_eq!(fs::read(copy).unwrap(), b"content");
}

#[test]
fn a_moment_is_that_of_the_last_snapshot_before_it() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(20));
    let file = disk.at.join("app/file");
    fs::create_dir(disk.at.join("app")).unwrap();
    for content in ["one", "two", "three"] {
        fs::write(&file, content).unwrap();
        sync(&disk);
    }
    let kept = history(&disk.at);
    let restored = |at: &str, name: &str| {
        let to = disk.fixture.path(name);
        let words = ["--at", at, "--app", "app", "--to", to.to_str().unwrap()];
        succeeds(&restore(&disk, &words));
        fs::read_to_string(to.join("file")).unwrap()
    };
    let second = &kept[kept.len() - 2].time;
    assert_eq!(restored(second, "a"), "two");
    // Its last microsecond is one that lies before it.
    let between = second.replace('Z', "9Z");
    assert_eq!(restored(&between, "b"), "two");
    assert_eq!(restored("-0s", "c"), "three");
    fails(
        &restore(&disk, &["--at", "-1d", "--to", "/none"]),
        1,
        &["the first snapshot is of"],
    );
    fails(
        &restore(&disk, &["--at", "noon", "--to", "/none"]),
        2,
        &["`noon` is not a time"],
    );
}

#[test]
fn nothing_is_overwritten() {
    needs_mounts!();
    let Some((disk, _, time)) = with_past() else {
        return;
    };
    let app = disk.at.join("app");
    let before = describe(&app);
    let words = ["--at", &time, "--app", "app", "--to", app.to_str().unwrap()];
    fails(&restore(&disk, &words), 1, &["not an empty directory"]);
    assert_eq!(describe(&app), before);
    let none = ["--at", &time, "--app", "none", "--to", "/none"];
    fails(
        &restore(&disk, &none),
        1,
        &["the snapshot has no directory none"],
    );
    let out = ["--at", &time, "--app", "../x", "--to", "/none"];
    fails(&restore(&disk, &out), 2, &["cannot be the name of an app"]);
    let mounted = [
        "--at",
        &time,
        "--app",
        "app",
        "--to",
        disk.at.to_str().unwrap(),
    ];
    fails(&restore(&disk, &mounted), 1, &["not an empty directory"]);
    assert!(!Path::new("/none").exists());
    let history = disk.at.join(".mobifs-history");
    let into = history.join("x");
    let into = [
        "--at",
        &time,
        "--app",
        "app",
        "--to",
        into.to_str().unwrap(),
    ];
    let over = ["--at", &time, "--app", ".mobifs-history", "--in-place"];
    for words in [&into[..], &over] {
        fails(&restore(&disk, words), 2, &["the history itself"]);
    }
    assert!(!history.join("x").exists());
}

#[test]
fn in_place_what_was_there_is_kept() {
    needs_mounts!();
    let Some((disk, before, time)) = with_past() else {
        return;
    };
    let app = disk.at.join("app");
    let words = ["--at", &time, "--app", "app", "--in-place"];
    let open = File::open(app.join("new")).unwrap();
    fails(
        &restore(&disk, &words),
        IN_USE,
        &["is in use, by mounted", "--to"],
    );
    assert_eq!(fs::read(app.join("new")).unwrap(), b"later");
    drop(open);
    // Programs that other tests start have our files open until they are executed.
    wait_until(|| restore(&disk, &words).status.success());
    assert_eq!(describe(&app), before);
    let names = fs::read_dir(&disk.at).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().into_string().unwrap());
    let kept: Vec<_> = names.filter(|name| name.starts_with("app.")).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(kept[0].starts_with("app.before-restore-20"), "{kept:?}");
    assert_eq!(
        fs::read(disk.at.join(&kept[0]).join("new")).unwrap(),
        b"later"
    );
    // What was removed comes back to its place.
    fs::remove_dir_all(&app).unwrap();
    succeeds(&restore(&disk, &words));
    assert_eq!(describe(&app), before);
}

/// The flags of `chattr` of a file or directory.
fn flags_of(path: &Path) -> IFlags {
    ioctl_getflags(File::open(path).unwrap()).unwrap()
}

/// Directories lost the flag C, which files that are made in them take over, and flags that the target
/// does not have were lost without a word.
#[test]
fn flags_are_kept_or_reported() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(5));
    let app = disk.at.join("app");
    let script = "mkdir -p app/C app/all app/C/cow; chattr +AdSDc app/all; \
         echo content > app/C/plain; chattr +C app/C app; \
         mkdir app/C/inherits; echo content > app/C/inherits/file; echo content > app/all/file";
    let mut shell = Command::new("sh");
    succeeds(
        &shell
            .args(["-ec", script])
            .current_dir(&disk.at)
            .output()
            .unwrap(),
    );
    sync(&disk);
    let paths = [
        "",
        "C",
        "C/plain",
        "C/cow",
        "C/inherits",
        "C/inherits/file",
        "all",
        "all/file",
    ];
    let of = |base: &Path| paths.map(|path| (path, flags_of(&base.join(path))));
    let before = of(&app);
    let has_c: Vec<_> = before
        .iter()
        .filter(|(_, flags)| flags.contains(IFlags::NOCOW))
        .map(|(path, _)| *path)
        .collect();
    assert_eq!(has_c, ["", "C", "C/inherits", "C/inherits/file"]);
    let to = disk.at.join("to");
    let words = ["--at", "-0s", "--app", "app", "--to", to.to_str().unwrap()];
    let output = restore(&disk, &words);
    succeeds(&output);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(of(&to), before);
    let in_place = ["--at", "-0s", "--app", "app", "--in-place"];
    wait_until(|| restore(&disk, &in_place).status.success());
    assert_eq!(of(&app), before);
    let Some(other) = Disk::new(EXT4) else { return };
    let to = other.at.join("to");
    let words = ["--at", "-0s", "--app", "app", "--to", to.to_str().unwrap()];
    let output = restore(&disk, &words);
    succeeds(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("C/inherits/file: flag C: "), "{said}");
    let kept = IFlags::NOATIME | IFlags::NODUMP | IFlags::SYNC | IFlags::DIRSYNC;
    assert!(flags_of(&to.join("all")).contains(kept));
}

/// What a restore that was killed has left had to be removed by hand, with an error that did not say
/// so.
#[test]
fn an_interrupted_restore_can_be_repeated() {
    needs_mounts!();
    let Some((disk, before, time)) = with_past() else {
        return;
    };
    let to = disk.at.join("to");
    let words = ["--at", &time, "--app", "app", "--to", to.to_str().unwrap()];
    let part = disk.at.join("to.restoring");
    let leave = || {
        fs::create_dir(&part).unwrap();
        fs::write(part.join("half"), "a part").unwrap();
    };
    leave();
    fails(&restore(&disk, &words), 1, &["to.restoring", "interrupted"]);
    assert!(part.join("half").exists() && !to.exists());
    let mark = "trusted.mobifs.restoring";
    lsetxattr(&part, mark, b"", XattrFlags::empty()).unwrap();
    // As the restore has it that is still making it.
    let at_work = File::open(&part).unwrap();
    at_work.lock().unwrap();
    fails(&restore(&disk, &words), IN_USE, &["another restore"]);
    assert!(part.join("half").exists());
    drop(at_work);
    // Programs that other tests start have it open until they are executed.
    wait_until(|| restore(&disk, &words).status.success());
    assert_eq!(describe(&to), before);
    assert!(!part.exists());
    leave();
    lsetxattr(&part, mark, b"", XattrFlags::empty()).unwrap();
    let words = [
        "--at",
        &time,
        "--app",
        "app",
        "--to",
        part.to_str().unwrap(),
    ];
    fails(&restore(&disk, &words), 1, &["not an empty directory"]);
}

const LEVELS: usize = 3_000;

/// The bottom of a tree that is deeper than any path, with one more name for the file at its top.
fn deep(top: &Path, makes: bool) -> Descent {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut tree = Descent::new(rustix::fs::open(top, flags, Mode::empty()).unwrap());
    for _ in 0..LEVELS {
        if makes {
            rustix::fs::mkdirat(tree.directory(), c"directory", Mode::RWXU).unwrap();
        }
        tree.enter(c"directory").unwrap();
    }
    tree
}

/// Two descriptors were taken for each level, and paths are no longer than 4096 bytes.
#[test]
fn a_tree_of_any_depth_is_restored() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(20));
    let app = disk.at.join("app");
    fs::create_dir(&app).unwrap();
    fs::write(app.join("zz"), "bottom and top").unwrap();
    let bottom = deep(&app, true);
    let top = fs::File::open(&app).unwrap();
    rustix::fs::linkat(&top, c"zz", bottom.directory(), c"aa", AtFlags::empty()).unwrap();
    drop((bottom, top));
    sync(&disk);
    let time = history(&disk.at).last().unwrap().time.clone();
    let copy = disk.fixture.path("copy");
    let words = [
        "--at",
        &time,
        "--app",
        "app",
        "--to",
        copy.to_str().unwrap(),
    ];
    succeeds(&restore(&disk, &words));
    succeeds(&restore(
        &disk,
        &["--at", &time, "--app", "app", "--in-place"],
    ));
    for place in [&copy, &app] {
        let inode = fs::metadata(place.join("zz")).unwrap().ino();
        let bottom = deep(place, false);
        let found = rustix::fs::statat(bottom.directory(), c"aa", AtFlags::empty()).unwrap();
        assert_eq!(
            (found.st_ino, found.st_nlink),
            (inode, 2),
            "{}",
            place.display()
        );
    }
    // As the test's own directory is removed at the end.
    succeeds(&Command::new("rm").arg("-rf").arg(&copy).output().unwrap());
}

/// What was there went on in the other place, and what was restored did not show there.
#[test]
fn a_directory_that_is_mounted_elsewhere_is_not_replaced() {
    needs_mounts!();
    let Some((mut disk, _, time)) = with_past() else {
        return;
    };
    let app = disk.at.join("app");
    let words = ["--at", &time, "--app", "app", "--in-place"];
    let bound = disk.fixture.directory("bound");
    disk.fixture
        .mount_other(&["--bind", app.to_str().unwrap()], &bound);
    let mounted = format!("mounted at {}", bound.display());
    fails(&restore(&disk, &words), IN_USE, &[&mounted]);
    succeeds(&Command::new("umount").arg(&bound).output().unwrap());
    // In a mount namespace that this process does not see.
    let mut other = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg("mount --bind \"$1\" \"$2\" && echo ready && read end")
        .arg("sh")
        .args([&app, &bound])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 6];
    other
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    let namespace = format!("in the mount namespace of process {}", other.id());
    fails(&restore(&disk, &words), IN_USE, &[&namespace]);
    drop(other.stdin.take());
    other.wait().unwrap();
    wait_until(|| restore(&disk, &words).status.success());
}

/// It was "restored" as an empty directory, and what was there was renamed.
#[test]
fn a_subvolume_that_the_snapshot_does_not_have_is_not_restored() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    let nested = disk.at.join("a/photos");
    fs::create_dir(disk.at.join("a")).unwrap();
    let made = Command::new("btrfs")
        .args(["subvolume", "create"])
        .arg(&nested)
        .output();
    succeeds(&made.unwrap());
    fs::write(nested.join("photo"), "mine").unwrap();
    disk.steer(&keeping(5));
    fs::write(disk.at.join("a/file"), "1").unwrap();
    sync(&disk);
    let time = history(&disk.at).pop().unwrap().time;
    let to = disk.fixture.path("restored");
    for words in [
        vec!["--at", &time, "--app", "a/photos", "--in-place"],
        vec![
            "--at",
            &time,
            "--app",
            "a/photos",
            "--to",
            to.to_str().unwrap(),
        ],
    ] {
        fails(
            &restore(&disk, &words),
            1,
            &["a/photos", "subvolume of its own"],
        );
    }
    assert_eq!(fs::read(nested.join("photo")).unwrap(), b"mine");
    assert!(!to.exists());
    let words = ["--at", &time, "--app", "a", "--to", to.to_str().unwrap()];
    let output = restore(&disk, &words);
    succeeds(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("a/photos is a nested subvolume"), "{said}");
}
