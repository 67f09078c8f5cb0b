//! Two processes stand by while a third one answers, so that the kill of any one of them is made good.
//!
//! When nothing has the listener any more, the kernel fails every call that the filter passes on, for the rest of the
//! programs' lives. So each of the three has it:
//!
//! * the **outer guard** starts the inner one, and starts it again when it and its worker have ended;
//! * the **inner guard** starts the worker, and starts it again when it has ended. When the outer one has ended it ends
//!   its worker, and takes the place of the outer one;
//! * the **worker** answers. When the inner guard has ended and the outer one has not, it ends, to be started again.
//!
//! A guard has one thread, so it may fork; a worker may not. What the worker has taken up is in memory that they share
//! (`ledger`), for the next one. Each knows of the others' ends by pipes: who reads meets the end of one when all that
//! could write have ended. Only where both guards are killed at once the worker goes on alone.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait, waitpid,
};
use rustix::thread::set_name;

use crate::background::{Forked, exit, fork};
use crate::priority;
use crate::supervisor::Supervisor;

/// What ends sooner than this has ended early, …
const EARLY: Duration = Duration::from_secs(1);
/// … and after so many early ends in a row the calls are passed on for a while before the next start: whatever it is
/// that ends the worker, programs go on.
const EARLY_MAX: u32 = 10;
const PASS_ON: Duration = Duration::from_secs(1);

/// The exit code of a worker or a guard when no program is left.
const OVER: i32 = 0;
const AGAIN: i32 = 1;

/// Serves until no program is left, whichever of the processes is killed meanwhile. It returns in the process that is
/// then the outer guard. This process must have only one thread. `begin` is called by each worker when it begins to
/// answer.
pub(crate) fn serve(supervisor: &Arc<Supervisor>, begin: &dyn Fn()) {
    let _named = set_name(c"mobifs-run-keep");
    let mut starts = Starts::default();
    loop {
        // What a guard leaves that is killed is this process's to wait for.
        let _adopts = set_child_subreaper(Some(getpid()));
        let end = start_inner(supervisor, begin, &mut starts);
        match end {
            Ok(End::Over) => return,
            Ok(End::Again) => {}
            // There is no room for a process, or for descriptors.
            Err(_) if pass_on(supervisor, begin) => return,
            Err(_) => {}
        }
    }
}

/// Answers without a worker for a while, by having the kernel carry the calls out: whether no program is left.
fn pass_on(supervisor: &Supervisor, begin: &dyn Fn()) -> bool {
    begin();
    supervisor.pass_on(PASS_ON)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// No program is left.
    Over,
    /// It is to be started again, or in the process that was forked: it has become the outer guard.
    Again,
}

/// The outer guard's part, until the inner guard and its worker have ended.
fn start_inner(
    supervisor: &Arc<Supervisor>,
    begin: &dyn Fn(),
    starts: &mut Starts,
) -> Result<End, Errno> {
    let (outer, keeps_outer) = life()?;
    let (below, keeps_below) = life()?;
    starts.begin();
    let inner = match fork()? {
        Forked::Child => {
            drop((keeps_outer, below));
            *starts = Starts::default();
            let end = guard(supervisor, begin, &outer);
            drop(keeps_below);
            match end {
                End::Over => exit(OVER),
                End::Again => return Ok(End::Again),
            }
        }
        Forked::Parent(child) => child,
    };
    drop((outer, keeps_below));
    wait_for_end(&below, None);
    let mut end = End::Again;
    // A worker that the inner guard has left, too.
    while let Some((child, status)) = wait_for_child(None) {
        if child == inner && status.exit_status() == Some(OVER) {
            end = End::Over;
        }
    }
    drop(keeps_outer);
    Ok(starts.ended(end, supervisor))
}

/// The inner guard's part; [`End::Again`] when it is alone.
fn guard(supervisor: &Arc<Supervisor>, begin: &dyn Fn(), outer: &OwnedFd) -> End {
    let mut starts = Starts::default();
    while !is_over(outer) {
        let end = start_worker(supervisor, begin, outer, &mut starts);
        let is_over = match end {
            Ok(end) => end == End::Over,
            Err(_) => pass_on(supervisor, begin),
        };
        if is_over {
            return End::Over;
        }
    }
    End::Again
}

/// Starts a worker, and waits for its end or that of the outer guard.
fn start_worker(
    supervisor: &Arc<Supervisor>,
    begin: &dyn Fn(),
    outer: &OwnedFd,
    starts: &mut Starts,
) -> Result<End, Errno> {
    let (inner, keeps_inner) = life()?;
    let (worker, keeps_worker) = life()?;
    starts.begin();
    let child = match fork()? {
        Forked::Child => {
            drop((keeps_inner, worker));
            let code = work(supervisor, begin, inner, outer);
            drop(keeps_worker);
            exit(code)
        }
        Forked::Parent(child) => child,
    };
    drop((inner, keeps_worker));
    if wait_for_end(&worker, Some(outer)) == Ended::Other {
        let _ended = kill_process(child, Signal::KILL);
    }
    let status = wait_for_child(Some(child)).map(|(_, status)| status);
    let is_over = status.is_some_and(|status| status.exit_status() == Some(OVER));
    drop(keeps_inner);
    let end = if is_over { End::Over } else { End::Again };
    Ok(starts.ended(end, supervisor))
}

/// The worker's part: what it exits with.
fn work(supervisor: &Arc<Supervisor>, begin: &dyn Fn(), inner: OwnedFd, outer: &OwnedFd) -> i32 {
    let _named = set_name(c"mobifs-run");
    priority::raise();
    if let Ok(outer) = outer.try_clone() {
        // Without the thread, this worker stays as it is when the inner guard ends.
        let _watcher = std::thread::Builder::new().spawn(move || {
            wait_for_end(&inner, None);
            if !is_over(&outer) {
                exit(AGAIN);
            }
        });
    }
    begin();
    if supervisor.serve() { OVER } else { AGAIN }
}

/// A pipe that tells when the processes have ended that have its second part.
fn life() -> Result<(OwnedFd, OwnedFd), Errno> {
    pipe_with(PipeFlags::CLOEXEC)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    First,
    Other,
}

/// Waits until who has the other part of one of these has ended.
fn wait_for_end(first: &OwnedFd, other: Option<&OwnedFd>) -> Ended {
    loop {
        let mut waited = vec![PollFd::new(first, PollFlags::empty())];
        waited.extend(other.map(|other| PollFd::new(other, PollFlags::empty())));
        // Without memory for it, it is tried again.
        if poll(&mut waited, None).is_err() {
            continue;
        }
        let mut ended = waited.iter().map(|one| one.revents().intersects(GONE));
        match (ended.next(), ended.next()) {
            (Some(true), _) => return Ended::First,
            (_, Some(true)) => return Ended::Other,
            _ => {}
        }
    }
}

const GONE: PollFlags = PollFlags::HUP.union(PollFlags::ERR).union(PollFlags::NVAL);

/// Whether who has the other part has ended.
fn is_over(life: &OwnedFd) -> bool {
    let mut looked_at = [PollFd::new(life, PollFlags::empty())];
    let now = Timespec::default();
    let found = poll(&mut looked_at, Some(&now));
    found.is_ok() && looked_at[0].revents().intersects(GONE)
}

/// Waits for the end of a child, or of any; `None` if there is none.
fn wait_for_child(child: Option<Pid>) -> Option<(Pid, WaitStatus)> {
    loop {
        let ended = match child {
            Some(_) => waitpid(child, WaitOptions::empty()),
            None => wait(WaitOptions::empty()),
        };
        match ended {
            Err(Errno::INTR) => {}
            ended => return ended.ok().flatten(),
        }
    }
}

/// How often something was started of late.
#[derive(Debug, Default)]
struct Starts {
    begun: Option<Instant>,
    early: u32,
}

impl Starts {
    fn begin(&mut self) {
        self.begun = Some(Instant::now());
    }

    /// Passes calls on for a while where there were too many early ends.
    fn ended(&mut self, end: End, supervisor: &Supervisor) -> End {
        if end == End::Again && self.is_too_early(Instant::now()) && supervisor.pass_on(PASS_ON) {
            return End::Over;
        }
        end
    }

    fn is_too_early(&mut self, now: Instant) -> bool {
        let lived = self.begun.map(|begun| now.saturating_duration_since(begun));
        self.early = match lived {
            Some(lived) if lived < EARLY => self.early.saturating_add(1),
            _ => 0,
        };
        self.early > EARLY_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_ends_are_counted_until_one_is_late() {
        let start = Instant::now();
        let mut starts = Starts {
            begun: Some(start),
            early: 0,
        };
        for _ in 0..EARLY_MAX {
            assert!(!starts.is_too_early(start));
        }
        assert!(starts.is_too_early(start));
        assert!(!starts.is_too_early(start + EARLY));
        assert!(!starts.is_too_early(start));
    }

    #[test]
    fn a_life_is_over_when_all_have_ended_that_have_it() {
        let (first, keeps_first) = life().unwrap();
        let (other, keeps_other) = life().unwrap();
        let again = keeps_first.try_clone().unwrap();
        drop(keeps_first);
        assert!(!is_over(&first));
        drop(keeps_other);
        assert!(is_over(&other) && !is_over(&first));
        assert_eq!(wait_for_end(&first, Some(&other)), Ended::Other);
        drop(again);
        assert_eq!(wait_for_end(&first, Some(&other)), Ended::First);
    }
}
