//! Commands about a mount whose daemon does not answer.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::fixture::{Fixture, PROGRAM, message, mobifs, needs_mounts, succeeds};

/// Stops a process until this is dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        signal("-STOP", pid);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal("-CONT", self.0);
    }
}

fn signal(signal: &str, pid: u32) {
    let sent = Command::new("kill")
        .arg(signal)
        .arg(pid.to_string())
        .output();
    succeeds(&sent.unwrap());
}

/// Found by hand: it waited without a message and without a limit.
#[test]
fn the_status_of_a_daemon_that_does_not_answer_is_given_up_with_its_process() {
    needs_mounts!();
    let fixture = Fixture::new();
    // Without a supervisor, which would start another daemon.
    fixture.mount(&["-o", "nosupervise"]);
    let pid = fixture.daemon_pid();
    let stopped = Stopped::new(pid);
    let output = mobifs(&["status"], &fixture.mountpoint);
    drop(stopped);
    assert_eq!(output.status.code(), Some(1));
    let said = message(&output);
    let [waiting, failed] = said.lines().collect::<Vec<_>>()[..] else {
        panic!("{said}");
    };
    let process = format!("process {pid}, which serves");
    assert!(
        waiting.contains("waiting for") && waiting.contains(&process),
        "{said}"
    );
    assert!(
        failed.contains("no answer") && failed.contains(&process),
        "{said}"
    );
    fixture.umount();
}

/// Found by hand: they waited without a message.
#[test]
fn sync_and_umount_say_for_what_process_they_wait() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&["-o", "nosupervise"]);
    let pid = fixture.daemon_pid();
    for command in ["sync", "umount"] {
        let stopped = Stopped::new(pid);
        let mut started = Command::new(PROGRAM);
        started.arg(command).arg(&fixture.mountpoint);
        let mut waiting = started.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut output = BufReader::new(waiting.stderr.take().unwrap());
        output.read_line(&mut said).unwrap();
        assert!(
            said.contains("waiting for") && said.contains(&pid.to_string()),
            "{said}"
        );
        drop(stopped);
        assert!(waiting.wait().unwrap().success(), "{command}");
    }
    assert!(!fixture.is_mounted());
}
