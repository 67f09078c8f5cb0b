//! Letting apps stand still while a snapshot is taken.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mobifs_steered::{Standstill, set_frozen};
use parking_lot::Mutex;

use super::groups::{groups_of_apps, stands_still};
use super::watchdog::Watchdog;

/// How often it is looked whether everything stands still.
const LOOK: Duration = Duration::from_micros(200);
/// A part of the limit is for coming to stand still: apps that do not are not waited for.
const COMING_PART: u32 = 4;
/// Apps have not stood still yet.
const NEVER: u64 = u64::MAX;

/// Lets the apps that `mobifs run` has started stand still.
#[derive(Debug)]
pub(super) struct Pause {
    note: PathBuf,
    limit: Duration,
    held: Mutex<Held>,
    last_ms: AtomicU64,
}

#[derive(Debug, Default)]
struct Held {
    watchdog: Option<Watchdog>,
    standing: Option<(Standstill, Instant)>,
}

impl Pause {
    pub(super) fn new(note: PathBuf, limit: Duration) -> Self {
        Self {
            note,
            limit,
            held: Mutex::default(),
            last_ms: AtomicU64::new(NEVER),
        }
    }

    pub(super) fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// How long they stood still at the last time, in milliseconds; none: they never did.
    pub(super) fn last_ms(&self) -> Option<u64> {
        let last = self.last_ms.load(Ordering::Relaxed);
        (last != NEVER).then_some(last)
    }

    /// Notes it, and has the watchdog watch over it, before anything stands still.
    fn prepare(&self, held: &mut Held, standstill: &Standstill) -> std::io::Result<()> {
        standstill.note(&self.note)?;
        let started = match held.watchdog.take() {
            Some(watchdog) => watchdog,
            None => Watchdog::start(&self.note)?,
        };
        held.watchdog.insert(started).begin()
    }
}

impl mobifs_history::Standstill for Pause {
    fn has_any(&self) -> bool {
        !self.limit.is_zero() && !groups_of_apps().is_empty()
    }

    fn begin(&self) {
        let mut held = self.held.lock();
        let standstill = Standstill::begin(groups_of_apps(), self.limit);
        if let Err(error) = self.prepare(&mut held, &standstill) {
            // The next time with another one.
            held.watchdog = None;
            let _removed = std::fs::remove_file(&self.note);
            tracing::warn!(%error, "apps are not frozen for a snapshot");
            return;
        }
        let started = Instant::now();
        for group in &standstill.groups {
            if let Err(error) = set_frozen(group, true) {
                tracing::debug!(?group, %error, "cannot freeze an app");
            }
        }
        let all_stand_still = || standstill.groups.iter().all(|group| stands_still(group));
        while !all_stand_still() {
            if started.elapsed() > self.limit / COMING_PART {
                // The others would do so for nothing.
                standstill.end();
                tracing::info!("an app did not freeze in time; resuming the others");
                break;
            }
            std::thread::sleep(LOOK);
        }
        held.standing = Some((standstill, started));
    }

    fn end(&self) {
        let mut held = self.held.lock();
        let Some((standstill, started)) = held.standing.take() else {
            return;
        };
        standstill.end();
        let stood_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(NEVER - 1);
        self.last_ms.store(stood_ms, Ordering::Relaxed);
        let reached = held.watchdog.as_mut().map(Watchdog::end);
        if !matches!(reached, Some(Ok(()))) {
            held.watchdog = None;
        }
        let _removed = std::fs::remove_file(&self.note);
    }
}
