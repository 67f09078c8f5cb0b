//! A process beside the daemon that resumes frozen apps if the daemon cannot: because it was killed,
//! or because it waits for something longer than it may.
//!
//! The daemon notes the groups, sends a message to the watchdog, waits for its answer, and only then lets
//! them stand still. The watchdog knows that the daemon is gone when the pipe between them ends.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use mobifs_steered::Standstill;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

/// Groups are about to stand still; and what the watchdog answers.
const BEGIN: u8 = b'b';
/// They go on.
const END: u8 = b'e';
/// The hidden command that is the watchdog.
const COMMAND: &str = "thaw-watchdog";

/// The watchdog as the daemon sees it.
#[derive(Debug)]
pub(super) struct Watchdog {
    process: Child,
    /// Its end is the sign that the daemon is gone.
    to: Option<ChildStdin>,
    from: ChildStdout,
}

impl Watchdog {
    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(note: &Path) -> io::Result<Self> {
        let mut process = Command::new("/proc/self/exe")
            .arg0("mobifs")
            .arg(COMMAND)
            .arg(note)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A signal from the terminal is for the daemon.
            .process_group(0)
            .spawn()?;
        let (Some(to), Some(from)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Self {
            process,
            to: Some(to),
            from,
        })
    }

    /// Returns when it watches over what is noted.
    ///
    /// # Errors
    /// It is gone.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.send(BEGIN)?;
        self.from.read_exact(&mut [0])
    }

    /// There is nothing to watch over any more.
    ///
    /// # Errors
    /// It is gone.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.send(END)
    }

    fn send(&mut self, message: u8) -> io::Result<()> {
        let to = self.to.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        to.write_all(&[message])
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.to = None;
        let _ended = self.process.wait();
    }
}

/// The watchdog's whole life; `note` is where the daemon notes what stands still.
///
/// # Errors
/// It cannot read the daemon's messages.
pub fn run_watchdog(note: &Path) -> io::Result<()> {
    let _named = rustix::thread::set_name(c"mobifs-thaw");
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut watched: Option<Standstill> = None;
    let mut is_late = false;
    loop {
        let limit = watched.as_ref().filter(|_| !is_late).map(Standstill::left);
        if !is_readable(&input, limit)? {
            if let Some(standstill) = &watched {
                tracing::warn!("apps were frozen for the longest time allowed; resuming them");
                standstill.end();
            }
            is_late = true;
            continue;
        }
        let mut message = [0];
        match input.read(&mut message) {
            Ok(0) => break,
            Ok(_) if message == [BEGIN] => {
                watched = Standstill::read(note);
                is_late = false;
                output.write_all(&[BEGIN])?;
                output.flush()?;
            }
            Ok(_) => watched = None,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    if watched.is_some() {
        tracing::warn!("the daemon ended while apps were frozen; resuming them");
        Standstill::end_noted(note);
    }
    Ok(())
}

fn is_readable(input: &io::StdinLock<'_>, limit: Option<Duration>) -> io::Result<bool> {
    let timeout = limit.map(|limit| Timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let mut descriptors = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
    let count = retry_on_intr(|| poll(&mut descriptors, timeout.as_ref()))?;
    Ok(count > 0)
}
