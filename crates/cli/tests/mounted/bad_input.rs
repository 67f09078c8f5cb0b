//! Bad input: a clear message, an exit code, and nothing lost.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;
use std::process::Command;

use crate::fixture::{
    Fixture, IN_USE, PROGRAM, fails, message, mobifs, needs_laboratory, needs_mounts, snapshot,
    succeeds, try_mount_at,
};

#[test]
fn stores_that_are_no_directory() {
    let fixture = Fixture::new();
    let mnt = &fixture.mountpoint;
    let absent = fixture.path("absent");
    fails(
        &try_mount_at(&absent, mnt, &[]),
        1,
        &["absent", "does not exist", "mkdir"],
    );
    let file = fixture.path("file");
    fs::write(&file, "precious").unwrap();
    fails(
        &try_mount_at(&file, mnt, &[]),
        1,
        &["file", "is not a directory"],
    );
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    for command in [&["check"][..], &["recover"], &["recover", "--dry-run"]] {
        fails(&mobifs(command, &file), 1, &["is not a directory"]);
        let output = mobifs(command, &absent);
        fails(&output, 1, &["does not exist"]);
        // It said to make the directory first, as for a mount.
        assert!(!message(&output).contains("mkdir"), "{output:?}");
    }
}

/// The usage said `mobifs-lab`, which the user had not typed.
#[test]
fn the_laboratory_is_called_as_it_was_typed() {
    needs_laboratory!();
    for (typed, usage) in [
        (&["flash"][..], "Usage: mobifs flash <COMMAND>"),
        (&["trace"], "Usage: mobifs trace <COMMAND>"),
        (&["trace", "record"], "Usage: mobifs trace record "),
        (&["sim"], "Usage: mobifs sim "),
        (&["lab"], "Usage: mobifs lab <COMMAND>"),
        (&["lab", "workload"], "Usage: mobifs lab workload "),
    ] {
        let mut command = Command::new(PROGRAM);
        let output = command.args(typed).arg("--help").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(usage), "{typed:?}: {said}");
    }
}

/// `recover` failed, and `recover --dry-run` did not.
#[test]
fn what_is_no_store_is_refused_by_recover_with_and_without_dry_run() {
    let fixture = Fixture::new();
    for command in [&["recover"][..], &["recover", "--dry-run"]] {
        fails(
            &mobifs(command, &fixture.store),
            1,
            &["is not a MobiFS store"],
        );
    }
    succeeds(&mobifs(&["check"], &fixture.store));
}

/// It said to remove `.mobifs/id`, and in the same breath to move it away.
#[test]
fn about_a_missing_journal_one_thing_is_said() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fixture.umount();
    fs::remove_file(fixture.store.join(".mobifs/journal")).unwrap();
    for command in ["check", "recover"] {
        let output = mobifs(&[command], &fixture.store);
        fails(&output, 4, &["its journal is missing", "recover --salvage"]);
        assert!(!message(&output).contains("remove"), "{output:?}");
    }
}

/// Both commands say the same of a store that was deleted in part, whatever is left of it.
#[test]
fn check_and_mount_agree_on_a_store_that_was_deleted_in_part() {
    needs_mounts!();
    let damages: [&[&str]; 9] = [
        &[".mobifs/journal"],
        &[".mobifs/id"],
        &[".mobifs/id", ".mobifs/journal"],
        &[".mobifs/limbo", ".mobifs/lost", ".mobifs/stage"],
        &[".mobifs/lock"],
        &[".mobifs"],
        &["app"],
        &["app/deep"],
        &["app/file"],
    ];
    for removed in damages {
        let fixture = Fixture::new();
        let config = fixture.config("journal_bytes = \"1MiB\"\ndirect_write_max_bytes = 0\n");
        let words = ["--config", config.to_str().unwrap()];
        fixture.mount(&words);
        let path = |name: &str| fixture.mountpoint.join(name);
        fs::create_dir_all(path("app/deep")).unwrap();
        fs::write(path("app/file"), "old").unwrap();
        succeeds(&mobifs(&["sync"], &fixture.mountpoint));
        // Committed, and not in its place.
        let settings = ["set", "--app", "app", "--class", "durable"];
        succeeds(&mobifs(&settings, &fixture.mountpoint));
        fs::write(path("app/deep/new"), "new").unwrap();
        fs::rename(path("app/file"), path("app/moved")).unwrap();
        fs::File::open(path("app/deep/new"))
            .unwrap()
            .sync_all()
            .unwrap();
        fixture.cut_power();
        for name in removed {
            let path = fixture.store.join(name);
            let gone = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            gone.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let checked = mobifs(&["check"], &fixture.store);
        let mounted = fixture.try_mount(&words);
        assert_eq!(
            (checked.status.code(), message(&checked).is_empty()),
            (mounted.status.code(), message(&mounted).is_empty()),
            "{removed:?}: {checked:?} {mounted:?}"
        );
        if mounted.status.success() {
            fixture.umount();
        }
    }
}

#[test]
fn mount_points_that_cannot_be_used() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    let file = fixture.mountpoint.join("hidden");
    fs::write(&file, "precious").unwrap();
    fails(&fixture.try_mount(&[]), 1, &["not empty", "nonempty"]);
    let absent = try_mount_at(store, &fixture.path("absent"), &[]);
    fails(&absent, 1, &["mount point", "does not exist"]);
    fails(&try_mount_at(store, &file, &[]), 1, &["is not a directory"]);
    assert!(
        !store.join(".mobifs").exists(),
        "nothing was done to the store"
    );
}

#[test]
fn nested_places() {
    let fixture = Fixture::new();
    let store = &fixture.store;
    let inside = store.join("inside");
    fs::create_dir(&inside).unwrap();
    let try_at = |store: &Path, place: &Path| try_mount_at(store, place, &["-o", "nonempty"]);
    fails(&try_at(store, &inside), 1, &["inside", "cannot be nested"]);
    fails(&try_at(&inside, store), 1, &["inside", "cannot be nested"]);
    fails(&try_at(store, store), 1, &["over itself"]);
    assert!(!store.join(".mobifs").exists());
}

/// Both were served, and two engines wrote the same files.
#[test]
fn a_store_inside_a_served_store_is_refused_in_both_orders() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    let inside = fixture.store.join("app/inside");
    fs::create_dir_all(&inside).unwrap();
    let (elsewhere, bind) = (fixture.directory("elsewhere"), fixture.directory("bind"));
    let link = fixture.path("link");
    std::os::unix::fs::symlink(&inside, &link).unwrap();
    fixture.mount_other(
        &["--bind", fixture.store.join("app").to_str().unwrap()],
        &bind,
    );

    fixture.mount(&[]);
    let pid = fixture.daemon_pid().to_string();
    let needles = ["inside", "lies inside the store", "process", &pid];
    for inner in [&inside, &link, &bind.join("inside")] {
        fails(&try_mount_at(inner, &elsewhere, &[]), IN_USE, &needles);
    }
    // By its lock, where the table of mounts has another source.
    fixture.umount();
    fixture.mount(&["-o", "fsname=other"]);
    fails(
        &try_mount_at(&inside, &elsewhere, &[]),
        IN_USE,
        &["lies inside the store"],
    );
    assert!(!inside.join(".mobifs").exists(), "nothing was changed");
    fixture.umount();

    let through_bind = bind.join("inside");
    for inner in [&inside, &through_bind] {
        succeeds(&try_mount_at(inner, &elsewhere, &[]));
        fails(
            &fixture.try_mount(&[]),
            IN_USE,
            &["lies inside the store", "process"],
        );
        succeeds(&mobifs(&["umount"], &elsewhere));
    }
    // A store around one that is not served shows it as any directory.
    fixture.mount(&[]);
    assert!(fixture.mountpoint.join("app/inside/.mobifs").is_dir());
    fixture.umount();
}

/// Both were accepted: the inner mount was seen in the store's directory alone, where no program is, and a
/// mount over a store hid it.
#[test]
fn a_mount_point_in_a_served_store_or_around_one_is_refused() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    let (other, around) = (fixture.directory("other"), fixture.directory("around"));
    fixture.store = around.join("store");
    let inside = fixture.store.join("app");
    fs::create_dir_all(&inside).unwrap();
    for options in [&[][..], &["-o", "fsname=other"]] {
        fixture.mount(options);
        let pid = fixture.daemon_pid().to_string();
        let needles = ["mount point", "lies inside the store", "process", &pid];
        fails(&try_mount_at(&other, &inside, &[]), IN_USE, &needles);
        let nonempty = ["-o", "nonempty"];
        let needles = ["mount point", "would hide the store", "process", &pid];
        fails(
            &try_mount_at(&other, &fixture.store, &nonempty),
            IN_USE,
            &needles,
        );
        if options.is_empty() {
            // Looked up in the table of mounts, which has the store as the source.
            fails(&try_mount_at(&other, &around, &nonempty), IN_USE, &needles);
        }
        assert!(!other.join(".mobifs").exists(), "nothing was changed");
        // In the mount it is a directory as any other.
        let shown = fixture.mountpoint.join("app");
        succeeds(&try_mount_at(&other, &shown, &[]));
        succeeds(&mobifs(&["umount"], &shown));
        fs::remove_dir_all(other.join(".mobifs")).unwrap();
        fixture.umount();
    }
    succeeds(&try_mount_at(&other, &inside, &[]));
    succeeds(&mobifs(&["umount"], &inside));
}

/// It was mounted: what the store around had committed was missing, and what was written was lost when that one was
/// recovered.
#[test]
fn a_store_inside_an_unrecovered_store_is_refused_until_that_is_recovered() {
    needs_mounts!();
    let fixture = Fixture::new();
    let elsewhere = fixture.directory("elsewhere");
    let inside = fixture.store.join("app");
    fixture.mount(&[]);
    let file = fixture.mountpoint.join("app/file");
    fs::create_dir(file.parent().unwrap()).unwrap();
    fs::write(&file, "old").unwrap();
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    fs::write(&file, "committed").unwrap();
    succeeds(&mobifs(&["sync", "--commit-only"], &fixture.mountpoint));
    fixture.cut_power();
    assert_eq!(fs::read(inside.join("file")).unwrap(), b"old");
    fails(
        &try_mount_at(&inside, &elsewhere, &[]),
        1,
        &["not properly closed", "mobifs recover"],
    );
    assert!(!inside.join(".mobifs").exists(), "nothing was changed");
    succeeds(&mobifs(&["recover"], &fixture.store));
    succeeds(&try_mount_at(&inside, &elsewhere, &[]));
    assert_eq!(fs::read(elsewhere.join("file")).unwrap(), b"committed");
    succeeds(&mobifs(&["umount"], &elsewhere));
}

#[test]
fn places_in_another_mount() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let inside = fixture.mountpoint.join("inside");
    fs::create_dir(&inside).unwrap();
    let elsewhere = fixture.directory("elsewhere");
    let needles = ["the store", "lies in the MobiFS mount", "a store outside"];
    fails(&try_mount_at(&inside, &elsewhere, &[]), 1, &needles);
    assert!(!inside.join(".mobifs").exists());
    fails(
        &fixture.try_mount(&[]),
        3,
        &["already a MobiFS mount", "mobifs umount"],
    );
    fixture.umount();
}

#[test]
fn a_store_in_use() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let pid = fixture.daemon_pid().to_string();
    let elsewhere = fixture.directory("elsewhere");
    let again = try_mount_at(&fixture.store, &elsewhere, &[]);
    let serves = format!(
        "which serves the mount {}: unmount that",
        fixture.mountpoint.display()
    );
    fails(&again, 3, &["in use by process", &pid, &serves]);
    // The mount is what is to be named.
    let named = format!("the store of the one at {}", fixture.mountpoint.display());
    fails(&mobifs(&["umount"], &fixture.store), 5, &[&named]);
    fails(
        &mobifs(&["recover"], &fixture.store),
        3,
        &["in use by process", &pid],
    );
    fails(
        &mobifs(&["check"], &fixture.store),
        3,
        &["in use by process", &pid],
    );
    fixture.umount();
    // A lock file that a crashed machine leaves behind locks nothing.
    fs::write(fixture.store.join(".mobifs/lock"), "1\n").unwrap();
    fixture.mount(&[]);
    fixture.umount();
}

#[test]
fn a_store_on_a_full_disk() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    let store = fixture.store.clone();
    fixture.mount_other(&["-t", "tmpfs", "-o", "size=8m", "none"], &store);
    fs::write(store.join("precious"), "precious").unwrap();
    fails(
        &fixture.try_mount(&[]),
        1,
        &["not enough free space", "journal_bytes"],
    );
    let names: Vec<_> = fs::read_dir(&store)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["precious"], "nothing is left behind");
    assert!(!fixture.is_mounted());
}

#[test]
fn a_store_on_a_read_only_filesystem() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    let store = fixture.store.clone();
    fixture.mount_other(&["-t", "tmpfs", "-o", "size=80m", "none"], &store);
    let small = fixture.config("journal_bytes = \"4MiB\"");
    fixture.mount(&["--config", small.to_str().unwrap()]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    fs::write(fixture.mountpoint.join("app/f"), "content").unwrap();
    fixture.umount();
    fixture.mount_other(&["-o", "remount,ro"], &store);
    fails(
        &fixture.try_mount(&[]),
        1,
        &["read-only filesystem", "-o ro"],
    );
    fails(&mobifs(&["recover"], &store), 1, &["read-only filesystem"]);
    succeeds(&mobifs(&["check"], &store));
    fixture.mount(&["-o", "ro"]);
    assert_eq!(
        fs::read(fixture.mountpoint.join("app/f")).unwrap(),
        b"content"
    );
    let error = fs::write(fixture.mountpoint.join("app/g"), "").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    fixture.umount();
}

#[test]
fn configurations_with_errors() {
    let fixture = Fixture::new();
    for (text, needles) in [
        (
            "apps = [\"*\"]\nmemory_budget = 1",
            &["mobifs.toml, line 2", "memory_budget"][..],
        ),
        (
            "[defaults]\nclass = \"fast\"",
            &["defaults.class", "fast", "durable"],
        ),
        ("journal_bytes = \"many\"", &["line 1", "not a size"]),
        ("this is not toml", &["mobifs.toml, line 1"]),
    ] {
        let path = fixture.config(text);
        fails(
            &fixture.try_mount(&["--config", path.to_str().unwrap()]),
            2,
            needles,
        );
        let option = format!("config={}", path.display());
        fails(&fixture.try_mount(&["-o", &option]), 2, needles);
    }
    fails(
        &fixture.try_mount(&["--config", "/absent"]),
        2,
        &["/absent", "cannot read"],
    );
    fails(
        &fixture.try_mount(&["-o", "frobnicate"]),
        2,
        &["frobnicate", "--help"],
    );
    assert!(
        !fixture.store.join(".mobifs").exists(),
        "nothing was done to the store"
    );
}

#[test]
fn commands_refuse_paths_that_are_no_mount() {
    let fixture = Fixture::new();
    for command in [
        &["status"][..],
        &["sync"],
        &["umount"],
        &["drill", "power-cut", "--yes"],
        &["reload"],
        &["set", "--app", "x", "--class", "durable"],
    ] {
        fails(
            &mobifs(command, &fixture.mountpoint),
            5,
            &["is not a MobiFS mount"],
        );
    }
    fails(
        &mobifs(&["status"], &fixture.path("absent/deep")),
        1,
        &["absent"],
    );
    let absent = mobifs(&["status"], &fixture.path("absent"));
    fails(&absent, 5, &["absent does not exist"]);
    fails(
        &mobifs(&["drill", "power-cut"], &fixture.mountpoint),
        2,
        &["--yes", "lost"],
    );
}

/// "M/app is not a MobiFS mount", where M is one.
#[test]
fn places_in_a_mount_lead_to_it() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    let mount = fixture.mountpoint.to_str().unwrap();
    for place in [app.clone(), app.join("absent")] {
        for command in [&["status"][..], &["sync"], &["umount"]] {
            let output = mobifs(command, &place);
            fails(&output, 5, &["lies in the one at", mount, "name that"]);
        }
    }
    fixture.umount();
}

#[test]
fn settings_need_an_app_and_something_to_set() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    fs::write(fixture.mountpoint.join("file"), "").unwrap();
    let set = |words: &[&str]| mobifs(&[&["set"], words].concat(), &fixture.mountpoint);
    fails(&set(&["--app", "app"]), 2, &["nothing to set", "--help"]);
    for absent in ["absent", "file", "app/below"] {
        let output = set(&["--app", absent, "--class", "durable"]);
        fails(&output, 2, &["no app named", absent]);
    }
    let interval = ["--app", "app", "--policy", "interval", "--interval-ms"];
    let output = set(&[&interval[..], &["30001"]].concat());
    fails(&output, 2, &["interval_ms", "larger than age_max_ms"]);
    succeeds(&set(&[&interval[..], &["30000"]].concat()));
    succeeds(&set(&["--app", ".", "--class", "durable"]));
    fixture.umount();
}

/// A store whose journal holds several committed transactions.
pub(crate) fn with_full_journal() -> Fixture {
    let fixture = Fixture::new();
    let config = "journal_bytes = \"1MiB\"\n[defaults]\nclass = \"durable\"\n";
    let config = fixture.config(config);
    fixture.mount(&["--config", config.to_str().unwrap()]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    for n in 0..5 {
        let path = fixture.mountpoint.join(format!("app/{n}"));
        let file = fs::File::create(path).unwrap();
        file.write_all_at(format!("content {n}").as_bytes(), 0)
            .unwrap();
        file.sync_all().unwrap();
    }
    fixture.cut_power();
    fixture
}

#[test]
fn a_journal_damaged_in_the_middle_is_reported_and_nothing_is_changed() {
    needs_mounts!();
    let fixture = with_full_journal();
    let journal = fixture.store.join(".mobifs/journal");
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(&journal)
        .unwrap();
    let mut byte = [0];
    // In the payload of the first transaction.
    let offset = 2 * 4096 + 100;
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
    let before = snapshot(&fixture.store);
    fails(
        &fixture.try_mount(&[]),
        4,
        &["damaged", "nothing was changed"],
    );
    for command in ["recover", "check"] {
        let output = mobifs(&[command], &fixture.store);
        fails(&output, 4, &["damaged", "not changed", "recover --salvage"]);
        let said = message(&output);
        assert!(!said.contains("mobifs check"), "this is the check: {said}");
    }
    assert!(without_lock(&before) == without_lock(&snapshot(&fixture.store)));
    // Repaired, everything is there.
    file.write_all_at(&byte, offset).unwrap();
    fixture.mount(&[]);
    for n in 0..5 {
        let path = fixture.mountpoint.join(format!("app/{n}"));
        assert_eq!(fs::read(path).unwrap(), format!("content {n}").as_bytes());
    }
    fixture.umount();
}

/// The lock file names the last process that tried to lock; it has no other content.
fn without_lock(
    snapshot: &[(std::path::PathBuf, String, Vec<u8>)],
) -> Vec<&(std::path::PathBuf, String, Vec<u8>)> {
    snapshot
        .iter()
        .filter(|(path, ..)| !path.ends_with(".mobifs/lock"))
        .collect()
}

#[test]
fn a_truncated_journal_and_one_of_another_store() {
    needs_mounts!();
    let fixture = with_full_journal();
    let journal = fixture.store.join(".mobifs/journal");
    let whole = fs::read(&journal).unwrap();
    fs::write(&journal, &whole[..whole.len() / 2]).unwrap();
    fails(&fixture.try_mount(&[]), 4, &["damaged"]);
    fs::write(&journal, &whole[..100]).unwrap();
    fails(&fixture.try_mount(&[]), 4, &["damaged"]);
    let other = with_full_journal();
    fs::copy(other.store.join(".mobifs/journal"), &journal).unwrap();
    fails(&fixture.try_mount(&[]), 4, &["another store"]);
    fs::write(&journal, &whole).unwrap();
    fixture.mount(&[]);
    assert_eq!(
        fs::read(fixture.mountpoint.join("app/4")).unwrap(),
        b"content 4"
    );
    fixture.umount();
}

/// It was shown as a store whose identity is zero.
#[test]
fn a_store_without_a_journal_is_one_without_an_identity() {
    needs_mounts!();
    let fixture = with_full_journal();
    fixture.mount(&[]);
    fixture.umount();
    for name in ["journal", "id"] {
        fs::remove_file(fixture.store.join(".mobifs").join(name)).unwrap();
    }
    let output = mobifs(&["check"], &fixture.store);
    succeeds(&output);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("without a journal"), "{said}");
    assert!(!said.contains("00000000"), "{said}");
    fixture.mount(&[]);
    let path = fixture.mountpoint.join("app/4");
    assert_eq!(fs::read(path).unwrap(), b"content 4");
    fixture.umount();
    let output = mobifs(&["check"], &fixture.store);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(": store "), "{said}");
}

/// The root had one link too many: for `.mobifs`, which the mount does not show.
#[test]
fn the_root_has_a_link_for_each_directory_that_is_shown() {
    use std::os::unix::fs::MetadataExt as _;
    needs_mounts!();
    let fixture = Fixture::new();
    let links = |path: &Path| path.metadata().unwrap().nlink();
    let counts = links(&fixture.store) == 2;
    if !counts {
        mobifs_skip::skip("the filesystem does not count subdirectories");
        return;
    }
    fixture.mount(&[]);
    assert_eq!(links(&fixture.mountpoint), 2);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    fs::create_dir(fixture.mountpoint.join("another")).unwrap();
    assert_eq!(links(&fixture.mountpoint), 4);
    fixture.umount();
    fixture.mount(&[]);
    assert_eq!(links(&fixture.mountpoint), 4);
    fs::remove_dir(fixture.mountpoint.join("another")).unwrap();
    assert_eq!(links(&fixture.mountpoint), 3);
    fixture.umount();
}

#[test]
fn symlinks_and_hostile_names_in_the_store() {
    needs_mounts!();
    let fixture = Fixture::new();
    let outside = fixture.directory("outside");
    fs::write(outside.join("secret"), "secret").unwrap();
    let app = fixture.store.join("app");
    fs::create_dir(&app).unwrap();
    symlink(&outside, app.join("link")).unwrap();
    symlink("../../../..", app.join("up")).unwrap();
    let long = "n".repeat(255);
    let hostile: [&[u8]; 6] = [
        b"new\nline",
        b"\xff\xfe",
        b"-rf",
        b" ",
        b"*?[",
        long.as_bytes(),
    ];
    for name in hostile {
        fs::write(app.join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    fixture.mount(&[]);
    let mounted = fixture.mountpoint.join("app");
    assert_eq!(fs::read_link(mounted.join("link")).unwrap(), outside);
    for name in hostile {
        let path = mounted.join(std::ffi::OsStr::from_bytes(name));
        assert_eq!(fs::read(&path).unwrap(), name);
        fs::write(&path, "changed").unwrap();
    }
    assert_eq!(fs::read_dir(&mounted).unwrap().count(), hostile.len() + 2);
    assert!(!fixture.mountpoint.join(".mobifs").exists(), "hidden");
    assert!(fs::create_dir(fixture.mountpoint.join(".mobifs")).is_err());
    fs::remove_file(mounted.join("link")).unwrap();
    fixture.umount();
    for name in hostile {
        assert_eq!(
            fs::read(app.join(std::ffi::OsStr::from_bytes(name))).unwrap(),
            b"changed"
        );
    }
    assert_eq!(
        fs::read(outside.join("secret")).unwrap(),
        b"secret",
        "nothing followed the link"
    );
}

#[test]
fn a_symlink_in_place_of_our_own_directory() {
    let fixture = Fixture::new();
    let outside = fixture.directory("outside");
    symlink(&outside, fixture.store.join(".mobifs")).unwrap();
    let output = fixture.try_mount(&[]);
    fails(&output, 1, &[".mobifs", "is not a directory"]);
    assert_eq!(
        fs::read_dir(&outside).unwrap().count(),
        0,
        "{}",
        message(&output)
    );
}
