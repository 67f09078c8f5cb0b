//! The process that supervises a daemon: it keeps what must outlive the daemon, and
//! starts a new one when the daemon dies.
//!
//! It speaks systemd's protocol, so the daemon need not know which of the two it has (see
//! [`crate::handover`]). It is small on purpose, has one thread, never touches the mount as long as
//! it is served, and uses little memory: what ends a daemon does not end it. If it is killed
//! itself, the daemon serves on, unsupervised.
//!
//! Where no daemon can take over, a last process commits what is uncommitted, and then the
//! supervisor ends ([`restart_policy`] says when). It listens for signals all the time, so that a
//! request to end is never waited for longer than a limit: a process that exceeds it is killed, and
//! what it leaves is committed by the last process.

mod notify_socket;
mod restart_policy;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::handover::{
    ARENA_NAME, DEVICE_NAME, ENDS_VARIABLE, KILLED_VARIABLE, LAST_VARIABLE, LISTEN_COUNT_VARIABLE,
    LISTEN_NAMES_VARIABLE, LISTEN_PID_VARIABLE, NOTIFY_VARIABLE, SUPERVISOR_VARIABLE,
};
use command_fds::{CommandFdExt as _, FdMapping};
use mobifs_volume::patience;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Code, Failure};
use notify_socket::{Message, NotifySocket};
use restart_policy::{Death, DeathCause, NextProcess, RestartPolicy};

/// This program, even if another version lies at its place by now: only the same version
/// understands what a daemon leaves.
const PROGRAM: &str = "/proc/self/exe";
/// The first descriptor after the standard streams.
const FIRST_DESCRIPTOR: i32 = 3;
/// How long a process that takes over, or the last one, may take until its next report.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a process that is not ready may take to end when an end is requested.
const PATIENCE_AT_END: Duration = Duration::from_secs(10);
/// How long one that is ready may take to end after the second request.
const PATIENCE_WITH_DAEMON: Duration = Duration::from_secs(60);
/// How long the last process may take to end when an end is requested: it commits what is
/// uncommitted first.
const PATIENCE_WITH_LAST: Duration = Duration::from_secs(60);
/// How long a killed process may take to end; it may be held up by a device that does not answer.
const PATIENCE_WITH_KILLED: Duration = Duration::from_secs(10);

/// Signals that are passed on to the daemon.
const PASSED_ON: [(i32, Signal); 3] = [
    (SIGTERM, Signal::TERM),
    (SIGINT, Signal::INT),
    (SIGHUP, Signal::HUP),
];

/// Supervises the daemon that these arguments start, until one ends by itself.
pub fn run(words: &[OsString]) -> Result<ExitCode, Failure> {
    // Its own name instead of "exe", and a session of its own, so that it does not end with the
    // terminal.
    let _named = rustix::thread::set_name(c"mobifs");
    // Where they stay too low, the first daemon refuses the mount.
    let _raised = crate::limits::raise_limits();
    let _session = rustix::process::setsid();
    let _moved = std::env::set_current_dir("/");
    crate::namespace_keeper::start();
    let failed =
        |error: io::Error| Failure::new(Code::Failed, format!("cannot supervise: {error}"));
    let mut supervisor = Supervisor::new(words).map_err(failed)?;
    let code = supervisor.watch_over().map_err(failed)?;
    Ok(ExitCode::from(code))
}

/// What a process of ours is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The first daemon, which makes the mount.
    First,
    /// One that takes over.
    Successor,
    /// The one that commits what is uncommitted.
    Last,
}

/// A process of ours that lives.
struct Watched {
    child: Child,
    role: Role,
    started_at: Instant,
    /// The time of its last report.
    alive_at: Instant,
    /// When it said that its mount is usable, if it did.
    ready_at: Option<Instant>,
    /// When we killed it, if we did.
    killed_at: Option<Instant>,
    /// Readable when it has ended; none before Linux 5.3, where only `SIGCHLD` reports that.
    end: Option<OwnedFd>,
}

impl Watched {
    /// The moment at which it has taken too long, given the requests to end; none: it may take any
    /// time.
    fn deadline(&self, ends: &[(Signal, Instant)]) -> Option<Instant> {
        let first = ends.first().map(|(_, at)| *at);
        let second = ends.get(1).map(|(_, at)| *at);
        let silent = self.alive_at + patience(PATIENCE);
        if self.ready_at.is_some() || self.role == Role::First {
            return second.map(|at| at + patience(PATIENCE_WITH_DAEMON));
        }
        // The child was asked to end when it was started.
        let since = |at: Instant| at.max(self.started_at);
        let soon = |at| since(at) + patience(PATIENCE_AT_END);
        let ended = match self.role {
            Role::Last => second
                .map(soon)
                .or(first.map(|at| since(at) + patience(PATIENCE_WITH_LAST))),
            _ => first.map(soon),
        };
        Some(ended.map_or(silent, |ended| ended.min(silent)))
    }
}

struct Supervisor {
    words: Vec<OsString>,
    notify_socket: NotifySocket,
    /// What is kept for the next daemon, by name.
    kept: BTreeMap<String, OwnedFd>,
    /// Wakes us for each signal, and the signal to pass on; none for the end of a child.
    signals: Vec<(UnixStream, Option<Signal>)>,
    /// Requests to end that came so far: a new daemon has not received them.
    ends: Vec<(Signal, Instant)>,
    restart_policy: RestartPolicy,
    /// One daemon was ready.
    was_ready: bool,
}

impl Supervisor {
    fn new(words: &[OsString]) -> io::Result<Self> {
        let mut signals = vec![(wake_on(SIGCHLD)?, None)];
        for (number, signal) in PASSED_ON {
            signals.push((wake_on(number)?, Some(signal)));
        }
        Ok(Self {
            words: words.to_vec(),
            notify_socket: NotifySocket::open()?,
            kept: BTreeMap::new(),
            signals,
            ends: Vec::new(),
            restart_policy: RestartPolicy::default(),
            was_ready: false,
        })
    }

    /// Starts daemons until one ends by itself; its exit code.
    fn watch_over(&mut self) -> io::Result<u8> {
        let mut role = Role::First;
        loop {
            let mut watched = self.start(role)?;
            let Some(status) = self.watch(&mut watched)? else {
                tracing::error!(
                    pid = watched.child.id(),
                    "a killed process does not end; the supervisor stops waiting for it"
                );
                return Ok(self.give_up());
            };
            if let Some(code) = end_of(status) {
                return Ok(code);
            }
            let can_be_taken_over = [DEVICE_NAME, ARENA_NAME]
                .iter()
                .all(|name| self.kept.contains_key(*name));
            if !can_be_taken_over {
                tracing::error!(
                    %status,
                    "the daemon died before it handed anything over: the mount ends"
                );
                return Ok(Code::Failed.number());
            }
            let death = Death {
                how: how_died(status, watched.killed_at.is_some()),
                ready_for: watched.ready_at.map(|at| at.elapsed()),
            };
            let next = self.restart_policy.after(death, !self.ends.is_empty());
            role = match self.pause_before(next) {
                NextProcess::Successor(_) => Role::Successor,
                NextProcess::Last(_) => Role::Last,
                NextProcess::GiveUp => return Ok(self.give_up()),
            };
            let pid = watched.child.id();
            match role {
                Role::Last => tracing::error!(
                    pid, %status,
                    "the daemon died, and no other one takes over; a last process commits what \
                     is uncommitted, and the mount ends"
                ),
                _ => tracing::warn!(pid, %status, "the daemon died; a new one takes over"),
            }
        }
    }

    /// Waits before the next process starts, as decided; not if an end is requested:
    /// then the last process comes at once.
    fn pause_before(&mut self, next: NextProcess) -> NextProcess {
        let (NextProcess::Successor(pause) | NextProcess::Last(pause)) = next else {
            return next;
        };
        let until = Instant::now() + pause;
        while Instant::now() < until && self.ends.is_empty() {
            if self.wait(None, Some(until)).is_err() {
                break;
            }
            self.take_signals(None);
        }
        match next {
            NextProcess::Successor(pause) if !pause.is_zero() && !self.ends.is_empty() => {
                self.restart_policy.last()
            }
            next => next,
        }
    }

    /// Starts a process with everything that is kept.
    fn start(&mut self, role: Role) -> io::Result<Watched> {
        // The process that takes over looks for it by its name.
        self.notify_socket.make_again_if_gone();
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
            .env(NOTIFY_VARIABLE, self.notify_socket.address())
            .env(SUPERVISOR_VARIABLE, std::process::id().to_string())
            .env(LISTEN_COUNT_VARIABLE, names.len().to_string())
            .env(LISTEN_NAMES_VARIABLE, names.join(":"))
            .env_remove(LISTEN_PID_VARIABLE)
            .env_remove(KILLED_VARIABLE)
            .env_remove(LAST_VARIABLE)
            .stdin(Stdio::null());
        if self.restart_policy.last_was_killed() {
            command.env(KILLED_VARIABLE, "1");
        }
        if role == Role::Last {
            command
                .env(LAST_VARIABLE, "1")
                .env(ENDS_VARIABLE, self.ends.len().to_string());
        }
        if self.was_ready {
            // The process that waited for the report has ended.
            command.stdout(Stdio::null());
        }
        command.fd_mappings(mappings).map_err(io::Error::other)?;
        let child = command.spawn()?;
        let end = pid_of(child.id()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Watched {
            child,
            role,
            started_at: Instant::now(),
            alive_at: Instant::now(),
            ready_at: None,
            killed_at: None,
            end,
        })
    }

    /// Does what the process asks for until it ends; none if it was killed, does not end, and
    /// an end is requested.
    fn watch(&mut self, watched: &mut Watched) -> io::Result<Option<ExitStatus>> {
        loop {
            // First of all: a wake-up may be drained only before its cause is looked at; one that
            // comes later must stay.
            self.take_signals(Some(watched.child.id()));
            let ended = watched.child.try_wait()?;
            // What it sent before it ended counts.
            self.read_mail(watched)?;
            if ended.is_some() {
                return Ok(ended);
            }
            let deadline = match watched.killed_at {
                Some(killed_at) => {
                    let deadline = killed_at + patience(PATIENCE_WITH_KILLED);
                    if deadline <= Instant::now() && !self.ends.is_empty() {
                        return Ok(None);
                    }
                    Some(deadline).filter(|at| *at > Instant::now())
                }
                None => watched.deadline(&self.ends),
            };
            if watched.killed_at.is_none() && deadline.is_some_and(|at| at <= Instant::now()) {
                tracing::error!(
                    pid = watched.child.id(),
                    "a process of the mount did not report in time; the supervisor kills it"
                );
                watched.killed_at = Some(Instant::now());
                send(watched.child.id(), Signal::KILL);
                continue;
            }
            self.wait(watched.end.as_ref(), deadline)?;
        }
    }

    /// Waits for a message, a signal, or the `end` of a child, until `deadline` at most.
    fn wait(&self, end: Option<&OwnedFd>, deadline: Option<Instant>) -> io::Result<()> {
        let notify_socket = self.notify_socket.as_fd();
        let mut waited = vec![PollFd::new(&notify_socket, PollFlags::IN)];
        waited.extend(end.map(|end| PollFd::new(end, PollFlags::IN)));
        for (wake, _) in &self.signals {
            waited.push(PollFd::new(wake, PollFlags::IN));
        }
        let timeout = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.map(Timespec::try_from).transpose();
        let timeout = timeout.map_err(io::Error::other)?;
        match poll(&mut waited, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn read_mail(&mut self, watched: &mut Watched) -> io::Result<()> {
        let process = watched.child.id();
        while let Some(message) = self.notify_socket.next(process)? {
            match message {
                Message::Keep { name, descriptor } => {
                    self.kept.insert(name, descriptor);
                }
                Message::Drop { name } => {
                    self.kept.remove(&name);
                }
                Message::Ready => {
                    watched.ready_at = Some(Instant::now());
                    self.was_ready = true;
                    if watched.role == Role::Successor {
                        for (signal, _) in &self.ends {
                            send(process, *signal);
                        }
                    }
                }
                Message::Alive => watched.alive_at = Instant::now(),
                // Its descriptor is closed by now, which is the answer.
                Message::Barrier | Message::Other => {}
            }
        }
        Ok(())
    }

    /// Records the signals that arrived, and passes them on.
    fn take_signals(&mut self, process: Option<u32>) {
        for (wake, signal) in &mut self.signals {
            let mut bytes = [0; 64];
            let came = wake.read(&mut bytes).is_ok_and(|count| count > 0);
            let Some(signal) = *signal else { continue };
            if came {
                if let Some(process) = process {
                    send(process, signal);
                }
                if signal != Signal::HUP {
                    self.ends.push((signal, Instant::now()));
                }
            }
        }
    }

    /// Closes everything that is kept, so that the store can be mounted again, and unmounts the
    /// mount without a daemon; the exit code.
    fn give_up(&mut self) -> u8 {
        // Without it the connection ends, and looking for the mount cannot be held up by it.
        self.kept.remove(DEVICE_NAME);
        if let Some(mountpoint) = self.words.last().map(std::path::Path::new)
            && mobifs_fuse::is_mounted(mountpoint, "mobifs")
            && let Err(error) = mobifs_fuse::abort(mountpoint)
        {
            tracing::warn!(%error, "the supervisor cannot unmount the mount of the ended daemon");
        }
        self.kept.clear();
        tracing::error!(
            "the mount has ended: no daemon could take over, and no process could commit all that \
             was left; what is committed is in the store, which can be mounted again"
        );
        Code::Failed.number()
    }
}

/// A stream that is readable once the signal has arrived.
fn wake_on(signal: i32) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(signal, theirs)?;
    Ok(ours)
}

fn pid_of(process: u32) -> Option<Pid> {
    i32::try_from(process).ok().and_then(Pid::from_raw)
}

fn send(process: u32, signal: Signal) {
    // It fails for a child that has ended, whose end is reported next.
    let _sent = pid_of(process).map(|pid| kill_process(pid, signal));
}

fn how_died(status: ExitStatus, is_killed_by_us: bool) -> DeathCause {
    if is_killed_by_us {
        DeathCause::Hung
    } else if status.signal() == Some(Signal::KILL.as_raw()) {
        DeathCause::Killed
    } else if status.code() == Some(i32::from(Code::TryAgain.number())) {
        DeathCause::Refused
    } else {
        DeathCause::Crashed
    }
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
    fn a_proper_end_is_distinguished_from_a_kill() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        assert_eq!(end_of(exited(0)), Some(0));
        assert_eq!(end_of(exited(4)), Some(4));
        assert_eq!(end_of(exited(i32::from(Code::TryAgain.number()))), None);
        assert_eq!(end_of(exited(101)), None, "a panic");
        assert_eq!(end_of(ExitStatus::from_raw(9)), None, "killed");
    }
}
