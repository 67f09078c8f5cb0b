//! The last process of a mount that no daemon can go on with.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::handover::is_end_wanted;
use mobifs_fuse::is_mounted;
use mobifs_store::StoreError;
use mobifs_volume::{CommitPass, LastCommit, LastCommitError, OpenOptions};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::plan::{Plan, RETRY_INTERVAL, open_options};
use crate::failure::{Code, Failure};
use crate::handover::SupervisorLink;

/// Larger than a daemon's stacks: a stack overflow that ended a daemon must not end this process,
/// too.
const STACK_BYTES: usize = 64 << 20;
/// How long unmounting may delay the commits.
const PATIENCE_WITH_MOUNT: Duration = Duration::from_secs(5);
/// How often this process checks for requests to end.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Unmounts, so that no program waits for replies that do not come, and commits what the arena
/// holds uncommitted. What the store refuses is tried again until an end is requested, because what
/// is in memory is lost with this process.
pub(super) fn commit_and_end(
    plan: &Plan,
    supervisor: &SupervisorLink,
    arena: OwnedFd,
    lock: Option<OwnedFd>,
) -> Failure {
    let mountpoint = &plan.paths.mountpoint;
    tracing::error!(
        mountpoint = %mountpoint.display(),
        "no daemon can go on with this mount: a last process commits what is in memory, and the \
         mount ends"
    );
    let is_wanted = match end_requests() {
        Ok(is_wanted) => is_wanted,
        Err(error) => return try_again(mountpoint, &error),
    };
    supervisor.alive();
    take_away(mountpoint, &plan.mount.subtype);
    let store = plan.paths.store.clone();
    let options = open_options(plan);
    let committed = std::thread::scope(|scope| {
        let work = || commit(&store, &options, supervisor, (arena, lock), &is_wanted);
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, work).map(|thread| thread.join()) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(try_again(mountpoint, &"it panicked")),
            Err(error) => Err(try_again(mountpoint, &error)),
        }
    });
    match committed {
        Ok(outcome) => {
            supervisor.withdraw("the mount has ended");
            outcome.report(&store, mountpoint)
        }
        Err(failure) => failure,
    }
}

/// What became of the uncommitted changes.
struct Outcome {
    transactions: u64,
    /// How many records could not be read.
    passed_over: usize,
    /// Why transactions were given up; none: all are committed.
    given_up: Option<String>,
}

impl Outcome {
    fn report(&self, store: &Path, mountpoint: &Path) -> Failure {
        let (store, mountpoint) = (store.display(), mountpoint.display());
        let what = match (&self.given_up, self.passed_over) {
            (Some(error), _) => format!(
                "not everything that was in memory could be committed, and the process was asked \
                 to end \
                 ({error}); what is committed is in {store}"
            ),
            (None, 0) => format!(
                "everything that was in memory is committed ({} transactions), and {store} can be \
                 mounted again",
                self.transactions
            ),
            (None, lost) => format!(
                "everything that was in memory is committed but {lost} things that could not be \
                 read and are named in the log; {store} can be mounted again"
            ),
        };
        let message =
            format!("no daemon could go on with the mount {mountpoint}: it ended; {what}");
        tracing::error!("{message}");
        Failure::new(Code::Failed, message)
    }
}

fn commit(
    store: &Path,
    options: &OpenOptions<'_>,
    supervisor: &SupervisorLink,
    (arena, lock): (OwnedFd, Option<OwnedFd>),
    is_wanted: &AtomicBool,
) -> Result<Outcome, Failure> {
    let mut outcome = Outcome {
        transactions: 0,
        passed_over: 0,
        given_up: None,
    };
    let mut last_commit = loop {
        let descriptors = copies(&arena, lock.as_ref());
        let (arena, lock) = descriptors.map_err(|error| try_again(store, &error))?;
        match LastCommit::open(store, options, arena, lock) {
            Ok(last_commit) => break last_commit,
            Err(LastCommitError::Store(error @ StoreError::Lower { .. })) => {
                tracing::error!(
                    %error,
                    "the last process cannot open the store yet; it tries again"
                );
                supervisor.alive();
                if !waits(is_wanted) {
                    outcome.given_up = Some(error.to_string());
                    return Ok(outcome);
                }
            }
            Err(LastCommitError::Arena(error)) => {
                outcome.given_up = Some(error.to_string());
                return Ok(outcome);
            }
            Err(error) => return Err(try_again(store, &error)),
        }
    };
    loop {
        supervisor.alive();
        let CommitPass {
            committed,
            failure,
            passed_over,
        } = last_commit.commit();
        outcome.transactions += committed;
        outcome.passed_over += passed_over.len();
        for what in passed_over {
            tracing::error!("not committed, because it cannot be read: {what}");
        }
        if last_commit.is_done() {
            break;
        }
        let error = failure.map_or_else(String::new, |error| error.to_string());
        tracing::error!(%error, "the last process could not commit everything; it tries again");
        if !waits(is_wanted) {
            outcome.given_up = Some(error);
            break;
        }
    }
    last_commit.close();
    Ok(outcome)
}

fn copies(arena: &OwnedFd, lock: Option<&OwnedFd>) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let lock = lock.map(OwnedFd::try_clone).transpose()?;
    Ok((arena.try_clone()?, lock))
}

/// Waits before the next attempt; false if an end is requested.
fn waits(is_wanted: &AtomicBool) -> bool {
    let until = Instant::now() + RETRY_INTERVAL;
    while Instant::now() < until {
        if is_wanted.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    true
}

/// Set when an end is requested.
fn end_requests() -> io::Result<Arc<AtomicBool>> {
    let is_wanted = Arc::new(AtomicBool::new(is_end_wanted()));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&is_wanted))?;
    }
    Ok(is_wanted)
}

fn try_again(place: &Path, error: &dyn std::fmt::Display) -> Failure {
    let message = format!(
        "the uncommitted changes of the mount at {} are not committed yet: {error}",
        place.display()
    );
    Failure::new(Code::TryAgain, message)
}

/// Unmounts; waits for a limited time.
fn take_away(mountpoint: &Path, subtype: &str) {
    let (mountpoint, subtype) = (mountpoint.to_owned(), subtype.to_owned());
    let (done, is_done) = std::sync::mpsc::channel();
    let taking = move || {
        if is_mounted(&mountpoint, &subtype)
            && let Err(error) = mobifs_fuse::abort(&mountpoint)
        {
            tracing::warn!(%error, "the last process cannot unmount");
        }
        // The receiver is dropped if it took too long.
        let _sent = done.send(());
    };
    if std::thread::Builder::new().spawn(taking).is_err()
        || is_done.recv_timeout(PATIENCE_WITH_MOUNT).is_err()
    {
        tracing::warn!("unmounting takes long; the last process commits meanwhile");
    }
}
