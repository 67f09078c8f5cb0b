//! Starting the daemon in the background.
//!
//! The daemon is this program again, started with its standard output connected to
//! us: it says one line there when the mount is usable or why it is not. So nothing
//! is forked that has threads. Unless the user does not want it, the daemon's parent is
//! a supervisor ([`crate::supervisor`]), which is this program, too.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use crate::handover::{
    KILLED_VARIABLE, LISTEN_PID_VARIABLE, NOTIFY_VARIABLE, Notifier, SUPERVISOR_VARIABLE,
};
use mobifs_host::printable;
use serde::{Deserialize, Serialize};

use crate::failure::{Code, Failure};
use crate::logging::DaemonLog;
use crate::process_state::close_inherited;

/// What the daemon reports to its parent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum News {
    /// The mount takes longer than usual, and why; more news follow.
    Waiting(String),
    Mounted,
    Failed(Failure),
}

/// The daemon's side: reports the outcome to the parent, once.
#[derive(Debug)]
pub struct Ready {
    has_parent: bool,
    is_reported: Cell<bool>,
}

impl Ready {
    /// With `has_parent`, standard output leads to a parent that waits; and this
    /// process leaves the parent's session, so that the terminal's end is not its own.
    pub fn new(has_parent: bool) -> Self {
        if has_parent {
            // Fails only for the leader of a group, which a spawned child is not.
            let _session = rustix::process::setsid();
            // Not to keep the parent's directory in use. The paths are absolute.
            let _moved = std::env::set_current_dir("/");
        }
        Self {
            has_parent,
            is_reported: Cell::new(!has_parent),
        }
    }

    /// The mount is usable.
    pub fn mounted(&self) {
        self.report(&News::Mounted);
    }

    /// What this process serves is in force: for the parent, or, in the foreground, for the service
    /// manager, if there is one.
    pub fn in_force(&self, status: &str) {
        if self.has_parent {
            return self.mounted();
        }
        let sent = Notifier::from_environment()
            .and_then(|notifier| notifier.map_or(Ok(()), |notifier| notifier.ready(status)));
        if let Err(error) = sent {
            tracing::warn!(%error, "the service manager cannot be told that this process is ready");
        }
    }

    /// There will be no mount.
    pub fn failed(&self, failure: &Failure) {
        self.report(&News::Failed(failure.clone()));
    }

    /// The mount needs longer than usual.
    pub fn waiting(&self, why: &str) {
        if !self.is_reported.get() {
            Self::send(&News::Waiting(why.to_owned()));
        }
    }

    fn report(&self, news: &News) {
        if !self.is_reported.replace(true) {
            Self::send(news);
        }
    }

    fn send(news: &News) {
        let line = serde_json::to_string(news).unwrap_or_default();
        if let Err(error) = writeln!(std::io::stdout(), "{line}") {
            tracing::warn!(%error, "the process that started this daemon is gone");
        }
    }
}

/// Starts a daemon in the background and waits until its mount is usable. `words`: the arguments
/// of the program `mobifs` that make it serve; `log`: where it logs. Closes all descriptors but the
/// standard streams, so the caller owns none: neither the daemon nor this process, while it waits,
/// is to keep in use what the program that mounts has open.
///
/// # Errors
/// Why there is no mount.
pub fn start_in_background(
    words: &[OsString],
    is_supervised: bool,
    log: DaemonLog,
) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::new(Code::Failed, format!("cannot start: {error}"));
    close_inherited(log.stream.as_fd()).map_err(failed)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg0("mobifs");
    if is_supervised {
        command.args(["supervise", "--"]);
    }
    command.args(words);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.stream);
    // The supervisor of this process does not supervise the mount.
    for variable in [
        NOTIFY_VARIABLE,
        SUPERVISOR_VARIABLE,
        KILLED_VARIABLE,
        LISTEN_PID_VARIABLE,
    ] {
        command.env_remove(variable);
    }
    let mut child = command.spawn().map_err(failed)?;
    match news_of(&mut child) {
        Some(Ok(())) => Ok(()),
        Some(Err(failure)) => {
            // It ends now by itself; its exit code says the same.
            let _ended = child.wait();
            Err(failure)
        }
        None => {
            let how = child
                .wait()
                .map_or_else(|error| error.to_string(), |end| end.to_string());
            Err(Failure::new(
                Code::Failed,
                format!("the daemon ended early ({how}); see {}", log.place),
            ))
        }
    }
}

/// The outcome; none if the daemon ends without one.
fn news_of(child: &mut Child) -> Option<Result<(), Failure>> {
    let mut output = BufReader::new(child.stdout.take()?);
    loop {
        let mut line = String::new();
        output.read_line(&mut line).ok()?;
        match serde_json::from_str(&line).ok()? {
            News::Waiting(why) => eprintln!("mobifs: {}", printable(&why)),
            News::Mounted => return Some(Ok(())),
            News::Failed(failure) => return Some(Err(failure)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_survive_the_pipe() {
        let failure = Failure::new(Code::InUse, "the store is in use by process 7");
        let line = serde_json::to_string(&News::Failed(failure.clone())).unwrap();
        assert!(!line.contains('\n'));
        match serde_json::from_str(&line).unwrap() {
            News::Failed(got) => assert_eq!(got, failure),
            other => panic!("a failure arrived as {other:?}"),
        }
    }
}
