//! A filesystem that is steered: what is known of it, and what is decided.

mod commit;
mod keep;
mod observe;
mod run;
mod settings;
mod state;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use mobifs_engine::{Moment, ObservedTransaction, Pacing};
use mobifs_host::MountEntry;
use mobifs_steered::{Device, PublishError, Scope};
use mobifs_volume::{Clock as _, Config, LastingSettings, SystemClock};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::changes::ChangeWatch;
use crate::counters::DirtiedCounter;
use crate::errors::ErrorWatch;
use crate::filesystem::{Committer, Filesystem};
use crate::history::{Keeper, keeper};
use crate::only::{Only, OnlyError};
use crate::takeover::{Takeover, TakeoverError};
pub use settings::SettingsError;
pub(crate) use state::State;
use state::{Counts, Promise};

/// Why a filesystem is not steered, or not committed.
#[derive(Debug, thiserror::Error)]
pub enum SteeringError {
    /// The mount options.
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    /// The flags of files.
    #[error(transparent)]
    Only(#[from] OnlyError),
    /// Programs cannot be told.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The kernel does not show or do what is needed.
    #[error("cannot watch the filesystem at {path}: {source}", path = path.display())]
    Io {
        /// The mount point.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Steering has ended.
    #[error("{path} is not steered any more", path = path.display())]
    Ended {
        /// The mount point.
        path: PathBuf,
    },
    /// The filesystem could not commit.
    #[error("the filesystem at {path} could not commit: {errno}", path = path.display())]
    Commit {
        /// The mount point.
        path: PathBuf,
        /// Why not.
        errno: Errno,
    },
}

/// A filesystem that is steered. One thread [runs](Self::run) it; others report events to it, change
/// its settings and ask it for commits.
#[derive(Debug)]
pub struct Steering {
    mount: MountEntry,
    filesystem: Filesystem,
    /// None: the kernel reports no changes, so there always may be some.
    changes: Option<ChangeWatch>,
    /// None: the kernel reports no errors, which are then found by looking.
    errors: Option<ErrorWatch>,
    dirtied: DirtiedCounter,
    largest_transaction_bytes: Option<u64>,
    /// Written to wake the thread that runs it.
    wake: OwnedFd,
    /// None: it has ended, and uses nothing of the filesystem any more. Locked for one commit, and
    /// for a look at what has changed: a change that is reported while a commit is under way may be
    /// one that the commit does not have. Taken before the state.
    committer: Mutex<Option<Committer>>,
    /// Locked after the committer and before the state. None: the filesystem has no snapshots.
    history: Option<Mutex<Keeper>>,
    state: Mutex<State>,
    /// Locked first of all, for one request that commits.
    turn: Mutex<()>,
    config_file: Option<PathBuf>,
    lasting: LastingSettings,
}

impl Steering {
    /// Takes the filesystem over, or only these directories of it, if there are any.
    ///
    /// # Errors
    /// [`SteeringError`]; then everything is as before.
    pub fn begin(
        mount: &MountEntry,
        filesystem: &Filesystem,
        only: &[PathBuf],
        config: &Config,
        config_file: Option<PathBuf>,
    ) -> Result<Self, SteeringError> {
        let failed = |source| SteeringError::Io {
            path: mount.mountpoint.clone(),
            source,
        };
        let (major, minor) = (mount.device_major, mount.device_minor);
        let device = Device { major, minor };
        // First of all, because it keeps other daemons away. It promises nothing yet.
        let scope = if only.is_empty() {
            Scope::Whole
        } else {
            Scope::JournalledFiles
        };
        let mut promise = Promise::claim(device, scope)?;
        let committer =
            Committer::open(filesystem, &mount.mountpoint).map_err(|errno| failed(errno.into()))?;
        let changes = if_reported("changes", ChangeWatch::new(&mount.mountpoint));
        let errors = if_reported("errors", ErrorWatch::new(&mount.mountpoint));
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(|errno| failed(errno.into()))?;
        let dirtied = DirtiedCounter::open(filesystem.writeback_name().as_deref());
        let policy = config.rules.policy_of_all();
        let mut takeover = Takeover::begin(mount, filesystem, policy.age_max_ms / 1000)?;
        let only = (!only.is_empty()).then(|| Only::begin(mount, only));
        let only = only.transpose().inspect_err(|_| {
            let _restored = takeover.restore();
        })?;
        promise.set_class(policy.class);
        let state = State {
            takeover,
            only,
            promise,
            observed: ObservedTransaction::new(policy),
            pacing: Pacing::new(config.pacing),
            rules: config.rules.clone(),
            allow_durable: config.allow_durable,
            low_batteries: Default::default(),
            counts: Counts::begin(filesystem, dirtied.read()),
            started: SystemClock.moment(),
            last_commit: None,
            last_other_commit: None,
            history: None,
            history_rules: config.history,
            not_counted: Vec::new(),
            retry_at: None,
            has_ended: false,
            is_detached: false,
        };
        let steering = Self {
            mount: mount.clone(),
            filesystem: filesystem.clone(),
            changes,
            errors,
            dirtied,
            largest_transaction_bytes: filesystem.largest_transaction_bytes(),
            wake,
            committer: Mutex::new(Some(committer)),
            history: keeper(mount, filesystem, config).map(Mutex::new),
            state: Mutex::new(state),
            turn: Mutex::new(()),
            config_file,
            lasting: LastingSettings::of_steered(config),
        };
        steering.look_at_counters();
        // What was written before it was steered is promised nothing yet.
        if let Err(error) = steering.commit(false) {
            let _restored = steering.end();
            return Err(error);
        }
        steering.forget_zeros();
        steering.state.lock().promise.update();
        Ok(steering)
    }

    /// Notes what is to be restored again if the notes are gone, as with the runtime directory.
    pub fn keep_notes(&self) {
        let state = self.state.lock();
        if state.has_ended {
            return;
        }
        let kept = state.takeover.keep_note().and_then(|()| {
            let only = state.only.as_ref();
            only.map_or(Ok(()), |only| only.keep_note(&self.mount))
        });
        if let Err(error) = kept {
            tracing::debug!(%error, "a note that was removed cannot be written again");
        }
    }

    /// The kernel may have written zeros past the journal until now, beside which it has older content.
    fn forget_zeros(&self) {
        let before_kib = self.state.lock().takeover.before().zeroing_kib;
        if before_kib.is_none_or(|kib| kib == 0) {
            return;
        }
        let committer = self.committer.lock();
        let done = committer.as_ref().map(Committer::empty_journal);
        if let Some(Err(error)) = done {
            tracing::warn!(
                %error,
                "the journal was not emptied: until the kernel has done so by itself, a power cut may put older \
                 content into files that were written before this filesystem was steered"
            );
        }
    }

    /// The mount.
    pub const fn mount(&self) -> &MountEntry {
        &self.mount
    }

    /// The filesystem.
    pub const fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Waits for the turn of a request that commits, and for the end of the commit that is under way.
    pub(crate) fn turn_to_commit(&self) -> MutexGuard<'_, ()> {
        let turn = self.turn.lock();
        drop(self.committer.lock());
        turn
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) const fn largest_transaction_bytes(&self) -> Option<u64> {
        self.largest_transaction_bytes
    }

    pub(crate) const fn written_counter(&self) -> &'static str {
        self.dirtied.scope()
    }

    pub(crate) fn moment() -> Moment {
        SystemClock.moment()
    }

    /// Wakes the thread that runs it: what it waits for may have changed.
    fn wake(&self) {
        let _woken = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// What the kernel reports of the filesystem; none: it does not, and it is found by looking.
fn if_reported<T>(what: &str, watch: io::Result<T>) -> Option<T> {
    let said = |error: &io::Error| {
        tracing::info!(%error, "the kernel reports no {what} of this filesystem");
    };
    watch.inspect_err(said).ok()
}
