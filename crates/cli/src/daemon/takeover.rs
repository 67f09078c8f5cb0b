//! Going on with the mount of a daemon that has died.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use mobifs_fuse::{Session, TakeoverError, begin_takeover, is_mounted, postpone_takeover};
use mobifs_runtime::handover::{Inherited, kills_in_a_row};
use mobifs_runtime::{Arena, OpenedStore, Volume};
use mobifs_store::StoreError;

use super::keeper::Keeper;
use super::recording::Recording;
use super::{
    ConfigText, Plan, RETRY_INTERVAL, Serving, mount_options, open_options, volume_options,
};
use crate::failure::{Code, Failure};

/// After so many daemons in a row died while they took over, the next one does not serve
/// any more: it brings what is in memory to the store and ends the mount.
const ATTEMPTS_MAX: u32 = 5;
/// Daemons that somebody killed count only if there were more of them in a row: it was not
/// what they did, and whoever kills them (the kernel, when memory is short) may stop.
const KILLS_MAX: u32 = 100;
/// After so many more, what is in memory is given up. They come seconds apart: whatever
/// kills them (memory that is short) may pass.
const SALVAGES_MAX: u32 = 30;

/// What a takeover starts from.
#[derive(Debug)]
pub(crate) struct Legacy {
    device: OwnedFd,
    arena: OwnedFd,
    lock: Option<OwnedFd>,
    /// The control socket.
    pub(super) control: Option<OwnedFd>,
    /// The text of the configuration in force.
    config: Option<OwnedFd>,
}

impl Legacy {
    /// What a predecessor has left; none if it had not made its mount yet, or there was
    /// none. Then what it has left is dropped.
    pub(crate) fn find(inherited: Inherited, keeper: &Keeper, mountpoint: &Path) -> Option<Self> {
        let is_empty = inherited.is_empty();
        let Inherited {
            device,
            arena,
            lock,
            control,
            config,
        } = inherited;
        if let (Some(device), Some(arena)) = (device, arena) {
            return Some(Self {
                device,
                arena,
                lock,
                control,
                config,
            });
        }
        if !is_empty {
            tracing::warn!("the daemon before this one died before its mount was usable");
            // The lock would keep us from the store.
            drop((lock, control));
            keeper.withdraw("starting afresh");
            if is_mounted(mountpoint, "mobifs")
                && let Err(error) = mobifs_fuse::unmount(mountpoint, true)
            {
                tracing::warn!(%error, "its mount cannot be taken away");
            }
        }
        None
    }

    /// The configuration that was in force; none if it was not left.
    pub(crate) fn config(&mut self) -> Option<ConfigText> {
        let inherited = self.config.take().map(ConfigText::inherit)?;
        inherited
            .inspect_err(|error| tracing::error!(%error, "it is read from its file"))
            .ok()
    }

    /// Brings the volume and the session to life again.
    pub(super) fn take_over(self, plan: &Plan, keeper: &Keeper) -> Result<Serving, Failure> {
        let arena = Arena::attach(self.arena).map_err(|error| hopeless(keeper, &error))?;
        let attempt = begin_attempt(&arena).map_err(|error| hopeless(keeper, &error))?;
        if attempt > ATTEMPTS_MAX + SALVAGES_MAX {
            return Err(hopeless(keeper, &"every attempt has failed"));
        }
        let again = |error: &dyn std::fmt::Display| {
            let message = format!("cannot go on with the mount of the daemon that died: {error}");
            Failure::new(Code::TryAgain, message)
        };
        let is_salvage = attempt > ATTEMPTS_MAX;
        if is_salvage {
            end_mount(plan);
        }
        let store = &plan.places.store;
        let opened = OpenedStore::resume(store, &open_options(plan), &arena, self.lock).map_err(
            |error| {
                if matches!(error, StoreError::Lower { .. }) {
                    postpone(&arena);
                }
                again(&Failure::of_store(store, &error))
            },
        )?;
        let options = volume_options(plan, Some(&arena));
        let volume = match opened.resumption() {
            Some(resumption) => Volume::resume(opened.store(), options, resumption),
            None => Volume::start(opened.store(), options),
        }
        .map_err(|error| again(&error))?;
        if is_salvage {
            return Err(salvage(plan, keeper, &volume, opened));
        }
        let recording = resume_recording(plan, &volume);
        let options = mount_options(plan);
        let mountpoint = &plan.places.mountpoint;
        let session = Session::resume(
            Arc::clone(&volume),
            self.device,
            mountpoint,
            &options,
            &arena,
            recording.as_ref().map(Recording::operations),
        )
        .map_err(|error| again(&error))?;
        tracing::info!(
            mountpoint = %mountpoint.display(),
            restarts = session.takeovers(),
            "took over from the daemon that died"
        );
        Ok(Serving {
            opened,
            volume,
            session,
            arena: Some(arena),
            recording,
        })
    }
}

/// The number of this attempt.
fn begin_attempt(arena: &Arena) -> Result<u32, TakeoverError> {
    let attempt = begin_takeover(arena)?;
    if attempt > 1 && (1..=KILLS_MAX).contains(&kills_in_a_row()) {
        postpone_takeover(arena)?;
        return Ok(attempt - 1);
    }
    Ok(attempt)
}

/// Goes on with the predecessor's recording, if there was one and that is possible.
fn resume_recording(plan: &Plan, volume: &Volume) -> Option<Recording> {
    let file = plan.record.as_deref()?;
    Recording::resume(file, &plan.config.config.rules, volume)
        .inspect_err(|failure| tracing::warn!(%failure, "nothing is recorded any more"))
        .ok()
}

/// The lower filesystem has failed, which may pass: nothing is lost as long as there is
/// another attempt.
fn postpone(arena: &Arena) {
    if let Err(error) = postpone_takeover(arena) {
        tracing::warn!(%error, "this attempt counts");
    }
    std::thread::sleep(RETRY_INTERVAL);
}

/// Nothing more can be tried: whoever watches over us need not start anybody again.
fn hopeless(keeper: &Keeper, reason: &dyn std::fmt::Display) -> Failure {
    keeper.withdraw("giving up");
    let message = format!(
        "the daemon died, and its mount cannot be taken over: {reason}; what was committed is in \
         the store, everything else is lost"
    );
    Failure::new(Code::Failed, message)
}

/// Daemons keep dying over what is to be done next: nobody is to wait for answers that do
/// not come.
fn end_mount(plan: &Plan) {
    let mountpoint = &plan.places.mountpoint;
    tracing::error!(
        mountpoint = %mountpoint.display(),
        "{ATTEMPTS_MAX} daemons in a row died while they took over; the mount ends"
    );
    if is_mounted(mountpoint, &plan.options.mount.subtype)
        && let Err(error) = mobifs_fuse::abort(mountpoint)
    {
        tracing::warn!(%error, "the mount cannot be taken away");
    }
}

/// Saves what was done so far.
fn salvage(plan: &Plan, keeper: &Keeper, volume: &Volume, opened: OpenedStore) -> Failure {
    let path = plan.places.mountpoint.display();
    let saved = volume
        .shutdown()
        .map_err(|error| error.to_string())
        .and_then(|()| opened.close().map_err(|error| error.to_string()));
    match saved {
        Ok(()) => {
            keeper.withdraw("everything is saved");
            let message = format!("everything was committed and the mount {path} was ended");
            Failure::new(Code::Failed, message)
        }
        Err(error) => {
            let message = format!("what was in memory of the mount {path} is not saved: {error}");
            Failure::new(Code::TryAgain, message)
        }
    }
}
