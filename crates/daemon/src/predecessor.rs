//! Waiting for a daemon whose mount of the store has ended, and that still brings to the store
//! what was changed: `umount(8)` does not wait for it.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use mobifs_store::{StoreError, StoreScope};
use mobifs_volume::{AppSelection, LockOwner, StoreLock};

use crate::control::{AnswerPatience, Reply, Request, detached_mounts};
use crate::failure::{Code, Failure};
use crate::mount_users::describe;
use crate::store_owner::{is_finishing, mount_users};
use mobifs_host::printable;

/// How long to wait for a predecessor, unless a mount says otherwise.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(60);
/// Waiting for longer than this is explained. A holder that serves the store, or has not recorded
/// what it does, is waited for no longer: between locking and recording, a new daemon looks like a
/// predecessor.
const QUIET: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// What keeps a predecessor is asked for this long.
const ASKED_FOR: AnswerPatience = AnswerPatience {
    limit: Some(Duration::from_secs(1)),
    report: |_| {},
};
/// How many of its apps are looked at.
const APPS_LOOKED_AT: u64 = 1000;
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// How long to wait, how to say so, and what ends it.
pub struct Patience<'a> {
    /// How long at most.
    pub limit: Duration,
    /// The option that sets `limit`, as it is written.
    pub option: &'static str,
    /// Shows the user why it takes long.
    pub report: &'a dyn Fn(&str),
    /// Whether the process is to end.
    pub must_end: &'a mut dyn FnMut() -> bool,
}

/// Does what needs a command's own lock, for a command in the foreground, which has waited for a
/// predecessor for `limit` at most by then.
///
/// # Errors
/// Why the store cannot be used.
pub fn for_command<T>(
    store: &Path,
    limit: Duration,
    attempt: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, Failure> {
    let mut patience = Patience {
        limit,
        option: "--wait SECONDS",
        report: &|why| eprintln!("mobifs: {}", printable(why)),
        must_end: &mut || false,
    };
    after_predecessor(store, &mut patience, attempt)
}

/// Whether a process has the store at `store` whose mount has ended.
pub fn has_store(store: &Path) -> bool {
    let owner = StoreLock::owner(store, &StoreScope::Tree).unwrap_or_default();
    is_finishing(&owner, store)
}

/// Makes attempts to use the store until no predecessor that is finishing has it. A store that is
/// served, or in use in another way, is refused after a second.
///
/// # Errors
/// Why the store cannot be used.
pub fn after_predecessor<T>(
    store: &Path,
    patience: &mut Patience<'_>,
    mut attempt: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, Failure> {
    let start = Instant::now();
    let mut pause = PAUSE_MIN;
    let mut was_explained = false;
    // Since when the holder has not looked like one that is finishing. Not since the start: a
    // predecessor that needed long is followed by another holder now and then.
    let mut in_use_since = None;
    loop {
        let error = match attempt() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let StoreError::InUse { pid } = error else {
            return Err(Failure::of_store(store, &error));
        };
        if (patience.must_end)() {
            let message = format!("ended by a signal while {} finishes", process(pid));
            return Err(Failure::new(Code::Failed, message));
        }
        let holder = StoreLock::owner(store, &StoreScope::Tree).unwrap_or_default();
        if is_finishing(&holder, store) {
            in_use_since = None;
            if start.elapsed() >= patience.limit {
                return Err(too_slow(store, pid, &holder, patience));
            }
        } else if in_use_since.get_or_insert_with(Instant::now).elapsed() >= QUIET {
            return Err(Failure::of_store(store, &error));
        }
        if start.elapsed() >= QUIET && in_use_since.is_none() && !was_explained {
            was_explained = true;
            let message = waiting_for(store, pid, &holder, patience);
            tracing::info!("{message}");
            (patience.report)(&message);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn process(pid: u32) -> String {
    match pid {
        0 => "another process".to_owned(),
        pid => format!("process {pid}"),
    }
}

/// Why a predecessor has the store, and what can be done about it.
fn reason(store: &Path, holder: &LockOwner) -> String {
    if holder.is_reader {
        return "it only reads the store: a read-only mount that ends, or a check".to_owned();
    }
    let users = mount_users(holder);
    if users.is_empty() {
        return match not_stored(store) {
            Some(why) => format!(
                "its mount has ended, and it cannot bring everything that was changed to the store: \
                 {why}"
            ),
            None => "its mount has ended, and it brings what was changed to the store".to_owned(),
        };
    }
    format!(
        "its mount is out of the tree, but still in use by {}; end that, or close what it has \
         open there",
        describe(&users)
    )
}

/// What the predecessor could not bring to the store, as it says itself to its own user.
fn not_stored(store: &Path) -> Option<String> {
    let about = store.metadata().ok()?;
    let is_it = |path: &str| {
        let other = Path::new(path).metadata();
        other.is_ok_and(|other| (other.dev(), other.ino()) == (about.dev(), about.ino()))
    };
    let mut clients = detached_mounts().ok()?.into_iter();
    clients.find_map(|mut client| {
        let select = AppSelection {
            limit: Some(APPS_LOOKED_AT),
            ..AppSelection::default()
        };
        let Ok(Reply::Status { status }) = client.ask(&Request::Status { select }, &ASKED_FOR)
        else {
            return None;
        };
        let is_its = status.store.path.as_deref().is_some_and(is_it);
        status.not_stored().filter(|_| is_its)
    })
}

fn waiting_for(store: &Path, pid: u32, holder: &LockOwner, patience: &Patience<'_>) -> String {
    format!(
        "waiting for {}, which has the store {}: {} (waiting {} s at most; {})",
        process(pid),
        store.display(),
        reason(store, holder),
        patience.limit.as_secs(),
        patience.option
    )
}

fn too_slow(store: &Path, pid: u32, holder: &LockOwner, patience: &Patience<'_>) -> Failure {
    let message = format!(
        "the store {} is in use by {}, also after {} s: {}; try again later, or wait longer with \
         {}",
        store.display(),
        process(pid),
        patience.limit.as_secs(),
        reason(store, holder),
        patience.option
    );
    Failure::new(Code::InUse, message)
}
