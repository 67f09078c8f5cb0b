//! The life of a mount: first exchange with the kernel, serving, end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zerocopy::IntoBytes as _;

use crate::connection::Connection;
use crate::dispatcher::Dispatcher;
use crate::error::SessionError;
use crate::filesystem::Filesystem;
use crate::in_flight::{RequestBuffers, RequestLedger};
use crate::link::Link;
use crate::message;
use crate::mount::{self, MountError, UnmountError};
use crate::negotiation::{Answer, DirectIo, Negotiated, negotiate};
use crate::observer::RequestObserver;
use crate::options::MountOptions;
use crate::protocol::REQUEST_BUFFER_BYTES;
use crate::request::{Operation, Request};
use crate::shared::Shared;
use crate::transport::{DeviceTransport, Transport};
use crate::workers::Workers;

/// How long the kernel may take for its first request; it is queued before `mount(2)`
/// returns.
const FIRST_REQUEST_SECONDS: i64 = 30;

/// What a session may have besides a filesystem.
#[derive(Clone, Default)]
pub struct SessionHooks {
    /// Where requests lie while they are answered, so that a successor of this process finds
    /// them. None: in memory of this process.
    pub ledger: Option<Arc<dyn RequestLedger>>,
    /// Learns of every request.
    pub observer: Option<Arc<dyn RequestObserver>>,
    /// The watchdog adds no worker, so that a test sees what is done without it.
    #[cfg(test)]
    pub(crate) has_no_watchdog: bool,
}

impl std::fmt::Debug for SessionHooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionHooks")
            .field("ledger", &self.ledger.is_some())
            .field("observer", &self.observer.is_some())
            .finish()
    }
}

/// A connection that another process has established.
#[derive(Debug)]
pub struct EstablishedConnection {
    /// The `/dev/fuse` descriptor.
    pub device: OwnedFd,
    /// What that process negotiated: [`Session::negotiated`].
    pub negotiated: Negotiated,
    /// As it was there: [`Session::sync_reaches`].
    pub sync_reaches: bool,
}

/// A mount that is made and not yet served.
///
/// Dropping it unserved, or after serving ended, ends the connection with the kernel.
pub struct Session {
    shared: Arc<Shared>,
    sync_reaches: bool,
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
    /// Mounts `filesystem` at `mountpoint`. When this returns, the mount is in the tree and
    /// both sides have negotiated; requests are answered from [`Session::run`] on.
    ///
    /// # Errors
    /// [`MountError`]; nothing stays mounted.
    pub fn mount(
        filesystem: impl Filesystem,
        mountpoint: &Path,
        options: &MountOptions,
        hooks: SessionHooks,
    ) -> Result<Self, MountError> {
        let mounted = mount::mount(mountpoint, options)?;
        let exchanged = first_exchange(&mounted.transport, filesystem.direct_io());
        let negotiated = exchanged.inspect_err(|_| {
            if let Err(second) = mount::abort(&mounted.mountpoint) {
                tracing::warn!(error = %second, "cannot unmount after a failed start");
            }
        })?;
        tracing::debug!(?negotiated, sync_reaches = mounted.sync_reaches, "mounted");
        Ok(Self::over(
            filesystem,
            mounted.transport,
            mounted.mountpoint,
            (negotiated, mounted.sync_reaches),
            options,
            hooks,
        ))
    }

    /// Goes on with the mount of a process that has died, over the connection with the kernel
    /// that it left.
    ///
    /// From [`Session::run`] on, what the predecessor had read and not answered is finished;
    /// it lies in the ledger.
    ///
    /// # Errors
    /// If the descriptor cannot be used; the mount is as it was, for another attempt.
    pub fn resume(
        filesystem: impl Filesystem,
        established: EstablishedConnection,
        mountpoint: &Path,
        options: &MountOptions,
        hooks: SessionHooks,
    ) -> std::io::Result<Self> {
        let EstablishedConnection {
            device,
            negotiated,
            sync_reaches,
        } = established;
        let transport = DeviceTransport::from_descriptor(device)?;
        tracing::debug!(?negotiated, sync_reaches, "taken over");
        Ok(Self::over(
            filesystem,
            transport,
            mountpoint.to_owned(),
            (negotiated, sync_reaches),
            options,
            hooks,
        ))
    }

    fn over(
        filesystem: impl Filesystem,
        transport: DeviceTransport,
        mountpoint: PathBuf,
        (negotiated, sync_reaches): (Negotiated, bool),
        options: &MountOptions,
        hooks: SessionHooks,
    ) -> Self {
        #[cfg(test)]
        let has_watchdog = !hooks.has_no_watchdog;
        #[cfg(not(test))]
        let has_watchdog = true;
        let buffers = RequestBuffers::new(hooks.ledger);
        let shared = Arc::new(Shared {
            connection: connection_of(&transport, &mountpoint),
            link: Arc::new(Link {
                transport,
                negotiated,
                requests_outlive_process: buffers.outlive_process(),
                workers: OnceLock::new(),
            }),
            dispatcher: Dispatcher::new(filesystem, hooks.observer),
            placement: options.workers,
            has_watchdog,
            buffers,
            mountpoint,
            aborted: AtomicBool::new(false),
        });
        let filesystem = shared.dispatcher.filesystem();
        filesystem.connected(Connection::new(&shared.link));
        Self {
            shared,
            sync_reaches,
        }
    }

    /// What both sides agreed on; a successor of this process needs it.
    pub fn negotiated(&self) -> Negotiated {
        self.shared.link.negotiated
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

    /// The connection with the kernel; it lives as long as any process holds it.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.shared.link.transport.as_fd()
    }

    /// Answers requests until the mount is ended, by this process or another one.
    ///
    /// # Errors
    /// [`SessionError`]; the mount is then unusable.
    pub fn run(self) -> Result<(), SessionError> {
        self.run_and_report(|| {})
    }

    /// The same; `caught_up` is called once, when everything that a predecessor left is
    /// answered.
    ///
    /// # Errors
    /// [`SessionError`]; the mount is then unusable.
    pub fn run_and_report(
        self,
        caught_up: impl FnOnce() + Send + 'static,
    ) -> Result<(), SessionError> {
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
    /// Unmounts; [`Session::run`] returns when the kernel has ended the connection. `lazy`: takes
    /// the mount out of the tree now, and serves the programs that use it until they finish.
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
    let number = transport.connection_number();
    number.or_else(|| mount::connection_at(mountpoint))
}

/// Waits for the kernel's INIT and answers it.
fn first_exchange(
    transport: &DeviceTransport,
    direct_io: DirectIo,
) -> Result<Negotiated, MountError> {
    let mut buffer = vec![0; REQUEST_BUFFER_BYTES];
    loop {
        wait_for_request(transport)?;
        let received = transport
            .try_receive(&mut buffer)
            .map_err(MountError::Handshake)?;
        let Some(length) = received else { continue };
        let request = Request::parse(&buffer[..length], false)
            .map_err(|_| MountError::Handshake(Errno::PROTO))?;
        let unique = request.header.unique;
        let refuse = |errno: Errno| message::send(transport, unique, -errno.raw_os_error(), &[]);
        let Operation::Init(init) = request.operation else {
            refuse(Errno::IO);
            return Err(MountError::Handshake(Errno::PROTO));
        };
        match negotiate(&init, direct_io) {
            Answer::Negotiated(negotiated, answer) => {
                message::send(transport, unique, 0, answer.as_bytes());
                return Ok(negotiated);
            }
            Answer::AskAgain(answer) => {
                message::send(transport, unique, 0, answer.as_bytes());
            }
            Answer::TooOld => {
                refuse(Errno::PROTO);
                return Err(MountError::KernelTooOld);
            }
        }
    }
}

/// So that a mount that the kernel never starts is an error and not a hang.
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
