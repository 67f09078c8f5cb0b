//! The life of a mount: first exchange with the kernel, serving, end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use mobifs_volume::{Arena, Volume};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use thiserror::Error;

use crate::adapter::Adapter;
use crate::mount::{self, MountError, UnmountError};
use crate::negotiation::{Agreement, Answer, DirectIo, negotiate};
use crate::observer::OperationObserver;
use crate::options::{MountOptions, WorkerPlacement};
use crate::protocol::REQUEST_BUFFER_BYTES;
use crate::record::{SessionRecord, TakeoverError, complete_takeover};
use crate::reply::Reply;
use crate::request::{Operation, Request};
use crate::slots::Slots;
use crate::transport::{DeviceTransport, NotedTransport, Transport};
use crate::workers::Workers;

/// How long the kernel may take for its first request; it is queued before `mount(2)`
/// returns.
const FIRST_REQUEST_SECONDS: i64 = 30;

/// What answers requests. Any number of threads call it at the same time.
pub(crate) trait Handler: Send + Sync {
    /// Answers one request. `scratch` is memory of the calling thread, of
    /// [`crate::adapter::SCRATCH_BYTES`] bytes and with any content.
    fn handle(&self, transport: &dyn Transport, request: &Request<'_>, scratch: &mut [u8]);

    /// The same for a request in a slot of the arena: a successor must be able to tell
    /// what was done of it.
    fn handle_in_slot(
        &self,
        _slot: usize,
        transport: &NotedTransport<'_>,
        request: &Request<'_>,
        scratch: &mut [u8],
    ) {
        self.handle(transport, request, scratch);
    }

    /// Answers a request that a predecessor left in a slot, executed or not.
    fn finish_left(
        &self,
        slot: usize,
        transport: &NotedTransport<'_>,
        request: &Request<'_>,
        scratch: &mut [u8],
    ) {
        self.handle_in_slot(slot, transport, request, scratch);
    }

    /// How the kernel may carry out calls with `O_DIRECT`.
    fn direct_io(&self) -> DirectIo {
        DirectIo::OneByOne
    }

    /// Tells, once and before the first request, what to keep in order to answer after
    /// [`Handler::handle`] has returned.
    fn connected(&self, _session: Weak<Shared>) {}
}

/// Why serving a mount ended other than by unmounting.
#[derive(Debug, Error)]
pub enum SessionError {
    /// Reading requests failed.
    #[error("cannot read requests from the kernel: {0}")]
    Receive(Errno),
    /// A worker could not be started.
    #[error("cannot start a worker thread: {0}")]
    Spawn(#[source] std::io::Error),
    /// A worker panicked; the mount was ended so that nobody waits for an answer.
    #[error("a worker thread panicked; the mount was ended")]
    Panicked,
}

/// What a session and its handles share.
pub(crate) struct Shared {
    pub(crate) transport: DeviceTransport,
    pub(crate) handler: Box<dyn Handler>,
    pub(crate) agreement: Agreement,
    pub(crate) placement: WorkerPlacement,
    pub(crate) slots: Slots,
    mountpoint: PathBuf,
    /// The mount's own number, from before anybody could have taken it out of the tree; from
    /// the kernel itself where it tells.
    connection: Option<u64>,
    /// Set by [`SessionHandle::abort`]: no request is executed any more.
    pub(crate) aborted: AtomicBool,
}

impl Shared {
    pub(crate) fn abort(&self) -> Result<(), UnmountError> {
        self.aborted.store(true, Ordering::SeqCst);
        self.check_in_place()?;
        mount::abort(&self.mountpoint)
    }

    /// Fails if this mount has left the tree: what is at its place then is another one.
    fn check_in_place(&self) -> Result<(), UnmountError> {
        let there = mount::connection_at(&self.mountpoint);
        if there.is_some() && there == self.connection {
            return Ok(());
        }
        Err(UnmountError::NotMounted(self.mountpoint.clone()))
    }

    /// Ends the mount because of a failure, so that nobody waits for an answer that
    /// will not come.
    pub(crate) fn abort_after_failure(&self) {
        if let Err(error) = self.abort() {
            tracing::warn!(%error, "a failed mount could not be taken away");
        }
    }
}

/// A mount that is made and not yet served.
///
/// Dropping it unserved, or after serving ended, ends the connection with the kernel.
pub struct Session {
    shared: Arc<Shared>,
    sync_reaches: bool,
    arena: Option<Arena>,
    /// How often the mount was taken over.
    takeovers: u64,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("mountpoint", &self.shared.mountpoint)
            .field("sync_reaches", &self.sync_reaches)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Mounts `volume` at `mountpoint`. When this returns, the mount is in the tree and
    /// both sides know how to talk; requests are answered from [`Session::run`] on.
    ///
    /// With the arena of `volume` a successor of this process can go on: what it needs
    /// is in the arena when this returns. An `observer` is told of every operation.
    ///
    /// # Errors
    /// [`MountError`]; nothing stays mounted.
    pub fn mount(
        volume: Arc<Volume>,
        mountpoint: &Path,
        options: &MountOptions,
        arena: Option<&Arena>,
        observer: Option<Arc<dyn OperationObserver>>,
    ) -> Result<Self, MountError> {
        let adapter = Box::new(Adapter::new(Arc::clone(&volume)).observed(observer));
        let slots = arena.map_or_else(Slots::of_process, Slots::of_arena);
        let mut session = Self::mount_with(adapter, mountpoint, options, slots)?;
        if let Some(arena) = arena {
            let record = SessionRecord::new(session.shared.agreement, session.sync_reaches);
            if let Err(error) = record.write(arena) {
                session.shared.abort_after_failure();
                return Err(MountError::Arena(error));
            }
            session.arena = Some(arena.clone());
        }
        volume.set_sync_reaches(session.sync_reaches);
        Ok(session)
    }

    /// Goes on with the mount of a process that has died, over the connection with the
    /// kernel and the arena that it left. [`crate::begin_takeover`] comes first.
    ///
    /// From [`Session::run`] on, what the predecessor had read and not answered is
    /// answered before anything else.
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
        let transport = DeviceTransport::from_descriptor(device).map_err(TakeoverError::Device)?;
        volume.set_sync_reaches(record.sync_reaches());
        let shared = Arc::new(Shared {
            connection: connection_of(&transport, mountpoint),
            transport,
            handler: Box::new(Adapter::inheriting(volume).observed(observer)),
            agreement: record.agreement(),
            placement: options.workers,
            slots: Slots::of_arena(arena),
            mountpoint: mountpoint.to_owned(),
            aborted: AtomicBool::new(false),
        });
        shared.handler.connected(Arc::downgrade(&shared));
        tracing::debug!(agreement = ?shared.agreement, "taken over");
        Ok(Self {
            shared,
            sync_reaches: record.sync_reaches(),
            arena: Some(arena.clone()),
            takeovers: record.takeovers(),
        })
    }

    /// Mounts anything that answers requests.
    pub(crate) fn mount_handler(
        handler: Box<dyn Handler>,
        mountpoint: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        Self::mount_with(handler, mountpoint, options, Slots::of_process())
    }

    fn mount_with(
        handler: Box<dyn Handler>,
        mountpoint: &Path,
        options: &MountOptions,
        slots: Slots,
    ) -> Result<Self, MountError> {
        let mounted = mount::mount(mountpoint, options)?;
        let agreement = match first_exchange(&mounted.transport, handler.direct_io()) {
            Ok(agreement) => agreement,
            Err(error) => {
                if let Err(second) = mount::abort(&mounted.mountpoint) {
                    tracing::warn!(error = %second, "a mount that failed could not be taken away");
                }
                return Err(error);
            }
        };
        tracing::debug!(?agreement, sync_reaches = mounted.sync_reaches, "mounted");
        let shared = Arc::new(Shared {
            connection: connection_of(&mounted.transport, &mounted.mountpoint),
            transport: mounted.transport,
            handler,
            agreement,
            placement: options.workers,
            slots,
            mountpoint: mounted.mountpoint,
            aborted: AtomicBool::new(false),
        });
        shared.handler.connected(Arc::downgrade(&shared));
        Ok(Self {
            shared,
            sync_reaches: mounted.sync_reaches,
            arena: None,
            takeovers: 0,
        })
    }

    /// Whether `sync(2)` and `syncfs(2)` reach this mount. Where they do not, only
    /// `fsync(2)` and a sync by name commit.
    pub fn sync_reaches(&self) -> bool {
        self.sync_reaches
    }

    /// Absolute path of the mount point.
    pub fn mountpoint(&self) -> &Path {
        &self.shared.mountpoint
    }

    /// For ending the mount from another thread.
    pub fn handle(&self) -> SessionHandle {
        SessionHandle {
            shared: Arc::clone(&self.shared),
        }
    }

    /// How often this mount was taken over by a new process.
    pub const fn takeovers(&self) -> u64 {
        self.takeovers
    }

    /// The connection with the kernel; it lives as long as anybody holds it.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.shared.transport.as_fd()
    }

    /// Answers requests until the mount is ended, by whomever.
    ///
    /// # Errors
    /// [`SessionError`]; the mount is then dead.
    pub fn run(self) -> Result<(), SessionError> {
        self.run_and_tell(|| {})
    }

    /// The same; `caught_up` is called once, when everything that a predecessor left is
    /// answered.
    ///
    /// # Errors
    /// [`SessionError`]; the mount is then dead.
    pub fn run_and_tell(
        self,
        caught_up: impl FnOnce() + Send + 'static,
    ) -> Result<(), SessionError> {
        let arena = self.arena;
        let caught_up = move || {
            let completed = arena.as_ref().map_or(Ok(()), complete_takeover);
            if let Err(error) = completed {
                tracing::error!(%error, "cannot note that the takeover is complete");
            }
            caught_up();
        };
        Workers::run(&self.shared, Box::new(caught_up))
    }
}

/// Ends a mount from any thread, for example on a signal.
#[derive(Clone)]
pub struct SessionHandle {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionHandle")
            .field("mountpoint", &self.shared.mountpoint)
            .finish_non_exhaustive()
    }
}

impl SessionHandle {
    /// Unmounts; [`Session::run`] returns when the kernel has let go. `lazy`: out of
    /// the tree now, and serve those who still use it until they finish.
    ///
    /// # Errors
    /// [`UnmountError::Busy`] if it is in use and not `lazy`; [`UnmountError::NotMounted`] if
    /// it has left the tree already; others by reason.
    pub fn unmount(&self, lazy: bool) -> Result<(), UnmountError> {
        self.shared.check_in_place()?;
        mount::unmount(&self.shared.mountpoint, lazy)
    }

    /// Ends the mount at once, as if the machine had lost power: requests under way
    /// and later ones fail, and none is executed any more.
    ///
    /// # Errors
    /// If it could not be taken out of the tree; requests fail nevertheless.
    pub fn abort(&self) -> Result<(), UnmountError> {
        self.shared.abort()
    }
}

fn connection_of(transport: &DeviceTransport, mountpoint: &Path) -> Option<u64> {
    let told = transport.connection_number();
    told.or_else(|| mount::connection_at(mountpoint))
}

/// Waits for the kernel's INIT and answers it.
fn first_exchange(
    transport: &DeviceTransport,
    direct_io: DirectIo,
) -> Result<Agreement, MountError> {
    let mut buffer = vec![0; REQUEST_BUFFER_BYTES];
    loop {
        wait_for_request(transport)?;
        let received = transport
            .try_receive(&mut buffer)
            .map_err(MountError::Handshake)?;
        let Some(length) = received else { continue };
        let request = Request::parse(&buffer[..length], false)
            .map_err(|_| MountError::Handshake(Errno::PROTO))?;
        let reply = Reply::new(transport, request.header.unique);
        let Operation::Init(init) = request.operation else {
            reply.error(Errno::IO);
            return Err(MountError::Handshake(Errno::PROTO));
        };
        match negotiate(&init, direct_io) {
            Answer::Agreed(agreement, answer) => {
                reply.value(&answer);
                return Ok(agreement);
            }
            Answer::AskAgain(answer) => reply.value(&answer),
            Answer::TooOld => {
                reply.error(Errno::PROTO);
                return Err(MountError::KernelTooOld);
            }
        }
    }
}

/// So that a mount that never became one is an error and not a hang.
fn wait_for_request(transport: &DeviceTransport) -> Result<(), MountError> {
    let timeout = Timespec {
        tv_sec: FIRST_REQUEST_SECONDS,
        tv_nsec: 0,
    };
    let descriptor = transport.as_fd();
    loop {
        let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
        match poll(&mut descriptors, Some(&timeout)) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(MountError::Handshake(errno)),
            Ok(0) => return Err(MountError::Handshake(Errno::TIMEDOUT)),
            Ok(_) => return Ok(()),
        }
    }
}
