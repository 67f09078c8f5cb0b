//! How a test says that it cannot run here: one wording in all crates, which
//! `scripts/count-tests.awk` counts. To libtest, a test that returns has passed.
//!
//! | line | counted as |
//! | --- | --- |
//! | `SKIPPED test: reason` | skipped, not passed |
//! | `SKIPPED IN PART test: reason` | passed: what matters most was tested |
//! | `NO TEST test: reason` | nothing: a program that another test runs |
//!
//! The name is that of the test's thread. What a test prints after such a line does not matter;
//! more than one of a kind counts once.

use std::fmt::Display;
use std::path::Path;
use std::process::Command;

/// The test cannot run here, and returns now.
pub fn skip(reason: impl Display) {
    say("SKIPPED", &reason);
}

/// A part of the test cannot run here; the rest can.
pub fn skip_part(reason: impl Display) {
    say("SKIPPED IN PART", &reason);
}

/// This is a program that another test runs, and that was started by itself.
pub fn no_test() {
    say("NO TEST", &"a program for another test");
}

fn say(mark: &str, reason: &dyn Display) {
    let thread = std::thread::current();
    // A reason of several lines would not be one line.
    let reason = reason.to_string().replace('\n', " ");
    println!("{mark} {}: {reason}", thread.name().unwrap_or("?"));
}

/// Whether this process is root; else the test is skipped.
pub fn is_root() -> bool {
    can(why_not_root())
}

/// Whether mounts can be made here; else the test is skipped.
pub fn can_mount() -> bool {
    can(why_no_mounts())
}

/// Why no mount can be made here, if so.
pub fn why_no_mounts() -> Option<&'static str> {
    why_not_root().or_else(|| (!Path::new("/dev/fuse").exists()).then_some("no /dev/fuse"))
}

fn why_not_root() -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt as _;
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0);
    (!is_root).then_some("not root")
}

/// Runs a command that a test needs: why it fails here, if it does, in its own last words.
pub fn why_fails(command: &mut Command) -> Option<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Err(error) => Some(format!("{program}: {error}")),
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim().lines().next_back().unwrap_or_default();
            Some(format!("{program}: {}, {last:?}", output.status))
        }
    }
}

/// Whether there is no obstacle; else the test is skipped.
pub fn can(obstacle: Option<impl Display>) -> bool {
    if let Some(reason) = &obstacle {
        skip(reason);
    }
    obstacle.is_none()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    /// Set for the program below.
    const ASKED: &str = "MOBIFS_SKIP_ASKED";

    #[test]
    fn skips_on_request() {
        match std::env::var(ASKED).as_deref() {
            Ok("whole") => {
                super::skip("as the test wanted");
                super::skip("and once more\nin two lines");
            }
            Ok("part") => super::skip_part("as the test wanted"),
            _ => super::no_test(),
        }
    }

    /// What the test script counts if the program above runs.
    fn counted(asked: &str) -> String {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::skips_on_request", "--show-output"])
            .env(ASKED, asked)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/count-tests.awk");
        let mut counting = Command::new("awk")
            .args(["-f", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        counting
            .stdin
            .take()
            .unwrap()
            .write_all(&output.stdout)
            .unwrap();
        let counts = counting.wait_with_output().unwrap();
        String::from_utf8(counts.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn a_skipped_test_is_counted_as_skipped_and_not_as_passed() {
        // passed, failed, skipped
        assert_eq!(counted("whole"), "0 0 1");
        assert_eq!(counted("part"), "1 0 0");
        assert_eq!(counted("no"), "0 0 0");
    }
}
