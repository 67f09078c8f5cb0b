//! The mount of a volume, with what a successor of this process needs.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use mobifs_fuse::{
    EstablishedConnection, MountError, MountOptions, Session, SessionError, SessionHandle,
    SessionHooks,
};
use mobifs_volume::{Arena, ArenaError, Volume};
use thiserror::Error;

use super::Adapter;
use super::ledger::ArenaLedger;
use super::observer::{OperationObserver, OperationTranslator};
use super::session_record::{SessionRecord, TakeoverError, complete_takeover};

/// Why a volume could not be mounted.
#[derive(Debug, Error)]
pub enum VolumeMountError {
    /// The mount could not be made.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// What a successor needs could not be recorded.
    #[error(transparent)]
    Arena(#[from] ArenaError),
}

/// A volume that is mounted and not yet served. As with [`Session`], dropping it ends the
/// connection with the kernel.
#[derive(Debug)]
pub struct VolumeSession {
    session: Session,
    arena: Option<Arena>,
    /// How often the mount was taken over.
    takeovers: u64,
}

impl VolumeSession {
    /// Mounts `volume` at `mountpoint`. When this returns, the mount is in the tree; requests are
    /// answered from [`VolumeSession::run`] on.
    ///
    /// With the arena of `volume` a successor of this process can go on: what it needs is in the
    /// arena when this returns. The `observer` learns of every operation.
    ///
    /// # Errors
    /// [`VolumeMountError`]; nothing stays mounted.
    pub fn mount(
        volume: Arc<Volume>,
        mountpoint: &Path,
        options: &MountOptions,
        arena: Option<&Arena>,
        observer: Option<Arc<dyn OperationObserver>>,
    ) -> Result<Self, VolumeMountError> {
        let adapter = Adapter::new(Arc::clone(&volume), observer.is_some()).at(mountpoint);
        let session = Session::mount(adapter, mountpoint, options, hooks(arena, observer))?;
        let sync_reaches = session.sync_reaches();
        if let Some(arena) = arena {
            let record = SessionRecord::new(session.negotiated(), sync_reaches);
            if let Err(error) = record.write(arena) {
                if let Err(second) = session.handle().abort() {
                    tracing::warn!(error = %second, "cannot unmount after a failed start");
                }
                return Err(error.into());
            }
        }
        volume.set_sync_reaches(sync_reaches);
        Ok(Self {
            session,
            arena: arena.cloned(),
            takeovers: 0,
        })
    }

    /// Goes on with the mount of a daemon that has died, over the connection with the kernel and
    /// its arena. [`begin_takeover`](super::begin_takeover) comes first.
    ///
    /// From [`VolumeSession::run`] on, the requests that the predecessor had in flight are
    /// finished before anything else is read into their slots.
    ///
    /// # Errors
    /// [`TakeoverError`]; the mount is as it was, for another attempt.
    pub fn resume(
        volume: Arc<Volume>,
        device: OwnedFd,
        mountpoint: &Path,
        options: &MountOptions,
        arena: &Arena,
        observer: Option<Arc<dyn OperationObserver>>,
    ) -> Result<Self, TakeoverError> {
        let record = SessionRecord::read(arena)?;
        let established = EstablishedConnection {
            device,
            negotiated: record.negotiated(),
            sync_reaches: record.sync_reaches(),
        };
        volume.set_sync_reaches(record.sync_reaches());
        let adapter = Adapter::inheriting(volume, observer.is_some()).at(mountpoint);
        let hooks = hooks(Some(arena), observer);
        let session = Session::resume(adapter, established, mountpoint, options, hooks)
            .map_err(TakeoverError::Device)?;
        Ok(Self {
            session,
            arena: Some(arena.clone()),
            takeovers: record.takeovers(),
        })
    }

    /// Whether `sync(2)` and `syncfs(2)` reach this mount. Where they do not, only `fsync(2)` and
    /// a sync by name commit.
    pub fn sync_reaches(&self) -> bool {
        self.session.sync_reaches()
    }

    /// Absolute path of the mount point.
    pub fn mountpoint(&self) -> &Path {
        self.session.mountpoint()
    }

    /// For ending the mount from another thread.
    pub fn handle(&self) -> SessionHandle {
        self.session.handle()
    }

    /// How often this mount was taken over by a new process.
    pub const fn takeovers(&self) -> u64 {
        self.takeovers
    }

    /// The connection with the kernel; it lives as long as any process holds it.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.session.device()
    }

    /// Answers requests until the mount is ended.
    ///
    /// # Errors
    /// [`SessionError`]; the mount is then unusable.
    pub fn run(self) -> Result<(), SessionError> {
        self.run_and_report(|| {})
    }

    /// Serves as [`Self::run`] does; `caught_up` is called once, when everything that a predecessor had in flight is
    /// answered.
    ///
    /// # Errors
    /// [`SessionError`]; the mount is then unusable.
    pub fn run_and_report(
        self,
        caught_up: impl FnOnce() + Send + 'static,
    ) -> Result<(), SessionError> {
        let arena = self.arena;
        self.session.run_and_report(move || {
            let completed = arena.as_ref().map_or(Ok(()), complete_takeover);
            if let Err(error) = completed {
                tracing::error!(
                    %error,
                    "the daemon cannot record in the arena that the takeover is complete"
                );
            }
            caught_up();
        })
    }
}

fn hooks(arena: Option<&Arena>, observer: Option<Arc<dyn OperationObserver>>) -> SessionHooks {
    SessionHooks {
        ledger: arena.map(|arena| Arc::new(ArenaLedger(arena.clone())) as Arc<_>),
        observer: observer.map(|observer| Arc::new(OperationTranslator(observer)) as Arc<_>),
    }
}
