//! The process that watches over a daemon: it keeps what must outlive the daemon, and
//! starts a new one when the daemon dies.
//!
//! It speaks systemd's protocol, so the daemon need not know which of the two it has (see
//! [`mobifs_runtime::handover`]). It is small on purpose, has one thread, never touches
//! the mount, and uses no memory to speak of: whatever ends a daemon does not end it. If
//! it is killed itself, the daemon serves on, unsupervised.

mod mailbox;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use mobifs_runtime::handover::{
    ARENA_NAME, DEVICE_NAME, KILLS_VARIABLE, LISTEN_COUNT_VARIABLE, LISTEN_NAMES_VARIABLE,
    LISTEN_PID_VARIABLE, NOTIFY_VARIABLE, SUPERVISOR_VARIABLE,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Code, Failure};
use mailbox::{Mailbox, Message};

/// This program, even if another version lies at its place by now: only the same version
/// understands what a daemon leaves.
const PROGRAM: &str = "/proc/self/exe";
/// The first descriptor behind the standard streams.
const FIRST_DESCRIPTOR: i32 = 3;
/// Pause before a new daemon after one that died before it was ready; twice as long each
/// time.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Signals that are passed on to the daemon.
const PASSED_ON: [(i32, Signal); 3] = [
    (SIGTERM, Signal::TERM),
    (SIGINT, Signal::INT),
    (SIGHUP, Signal::HUP),
];

/// Watches over the daemon that these words start, until one ends by itself.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode, Failure> {
    // Not to be mistaken for "exe", and not to be ended with the terminal.
    let _named = rustix::thread::set_name(c"mobifs");
    let _session = rustix::process::setsid();
    let _moved = std::env::set_current_dir("/");
    let failed =
        |error: io::Error| Failure::new(Code::Failed, format!("cannot supervise: {error}"));
    let mut supervisor = Supervisor::new(words).map_err(failed)?;
    let code = supervisor.watch_over().map_err(failed)?;
    Ok(ExitCode::from(code))
}

struct Supervisor {
    words: Vec<OsString>,
    mailbox: Mailbox,
    /// What is kept for the next daemon, by name.
    kept: BTreeMap<String, OwnedFd>,
    /// Wakes us for each signal, and the signal to pass on; none for the end of a child.
    signals: Vec<(UnixStream, Option<Signal>)>,
    /// Requests to end that came so far: a new daemon has not heard them.
    ends: Vec<Signal>,
    /// The daemon has said that its mount is usable.
    ready: bool,
    /// Daemons so far that died in a row without having been ready.
    deaths: u32,
    /// So many of them, the last ones, were killed by somebody.
    kills: u32,
    /// One of them was ready.
    was_ready: bool,
    /// There was one before this one.
    is_successor: bool,
}

impl Supervisor {
    fn new(words: &[OsString]) -> io::Result<Self> {
        let mut signals = vec![(wake_on(SIGCHLD)?, None)];
        for (number, signal) in PASSED_ON {
            signals.push((wake_on(number)?, Some(signal)));
        }
        Ok(Self {
            words: words.to_vec(),
            mailbox: Mailbox::open()?,
            kept: BTreeMap::new(),
            signals,
            ends: Vec::new(),
            ready: false,
            deaths: 0,
            kills: 0,
            was_ready: false,
            is_successor: false,
        })
    }

    /// Starts daemons until one ends by itself; its exit code.
    fn watch_over(&mut self) -> io::Result<u8> {
        loop {
            self.ready = false;
            let mut child = self.start()?;
            let status = self.watch(&mut child)?;
            if let Some(code) = end_of(status) {
                return Ok(code);
            }
            let can_be_taken_over = [DEVICE_NAME, ARENA_NAME]
                .iter()
                .all(|name| self.kept.contains_key(*name));
            if !can_be_taken_over {
                tracing::error!(%status, "the daemon died and left nothing to go on from");
                return Ok(Code::Failed.number());
            }
            tracing::warn!(pid = child.id(), %status, "the daemon died; a new one takes over");
            self.deaths = if self.ready { 0 } else { self.deaths + 1 };
            let was_killed = status.signal() == Some(Signal::KILL.as_raw());
            self.kills = if was_killed && !self.ready {
                self.kills + 1
            } else {
                0
            };
            if self.deaths > 1 {
                let doubled = PAUSE_MIN.saturating_mul(1 << (self.deaths - 2).min(16));
                std::thread::sleep(doubled.min(PAUSE_MAX));
            }
            self.is_successor = true;
        }
    }

    /// Starts a daemon with everything that is kept.
    fn start(&self) -> io::Result<Child> {
        let mut names = Vec::new();
        let mut mappings = Vec::new();
        for (child_fd, (name, descriptor)) in (FIRST_DESCRIPTOR..).zip(&self.kept) {
            names.push(name.as_str());
            mappings.push(FdMapping {
                parent_fd: descriptor.try_clone()?,
                child_fd,
            });
        }
        let mut command = Command::new(PROGRAM);
        command
            .arg0("mobifs")
            .args(&self.words)
            .env(NOTIFY_VARIABLE, self.mailbox.path())
            .env(SUPERVISOR_VARIABLE, std::process::id().to_string())
            .env(KILLS_VARIABLE, self.kills.to_string())
            .env(LISTEN_COUNT_VARIABLE, names.len().to_string())
            .env(LISTEN_NAMES_VARIABLE, names.join(":"))
            .env_remove(LISTEN_PID_VARIABLE)
            .stdin(Stdio::null());
        if self.was_ready {
            // Whoever waited for the news has gone.
            command.stdout(Stdio::null());
        }
        command.fd_mappings(mappings).map_err(io::Error::other)?;
        command.spawn()
    }

    /// Does what the daemon asks for until it ends.
    fn watch(&mut self, child: &mut Child) -> io::Result<ExitStatus> {
        loop {
            // First of all: a wake-up that came before we look at what it is about may be
            // forgotten, one that comes after it may not.
            self.pass_signals_on(child.id());
            let ended = child.try_wait()?;
            // What it sent before it ended counts.
            self.read_mail(child.id())?;
            if let Some(status) = ended {
                return Ok(status);
            }
            let mailbox = self.mailbox.as_fd();
            let mut waited = vec![PollFd::new(&mailbox, PollFlags::IN)];
            for (wake, _) in &self.signals {
                waited.push(PollFd::new(wake, PollFlags::IN));
            }
            match poll(&mut waited, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn read_mail(&mut self, daemon: u32) -> io::Result<()> {
        while let Some(message) = self.mailbox.next(daemon)? {
            match message {
                Message::Keep { name, descriptor } => {
                    self.kept.insert(name, descriptor);
                }
                Message::Drop { name } => {
                    self.kept.remove(&name);
                }
                Message::Ready => {
                    self.ready = true;
                    self.was_ready = true;
                    if self.is_successor {
                        for signal in &self.ends {
                            send(daemon, *signal);
                        }
                    }
                }
                // What came with it is closed by now, which is the answer.
                Message::Barrier | Message::Other => {}
            }
        }
        Ok(())
    }

    fn pass_signals_on(&mut self, daemon: u32) {
        for (wake, signal) in &mut self.signals {
            let mut bytes = [0; 64];
            let came = wake.read(&mut bytes).is_ok_and(|count| count > 0);
            let Some(signal) = *signal else { continue };
            if came {
                send(daemon, signal);
                if signal != Signal::HUP {
                    self.ends.push(signal);
                }
            }
        }
    }
}

/// A stream that has something to read when the signal has come.
fn wake_on(signal: i32) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(signal, theirs)?;
    Ok(ours)
}

fn send(process: u32, signal: Signal) {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    // It fails for a child that has ended, whose end we hear of next.
    let _sent = pid.map(|pid| kill_process(pid, signal));
}

/// With which code a daemon has ended by itself; none if it died.
fn end_of(status: ExitStatus) -> Option<u8> {
    if status.signal().is_some() {
        return None;
    }
    let code = u8::try_from(status.code()?).ok()?;
    let is_known = code == 0 || Code::ALL.iter().any(|known| known.number() == code);
    (is_known && code != Code::TryAgain.number()).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_from_a_death() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        assert_eq!(end_of(exited(0)), Some(0));
        assert_eq!(end_of(exited(4)), Some(4));
        assert_eq!(end_of(exited(i32::from(Code::TryAgain.number()))), None);
        assert_eq!(end_of(exited(101)), None, "a panic");
        assert_eq!(end_of(ExitStatus::from_raw(9)), None, "killed");
    }
}
