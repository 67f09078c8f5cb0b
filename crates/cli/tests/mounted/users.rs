//! Several users on one mount: permissions are those of a plain directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::fixture::{Fixture, needs_mounts};

/// A user of the mount: user, group, further groups.
type User = (u32, u32, &'static [u32]);

const ROOT: User = (0, 0, &[]);
const OWNER: User = (2001, 2001, &[]);
/// In the owner's group.
const MEMBER: User = (2002, 2002, &[2001]);
const STRANGER: User = (2003, 2003, &[]);

/// What root prepares, in an app.
const PREPARE: &[&str] = &[
    "mkdir app && cd app && mkdir mine ours sticky inherits open listed",
    "chown 2001:2001 app/mine app/ours app/sticky app/inherits app/listed",
    "chmod 700 app/mine && chmod 770 app/ours && chmod 1777 app/sticky && chmod 777 app/open",
    "chmod 2777 app/inherits && chmod 711 app/listed",
    "echo secret > app/mine/f && echo ours > app/ours/f && echo all > app/open/f",
    "chown 2001:2001 app/*/f && chmod 600 app/mine/f && chmod 640 app/ours/f",
    "chmod 644 app/open/f && echo x > app/open/suid && chown 2001:2001 app/open/suid",
    "chmod 6777 app/open/suid && echo x > app/open/sgid && chown 2001:2001 app/open/sgid",
    "chmod 2777 app/open/sgid && echo acl > app/open/acl && chown 2001:2001 app/open/acl",
    "chmod 600 app/open/acl && setfacl -m u:2003:rw app/open/acl",
    "mkdir app/defaults && chmod 777 app/defaults && setfacl -d -m u:2003:r,o::- app/defaults",
    "mknod app/open/node c 1 3 && chmod 600 app/open/node",
    "setfattr -n user.a -v 1 app/open/f && setfattr -n trusted.a -v 1 app/open/f",
];

/// The users' operations, all of them in this order. Each may be refused.
const ACTIONS: &[(User, &str)] = &[
    (STRANGER, "cat app/mine/f"),
    (STRANGER, "ls app/mine"),
    (MEMBER, "cat app/mine/f"),
    (OWNER, "cat app/mine/f"),
    (STRANGER, "cat app/ours/f"),
    (MEMBER, "cat app/ours/f"),
    (MEMBER, "echo more >> app/ours/f"),
    (MEMBER, "echo new > app/ours/by-member"),
    (OWNER, "cat app/ours/by-member"),
    (STRANGER, "echo more >> app/open/f"),
    (STRANGER, "ls app/listed"),
    (STRANGER, "stat -c %a app/listed"),
    // Attributes belong to the owner.
    (STRANGER, "chmod 777 app/open/f"),
    (MEMBER, "chown 2002 app/open/f"),
    (OWNER, "chown 2002 app/open/f"),
    (OWNER, "chgrp 2002 app/open/f"),
    (STRANGER, "touch app/open/f"),
    (STRANGER, "touch -d @1000 app/open/suid"),
    (OWNER, "touch -d @1000 app/open/f"),
    (MEMBER, "chgrp 2001 app/ours/by-member"),
    (MEMBER, "chmod 2755 app/ours/by-member"),
    // Sticky: only owners delete and rename.
    (MEMBER, "echo a > app/sticky/a"),
    (STRANGER, "rm -f app/sticky/a"),
    (STRANGER, "mv app/sticky/a app/sticky/b"),
    (
        STRANGER,
        "echo c > app/sticky/c && mv app/sticky/c app/sticky/a",
    ),
    (OWNER, "mv app/sticky/a app/sticky/b"),
    (MEMBER, "rm -f app/sticky/b"),
    // The group of a directory with the set-group-id bit is inherited.
    (STRANGER, "echo a > app/inherits/a && mkdir app/inherits/d"),
    (STRANGER, "chmod 2755 app/inherits/a"),
    (
        MEMBER,
        "echo b > app/inherits/b && chmod 2755 app/inherits/b",
    ),
    // A write by another user removes set-id bits.
    (STRANGER, "echo y >> app/open/suid"),
    (STRANGER, "truncate -s 1 app/open/sgid"),
    // Access lists.
    (STRANGER, "echo y >> app/open/acl"),
    (MEMBER, "cat app/open/acl"),
    (STRANGER, "setfacl -m u:2002:rw app/open/acl"),
    (OWNER, "setfacl -m u:2002:r app/open/acl"),
    (MEMBER, "cat app/open/acl"),
    (MEMBER, "echo z >> app/open/acl"),
    (OWNER, "echo d > app/defaults/f"),
    (STRANGER, "cat app/defaults/f"),
    (STRANGER, "echo d >> app/defaults/f"),
    (MEMBER, "cat app/defaults/f"),
    // Extended attributes.
    (STRANGER, "getfattr -n user.a app/open/f"),
    (STRANGER, "setfattr -n user.a -v 2 app/open/f"),
    (OWNER, "setfattr -n user.a -v 2 app/open/f"),
    (OWNER, "getfattr -n trusted.a app/open/f"),
    (OWNER, "setfattr -n trusted.a -v 2 app/open/f"),
    (OWNER, "setfattr -n security.capability -v 0x01 app/open/f"),
    // Nodes, links and moves.
    (OWNER, "mknod app/open/null c 1 3"),
    (STRANGER, "cat app/open/node"),
    (OWNER, "mkfifo app/open/fifo"),
    (STRANGER, "ln app/open/f app/sticky/f"),
    (OWNER, "ln app/open/f app/sticky/f"),
    (STRANGER, "mv app/open/f app/open/g"),
    (STRANGER, "mv app/ours app/open/ours"),
    (STRANGER, "mv app/mine app/open/mine"),
    (STRANGER, "rm -rf app/ours app/mine"),
    (OWNER, "mkdir elsewhere"),
    (ROOT, "cat app/mine/f && echo root >> app/mine/f"),
];

/// What can be asked again after a power cut without changing anything.
const LOOKS: &[&str] = &[
    "cat app/mine/f",
    "cat app/ours/f",
    "cat app/ours/by-member",
    "cat app/open/acl",
    "cat app/defaults/f",
    "ls app/mine",
    "ls app/listed",
    "test -w app/open/suid",
    "test -w app/sticky",
    "test -x app/open/sgid",
];

/// Runs it as this user in a directory; the exit status and what it said.
fn run(user: User, directory: &Path, script: &str) -> String {
    let (uid, gid, groups) = user;
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    match groups.as_slice() {
        [] => command.arg("--clear-groups"),
        groups => command.arg(format!("--groups={}", groups.join(","))),
    };
    command.args(["sh", "-c", &format!("umask 022; {script}")]);
    let output = command.current_dir(directory).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    format!("{uid} {script}: {:?} {said}", output.status.code())
}

fn looks(directory: &Path) -> Vec<String> {
    let mut answers = Vec::new();
    for user in [ROOT, OWNER, MEMBER, STRANGER] {
        answers.extend(LOOKS.iter().map(|script| run(user, directory, script)));
    }
    // Size and links of a directory depend on the filesystem.
    let everything = "find app ! -type d -printf '%p %m %U %G %n %s %y\\n' | sort; \
                      find app -type d -printf '%p %m %U %G\\n' | sort; \
                      find app ! -type l | sort | xargs getfacl -np";
    answers.extend(run(ROOT, directory, everything).lines().map(String::from));
    answers
}

/// Everything that users do there; returns each outcome.
fn work(directory: &Path) -> Vec<String> {
    for script in PREPARE {
        let done = run(ROOT, directory, script);
        assert!(done.starts_with(&format!("0 {script}: Some(0)")), "{done}");
    }
    let actions = ACTIONS.iter();
    actions
        .map(|(user, script)| run(*user, directory, script))
        .collect()
}

fn same(when: &str, found: &[String], expected: &[String]) {
    let pairs = found.iter().zip(expected);
    for (found, expected) in pairs {
        assert_eq!(found, expected, "{when}");
    }
    assert_eq!(found.len(), expected.len(), "{when}");
}

fn open_the_way(fixture: &Fixture) {
    let base = fixture.store.parent().unwrap();
    fs::set_permissions(base, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn users_of_one_mount_may_what_they_may_in_a_plain_directory() {
    needs_mounts!();
    let fixture = Fixture::new();
    open_the_way(&fixture);
    let plain = fixture.directory("plain");
    for directory in [&plain, &fixture.store] {
        fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    }
    let expected = work(&plain);
    let refused = expected
        .iter()
        .filter(|status| !status.contains("Some(0)"))
        .count();
    assert!(
        refused > 25 && refused < ACTIONS.len() - 15,
        "most of these are one of each kind: {expected:#?}"
    );
    fixture.mount(&[]);
    same("at work", &work(&fixture.mountpoint), &expected);
    let expected = looks(&plain);
    same(
        "while it is in memory",
        &looks(&fixture.mountpoint),
        &expected,
    );
    let mountpoint = fixture.mountpoint.to_str().unwrap().to_owned();
    let synced = Command::new(crate::fixture::PROGRAM)
        .args(["sync", "--commit-only", &mountpoint])
        .status();
    assert!(synced.unwrap().success());
    fixture.cut_power();
    fixture.mount(&[]);
    same("after a power cut", &looks(&fixture.mountpoint), &expected);
    fixture.umount();
    same("in the store", &looks(&fixture.store), &expected);
}
