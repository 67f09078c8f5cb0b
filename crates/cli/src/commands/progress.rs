//! What a command that takes long is at, on a terminal.
//!
//! One line on standard error, after a second, which is gone when the command ends: nothing of it is
//! in what a script or a log gets.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mobifs_daemon::control::AnswerPatience;
use mobifs_volume::{AppSelection, Status};

use super::fetch;
use super::figures::size;

/// Nothing is shown of what is done by then.
const QUIET: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(500);
/// The daemon has better things to do than to answer this.
const PATIENCE: AnswerPatience = AnswerPatience {
    limit: Some(Duration::from_millis(400)),
    report: |_| {},
};

/// Shows what is done until it is dropped.
pub(super) struct Progress {
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// The progress of a daemon that commits and applies.
    pub(super) fn of_commit(what: &'static str, mountpoint: &Path) -> Self {
        let mountpoint = mountpoint.to_owned();
        Self::start(what, move || {
            let select = AppSelection {
                limit: Some(0),
                ..AppSelection::default()
            };
            fetch(&mountpoint, select, &PATIENCE).map_or_else(|_| String::new(), |now| left(&now))
        })
    }

    /// The progress of a command that reads a journal, which may have changed size by then.
    pub(super) fn of_reading(what: &'static str, journal: PathBuf) -> Self {
        Self::start(what, move || match journal.metadata() {
            Ok(about) => format!("a journal of {}", size(about.len())),
            Err(_) => String::new(),
        })
    }

    fn start(what: &'static str, mut detail: impl FnMut() -> String + Send + 'static) -> Self {
        if !io::stderr().is_terminal() {
            return Self { running: None };
        }
        let (end, ended) = channel::<()>();
        let start = Instant::now();
        let show = move || {
            let mut pause = QUIET;
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = INTERVAL;
                let line = line(what, start.elapsed(), &detail());
                // The terminal is gone, or takes nothing: the command goes on.
                let _shown = write!(io::stderr().lock(), "\r{line}\x1b[K");
            }
            if pause == INTERVAL {
                let _cleared = write!(io::stderr().lock(), "\r\x1b[K");
            }
        };
        let thread = std::thread::Builder::new().name("progress".into());
        Self {
            running: thread.spawn(show).ok().map(|thread| (end, thread)),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.running.take() {
            drop(end);
            let _shown = thread.join();
        }
    }
}

/// One that fits on any terminal.
fn line(what: &str, elapsed: Duration, detail: &str) -> String {
    let separator = if detail.is_empty() { "" } else { ": " };
    let mut line = format!("{what}, {} s{separator}{detail}", elapsed.as_secs());
    line.truncate(79);
    line
}

/// What is not in its place yet.
fn left(status: &Status) -> String {
    format!(
        "{} to commit, {} to apply, {} of {} of the journal in use",
        size(status.memory.used_bytes),
        size(status.memory.committed_held_bytes),
        size(status.store.journal_used_bytes),
        size(status.store.journal_total_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_and_how_long() {
        let (what, elapsed) = ("committing", Duration::from_millis(2_900));
        assert_eq!(line(what, elapsed, ""), "committing, 2 s");
        assert_eq!(line(what, elapsed, "1 B"), "committing, 2 s: 1 B");
        assert_eq!(line(what, elapsed, &"x".repeat(500)).len(), 79);
    }

    #[test]
    fn nothing_is_shown_where_there_is_no_terminal() {
        // The standard error of a test is captured or a pipe, unless it runs on a terminal.
        if !io::stderr().is_terminal() {
            assert!(Progress::start("x", String::new).running.is_none());
        }
    }
}
