//! `mobifs adopt` and `unadopt` on directories with files of all kinds: there and back, cut short after each
//! step, refused, in use.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::fs::{IFlags, XattrFlags, ioctl_getflags, ioctl_setflags};

use crate::fixture::{
    Fixture, IN_USE, PROGRAM, fails, is_mounted, message, mobifs, needs_mounts, succeeds,
};

const FAILED: i32 = 1;

/// A process in a directory, until it is dropped.
struct User(Child);

impl User {
    fn of(directory: &Path) -> Self {
        let mut command = Command::new("sleep");
        let command = command.arg("1000").current_dir(directory);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.stderr(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// A directory to adopt, with notes of its own.
pub(crate) struct Adoption {
    pub(crate) fixture: Fixture,
    pub(crate) directory: PathBuf,
}

/// All that a user sees of an object: kind and mode, links, owner, size, the nanosecond of its last
/// change, content or target, an attribute, and its number.
pub(crate) type Seen = (u32, u64, (u32, u32), u64, (i64, i64), Vec<u8>, Vec<u8>, u64);

impl Adoption {
    /// What is adopted is a directory on a new btrfs, and is not made yet; false, and counted as skipped, if that
    /// cannot be.
    pub(crate) fn put_on_btrfs(&mut self) -> bool {
        let has_btrfs = Command::new("btrfs").arg("--version").output().is_ok();
        if !mobifs_skip::can((!has_btrfs).then_some("no btrfs-progs")) {
            return false;
        }
        let (image, disk) = (self.fixture.path("image"), self.fixture.directory("disk"));
        File::create(&image).unwrap().set_len(300 << 20).unwrap();
        succeeds(&Command::new("mkfs.btrfs").arg(&image).output().unwrap());
        let words = ["-o", "loop", image.to_str().unwrap()];
        self.fixture.mount_other(&words, &disk);
        self.directory = disk.join("dir");
        self.fixture.unmount_at_end(&disk.join("dir"));
        true
    }

    pub(crate) fn new() -> Self {
        let mut fixture = Fixture::new();
        let directory = fixture.directory("a dir");
        fixture.unmount_at_end(&directory);
        Self { fixture, directory }
    }

    /// With objects of every kind.
    pub(crate) fn with_files() -> Self {
        let adoption = Self::new();
        let path = |name: &str| adoption.directory.join(name);
        fs::create_dir_all(path("app/deep")).unwrap();
        fs::write(path("app/file"), "content").unwrap();
        fs::write(path("top"), vec![7; 100_000]).unwrap();
        fs::hard_link(path("app/file"), path("app/deep/link")).unwrap();
        std::os::unix::fs::symlink("app/file", path("symlink")).unwrap();
        let fifo = path("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        File::create(path("sparse"))
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        rustix::fs::setxattr(path("top"), "user.note", b"kept", XattrFlags::empty()).unwrap();
        fs::set_permissions(path("app/deep"), fs::Permissions::from_mode(0o2710)).unwrap();
        std::os::unix::fs::chown(path("app/deep"), Some(1234), Some(4321)).unwrap();
        fs::set_permissions(&adoption.directory, fs::Permissions::from_mode(0o1731)).unwrap();
        std::os::unix::fs::chown(&adoption.directory, Some(1), Some(2)).unwrap();
        adoption
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.fixture.path("a dir.mobifs-store")
    }

    pub(crate) fn notes(&self) -> PathBuf {
        self.fixture.path("config/mobifs/adopted")
    }

    /// The command, with a small journal so that it is quick.
    pub(crate) fn command(&self, name: &str, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg(name)
            .arg("--notes")
            .arg(self.notes())
            .args(words);
        command.env("XDG_RUNTIME_DIR", "/nonexistent");
        command
    }

    pub(crate) fn begin(&self) -> Command {
        let config = self.fixture.config("journal_bytes = \"1MiB\"\n");
        let mut command = self.command("adopt", &["--boot", "none", "--config"]);
        command.arg(config).arg(&self.directory);
        command
    }

    pub(crate) fn adopt(&self) {
        succeeds(&self.begin().output().unwrap());
    }

    pub(crate) fn adopt_again(&self) -> Output {
        self.command("adopt", &[])
            .arg(&self.directory)
            .output()
            .unwrap()
    }

    pub(crate) fn unadopt(&self) -> Output {
        self.command("unadopt", &[])
            .arg(&self.directory)
            .output()
            .unwrap()
    }

    pub(crate) fn list(&self) -> serde_json::Value {
        let output = self
            .command("adopt", &["--list", "--json"])
            .output()
            .unwrap();
        succeeds(&output);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["adopted"].take()
    }

    /// Ends the command at a fault point, as a kill would.
    #[track_caller]
    pub(crate) fn killed_at(&self, point: &str, command: &mut Command) {
        let fault = format!("{point}=abort");
        let output = command.env("MOBIFS_FAULT_POINT", fault).output().unwrap();
        assert_eq!(
            output.status.code(),
            None,
            "{point} was not reached: {}",
            message(&output)
        );
    }

    pub(crate) fn seen(&self) -> BTreeMap<PathBuf, Seen> {
        let mut found = BTreeMap::new();
        let mut waiting = vec![self.directory.clone()];
        while let Some(path) = waiting.pop() {
            let about = fs::symlink_metadata(&path).unwrap();
            let kind = about.file_type();
            if kind.is_dir() {
                waiting.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            }
            let content = match () {
                () if kind.is_symlink() => fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes(),
                () if kind.is_file() && about.len() < 1 << 20 => fs::read(&path).unwrap(),
                () => Vec::new(),
            };
            let mut value = [0; 16];
            let attribute = if kind.is_fifo() || kind.is_symlink() {
                Ok(0)
            } else {
                rustix::fs::getxattr(&path, "user.note", &mut value)
            };
            let links = if kind.is_dir() { 0 } else { about.nlink() };
            let seen = (
                about.mode(),
                links,
                (about.uid(), about.gid()),
                if kind.is_dir() { 0 } else { about.len() },
                (about.mtime(), about.mtime_nsec()),
                content,
                value[..attribute.unwrap_or(0)].to_vec(),
                about.ino(),
            );
            found.insert(path, seen);
        }
        found
    }

    /// What programs see through the mount: all but the number of the root.
    fn without_root_number(&self, mut seen: BTreeMap<PathBuf, Seen>) -> BTreeMap<PathBuf, Seen> {
        seen.get_mut(&self.directory).unwrap().7 = 0;
        seen
    }

    /// It is an ordinary directory, and nothing of MobiFS is beside it.
    #[track_caller]
    pub(crate) fn is_as_before(&self, before: &BTreeMap<PathBuf, Seen>) {
        assert!(!is_mounted(&self.escaped()));
        assert_eq!(&self.seen(), before);
        assert!(
            fs::symlink_metadata(self.store()).is_err(),
            "the store is gone"
        );
        assert!(!self.notes().exists(), "no note stays");
    }

    /// The same where the test has changed names in it itself.
    #[track_caller]
    fn is_as_before_but_times(&self, before: &BTreeMap<PathBuf, Seen>) {
        let mut after = self.seen();
        after.get_mut(&self.directory).unwrap().4 = before[&self.directory].4;
        assert_eq!(&after, before);
        assert!(!self.notes().exists(), "no note stays");
    }

    #[track_caller]
    pub(crate) fn refuses(&self, directory: &Path, code: i32, needles: &[&str]) {
        for flag in [None, Some("--dry-run")] {
            let mut command = self.command("adopt", &["--boot", "none"]);
            let output = command.args(flag).arg(directory).output().unwrap();
            fails(&output, code, needles);
        }
    }

    /// As the table of mounts shows it.
    fn escaped(&self) -> PathBuf {
        self.directory
            .to_str()
            .unwrap()
            .replace(' ', "\\040")
            .into()
    }

    pub(crate) fn is_served(&self) -> bool {
        is_mounted(&self.escaped())
    }
}

impl Drop for Adoption {
    fn drop(&mut self) {
        if self.is_served() {
            let _ended = mobifs(&["drill", "power-cut", "--yes"], &self.directory);
        }
        set_immutable(&self.directory, false);
    }
}

pub(crate) fn is_immutable(directory: &Path) -> bool {
    let flags = File::open(directory).map(ioctl_getflags);
    flags.is_ok_and(|flags| flags.is_ok_and(|flags| flags.contains(IFlags::IMMUTABLE)))
}

fn can_be_immutable(directory: &Path) -> bool {
    set_immutable(directory, true);
    let can = is_immutable(directory);
    set_immutable(directory, false);
    can
}

pub(crate) fn set_immutable(directory: &Path, is_immutable: bool) {
    let Ok(opened) = File::open(directory) else {
        return;
    };
    if let Ok(flags) = ioctl_getflags(&opened) {
        let mut wanted = flags;
        wanted.set(IFlags::IMMUTABLE, is_immutable);
        let _unsupported = ioctl_setflags(&opened, wanted);
    }
}

/// `--json` was for the list alone.
#[test]
fn programs_can_ask_what_an_adoption_would_do() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let before = adoption.seen();
    let plan = |words: &[&str]| -> serde_json::Value {
        let planned = adoption.begin().args(words).output().unwrap();
        succeeds(&planned);
        serde_json::from_slice(&planned.stdout).unwrap()
    };
    let words = ["--dry-run", "--json"];
    let user = User::of(&adoption.directory);
    let planned = plan(&words);
    drop(user);
    assert_eq!(planned["state"], "not-adopted");
    let store = adoption.store();
    assert_eq!(planned["store"].as_str(), store.to_str());
    assert_eq!(planned["in_use_by"].as_array().unwrap().len(), 1);
    adoption.is_as_before(&before);
    adoption.adopt();
    let planned = plan(&words);
    assert_eq!(planned["state"], "mounted");
    let mut one = adoption.list()[0].clone();
    one["schema"] = 1.into();
    assert_eq!(planned, one);
}

#[test]
fn a_directory_is_adopted_and_comes_back_with_what_was_written() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let before = adoption.seen();
    let plan = adoption.begin().arg("--dry-run").output().unwrap();
    succeeds(&plan);
    assert!(String::from_utf8_lossy(&plan.stdout).contains("a dir.mobifs-store"));
    adoption.is_as_before(&before);
    adoption.adopt();
    assert!(adoption.is_served());
    let expected = adoption.without_root_number(before.clone());
    assert_eq!(adoption.without_root_number(adoption.seen()), expected);
    assert_eq!(adoption.list()[0]["state"], "mounted");
    let again = adoption.adopt_again();
    succeeds(&again);
    assert!(String::from_utf8_lossy(&again.stdout).contains("is adopted already"));
    adoption.adopt();
    let mut otherwise = adoption.command("adopt", &["-o", "noatime"]);
    let refused = otherwise.arg(&adoption.directory).output().unwrap();
    fails(&refused, 2, &["is adopted already", "mobifs unadopt"]);
    fs::write(adoption.directory.join("app/new"), "through the mount").unwrap();
    succeeds(&adoption.unadopt());
    let new = adoption.directory.join("app/new");
    assert_eq!(fs::read_to_string(&new).unwrap(), "through the mount");
    fs::remove_file(new).unwrap();
    let (mut after, mut before) = (adoption.seen(), before);
    for seen in [&mut after, &mut before] {
        seen.get_mut(&adoption.directory.join("app")).unwrap().4 = (0, 0);
    }
    assert_eq!(after, before);
    fails(&adoption.unadopt(), FAILED, &["is not adopted", "--list"]);
}

/// Every fault point of both commands, in their order.
const FORWARD: [&str; 7] = [
    "adopt-note",
    "adopt-store-opened",
    "adopt-store",
    "adopt-mount-point",
    "adopt-boot",
    "adopt-exchange",
    "adopt-mount",
];
const BACK: [&str; 6] = [
    "unadopt-unmounted",
    "unadopt-note",
    "unadopt-closed",
    "unadopt-exchange",
    "unadopt-removed",
    "unadopt-boot",
];

#[test]
fn after_a_kill_at_any_step_both_ways_are_open() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let before = adoption.seen();
    let mounted = adoption.without_root_number(before.clone());
    for point in FORWARD {
        adoption.killed_at(point, &mut adoption.begin());
        succeeds(&adoption.unadopt());
        adoption.is_as_before(&before);
        adoption.killed_at(point, &mut adoption.begin());
        succeeds(&adoption.adopt_again());
        assert_eq!(
            adoption.without_root_number(adoption.seen()),
            mounted,
            "{point}"
        );
        succeeds(&adoption.unadopt());
        adoption.is_as_before(&before);
    }
    for point in BACK {
        let mut back = adoption.command("unadopt", &[]);
        let back = back.arg(&adoption.directory);
        adoption.adopt();
        adoption.killed_at(point, back);
        succeeds(&adoption.unadopt());
        adoption.is_as_before(&before);
        adoption.adopt();
        adoption.killed_at(point, back);
        succeeds(&adoption.adopt_again());
        assert_eq!(
            adoption.without_root_number(adoption.seen()),
            mounted,
            "{point}"
        );
        succeeds(&adoption.unadopt());
        adoption.is_as_before(&before);
    }
}

/// In the middle of deleting what is MobiFS's own: it is no store any more. The directory had the time of the kill.
#[test]
fn what_is_deleted_in_part_is_deleted_by_both_ways() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let before = adoption.seen();
    for goes_on in [false, true] {
        adoption.adopt();
        let mut back = adoption.command("unadopt", &[]);
        adoption.killed_at("unadopt-renamed", back.arg(&adoption.directory));
        let removed = adoption.directory.join(".mobifs-removed");
        assert!(removed.is_dir() && !adoption.directory.join(".mobifs").exists());
        if goes_on {
            succeeds(&adoption.adopt_again());
            assert!(adoption.is_served() && !removed.exists());
        }
        succeeds(&adoption.unadopt());
        adoption.is_as_before(&before);
    }
}

#[test]
fn what_a_killed_mount_had_committed_is_there_afterwards() {
    needs_mounts!();
    let adoption = Adoption::new();
    fs::create_dir(adoption.directory.join("app")).unwrap();
    adoption.adopt();
    fs::write(adoption.directory.join("app/file"), "committed").unwrap();
    succeeds(&mobifs(&["sync", "--commit-only"], &adoption.directory));
    succeeds(&mobifs(
        &["drill", "power-cut", "--yes"],
        &adoption.directory,
    ));
    assert_eq!(adoption.list()[0]["state"], "not-mounted");
    succeeds(&adoption.unadopt());
    let file = adoption.directory.join("app/file");
    assert_eq!(fs::read_to_string(file).unwrap(), "committed");
    assert!(!adoption.directory.join(".mobifs").exists());
}

#[test]
fn a_directory_in_use_is_refused_with_its_users() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let before = adoption.seen();
    let user = User::of(&adoption.directory.join("app"));
    let refused = adoption.begin().output().unwrap();
    let needles = [
        "is in use by",
        &user.pid(),
        "working directory",
        "End what uses it",
    ];
    fails(&refused, IN_USE, &needles);
    adoption.is_as_before(&before);
    drop(user);
    adoption.adopt();
    let user = User::of(&adoption.directory.join("app"));
    let needles = ["stays adopted", &user.pid(), "mobifs unadopt again"];
    fails(&adoption.unadopt(), IN_USE, &needles);
    // The command named itself, where it was started in the directory.
    let inside = |name: &str, words: &[&str]| {
        let mut command = adoption.command(name, words);
        let command = command.current_dir(adoption.directory.join("app"));
        command.arg(&adoption.directory).output().unwrap()
    };
    let refused = inside("unadopt", &[]);
    fails(&refused, IN_USE, &needles);
    assert!(!message(&refused).contains("(mobifs"), "{refused:?}");
    assert_eq!(adoption.list()[0]["state"], "mounted");
    drop(user);
    succeeds(&inside("unadopt", &[]));
    adoption.is_as_before(&before);
}

/// A mount namespace, as a container has, shows a part of it elsewhere.
#[test]
fn a_part_that_is_mounted_elsewhere_is_a_use() {
    needs_mounts!();
    let mut adoption = Adoption::new();
    let inner = adoption.directory.join("inner");
    fs::create_dir(&inner).unwrap();
    let elsewhere = adoption.fixture.directory("elsewhere");
    let words = ["--bind", inner.to_str().unwrap()];
    adoption.fixture.mount_other(&words, &elsewhere);
    let refused = adoption.begin().output().unwrap();
    fails(&refused, IN_USE, &["the mount at", "elsewhere"]);
    succeeds(&Command::new("umount").arg(&elsewhere).output().unwrap());
    // Of the mount itself, as with the volume of a container: unmounted, it would live on there.
    adoption.adopt();
    let words = ["--bind", inner.to_str().unwrap()];
    adoption.fixture.mount_other(&words, &elsewhere);
    let needles = ["elsewhere", "stays adopted"];
    fails(&adoption.unadopt(), IN_USE, &needles);
    assert!(adoption.is_served());
    succeeds(&Command::new("umount").arg(&elsewhere).output().unwrap());
    succeeds(&adoption.unadopt());
}

#[test]
fn files_written_while_it_is_not_mounted_are_kept() {
    needs_mounts!();
    let adoption = Adoption::new();
    fs::write(adoption.directory.join("taken"), "first").unwrap();
    adoption.adopt();
    succeeds(&mobifs(&["umount"], &adoption.directory));
    let probe = fs::write(adoption.directory.join("probe"), "");
    let is_protected = is_immutable(&adoption.directory);
    assert_eq!(
        probe.is_err(),
        is_protected,
        "where the filesystem can, nothing is written there"
    );
    set_immutable(&adoption.directory, false);
    fs::write(adoption.directory.join("taken"), "meanwhile").unwrap();
    fs::create_dir(adoption.directory.join("new")).unwrap();
    let output = adoption.adopt_again();
    succeeds(&output);
    let path = |name: &str| adoption.directory.join(name);
    assert!(
        message(&output).contains("written-meanwhile-1"),
        "{}",
        message(&output)
    );
    assert!(path("new").is_dir());
    for mounted in [true, false] {
        assert_eq!(adoption.is_served(), mounted);
        assert_eq!(fs::read_to_string(path("taken")).unwrap(), "first");
        let meanwhile = fs::read_to_string(path("written-meanwhile-1/taken")).unwrap();
        assert_eq!(meanwhile, "meanwhile");
        let _done = mounted.then(|| succeeds(&adoption.unadopt()));
    }
}

/// Names cannot be moved between subvolumes: `.mobifs` could not be taken out.
#[test]
fn a_subvolume_of_btrfs_is_adopted_and_comes_back() {
    needs_mounts!();
    let mut adoption = Adoption::new();
    if !adoption.put_on_btrfs() {
        return;
    }
    let mut create = Command::new("btrfs");
    create
        .args(["subvolume", "create"])
        .arg(&adoption.directory);
    succeeds(&create.output().unwrap());
    fs::write(adoption.directory.join("file"), "kept").unwrap();
    let before = adoption.seen();
    adoption.adopt();
    assert!(adoption.is_served());
    succeeds(&adoption.unadopt());
    adoption.is_as_before(&before);
    assert_eq!(
        fs::read_dir(adoption.directory.parent().unwrap())
            .unwrap()
            .count(),
        1,
        "nothing is beside it"
    );
}

/// On a root that is in memory, the note goes with it at each start.
#[test]
fn what_is_adopted_is_known_without_its_note() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let before = adoption.seen();
    for is_mounted in [true, false] {
        adoption.adopt();
        if !is_mounted {
            succeeds(&mobifs(&["umount"], &adoption.directory));
        }
        fs::remove_dir_all(adoption.notes()).unwrap();
        let plan = adoption.begin().arg("--dry-run").output().unwrap();
        succeeds(&plan);
        assert!(!adoption.notes().exists());
        adoption.adopt();
        assert_eq!(adoption.list()[0]["state"], "mounted");
        fs::remove_dir_all(adoption.notes()).unwrap();
        succeeds(&adoption.unadopt());
        adoption.is_as_before(&before);
    }
}

/// What a unit runs before it mounts.
#[test]
fn the_condition_of_a_unit_brings_to_its_end_what_was_cut_short() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let before = adoption.seen();
    let finish = || {
        let mut command = adoption.command("adopt", &["--finish"]);
        command.arg(&adoption.directory).output().unwrap()
    };
    fails(&finish(), 255, &["is not adopted"]);
    adoption.killed_at("adopt-note", &mut adoption.begin());
    for _ in ["first start", "a later one"] {
        succeeds(&finish());
        assert!(adoption.store().join("top").exists() && !adoption.is_served());
        // As one that was cut short before it could protect it.
        assert!(is_immutable(&adoption.directory) || !can_be_immutable(&adoption.store()));
        set_immutable(&adoption.directory, false);
    }
    succeeds(&adoption.adopt_again());
    // A daemon that takes over.
    succeeds(&finish());
    adoption.killed_at(
        "unadopt-note",
        adoption.command("unadopt", &[]).arg(&adoption.directory),
    );
    for _ in ["first start", "a later one"] {
        assert_eq!(finish().status.code(), Some(1), "not to be mounted");
        assert_eq!(adoption.seen(), before);
    }
    // Nothing is left to be undone.
    assert_eq!(adoption.list(), serde_json::json!([]));
    adoption.is_as_before(&before);
    for (point, name, state) in [
        ("adopt-store", "adopt", "at-next-start"),
        ("unadopt-closed", "unadopt", "returning"),
    ] {
        if name == "adopt" {
            adoption.killed_at(point, &mut adoption.begin());
        } else {
            adoption.adopt();
            let mut back = adoption.command(name, &[]);
            adoption.killed_at(point, back.arg(&adoption.directory));
        }
        assert_eq!(adoption.list()[0]["state"], state);
        succeeds(&adoption.unadopt());
        adoption.is_as_before(&before);
    }
}

#[test]
fn one_that_cannot_be_mounted_is_as_it_was() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let before = adoption.seen();
    let mut command = adoption.command("adopt", &["--boot", "none", "-o", "log=/nonexistent/log"]);
    let output = command.arg(&adoption.directory).output().unwrap();
    fails(&output, FAILED, &["/nonexistent/log", "is as it was"]);
    adoption.is_as_before(&before);
}

/// `dist/init/S50mobifs` did not find mounts with spaces in their names, and left them to the end of the machine.
#[test]
fn a_file_for_other_init_systems_mounts_and_unmounts() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let before = adoption.seen();
    let mut command = adoption.command("adopt", &["--boot", "init"]);
    succeeds(&command.arg(&adoption.directory).output().unwrap());
    let init = |what: &str| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/init/S50mobifs");
        let programs = Path::new(PROGRAM).parent().unwrap().display();
        let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
        let mut command = Command::new("sh");
        command.args([script, what]).env("PATH", path);
        command.env(
            "MOBIFS_CONFIGURATIONS",
            adoption.fixture.path("config/mobifs"),
        );
        succeeds(&command.output().unwrap());
    };
    for _ in ["one start", "another"] {
        init("stop");
        assert!(!adoption.is_served());
        init("start");
        assert!(adoption.is_served());
    }
    succeeds(&adoption.unadopt());
    adoption.is_as_before(&before);
    assert!(!adoption.fixture.path("config").join("mobifs").exists());
}

/// What a regression would do to the system: a test should notice only that it would be done.
const SYSTEM: [(&str, &str); 4] = [
    ("/", "everything lies in it"),
    ("/proc", "is a mount point"),
    ("/usr", "cannot be adopted"),
    (
        "/etc",
        "/etc cannot be adopted: it is needed before it is mounted",
    ),
];

#[test]
fn what_is_no_directory_to_adopt_is_refused_and_stays() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let before = adoption.seen();
    for (directory, needle) in SYSTEM {
        let mut command = adoption.command("adopt", &["--dry-run", directory]);
        fails(&command.output().unwrap(), FAILED, &[needle, directory]);
    }
    let path = |name: &str| adoption.fixture.path(name);
    let directory = &adoption.directory;
    fs::write(path("file"), "").unwrap();
    std::os::unix::fs::symlink(directory, path("link")).unwrap();
    adoption.refuses(&path("file"), FAILED, &["is not a directory"]);
    adoption.refuses(&path("link"), FAILED, &["symbolic link", "mobifs adopt"]);
    adoption.refuses(&path("none"), FAILED, &["does not exist", "mkdir"]);
    adoption.refuses(&path(""), FAILED, &["needed before it is mounted"]);
    let store = adoption.store();
    fs::create_dir(&store).unwrap();
    adoption.refuses(directory, FAILED, &["is there already", "move it away"]);
    fs::remove_dir(&store).unwrap();
    fs::create_dir(directory.join(".mobifs")).unwrap();
    adoption.refuses(directory, FAILED, &["is a MobiFS store", "mobifs recover"]);
    fs::remove_dir(directory.join(".mobifs")).unwrap();
    set_immutable(directory, true);
    if is_immutable(directory) {
        adoption.refuses(directory, FAILED, &["immutable", "chattr -i"]);
    }
    set_immutable(directory, false);
    adoption.is_as_before_but_times(&before);
}

#[test]
fn mounts_and_other_adopted_directories_are_refused_and_stay() {
    needs_mounts!();
    let mut adoption = Adoption::with_files();
    let before = adoption.seen();
    let (directory, store) = (adoption.directory.clone(), adoption.store());
    let inside = directory.join("app");
    let words = ["-t", "tmpfs", "none"];
    adoption.fixture.mount_other(&words, &inside);
    adoption.refuses(
        &directory,
        IN_USE,
        &["app is mounted in", "unmount it first"],
    );
    adoption.refuses(&inside, FAILED, &["is a mount point (tmpfs)"]);
    fs::create_dir(inside.join("deep")).unwrap();
    let deep = inside.join("deep");
    adoption.refuses(&deep, FAILED, &["in memory", "nothing to gain"]);
    succeeds(&Command::new("umount").arg(&inside).output().unwrap());
    adoption.adopt();
    adoption.refuses(&inside, IN_USE, &["one lies in the other"]);
    succeeds(&mobifs(&["umount"], &directory));
    adoption.refuses(&store.join("app"), IN_USE, &["one lies in the other"]);
    succeeds(&adoption.unadopt());
    adoption.fixture.mount(&[]);
    let mountpoint = adoption.fixture.mountpoint.clone();
    adoption.refuses(&mountpoint, IN_USE, &["is a MobiFS mount already"]);
    fs::create_dir(mountpoint.join("in it")).unwrap();
    adoption.refuses(
        &mountpoint.join("in it"),
        FAILED,
        &["lies in the MobiFS mount"],
    );
    adoption.is_as_before_but_times(&before);
}
