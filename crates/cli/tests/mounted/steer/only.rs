//! Some directories of a filesystem, whose files have the flag `chattr +j`. For that flag a process needs
//! CAP_SYS_RESOURCE: what happens with it is in `scripts/native-guest.sh`, too.

use std::fs;

use mobifs_steered::{Scope, is_journalled};
use rustix::thread::{CapabilitySet, capabilities};

use super::{Disk, EXT4, Made};
use crate::fixture::{fails, needs_mounts, succeeds};

const ORDERED: Made = Made {
    options: "loop,nodelalloc,data=ordered",
    ..EXT4
};

/// Why no file can be marked, if so.
fn obstacle() -> Option<&'static str> {
    let sets = capabilities(None).unwrap();
    let can = sets.effective.contains(CapabilitySet::SYS_RESOURCE);
    (!can).then_some("no CAP_SYS_RESOURCE")
}

#[test]
fn what_is_missing_for_some_directories_is_said() {
    needs_mounts!();
    let delayed = Made {
        options: "loop,data=ordered",
        ..EXT4
    };
    let say = |made: Made, directory: &str, sentence: &str| {
        let Some(disk) = Disk::new(made) else {
            return;
        };
        fs::create_dir(disk.at.join("app")).unwrap();
        let before = disk.options();
        let checked = disk.try_steer(&["--check", "--only", directory]);
        fails(&checked, 1, &["cannot be steered as it is"]);
        let said = String::from_utf8(checked.stdout).unwrap();
        assert!(said.contains(sentence), "{said}");
        let refused = disk.try_steer(&["--only", directory]);
        assert!(!refused.status.success(), "{refused:?}");
        assert_eq!(disk.options(), before);
    };
    say(delayed, "app", "mount it with `-o nodelalloc`");
    say(
        EXT4,
        "app",
        "data=journal, by which all content is journalled",
    );
    say(ORDERED, "none", "No such file");
    say(ORDERED, "app,/proc", "/proc cannot be steered by itself");
    say(ORDERED, ".", "it is all of the filesystem");
    if obstacle().is_some() {
        say(ORDERED, "app", "CAP_SYS_RESOURCE");
    }
}

/// A failure to mark leaves nothing behind.
#[test]
fn some_directories_are_marked_and_unmarked() {
    needs_mounts!();
    let Some(disk) = Disk::new(ORDERED) else {
        return;
    };
    let app = disk.at.join("app");
    fs::create_dir_all(app.join("a/b")).unwrap();
    fs::write(app.join("a/b/file"), "words").unwrap();
    fs::write(disk.at.join("film"), "pictures").unwrap();
    if !mobifs_skip::can(obstacle()) {
        return;
    }
    let is_marked = |path: &str| is_journalled(fs::File::open(disk.at.join(path)).unwrap());
    succeeds(&disk.try_steer(&["--only", "app"]));
    let steered = disk.registration().unwrap();
    assert!(steered.is_in_force() && steered.record().scope() == Scope::JournalledFiles);
    fs::write(app.join("a/new"), "words").unwrap();
    assert!(["app", "app/a/b", "app/a/b/file", "app/a/new"].map(is_marked) == [true; 4]);
    assert!([".", "film"].map(is_marked) == [false; 2]);
    disk.stop();
    assert!(["app", "app/a/b", "app/a/b/file", "app/a/new"].map(is_marked) == [false; 4]);
}
