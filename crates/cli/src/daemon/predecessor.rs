//! Waiting for a daemon whose mount of the store has ended, and that still brings to the store
//! what was changed: `umount(8)` does not wait for it.

use std::path::Path;
use std::time::{Duration, Instant};

use mobifs_runtime::{OpenOptions, OpenedStore, StoreLock};
use mobifs_store::StoreError;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use super::background::Ready;
use crate::failure::{Code, Failure};

/// Whoever waits for longer than this is told why.
const QUIET: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Who waits, for how long, and what ends it.
pub(super) struct Patience<'a> {
    pub(super) limit: Duration,
    pub(super) ready: &'a Ready,
    pub(super) signals: &'a mut Signals,
}

/// Opens the store as soon as a predecessor that is finishing has finished. A store that is
/// served, or in use in another way, is refused after [`QUIET`].
pub(super) fn open_after_predecessor(
    store: &Path,
    options: &OpenOptions<'_>,
    patience: &mut Patience<'_>,
) -> Result<OpenedStore, Failure> {
    let start = Instant::now();
    let mut pause = PAUSE_MIN;
    let mut has_told = false;
    loop {
        let error = match OpenedStore::open(store, options) {
            Ok(opened) => return Ok(opened),
            Err(error) => error,
        };
        let failure = Failure::of_store(store, &error);
        let StoreError::InUse { pid } = error else {
            return Err(failure);
        };
        let holder = StoreLock::holder(store, &options.scope);
        if !holder.is_ok_and(|holder| holder.is_finishing(store)) {
            // For moments a finishing holder cannot be told from another one: before it has noted
            // that it serves or finishes, and between clearing its note and unlocking.
            if start.elapsed() >= QUIET {
                return Err(failure);
            }
            std::thread::sleep(PAUSE_MIN);
            continue;
        }
        if start.elapsed() >= patience.limit {
            return Err(too_slow(store, pid, patience.limit));
        }
        if start.elapsed() >= QUIET && !has_told {
            has_told = true;
            let message = waiting_for(store, pid, patience.limit);
            tracing::info!("{message}");
            patience.ready.waiting(&message);
        }
        if patience.signals.pending().any(|signal| signal != SIGHUP) {
            let message = format!("ended by a signal while process {pid} finishes");
            return Err(Failure::new(Code::Failed, message));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn waiting_for(store: &Path, pid: u32, limit: Duration) -> String {
    format!(
        "waiting for process {pid}, which brings to the store {} what was changed through a mount \
         that has ended (for {} s at most; -o wait=SECONDS)",
        store.display(),
        limit.as_secs()
    )
}

fn too_slow(store: &Path, pid: u32, limit: Duration) -> Failure {
    let message = format!(
        "the store {} is in use by process {pid}: its mount has ended, but what was changed is not \
         all in the store after {} s; try again later, or wait longer with -o wait=SECONDS",
        store.display(),
        limit.as_secs()
    );
    Failure::new(Code::InUse, message)
}
