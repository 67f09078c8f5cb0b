//! What users may, and what programs may become.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::fixture::{By, Fixture, PROGRAM, does, mechanisms, needs_root};
use crate::program::{add_to, outcomes};

const NOBODY: u32 = 65_534;

fn as_nobody(command: &mut Command) -> &mut Command {
    command.uid(NOBODY).gid(NOBODY)
}

/// Why another user cannot run what was built here, if so.
fn obstacle() -> Option<&'static str> {
    let mut version = Command::new(PROGRAM);
    let started = as_nobody(version.arg("--version").current_dir("/")).output();
    let can = started.is_ok_and(|output| output.status.success());
    (!can).then_some("other users cannot reach the program")
}

/// Opens the fixture to others.
fn open_to_all(fixture: &Fixture) {
    for place in [fixture.path("."), fixture.steered(), fixture.other()] {
        fs::set_permissions(place, fs::Permissions::from_mode(0o777)).unwrap();
    }
}

#[test]
fn users_run_programs_as_root_does() {
    needs_root!();
    if !mobifs_skip::can(obstacle()) {
        return;
    }
    let fixture = Fixture::new();
    open_to_all(&fixture);
    for by in mechanisms() {
        let (steered, other) = (fixture.steered(), fixture.other());
        let (steered, other) = (steered.display(), other.display());
        let mut steps = format!("fsync {steered};msync {steered};fsync {other}");
        let mut expected = "fsync skipped, msync flushed, fsync flushed".to_owned();
        if by != By::Preload {
            steps += &format!(
                ";raw-fsync {steered};o-sync {steered};raw-o-sync {steered};raw-rwf {steered};bad /"
            );
            expected += ", raw-fsync skipped, o-sync skipped, raw-o-sync skipped, raw-rwf skipped, bad errno 9";
        }
        let mut command = fixture.command(&[by.word(), "--"]);
        add_to(&mut command, &steps);
        let done = outcomes(as_nobody(&mut command).current_dir("/"));
        assert_eq!(done, expected, "{by:?}");
    }
}

/// A program that becomes root, on the steered filesystem.
fn set_uid_program(fixture: &Fixture) -> String {
    let program = fixture.steered().join("who");
    does("cp", &["/usr/bin/id", program.to_str().unwrap()]);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    program.to_str().unwrap().to_owned()
}

#[test]
fn set_uid_programs_work_for_root_and_not_for_users() {
    needs_root!();
    if !mobifs_skip::can(obstacle()) {
        return;
    }
    let fixture = Fixture::new();
    open_to_all(&fixture);
    let who = set_uid_program(&fixture);
    let by_root = fixture.run(&[
        "--",
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        &who,
        "-u",
    ]);
    assert_eq!(by_root.stdout, b"0\n", "{by_root:?}");
    let mut command = fixture.command(&["-v", "--", &who, "-u"]);
    let by_user = as_nobody(&mut command).current_dir("/").output().unwrap();
    assert_eq!(by_user.stdout, b"65534\n", "{by_user:?}");
    let said = String::from_utf8(by_user.stderr).unwrap();
    assert!(said.contains("no_new_privs"), "{said}");
}

/// The environment of a user does not decide for programs with more rights.
#[test]
fn a_users_own_registrations_count_for_that_user_only() {
    needs_root!();
    if !mobifs_skip::can(obstacle()) {
        return;
    }
    let fixture = Fixture::new();
    open_to_all(&fixture);
    let place = fixture.steered();
    does(
        "chown",
        &["-R", "65534", fixture.directory().path().to_str().unwrap()],
    );
    let mut command = fixture.command(&["--", "true"]);
    let as_root = command.output().unwrap();
    assert_eq!(as_root.status.code(), Some(5), "{as_root:?}");
    let mut command = fixture.command(&[By::Seccomp.word(), "--"]);
    add_to(&mut command, &format!("fsync {}", place.display()));
    assert_eq!(
        outcomes(as_nobody(&mut command).current_dir("/")),
        "fsync skipped"
    );
}

/// A process that has left the filesystem's root is not a twin of the supervisor: the kernel opens.
#[test]
fn a_process_with_other_rights_opens_files_by_itself() {
    needs_root!();
    let fixture = Fixture::new();
    let place = fixture.steered();
    let mut command = fixture.command(&[By::Seccomp.word(), "--", "unshare", "--mount"]);
    add_to(
        &mut command,
        &format!("raw-o-sync {0};raw-fsync {0}", place.display()),
    );
    assert_eq!(
        outcomes(&mut command),
        "raw-o-sync flushed, raw-fsync skipped"
    );
}

/// It said that no filesystem is steered.
#[test]
fn in_a_user_namespace_without_root_the_cause_is_named() {
    needs_root!();
    if !mobifs_skip::can(obstacle()) {
        return;
    }
    let fixture = Fixture::new();
    open_to_all(&fixture);
    let run = fixture.command(&["true"]);
    let within = |command: &mut Command| {
        as_nobody(command.args(["--user", "--map-root-user"]).current_dir("/"));
    };
    let mut trial = Command::new("unshare");
    within(&mut trial);
    if !mobifs_skip::can(mobifs_skip::why_fails(trial.arg("true"))) {
        return;
    }
    let mut command = Command::new("unshare");
    within(&mut command);
    command.arg(run.get_program()).args(run.get_args());
    command.envs(
        run.get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let output = command.output().unwrap();
    let said = crate::fixture::message(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("in this user namespace"), "{said}");
}
