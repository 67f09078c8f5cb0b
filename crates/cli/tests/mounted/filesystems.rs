//! What some lower filesystems cannot store is refused by the operation, or with the whole
//! store. Tests are skipped where the kernel does not have the filesystem.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FallocateFlags, XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, fails, message, mobifs, needs_mounts, succeeds, wait_until};

/// The store is on a new filesystem of this kind; false, with a message, if that cannot be.
pub(crate) fn put_store_on(fixture: &mut Fixture, make: &[&str]) -> bool {
    put_store_on_sized(fixture, make, 512 << 20)
}

/// As [`put_store_on`], with so many bytes.
pub(crate) fn put_store_on_sized(fixture: &mut Fixture, make: &[&str], bytes: u64) -> bool {
    put_store_mounted(fixture, make, bytes, "loop")
}

/// As [`put_store_on_sized`], mounted with these options.
pub(crate) fn put_store_mounted(
    fixture: &mut Fixture,
    make: &[&str],
    bytes: u64,
    options: &str,
) -> bool {
    let image = fixture.path("image");
    let file = fs::File::create(&image).unwrap();
    file.set_len(bytes).unwrap();
    let at = fixture.directory("disk");
    let mut mount = Command::new("mount");
    mount.args(["-o", options]).arg(&image).arg(&at);
    let made = mobifs_skip::why_fails(Command::new(make[0]).args(&make[1..]).arg(&image));
    if !mobifs_skip::can(made.or_else(|| mobifs_skip::why_fails(&mut mount))) {
        return false;
    }
    fixture.unmount_at_end(&at);
    fixture.store = at.join("store");
    fs::create_dir(&fixture.store).unwrap();
    true
}

fn runs(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn fold_case(directory: &Path) {
    succeeds(
        &Command::new("chattr")
            .arg("+F")
            .arg(directory)
            .output()
            .unwrap(),
    );
}

fn names(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

/// Found by trying: of two names that differed in case, one was lost, and files of FAT were
/// not found any more after a while.
#[test]
fn a_store_on_fat_is_refused() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if put_store_on(&mut fixture, &["mkfs.vfat"]) {
        fails(&fixture.try_mount(&[]), 1, &["FAT", "ext4"]);
        assert_eq!(names(&fixture.store), 0);
    }
}

/// It failed at a file that could not be made, after a directory had been: in a cgroup that is
/// another cgroup.
#[test]
fn a_store_on_proc_is_refused_as_such() {
    needs_mounts!();
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    for kind in ["proc", "sysfs", "cgroup2"] {
        if !known
            .lines()
            .any(|line| line.ends_with(&format!("\t{kind}")))
        {
            mobifs_skip::skip_part(format_args!("no {kind}"));
            continue;
        }
        let mut fixture = Fixture::new();
        let store = fixture.store.clone();
        fixture.mount_other(&["-t", kind, "none"], &store);
        fails(
            &fixture.try_mount(&[]),
            1,
            &["the kernel's own interfaces", "ext4"],
        );
        assert!(!store.join(".mobifs").exists(), "{kind}");
    }
}

/// Nothing said that a reboot takes it.
#[test]
fn a_store_in_memory_is_mounted_with_a_warning() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    let store = fixture.store.clone();
    fixture.mount_other(&["-t", "tmpfs", "-o", "size=80m", "none"], &store);
    let small = fixture.config("journal_bytes = \"4MiB\"");
    let mounted = fixture.try_mount(&["--config", small.to_str().unwrap()]);
    succeeds(&mounted);
    let said = message(&mounted);
    assert!(
        said.contains("warning") && said.contains("reboot"),
        "{said}"
    );
    assert!(said.contains(store.to_str().unwrap()), "{said}");
    assert!(fixture.log().contains("reboot"), "{}", fixture.log());
    fixture.umount();
}

#[test]
fn directories_that_fold_case_are_refused() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, &["mkfs.ext4", "-q", "-O", "casefold"]) {
        return;
    }
    let inside = fixture.store.join("inside");
    fs::create_dir(&inside).unwrap();
    fold_case(&inside);
    fs::write(inside.join("file"), "content").unwrap();
    // One inside the store stays as it is.
    fixture.mount(&[]);
    let shown = fixture.mountpoint.join("inside");
    assert!(fs::read_dir(&shown).is_ok_and(|mut entries| entries.all(|entry| entry.is_err())));
    fs::write(shown.join("FILE"), "other").unwrap_err();
    fs::write(fixture.mountpoint.join("FILE"), "one").unwrap();
    fs::write(fixture.mountpoint.join("file"), "two").unwrap();
    fixture.umount();
    assert_eq!(fs::read(inside.join("file")).unwrap(), b"content");
    assert_eq!(fs::read(fixture.store.join("FILE")).unwrap(), b"one");
    assert_eq!(fs::read(fixture.store.join("file")).unwrap(), b"two");
    // As a store it is refused.
    let folding = fixture.store.join("folding");
    fs::create_dir(&folding).unwrap();
    fold_case(&folding);
    fixture.store = folding;
    fails(
        &fixture.try_mount(&[]),
        1,
        &["upper and lower case", "chattr +F"],
    );
    assert_eq!(names(&fixture.store), 0);
}

/// Found by trying: XFS takes targets of 1,023 bytes. A longer one was acknowledged, and could
/// neither be applied nor recovered.
#[test]
fn symlinks_are_as_long_as_the_filesystem_below_keeps() {
    needs_mounts!();
    for (make, longest) in [
        (&["mkfs.xfs", "-q", "-f"][..], 1023),
        (&["mkfs.ext4", "-q", "-b", "1024"], 1023),
        (&["mkfs.ext4", "-q"], 4095),
        (&["mkfs.btrfs", "-q", "-f"], 4095),
    ] {
        let mut fixture = Fixture::new();
        if !put_store_on(&mut fixture, make) {
            continue;
        }
        fixture.mount(&[]);
        let app = fixture.mountpoint.join("app");
        fs::create_dir(&app).unwrap();
        for bytes in [longest, longest + 1] {
            let made = symlink("x".repeat(bytes), app.join(bytes.to_string()));
            assert_eq!(
                made.is_ok(),
                bytes == longest,
                "{make:?}: {bytes}: {made:?}"
            );
        }
        fixture.cut_power();
        succeeds(&mobifs(&["recover"], &fixture.store));
    }
}

/// Found by trying: `mknod c 100 300000` was acknowledged on XFS, which does not keep such numbers,
/// and then nothing in the store could be applied.
#[test]
fn device_numbers_are_those_that_the_filesystem_below_keeps() {
    needs_mounts!();
    for make in [&["mkfs.xfs", "-q", "-f"][..], &["mkfs.ext4", "-q"]] {
        let mut fixture = Fixture::new();
        if !put_store_on(&mut fixture, make) {
            continue;
        }
        fixture.mount(&[]);
        let app = fixture.mountpoint.join("app");
        let lower = fixture.directory("disk/lower");
        fs::create_dir(&app).unwrap();
        for (major, minor) in [
            (100, 300_000),
            (1, (1 << 18) - 1),
            (1, 1 << 18),
            (511, 0),
            (512, 0),
            (4095, (1 << 20) - 1),
        ] {
            let node = |directory: &Path| {
                let number = (major.to_string(), minor.to_string());
                let mut command = Command::new("mknod");
                command.arg(directory.join(format!("{major}-{minor}")));
                runs(command.args(["c", &number.0, &number.1]))
            };
            assert_eq!(node(&app), node(&lower), "{make:?}: {major}:{minor}");
        }
        succeeds(&mobifs(&["sync"], &fixture.mountpoint));
        assert_eq!(names(&fixture.store.join("app")), names(&lower));
        fixture.umount();
    }
}

/// Found by trying: what was made in a directory of another project was acknowledged, and could
/// neither be applied nor recovered, because nothing moves there from `stage/`.
#[test]
fn directories_that_nothing_can_be_moved_to_are_not_entered() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, &["mkfs.xfs", "-q", "-f"]) {
        return;
    }
    let inside = fixture.store.join("inside");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("file"), "content").unwrap();
    let project = ["-c", "chproj 5", "-c", "chattr +P"];
    if !runs(Command::new("xfs_io").args(project).arg(&inside)) {
        mobifs_skip::skip("no xfs_io");
        return;
    }
    fixture.mount(&[]);
    let shown = fixture.mountpoint.join("inside");
    fs::write(shown.join("new"), "new").unwrap_err();
    fs::write(fixture.mountpoint.join("free"), "free").unwrap();
    fs::rename(fixture.mountpoint.join("free"), shown.join("free")).unwrap_err();
    assert!(fixture.log().contains("chattr +P"), "{}", fixture.log());
    fixture.umount();
    assert_eq!(fs::read(inside.join("file")).unwrap(), b"content");
    assert_eq!(fs::read(fixture.store.join("free")).unwrap(), b"free");
    // A store of its own has all that it needs inside.
    fixture.store = inside;
    fixture.mount(&[]);
    fs::write(fixture.mountpoint.join("new"), "new").unwrap();
    fixture.umount();
    assert_eq!(fs::read(fixture.store.join("new")).unwrap(), b"new");
}

/// Takes the flags away again, so that the store can be deleted.
struct Flagged(PathBuf);

impl Flagged {
    fn set(path: PathBuf, flag: &str) -> Option<Self> {
        let is_set = runs(Command::new("chattr").arg(flag).arg(&path));
        is_set.then_some(Self(path))
    }
}

impl Drop for Flagged {
    fn drop(&mut self) {
        let _ended = Command::new("chattr")
            .arg("-i")
            .arg("-a")
            .arg(&self.0)
            .output();
    }
}

/// Regression: a check found no problem in a store that no mount can write to.
#[test]
fn a_check_names_an_immutable_journal() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fixture.umount();
    let own = fixture.store.join(".mobifs");
    for (part, flag) in [("journal", "+i"), ("journal", "+a"), ("stage", "+i")] {
        let Some(set) = Flagged::set(own.join(part), flag) else {
            mobifs_skip::skip("no flags of files here");
            return;
        };
        let checked = mobifs(&["check"], &fixture.store);
        let advice = format!("chattr -i -a {}", set.0.display());
        fails(&checked, 1, &["no mount can write to it", &advice]);
        let text = String::from_utf8(checked.stdout).unwrap();
        let problem = format!("PROBLEM: .mobifs/{part} may not be changed");
        assert!(text.contains(&problem), "{text}");
    }
    succeeds(&mobifs(&["check"], &fixture.store));
}

/// Regression: such a store was mounted without a word, with a journal that was open for reading
/// only, so that no commit ever succeeded, also once the flag was gone.
#[test]
fn a_store_with_immutable_parts_is_not_mounted_for_writing() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fixture.umount();
    let own = fixture.store.join(".mobifs");
    for (part, flag) in [("journal", "+i"), ("journal", "+a"), ("stage", "+i")] {
        let Some(set) = Flagged::set(own.join(part), flag) else {
            mobifs_skip::skip("no flags of files here");
            return;
        };
        let advice = format!("`chattr -i -a {}`", set.0.display());
        let refused = ["no mount can write to the store", advice.as_str()];
        let mounted = fixture.try_mount(&[]);
        fails(&mounted, 1, &refused);
        if part == "journal" {
            fixture.mount(&["-o", "ro"]);
            fixture.umount();
        }
    }
    fixture.mount(&[]);
    fs::write(fixture.mountpoint.join("file"), "content").unwrap();
    fixture.umount();
    assert_eq!(fs::read(fixture.store.join("file")).unwrap(), b"content");
}

/// Regression: the answer was about stores that lie in a mount.
#[test]
fn a_mount_that_is_given_instead_of_its_store_is_called_that() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let store = format!("name its store, {}", fixture.store.display());
    for command in ["check", "recover"] {
        let refused = mobifs(&[command], &fixture.mountpoint);
        fails(&refused, 3, &["is a MobiFS mount and not a store", &store]);
    }
    fixture.umount();
}

/// A daemon that is killed meanwhile goes on once the flag is gone, with what was not committed.
#[test]
fn a_journal_that_is_immutable_for_a_while_takes_the_changes_afterwards() {
    needs_mounts!();
    for is_killed in [false, true] {
        let fixture = Fixture::new();
        fixture.mount(&[]);
        let journal = fixture.store.join(".mobifs/journal");
        let Some(set) = Flagged::set(journal, "+i") else {
            mobifs_skip::skip("no flags of files here");
            return;
        };
        fs::write(fixture.mountpoint.join("file"), "content").unwrap();
        fails(
            &mobifs(&["sync"], &fixture.mountpoint),
            1,
            &["could not be committed and stay in memory"],
        );
        if is_killed {
            let daemon = Pid::from_raw(fixture.daemon_pid() as i32).unwrap();
            kill_process(daemon, Signal::KILL).unwrap();
            wait_for(&fixture, "no mount can write to the store");
        }
        drop(set);
        succeeds(&mobifs(&["sync"], &fixture.mountpoint));
        fs::write(fixture.mountpoint.join("file"), "content again").unwrap();
        succeeds(&mobifs(&["sync"], &fixture.mountpoint));
        fixture.umount();
        let found = fs::read(fixture.store.join("file")).unwrap();
        assert_eq!(found, b"content again");
    }
}

/// Found by trying: a change of an immutable file was acknowledged, and neither it nor anything
/// else could be applied, or recovered, as long as the file was immutable.
#[test]
fn immutable_lower_files_are_immutable_on_the_mount() {
    needs_mounts!();
    let fixture = Fixture::new();
    let lower = fixture.store.join("app");
    fs::create_dir_all(lower.join("closed")).unwrap();
    for name in ["fixed", "appended", "free", "closed/file"] {
        fs::write(lower.join(name), "before").unwrap();
    }
    let flags = [("fixed", "+i"), ("appended", "+a"), ("closed", "+i")];
    let set = flags.map(|(name, flag)| Flagged::set(lower.join(name), flag));
    if set.iter().any(Option::is_none) {
        mobifs_skip::skip("no flags of files here");
        return;
    }
    fixture.mount(&[]);
    let app = fixture.mountpoint.join("app");
    for name in ["fixed", "appended"] {
        let file = app.join(name);
        let is_refused = |what: &str, done: std::io::Result<()>| {
            let errno = done.err().and_then(|error| error.raw_os_error());
            assert_eq!(errno, Some(1), "{what} {name}");
        };
        is_refused("write", fs::write(&file, "after"));
        is_refused(
            "chmod",
            fs::set_permissions(&file, Permissions::from_mode(0o600)),
        );
        is_refused("unlink", fs::remove_file(&file));
        is_refused("rename", fs::rename(&file, app.join("new")));
        is_refused("rename over", fs::rename(app.join("free"), &file));
        is_refused("link", fs::hard_link(&file, app.join("new")));
        let set = setxattr(&file, "user.a", b"1", XattrFlags::empty());
        is_refused("setxattr", set.map_err(std::io::Error::from));
    }
    let closed = app.join("closed");
    fs::write(closed.join("new"), "new").unwrap_err();
    fs::remove_file(closed.join("file")).unwrap_err();
    fs::rename(closed.join("file"), app.join("file")).unwrap_err();
    fs::rename(app.join("free"), closed.join("free")).unwrap_err();
    fs::rename(&closed, app.join("moved")).unwrap_err();
    // What is in it is not itself so.
    fs::write(closed.join("file"), "after").unwrap();
    fixture.umount();
    for (name, content) in [
        ("fixed", "before"),
        ("appended", "before"),
        ("free", "before"),
        ("closed/file", "after"),
    ] {
        assert_eq!(
            fs::read_to_string(lower.join(name)).unwrap(),
            content,
            "{name}"
        );
    }
}

/// Made immutable while it waits, a file keeps the mount there. A user who forces the unmount gets
/// the message that nothing is lost.
#[test]
fn what_is_committed_and_cannot_be_applied_waits_for_the_next_mount() {
    needs_mounts!();
    let fixture = Fixture::new();
    let lower = fixture.store.join("file");
    fs::write(&lower, "before").unwrap();
    fixture.mount(&[]);
    fs::write(fixture.mountpoint.join("file"), "after").unwrap();
    let Some(immutable) = Flagged::set(lower.clone(), "+i") else {
        mobifs_skip::skip("no flags of files here");
        return;
    };
    fails(
        &mobifs(&["umount"], &fixture.mountpoint),
        1,
        &["not unmounted", "not permitted"],
    );
    let daemon = Pid::from_raw(fixture.daemon_pid() as i32).unwrap();
    kill_process(daemon, Signal::TERM).unwrap();
    wait_for(&fixture, "a second signal ends it");
    kill_process(daemon, Signal::TERM).unwrap();
    wait_for(
        &fixture,
        "everything is committed, but could not be applied",
    );
    drop(immutable);
    wait_until(|| mobifs(&["recover"], &fixture.store).status.success());
    assert_eq!(fs::read(&lower).unwrap(), b"after");
}

fn wait_for(fixture: &Fixture, words: &str) {
    wait_until(|| fixture.log().contains(words));
}

/// An ACL of version 2 of the kernel's format: owner, user 1234, group, mask, others.
fn acl() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, u32::MAX),
        (0x02, 7, 1234),
        (0x04, 5, u32::MAX),
        (0x10, 7, u32::MAX),
        (0x20, 5, u32::MAX),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// What is made in `stage/` inherited the default ACL of the store's root, by way of `.mobifs`: another user could
/// read a file for which its directory in the mount had no ACL.
#[test]
fn a_new_object_has_no_acl_of_the_stores_root() {
    needs_mounts!();
    const DEFAULT: &str = "system.posix_acl_default";
    const ACCESS: &str = "system.posix_acl_access";
    let fixture = Fixture::new();
    if setxattr(&fixture.store, DEFAULT, &acl(), XattrFlags::empty()).is_err() {
        mobifs_skip::skip("the temporary directory has no ACLs");
        return;
    }
    for round in 0..2 {
        fixture.mount(&[]);
        let private = fixture.mountpoint.join(format!("private{round}"));
        fs::create_dir(&private).unwrap();
        for name in [DEFAULT, ACCESS] {
            removexattr(&private, name).unwrap();
        }
        fs::create_dir(private.join("below")).unwrap();
        fs::write(private.join("secret"), "content").unwrap();
        succeeds(&mobifs(&["sync"], &fixture.mountpoint));
        let inherited = fixture.mountpoint.join(format!("inherits{round}"));
        fs::write(&inherited, "content").unwrap();
        fixture.umount();
        for name in ["", "below", "secret"] {
            let path = fixture.store.join(format!("private{round}")).join(name);
            for acl in [DEFAULT, ACCESS] {
                let found = getxattr(&path, acl, &mut [0_u8; 256]);
                assert_eq!(found, Err(Errno::NODATA), "{acl} of {}", path.display());
            }
        }
        // Where its directory has one, it has.
        let inherited = fixture.store.join(format!("inherits{round}"));
        assert!(getxattr(&inherited, ACCESS, &mut [0_u8; 256]).is_ok());
        // As a store has it that an older version has made.
        let stage = fixture.store.join(".mobifs/stage");
        setxattr(&stage, DEFAULT, &acl(), XattrFlags::empty()).unwrap();
    }
}

/// Linux loses what is written to a file of ext4 whose content lies in the inode, once ftruncate(2) has made it longer:
/// an apply did both, and what a program had appended was zeros once memory had dropped it.
#[test]
fn files_that_grow_out_of_their_inode_keep_what_is_appended() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, &["mkfs.ext4", "-q", "-O", "inline_data"]) {
        return;
    }
    let sizes = [1, 40, 60, 100, 140];
    let grown = [61, 101, 160, 300, 4096, 4097, 10_000, 300_000];
    let cases = || {
        let cases = sizes.iter().flat_map(|&size| grown.map(|end| (size, end)));
        cases.filter(|(size, end)| size < end)
    };
    fixture.mount(&[]);
    let name = |directory: &Path, size: usize, end: usize| directory.join(format!("{size}-{end}"));
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    for (size, end) in cases() {
        fs::write(name(&app, size, end), vec![b'x'; size]).unwrap();
    }
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    for (size, end) in cases() {
        let file = fs::OpenOptions::new()
            .append(true)
            .open(name(&app, size, end));
        file.unwrap().write_all(&vec![b'y'; end - size]).unwrap();
    }
    mount_disk_anew(&mut fixture);
    for (size, end) in cases() {
        let found = fs::read(name(&fixture.store.join("app"), size, end)).unwrap();
        let wanted = [vec![b'x'; size], vec![b'y'; end - size]].concat();
        assert!(found == wanted, "{size} bytes that became {end}");
    }
}

/// Ends the mount, and the kernel forgets what it knows of the filesystem with the store.
fn mount_disk_anew(fixture: &mut Fixture) {
    fixture.umount();
    let disk = fixture.store.parent().unwrap().to_owned();
    let runs = |words: &[&str], at: &Path| {
        let status = Command::new(words[0]).args(&words[1..]).arg(at).status();
        assert!(status.unwrap().success(), "{words:?}");
    };
    runs(&["umount"], &disk);
    let image = fixture.path("image");
    runs(&["mount", "-o", "loop", image.to_str().unwrap()], &disk);
}

/// As above, after `ftruncate` to nothing, and after any `fallocate`.
#[test]
fn files_in_inodes_of_ext4_keep_what_is_written_once_they_were_emptied_allocated_or_punched() {
    type Change = fn(&File);
    needs_mounts!();
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, &["mkfs.ext4", "-q", "-O", "inline_data"]) {
        return;
    }
    fn allocates(file: &File, flags: FallocateFlags, start: u64, length: u64) {
        rustix::fs::fallocate(file, flags, start, length).unwrap();
    }
    let changes: [(&str, Change); 5] = [
        ("emptied", |file| file.set_len(0).unwrap()),
        ("longer and emptied", |file| {
            file.set_len(60_059).unwrap();
            file.sync_all().unwrap();
            file.set_len(0).unwrap();
        }),
        ("allocated", |file| {
            allocates(file, FallocateFlags::KEEP_SIZE, 0, 43);
        }),
        ("allocated behind", |file| {
            allocates(file, FallocateFlags::empty(), 0, 60_000);
        }),
        ("punched", |file| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            allocates(file, flags, 0, 4096);
        }),
    ];
    fixture.mount(&[]);
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    for (name, _) in changes {
        fs::write(app.join(name), [b'a'; 61]).unwrap();
    }
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    let open = |name: &str| {
        let file = fs::OpenOptions::new().write(true).open(app.join(name));
        file.unwrap()
    };
    for (name, change) in changes {
        change(&open(name));
    }
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    for (name, _) in changes {
        open(name).write_all_at(&[b'b'; 100], 0).unwrap();
    }
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    mount_disk_anew(&mut fixture);
    for (name, _) in changes {
        let found = fs::read(fixture.store.join("app").join(name)).unwrap();
        assert!(found.starts_with(&[b'b'; 100]), "{name}");
    }
}
