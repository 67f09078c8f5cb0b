//! The command is as it would be without `mobifs run`; the supervisor lives as long as it is needed.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use rustix::process::{Signal, kill_process};

use crate::fixture::{By, Fixture, PROGRAM, build_go, mechanisms, needs_root, wait_until};
use crate::program::{add_to, flushes};
use crate::supervisors::{kill_all, supervisors};

#[test]
fn the_command_has_its_own_number_streams_and_end() {
    needs_root!();
    let fixture = Fixture::new();
    let ended = fixture.run(&["--", "sh", "-c", "exit 7"]);
    assert_eq!(ended.status.code(), Some(7));
    let killed = fixture.run(&["--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(libc::SIGTERM));
    let mut command = fixture.command(&["--", "sh", "-c", "cat; echo $$ >&2"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let number = child.id();
    child.stdin.take().unwrap().write_all(b"words").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"words");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.trim(), number.to_string());
}

#[test]
fn the_command_knows_its_app() {
    needs_root!();
    let fixture = Fixture::new();
    let said = |words: &[&str]| String::from_utf8(fixture.run(words).stdout).unwrap();
    let script = "echo $MOBIFS_APP; cat /proc/self/cgroup";
    let named = said(&["--app", "notes", "--", "sh", "-c", script]);
    assert!(named.starts_with("notes\n"), "{named}");
    if !named
        .lines()
        .any(|line| line.starts_with("0::") && line.ends_with("/mobifs-notes"))
    {
        mobifs_skip::skip_part(format!("no control group could be made: {named}"));
    }
    let unnamed = said(&["--class", "durable", "--", "/bin/sh", "-c", script]);
    assert!(unnamed.starts_with("sh\n"), "{unnamed}");
}

/// Groups stayed: the last process counts as a member for a moment after its filter is gone, no process
/// was there to remove them without a supervisor, and a command that was refused left one, too.
#[test]
fn control_groups_go_with_their_last_process() {
    needs_root!();
    let fixture = Fixture::new();
    let said = |words: &[&str]| String::from_utf8(fixture.run(words).stdout).unwrap();
    let group = |app: &str, words: &[&str]| {
        let show = ["--app", app, "--", "cat", "/proc/self/cgroup"];
        let text = said(&[words, &show].concat());
        let name = text.lines().find_map(|line| line.strip_prefix("0::"));
        name.unwrap_or_default().to_owned()
    };
    let is_made = group("goes", &[]).ends_with("/mobifs-goes");
    if !mobifs_skip::can((!is_made).then_some("no control group can be made")) {
        return;
    }
    let mounts = mobifs_host::mounts().unwrap();
    let hierarchy = mounts.iter().find(|mount| mount.kind == "cgroup2").unwrap();
    let is_there = |app: &str| {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let place = hierarchy.mountpoint.join(own.unwrap());
        place.join(format!("mobifs-{app}")).exists()
    };
    wait_until(|| !is_there("goes"));
    for by in mechanisms() {
        for _ in 0..20 {
            let entered = group("goes", &[by.word()]);
            assert!(entered.ends_with("/mobifs-goes"), "{by:?}: {entered}");
        }
        wait_until(|| !is_there("goes"));
    }
    group("goes", &["--class", "durable"]);
    wait_until(|| !is_there("goes"));
    let refused = [
        "--app", "outer", "--", PROGRAM, "run", "--app", "inner", "true",
    ];
    assert!(!fixture.run(&refused).status.success());
    wait_until(|| !is_there("outer") && !is_there("inner"));
    fixture.run(&["--app", "goes", "--", "/no/such/program"]);
    wait_until(|| !is_there("goes"));
}

/// A group whose supervisor was killed stayed for ever.
#[test]
fn groups_of_killed_supervisors_are_removed_by_the_next_command() {
    needs_root!();
    let fixture = Fixture::new();
    let begin = |app: &str| {
        let words = [By::Seccomp.word(), "--app", app, "--", "cat"];
        let mut command = fixture.command(&words);
        let child = command.stdin(Stdio::piped()).spawn().unwrap();
        let comm = || fs::read_to_string(format!("/proc/{}/comm", child.id()));
        wait_until(|| comm().is_ok_and(|name| name.trim() == "cat"));
        kill_all(app);
        child
    };
    let group = |child: &std::process::Child| {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", child.id())).unwrap();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let own = own.unwrap_or_default().to_owned();
        let mounts = mobifs_host::mounts().unwrap();
        let hierarchy = mounts.iter().find(|mount| mount.kind == "cgroup2");
        hierarchy.map(|mount| mount.mountpoint.join(own))
    };
    let end = |mut child: std::process::Child| {
        drop(child.stdin.take());
        child.wait().unwrap();
    };
    let (ended, stays) = (begin("killed-ended"), begin("killed-stays"));
    let (left, used) = (group(&ended), group(&stays));
    end(ended);
    let is_made = left
        .as_ref()
        .is_some_and(|left| left.ends_with("mobifs-killed-ended"));
    if mobifs_skip::can((!is_made).then_some("no control group can be made")) {
        let (left, used) = (left.unwrap(), used.unwrap());
        let own_of_another = left.with_file_name("mobifs-made-by-hand");
        fs::create_dir(&own_of_another).unwrap();
        assert!(left.is_dir(), "the supervisor lives?");
        wait_until(|| {
            fixture.run(&["--app", "next", "--", "true"]);
            !left.exists()
        });
        assert!(used.is_dir(), "a process is in it");
        assert!(own_of_another.is_dir(), "it was not made by mobifs run");
        fs::remove_dir(&own_of_another).unwrap();
        end(stays);
        wait_until(|| {
            fixture.run(&["--class", "durable", "--app", "next", "--", "true"]);
            !used.exists()
        });
    } else {
        end(stays);
    }
}

#[test]
fn signals_that_are_ignored_and_masks_are_inherited() {
    needs_root!();
    let fixture = Fixture::new();
    let script = "trap '' HUP; umask 027; exec \"$@\"";
    let state = "grep -E 'SigIgn|SigBlk|Umask' /proc/self/status";
    let mut through = std::process::Command::new("sh");
    let run = fixture.command(&["--", "sh", "-c", state]);
    through
        .args(["-c", script, "sh"])
        .arg(run.get_program())
        .args(run.get_args());
    for (name, value) in run.get_envs() {
        through.env(name, value.unwrap());
    }
    let mut plain = std::process::Command::new("sh");
    plain.args(["-c", script, "sh", "sh", "-c", state]);
    let (through, plain) = (through.output().unwrap(), plain.output().unwrap());
    let text = |output: std::process::Output| String::from_utf8(output.stdout).unwrap();
    assert_eq!(text(through), text(plain));
}

#[test]
fn a_daemon_that_stays_is_answered_until_it_ends() {
    needs_root!();
    let fixture = Fixture::new();
    let place = fixture.steered();
    let (told, mark) = (fixture.path("told"), fixture.path("mark"));
    let script = format!(
        "(while [ ! -e {} ]; do sleep 0.05; done; exec \"$@\" >{} 2>&1) >/dev/null 2>&1 </dev/null &",
        mark.display(),
        told.display(),
    );
    let mut command = fixture.command(&[By::Seccomp.word(), "--", "sh", "-c", &script, "sh"]);
    add_to(&mut command, &format!("raw-fsync {}", place.display()));
    let started = command.output().unwrap();
    assert!(started.status.success(), "{started:?}");
    let mark_word = mark.to_str().unwrap();
    wait_until(|| supervisors(mark_word).len() == 3);
    fs::write(&mark, "").unwrap();
    let said = || fs::read_to_string(&told).unwrap_or_default();
    wait_until(|| said().contains("test result"));
    assert!(said().contains("raw-fsync skipped"), "{}", said());
    wait_until(|| supervisors(mark_word).is_empty());
}

/// A command that waits for a line before it does the step. `name`: by which its supervisor is known
/// among those of other tests.
pub(crate) fn waiting(fixture: &Fixture, by: By, step: &str, name: &str) -> std::process::Child {
    let words = [by.word(), "--", "sh", "-c", "read line; exec \"$@\"", name];
    let mut command = fixture.command(&words);
    add_to(
        &mut command,
        &format!("{step} {}", fixture.steered().display()),
    );
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let is_running = || {
        let name = fs::read_to_string(format!("/proc/{}/comm", child.id()));
        name.unwrap_or_default().trim() == "sh"
    };
    wait_until(is_running);
    child
}

pub(crate) fn go_on(mut child: std::process::Child) -> String {
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_supervisor_stays_while_a_service_is_being_stopped() {
    needs_root!();
    let fixture = Fixture::new();
    let child = waiting(&fixture, By::Seccomp, "raw-fsync", "stays-alone");
    wait_until(|| supervisors("stays-alone").len() == 3);
    let supervisor = supervisors("stays-alone");
    for pid in &supervisor {
        kill_process(*pid, Signal::TERM).unwrap();
        kill_process(*pid, Signal::HUP).unwrap();
    }
    assert_eq!(supervisors("stays-alone"), supervisor);
    let told = go_on(child);
    assert!(told.contains("raw-fsync skipped"), "{told}");
}

const GO: &str = r#"
package main

import ("os"; "sync")

func main() {
	var all sync.WaitGroup
	for name := range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			file, err := os.Create(os.Args[1] + "/" + string(rune('a'+name)))
			if err != nil { panic(err) }
			for range 8 {
				if _, err := file.Write([]byte("words")); err != nil { panic(err) }
				if err := file.Sync(); err != nil { panic(err) }
			}
		}()
	}
	all.Wait()
}
"#;

#[test]
fn static_go_programs_are_reached() {
    needs_root!();
    let fixture = Fixture::new();
    let Some(program) = build_go(&fixture, GO) else {
        return;
    };
    for (place, is_skipped) in [(fixture.steered(), true), (fixture.other(), false)] {
        let before = flushes(&place);
        let done = fixture.run(&["--", &program, place.to_str().unwrap()]);
        assert!(done.status.success(), "{done:?}");
        let count = flushes(&place) - before;
        assert_eq!(
            count <= 2,
            is_skipped,
            "{count} flushes at {}",
            place.display()
        );
    }
}

/// A thread whose call was taken up keeps the kernel from putting the machine to sleep.
#[test]
fn calls_are_not_taken_up_while_the_machine_is_about_to_sleep() {
    needs_root!();
    let fixture = Fixture::new();
    let file = fixture.steered().join("file");
    fs::write(&file, "words").unwrap();
    fixture.directory().note_sleep().unwrap();
    let mut command = fixture.command(&[By::Seccomp.word(), "--", "sync", "-d"]);
    let mut child = command.arg(&file).spawn().unwrap();
    let shown = |name: &str| {
        let path = format!("/proc/{}/{name}", child.id());
        fs::read_to_string(path).unwrap_or_default()
    };
    // Not uninterruptible, as it would be until it is answered.
    wait_until(|| shown("wchan").starts_with("seccomp") && shown("stat").contains(") S "));
    fixture.directory().end_sleep();
    assert!(child.wait().unwrap().success());
}
