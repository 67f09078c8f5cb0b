//! Mounts of an ordinary user, through fusermount3.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::alone::Alone;
use crate::fixture::{
    Fixture, copy_program, fails, is_mounted, message, mobifs, needs_mounts, succeeds,
};

/// The user `nobody`, on every Linux system.
const USER: u32 = 65_534;

/// The program where any user can run it, and a store and a mount point of that user.
struct User {
    fixture: Fixture,
    program: PathBuf,
}

impl User {
    /// None, with a message, where this cannot be tested.
    fn new() -> Option<Self> {
        let has_helper = ["/usr/bin/fusermount3", "/bin/fusermount3"];
        if !has_helper.iter().any(|path| Path::new(path).exists()) {
            mobifs_skip::skip("no fusermount3");
            return None;
        }
        let fixture = Fixture::new();
        let base = fixture.store.parent().unwrap().to_owned();
        for path in [&base, &fixture.store, &fixture.mountpoint] {
            std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
        }
        fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).unwrap();
        let program = fixture.path("mobifs");
        copy_program(&program);
        let user = Self { fixture, program };
        let device = user.run("sh", &["-c", ": < /dev/fuse > /dev/fuse"]);
        if !device.status.success() {
            mobifs_skip::skip("/dev/fuse is not for everybody");
            return None;
        }
        Some(user)
    }

    fn run(&self, program: &str, words: &[&str]) -> Output {
        let mut command = Command::new(program);
        command
            .args(words)
            .uid(USER)
            .gid(USER)
            .env_remove("XDG_RUNTIME_DIR");
        command.current_dir("/").output().unwrap()
    }

    fn mobifs(&self, words: &[&str]) -> Output {
        self.run(self.program.to_str().unwrap(), words)
    }

    fn mount(&self) {
        let log = self.fixture.path("log");
        let words = [
            "mount",
            "--log",
            log.to_str().unwrap(),
            self.store(),
            self.mountpoint(),
        ];
        succeeds(&self.mobifs(&words));
    }

    fn store(&self) -> &str {
        self.fixture.store.to_str().unwrap()
    }

    fn mountpoint(&self) -> &str {
        self.fixture.mountpoint.to_str().unwrap()
    }
}

/// A user without the right to mount got only the helper's message, which did not say what to do,
/// and a store had been made already.
#[test]
fn a_user_who_cannot_mount_gets_the_reason_and_leaves_nothing() {
    needs_mounts!();
    let _alone = Alone::new();
    let fixture = Fixture::new();
    let base = fixture.store.parent().unwrap().to_owned();
    for path in [&base, &fixture.store, &fixture.mountpoint] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
    fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).unwrap();
    let program = fixture.path("mobifs");
    copy_program(&program);
    let tools = fixture.directory("tools");
    let helper = tools.join("fusermount3");
    // In a mount namespace of its own: with another /dev/fuse, and another helper in the path.
    let try_with = |device_mode: &str, helper_mode: Option<u32>| {
        let _removed = fs::remove_file(&helper);
        if let Some(mode) = helper_mode {
            fs::copy("/bin/true", &helper).unwrap();
            fs::set_permissions(&helper, fs::Permissions::from_mode(mode)).unwrap();
        }
        let script = format!(
            "mount -t tmpfs none /mnt && mknod -m {device_mode} /mnt/fuse c 10 229 &&
             mount --bind /mnt/fuse /dev/fuse &&
             exec setpriv --reuid {USER} --regid {USER} --clear-groups \
             env -u XDG_RUNTIME_DIR PATH={tools} {program} mount --log {log} {store} {mountpoint}",
            tools = tools.display(),
            program = program.display(),
            log = fixture.path("log").display(),
            store = fixture.store.display(),
            mountpoint = fixture.mountpoint.display(),
        );
        let mut command = Command::new("unshare");
        let output = command.args(["--mount", "sh", "-c", &script]);
        output.current_dir("/").output().unwrap()
    };
    fails(&try_with("666", None), 1, &["fusermount3", "not installed"]);
    let powerless = try_with("666", Some(0o755));
    fails(&powerless, 1, &["set-user-ID", "chmod u+s"]);
    let forbidden = try_with("600", Some(0o4755));
    fails(&forbidden, 1, &["/dev/fuse", "mode 600", "chmod 666"]);
    assert!(
        !fixture.store.join(".mobifs").exists(),
        "nothing was done to the store"
    );
}

#[test]
fn an_ordinary_user_mounts_commits_and_unmounts() {
    needs_mounts!();
    let Some(user) = User::new() else { return };
    user.mount();
    let path = user.fixture.mountpoint.join("app");
    succeeds(&user.run("mkdir", &[path.to_str().unwrap()]));
    let file = path.join("f");
    succeeds(&user.run("cp", &["/etc/passwd", file.to_str().unwrap()]));
    assert!(
        fs::read(&file).is_err(),
        "others, even root, may not enter by default"
    );
    // Root may ask about every mount; the user about this one.
    let status = mobifs(&["status", "--json"], &user.fixture.mountpoint);
    succeeds(&status);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["store"]["path"], user.store());
    succeeds(&user.mobifs(&["status", user.mountpoint()]));
    succeeds(&user.mobifs(&["umount", user.mountpoint()]));
    let stored = user.fixture.store.join("app/f");
    assert_eq!(fs::read(stored).unwrap(), fs::read("/etc/passwd").unwrap());
}

#[test]
fn a_drill_ends_a_mount_that_its_user_cannot_abort() {
    // Regression: the daemon ended without an answer while a file was open.
    needs_mounts!();
    let Some(user) = User::new() else { return };
    user.mount();
    let script = format!(
        "exec 5>{0}/open && {1} drill power-cut --yes {0}",
        user.mountpoint(),
        user.program.display()
    );
    let output = user.run("sh", &["-c", &script]);
    succeeds(&output);
    assert!(
        !is_mounted(&user.fixture.mountpoint),
        "{}",
        message(&output)
    );
    user.mount();
    succeeds(&user.mobifs(&["umount", user.mountpoint()]));
}

#[test]
fn other_users_may_not_control_the_mount() {
    needs_mounts!();
    let Some(user) = User::new() else { return };
    // Root's mount, and the other user asks.
    user.fixture.mount(&[]);
    for command in [
        &["status"][..],
        &["sync"],
        &["umount"],
        &["drill", "power-cut", "--yes"],
    ] {
        let words: Vec<&str> = command.iter().copied().chain([user.mountpoint()]).collect();
        fails(
            &user.mobifs(&words),
            1,
            &["only root and the user who mounted"],
        );
    }
    assert!(user.fixture.is_mounted());
    user.fixture.umount();
}

#[test]
fn a_user_adopts_what_is_the_users_own() {
    needs_mounts!();
    let Some(user) = User::new() else { return };
    let (own, of_root) = (
        user.fixture.directory("own"),
        user.fixture.directory("of-root"),
    );
    std::os::unix::fs::chown(&own, Some(USER), Some(USER)).unwrap();
    fs::write(own.join("file"), "kept").unwrap();
    let notes = user.fixture.path("notes");
    let run = |command: &str, more: &[&str], directory: &Path| {
        let mut words = vec![command, "--notes", notes.to_str().unwrap()];
        words.extend(more);
        words.push(directory.to_str().unwrap());
        user.mobifs(&words)
    };
    fails(
        &run("adopt", &["--boot", "none"], &of_root),
        1,
        &["belongs to user 0", "sudo mobifs adopt"],
    );
    let inner = of_root.join("inner");
    fs::create_dir(&inner).unwrap();
    std::os::unix::fs::chown(&inner, Some(USER), Some(USER)).unwrap();
    fails(
        &run("adopt", &["--boot", "none"], &inner),
        1,
        &["may not write to", "sudo mobifs adopt"],
    );
    fails(
        &run("adopt", &["--boot", "init"], &own),
        2,
        &["--boot init is for root"],
    );
    succeeds(&run("adopt", &["--boot", "none"], &own));
    let file = own.join("file");
    let content = user.run("cat", &[file.to_str().unwrap()]);
    assert_eq!(content.stdout, b"kept");
    fs::read(&file).unwrap_err();
    succeeds(&run("unadopt", &[], &own));
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    assert!(!notes.exists() && !user.fixture.path("own.mobifs-store").exists());
}

/// The advice was `-o nonempty`, which hides what programs have written, and which the command refuses.
#[test]
fn what_a_program_writes_in_the_instant_before_the_mount_is_no_reason_for_an_option() {
    const ROUNDS: u32 = 8;
    needs_mounts!();
    let Some(user) = User::new() else { return };
    let own = user.fixture.directory("own");
    std::os::unix::fs::chown(&own, Some(USER), Some(USER)).unwrap();
    let (notes, stop) = (user.fixture.path("notes"), user.fixture.path("stop"));
    let run = |command: &str, more: &[&str]| {
        let mut words = vec![command, "--notes", notes.to_str().unwrap()];
        words.extend(more);
        words.push(own.to_str().unwrap());
        user.mobifs(&words)
    };
    let script = "while [ ! -e \"$2\" ]; do i=$((i + 1)); echo $i > \"$1/file-$i\"; done; echo $i";
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (own, stop) = (own.to_str().unwrap(), stop.to_str().unwrap());
            user.run("sh", &["-c", script, "sh", own, stop])
        });
        let mut said = Vec::new();
        for _ in 0..ROUNDS {
            said.push(message(&run("adopt", &["--boot", "none"])));
            let _either = run("unadopt", &[]);
        }
        fs::write(&stop, "").unwrap();
        writer.join().unwrap();
        for message in said {
            assert!(!message.contains("nonempty"), "{message}");
        }
    });
    if is_mounted(&own) {
        succeeds(&run("unadopt", &[]));
    }
}

/// A directory that a user may adopt, and the notes of the user and of root.
struct Shared {
    own: PathBuf,
    notes: PathBuf,
    notes_of_root: PathBuf,
}

impl Shared {
    fn new(user: &mut User) -> Self {
        let own = user.fixture.directory("own");
        user.fixture.unmount_at_end(&own);
        std::os::unix::fs::chown(&own, Some(USER), Some(USER)).unwrap();
        fs::write(own.join("file"), "kept").unwrap();
        Self {
            own,
            notes: user.fixture.path("notes"),
            notes_of_root: user.fixture.path("notes-of-root"),
        }
    }

    fn words<'a>(&'a self, command: &'a str, notes: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
        let mut words = vec![command, "--notes", notes.to_str().unwrap()];
        words.extend(more);
        words.push(self.own.to_str().unwrap());
        words
    }

    fn user(&self, user: &User, command: &str, more: &[&str]) -> Output {
        user.mobifs(&self.words(command, &self.notes, more))
    }

    fn root(&self, user: &User, command: &str, more: &[&str]) -> Output {
        let words = self.words(command, &self.notes_of_root, more);
        Command::new(&user.program).args(words).output().unwrap()
    }
}

const NO_BOOT: [&str; 2] = ["--boot", "none"];
const PLANNED: [&str; 3] = ["--boot", "none", "--dry-run"];

/// Root unmounted what a user had adopted, made it immutable and left a note before it was refused.
#[test]
fn what_a_user_has_adopted_root_leaves_alone() {
    needs_mounts!();
    let Some(mut user) = User::new() else { return };
    let shared = Shared::new(&mut user);
    let needles = ["is adopted by the user with id 65534", "mobifs unadopt"];
    succeeds(&shared.user(&user, "adopt", &NO_BOOT));
    for mounted in [true, false] {
        if !mounted {
            succeeds(&user.mobifs(&["umount", shared.own.to_str().unwrap()]));
        }
        for (command, more) in [
            ("adopt", &NO_BOOT[..]),
            ("adopt", &PLANNED),
            ("unadopt", &["--dry-run"]),
            ("unadopt", &[]),
        ] {
            fails(&shared.root(&user, command, more), 1, &needles);
            assert_eq!(is_mounted(&shared.own), mounted, "{command} {more:?}");
        }
        assert!(!shared.notes_of_root.exists());
    }
    succeeds(&shared.user(&user, "adopt", &NO_BOOT));
    succeeds(&shared.user(&user, "unadopt", &[]));
    let kept = fs::read_to_string(shared.own.join("file")).unwrap();
    assert_eq!(kept, "kept");
    assert!(!shared.notes.exists());
}

/// The user got a note of an adoption that was root's, and later read that it was cut short.
#[test]
fn what_root_has_adopted_a_user_leaves_alone() {
    needs_mounts!();
    let Some(mut user) = User::new() else { return };
    let shared = Shared::new(&mut user);
    let words = ["--boot", "none", "-o", "allow_other"];
    succeeds(&shared.root(&user, "adopt", &words));
    let needles = ["is adopted by root", "sudo mobifs unadopt"];
    for (command, more) in [
        ("adopt", &NO_BOOT[..]),
        ("adopt", &PLANNED),
        ("unadopt", &[]),
    ] {
        fails(&shared.user(&user, command, more), 1, &needles);
        assert!(is_mounted(&shared.own) && !shared.notes.exists());
    }
    succeeds(&shared.root(&user, "unadopt", &[]));
    assert!(!shared.notes_of_root.exists() && shared.own.join("file").exists());
}

/// A dry run said that nothing was in the way, and the adoption failed on the way.
#[test]
fn a_dry_run_refuses_the_rights_that_the_adoption_would_lack() {
    needs_mounts!();
    let Some(mut user) = User::new() else { return };
    let shared = Shared::new(&mut user);
    let refused = |needles: &[&str]| {
        for more in [&PLANNED[..], &NO_BOOT] {
            let output = shared.user(&user, "adopt", more);
            fails(&output, 1, needles);
            assert!(!message(&output).contains("is as it was"), "{output:?}");
            assert!(!shared.notes.exists());
        }
    };
    let set = |path: &Path, mode: u32, group: u32| {
        std::os::unix::fs::chown(path, None, Some(group)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    set(&shared.own, 0o500, USER);
    refused(&["its mode does not let you", "chmod u+rwx"]);
    set(&shared.own, 0o755, 0);
    refused(&["has the group 0, which you are not in", "sudo mobifs adopt"]);
    // What is made in such a directory has its group.
    let parent = shared.own.parent().unwrap();
    set(parent, 0o2755, 0);
    succeeds(&shared.user(&user, "adopt", &PLANNED));
    succeeds(&shared.user(&user, "adopt", &NO_BOOT));
    succeeds(&shared.user(&user, "unadopt", &[]));
    set(parent, 0o355, USER);
    refused(&["Permission denied"]);
    set(parent, 0o755, USER);
}

/// Packages were removed under what a user had adopted and not mounted, as only root's notes were seen.
#[test]
fn root_lists_what_all_users_have_adopted() {
    needs_mounts!();
    let Some(mut user) = User::new() else { return };
    let mut shared = Shared::new(&mut user);
    let home = user.fixture.directory("home");
    std::os::unix::fs::chown(&home, Some(USER), Some(USER)).unwrap();
    shared.notes = home.join(".config/mobifs/adopted");
    let passwd = user.fixture.path("passwd");
    let lines = format!(
        "root:x:0:0::/root:/bin/sh\nsomebody:x:{USER}:{USER}::{}:/bin/sh\n",
        home.display()
    );
    fs::write(&passwd, lines).unwrap();
    let list = |json: &str| {
        let script = format!(
            "mount --bind {} /etc/passwd && exec {} adopt --list --all-users {json} --notes {}",
            passwd.display(),
            user.program.display(),
            shared.notes_of_root.display()
        );
        let mut command = Command::new("unshare");
        let output = command.args(["--mount", "sh", "-c", &script]).output();
        let output = output.unwrap();
        succeeds(&output);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (text, message(&output))
    };
    let adopted = || -> serde_json::Value {
        serde_json::from_str::<serde_json::Value>(&list("--json").0).unwrap()["adopted"].take()
    };
    assert_eq!(adopted(), serde_json::json!([]));
    assert!(list("").0.contains("no directory is adopted"));
    succeeds(&shared.user(&user, "adopt", &NO_BOOT));
    assert_eq!(adopted()[0]["state"], "mounted");
    succeeds(&user.mobifs(&["umount", shared.own.to_str().unwrap()]));
    let found = adopted();
    assert_eq!(found[0]["state"], "not-mounted");
    assert_eq!(found[0]["user"], USER);
    assert_eq!(found[0]["directory"].as_str(), shared.own.to_str());
    assert!(list("").0.starts_with("USER "));
    // What a user has put there keeps root from nothing.
    succeeds(&user.run("mkfifo", &[shared.notes.join("a.json").to_str().unwrap()]));
    fs::write(shared.notes.join("b.json"), "{").unwrap();
    let (text, warnings) = list("");
    assert!(text.contains("own.mobifs-store"), "{text}");
    assert!(
        warnings.contains("a.json") && warnings.contains("b.json"),
        "{warnings}"
    );
    for name in ["a.json", "b.json"] {
        fs::remove_file(shared.notes.join(name)).unwrap();
    }
    fails(
        &user.mobifs(&["adopt", "--list", "--all-users"]),
        2,
        &["is for root"],
    );
    succeeds(&shared.user(&user, "unadopt", &[]));
    assert_eq!(adopted(), serde_json::json!([]));
}
