//! What is refused, with one sentence.
#![allow(unsafe_code, reason = "a process takes calls away from itself")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use crate::fixture::{By, Fixture, PROGRAM, library, message, needs_root};

#[track_caller]
fn fails(output: &Output, code: i32, needles: &[&str]) {
    let said = message(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "one clear sentence, not: {said}");
    for needle in needles {
        assert!(said.contains(needle), "{said:?} does not say {needle:?}");
    }
}

#[test]
fn without_a_steered_filesystem_nothing_is_run() {
    needs_root!();
    let mut fixture = Fixture::new();
    // A service has to start also while the battery is low: its calls wait then.
    fixture.registration().withdraw().unwrap();
    let run = fixture.run(&["true"]);
    let said = message(&run);
    assert!(run.status.success(), "{said}");
    for needle in [
        "every filesystem that is steered",
        "calls for durability wait",
        "mobifs status",
    ] {
        assert!(said.contains(needle), "{said}");
    }
    fixture.unregister();
    fails(&fixture.run(&["true"]), 5, &["mobifs steer", "--unsafe"]);
    assert!(
        fixture
            .run(&["--class", "durable", "true"])
            .status
            .success()
    );
}

/// It said that no filesystem is steered.
#[test]
fn a_process_without_descriptors_says_so() {
    needs_root!();
    let fixture = Fixture::new();
    let mut command = fixture.command(&["true"]);
    let few = || {
        let limit = rustix::process::Rlimit {
            current: Some(4),
            maximum: Some(4),
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
        Ok(())
    };
    // SAFETY: one system call.
    unsafe { command.pre_exec(few) };
    let refused = command.output().unwrap();
    fails(&refused, 1, &["cannot look up", "Too many open files"]);
}

#[test]
fn a_run_within_a_run_is_refused() {
    needs_root!();
    let fixture = Fixture::new();
    let nested = fixture.run(&["--", PROGRAM, "run", "--", "true"]);
    fails(&nested, 1, &["only one", "--mechanism preload"]);
    if library().is_file() {
        let words = ["--", PROGRAM, "run", By::Preload.word(), "--", "true"];
        let nested = fixture.run(&words);
        assert!(nested.status.success(), "{nested:?}");
    }
}

#[test]
fn commands_that_cannot_be_started_end_as_in_a_shell() {
    needs_root!();
    let fixture = Fixture::new();
    fails(
        &fixture.run(&["--", "/no/such/program"]),
        127,
        &["/no/such/program"],
    );
    let script = fixture.path("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o644)).unwrap();
    fails(
        &fixture.run(&["--", script.to_str().unwrap()]),
        126,
        &["script"],
    );
    assert_eq!(fixture.run(&[]).status.code(), Some(2));
}

/// Makes seccomp(2) fail as on a kernel without it.
fn without_seccomp(command: &mut Command) {
    without(command, libc::SYS_seccomp, libc::ENOSYS);
}

/// Makes a system call fail in the command.
fn without(command: &mut Command, number: libc::c_long, error: i32) {
    at_call(command, number, libc::SECCOMP_RET_ERRNO | error as u32);
}

/// Has seccomp do this where the command, or what it starts, makes a system call.
fn at_call(command: &mut Command, number: libc::c_long, action: u32) {
    let step = |code: u32, k: u32, jt: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    let program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            number as u32,
            1,
        ),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        step(libc::BPF_RET | libc::BPF_K, action, 0),
    ];
    let install = move || {
        let filter = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_ptr().cast_mut(),
        };
        // SAFETY: the kernel reads the number of instructions that the structure states.
        let code = unsafe { libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const filter) };
        if code == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    };
    // SAFETY: one system call.
    unsafe { command.pre_exec(install) };
}

/// The exit code was 1, which could be the program's own.
#[test]
fn a_command_whose_supervisor_is_killed_at_once_is_not_run() {
    needs_root!();
    let fixture = Fixture::new();
    // What the process in the background begins with, and nothing else.
    let mut command = fixture.command(&[By::Seccomp.word(), "--", "true"]);
    at_call(
        &mut command,
        libc::SYS_close_range,
        libc::SECCOMP_RET_KILL_PROCESS,
    );
    let ended = command.output().unwrap();
    fails(&ended, 126, &["the command was not run", "run it again"]);
}

#[test]
fn a_kernel_without_seccomp_is_reported() {
    needs_root!();
    let fixture = Fixture::new();
    let mut command = fixture.command(&["--", "true"]);
    without_seccomp(&mut command);
    let refused = command.output().unwrap();
    fails(
        &refused,
        1,
        &["seccomp user notification", "--mechanism preload"],
    );
    if library().is_file() {
        let mut command = fixture.command(&[By::Preload.word(), "--", "true"]);
        without_seccomp(&mut command);
        assert!(command.output().unwrap().status.success());
    }
}

/// As for users under Yama, and for threads before Linux 6.9.
#[test]
fn descriptors_are_seen_where_they_cannot_be_had() {
    needs_root!();
    let fixture = Fixture::new();
    let (steered, other) = (fixture.steered(), fixture.other());
    let (steered, other) = (steered.display(), other.display());
    let mut command = fixture.command(&[By::Seccomp.word(), "--"]);
    let steps = format!(
        "raw-fsync {steered};raw-fsync {other};raw-path-only {steered};raw-pipe {steered};\
         raw-msync {steered};raw-rwf {steered};raw-bad /"
    );
    crate::program::add_to(&mut command, &steps);
    without(&mut command, libc::SYS_pidfd_getfd, libc::EPERM);
    let (bad, invalid) = (libc::EBADF, libc::EINVAL);
    assert_eq!(
        crate::program::outcomes(&mut command),
        format!(
            "raw-fsync skipped, raw-fsync flushed, raw-path-only errno {bad}, \
             raw-pipe errno {invalid}, raw-msync flushed, raw-rwf flushed, raw-bad errno {bad}"
        )
    );
}

#[test]
fn a_missing_library_is_reported() {
    needs_root!();
    let fixture = Fixture::new();
    let mut command = fixture.command(&[By::Preload.word(), "--", "true"]);
    command.env("MOBIFS_RUN_PRELOAD", "/no/such/library.so");
    fails(
        &command.output().unwrap(),
        1,
        &["libmobifs_run.so", "--mechanism seccomp"],
    );
    let mut command = fixture.command(&["-v", "--", "true"]);
    command.env("MOBIFS_RUN_PRELOAD", "/no/such/library.so");
    let output = command.output().unwrap();
    assert!(output.status.success());
    assert!(
        message(&output).contains("the supervisor decides on all calls"),
        "{output:?}"
    );
}

#[test]
fn units_are_rewritten_as_systemd_knows_them() {
    let base = tempfile::tempdir().unwrap();
    let systemctl = base.path().join("systemctl");
    let script = "#!/bin/sh\n[ \"$4\" = db.service ] || { echo 'No files found.' >&2; exit 1; }\n\
                  printf '[Service]\\nExecStart=-/usr/bin/db --all\\n'\n";
    fs::write(&systemctl, script).unwrap();
    fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", base.path().display());
    let ask = |unit: &str| {
        let words = ["run", "--io-uring=allow", "--systemd", unit];
        Command::new(PROGRAM)
            .args(words)
            .env("PATH", &path)
            .output()
            .unwrap()
    };
    let printed = ask("db");
    let text = String::from_utf8(printed.stdout).unwrap();
    let program = fs::canonicalize(PROGRAM).unwrap();
    let expected = format!(
        "ExecStart=\nExecStart=-{} run --app=db --io-uring=allow -- /usr/bin/db --all\n",
        program.display()
    );
    assert!(text.ends_with(&expected), "{text}");
    assert!(
        text.starts_with("# /etc/systemd/system/db.service.d/"),
        "{text}"
    );
    fails(&ask("other"), 1, &["other.service", "No files found."]);
}

/// A misspelt option was taken for the command, and other options without a meaning for nothing.
#[test]
fn options_that_mean_nothing_are_refused() {
    let run = |words: &[&str]| {
        let output = std::process::Command::new(PROGRAM)
            .arg("run")
            .args(words)
            .output();
        output.unwrap()
    };
    for (words, said) in [
        (&["--foo", "--", "true"][..], "there is no option --foo"),
        (&["--Class", "durable", "--", "true"], "no option --Class"),
        (&["-x", "true"], "no option -x"),
        (&["--unsafe", "--class", "durable", "true"], "exclude"),
        (&["--install", "true"], "--systemd UNIT"),
        // It was taken, and io_uring stayed as it is.
        (
            &["--mechanism=preload", "--io-uring=refuse", "true"],
            "--io-uring refuse needs the supervisor",
        ),
        (&["--app", "", "true"], "a name is missing"),
    ] {
        fails(&run(words), 2, &[said]);
    }
}

/// The parser of the command line overflowed the stack, whose limit is the command's.
#[test]
fn a_small_stack_is_enough() {
    needs_root!();
    let fixture = Fixture::new();
    for kib in [64, 128] {
        let mut command = fixture.command(&["sh", "-c", "ulimit -s"]);
        let small = move || {
            let limit = rustix::process::Rlimit {
                current: Some(kib << 10),
                maximum: Some(kib << 10),
            };
            rustix::process::setrlimit(rustix::process::Resource::Stack, limit)?;
            Ok(())
        };
        // SAFETY: between fork and exec only a system call is made.
        unsafe { command.pre_exec(small) };
        let output = command.output().unwrap();
        assert!(output.status.success(), "{kib} KiB: {}", message(&output));
        let limit = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(limit.trim(), kib.to_string(), "that of the command");
    }
}
