//! The command line's side of the control socket.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mobifs_host::{
    MountEntry, Peer, absolute_without_touching, connect_at_once, mount_around, mounts, shell_path,
};
use mobifs_steered::{Claim, Device, Directory};
use rustix::io::Errno;

use super::protocol::{Reply, Request};
use super::socket_path::socket_candidates;

/// Why a mount could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The path cannot be resolved.
    #[error("cannot examine {path}: {source}", path = path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// No MobiFS is mounted there.
    #[error(
        "{path} is not a MobiFS mount, nor is its filesystem steered (`mobifs doctor {word}` says what \
         can be)",
        path = path.display(), word = shell_path(path)
    )]
    NotMounted {
        /// The path.
        path: PathBuf,
    },
    /// A mount of ours is there, and another filesystem is mounted over it.
    #[error(
        "{path} has {what}, over which another filesystem is mounted ({by}), so no path leads to it: \
         `mobifs status` without a path shows it, and `umount {word}` uncovers it",
        path = path.display(), word = shell_path(path)
    )]
    Covered {
        /// The path.
        path: PathBuf,
        /// A mount of MobiFS, or a steered filesystem.
        what: &'static str,
        /// What is mounted over it: its type and its source.
        by: String,
    },
    /// Nothing is there.
    #[error("{path} does not exist, so it is not a MobiFS mount", path = path.display())]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// The path lies in a MobiFS mount.
    #[error(
        "{path} is not a MobiFS mount itself, but lies in the one at {mount}: name that",
        path = path.display(), mount = mount.display()
    )]
    InsideMount {
        /// The path.
        path: PathBuf,
        /// The mount point.
        mount: PathBuf,
    },
    /// The path is the store of a mount.
    #[error(
        "{path} is not a MobiFS mount, but the store of the one at {mount}: name that",
        path = path.display(), mount = mount.display()
    )]
    Store {
        /// The path.
        path: PathBuf,
        /// The mount point.
        mount: PathBuf,
    },
    /// The path lies in a steered filesystem.
    #[error(
        "{path} lies in the steered filesystem that is mounted at {mount}: name that",
        path = path.display(), mount = mount.display()
    )]
    InsideSteered {
        /// The path.
        path: PathBuf,
        /// The mount point.
        mount: PathBuf,
    },
    /// The mount's daemon does not run any more.
    #[error(
        "the daemon of the mount {path} is gone; `mobifs umount {word}` takes the mount away",
        path = path.display(), word = shell_path(path)
    )]
    DaemonGone {
        /// The mount point.
        path: PathBuf,
    },
    /// The filesystem's daemon does not run any more.
    #[error(
        "the daemon that steered {path} is gone: `mobifs steer {word}` goes on with it, and `mobifs \
         steer --stop {word}` restores its mount options",
        path = path.display(), word = shell_path(path)
    )]
    SteeringGone {
        /// The mount point.
        path: PathBuf,
    },
    /// The daemon lives, and its socket is in another `/run`.
    #[error(
        "the daemon of {path} runs where /run is another one, as in a container: run this command there \
         (`nsenter --mount --target PID`)",
        path = path.display()
    )]
    OutOfReach {
        /// The mount point.
        path: PathBuf,
    },
    /// The daemon lives here, and its socket was removed.
    #[error(
        "the control socket of the daemon of {path} (process {pid}) has been removed, or is in another \
         XDG_RUNTIME_DIR: the daemon makes a removed one again within some seconds; run this command again then",
        path = path.display()
    )]
    SocketGone {
        /// The mount point.
        path: PathBuf,
        /// The daemon or its supervisor.
        pid: u32,
    },
    /// The socket belongs to another user.
    #[error("only root and the user who mounted {path} may do this", path = path.display())]
    NotPermitted {
        /// The mount point.
        path: PathBuf,
    },
    /// The daemon runs, but does not answer.
    #[error(
        "no answer for {seconds} s from {daemon}: it is stopped, or waits for the store",
        seconds = limit.as_secs()
    )]
    NoAnswer {
        /// The daemon.
        daemon: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The conversation failed.
    #[error("the daemon of the mount {path} did not answer: {source}", path = path.display())]
    Io {
        /// The mount point.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// How long to wait for an answer, and how to say so.
#[derive(Clone, Copy, Debug)]
pub struct AnswerPatience {
    /// How long at most; none: as long as the daemon takes.
    pub limit: Option<Duration>,
    /// Shows the user, once, what is waited for.
    pub report: fn(&str),
}

/// Waiting for longer than this is explained.
const QUIET: Duration = Duration::from_secs(1);

/// A connection to the daemon of a mount.
#[derive(Debug)]
pub struct ControlClient {
    mount: MountEntry,
    stream: UnixStream,
    /// The process that made the socket. A successor of that process answers on the same one;
    /// another mount that got the device number meanwhile, and with it the place, has its own. None:
    /// it is in another PID namespace.
    maker: Option<u32>,
}

/// How often the mount may change between the look at it and the connection.
const LOOKS_MAX: usize = 16;
/// How often a request is sent to one more daemon because the one before died over it.
const DAEMONS_MAX: usize = 100;

/// The MobiFS mount at `path`, found without touching it.
///
/// # Errors
/// [`ControlError::Path`], [`ControlError::NotMounted`], or more precisely why not.
pub fn find_mount(path: &Path) -> Result<MountEntry, ControlError> {
    let failed = |source| ControlError::Path {
        path: path.to_owned(),
        source,
    };
    let absolute = absolute_without_touching(path).map_err(failed)?;
    let table = mounts().map_err(failed)?;
    let mount = table.iter().rfind(|mount| mount.mountpoint == absolute);
    match mount.filter(|mount| is_ours(mount)) {
        Some(mount) => Ok(mount.clone()),
        None => Err(why_not_mounted(absolute, &table)),
    }
}

/// All mounts of MobiFS and all steered filesystems that this process sees, each once: of bind mounts
/// of one the first.
///
/// # Errors
/// If the table of mounts cannot be read.
pub fn own_mounts() -> io::Result<Vec<MountEntry>> {
    let table = mounts()?;
    Ok(own_in(&table, |mount| is_top(mount, &table)))
}

/// Those that no path leads to, because other filesystems are mounted over them, with connections to their daemons.
///
/// # Errors
/// If the table of mounts cannot be read.
pub fn covered_mounts() -> io::Result<Vec<(MountEntry, Result<ControlClient, ControlError>)>> {
    let table = mounts()?;
    let reachable = own_in(&table, |mount| is_top(mount, &table));
    let is_reachable =
        |mount: &MountEntry| reachable.iter().any(|other| other.has_device_of(mount));
    let covered = own_in(&table, |mount| {
        !is_top(mount, &table) && !is_reachable(mount)
    });
    let connected = covered.into_iter().map(|mount| {
        let client = ControlClient::connect_to(&mount);
        (mount, client)
    });
    Ok(connected.collect())
}

/// Those of a table that are wanted, each once.
fn own_in(table: &[MountEntry], is_wanted: impl Fn(&MountEntry) -> bool) -> Vec<MountEntry> {
    let mut own: Vec<MountEntry> = Vec::new();
    for mount in table.iter().filter(|mount| is_wanted(mount)) {
        let is_known = own.iter().any(|known| known.has_device_of(mount));
        if !is_known && (is_ours(mount) || is_steered(mount)) {
            own.push(mount.clone());
        }
    }
    own
}

/// Whether nothing is mounted over it at its mount point.
fn is_top(mount: &MountEntry, table: &[MountEntry]) -> bool {
    let top = table
        .iter()
        .rfind(|other| other.mountpoint == mount.mountpoint);
    top.is_some_and(|top| top.id == mount.id)
}

/// A mount with a subtype of its own, and a steered filesystem of the kernel, are known by their
/// sockets.
fn is_ours(mount: &MountEntry) -> bool {
    mount.has_subtype("mobifs") || socket_candidates(mount).iter().any(|path| path.exists())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a daemon has registered the filesystem, for all programs to see.
fn is_steered(mount: &MountEntry) -> bool {
    let device = Device {
        major: mount.device_major,
        minor: mount.device_minor,
    };
    Directory::from_environment().find(device).is_some()
}

/// No mount of ours is at `path`: where it is instead. Nothing in a mount is looked at, whose
/// daemon may be dead.
fn why_not_mounted(path: PathBuf, table: &[MountEntry]) -> ControlError {
    if let Some(covered) = covered_at(&path, table) {
        return covered;
    }
    let serves_it = |mount: &&MountEntry| mount.has_subtype("mobifs") && mount.source == path;
    if let Some(mount) = table.iter().find(serves_it) {
        let mount = mount.mountpoint.clone();
        return ControlError::Store { path, mount };
    }
    match mount_around(&path, table) {
        Some(mount) if mount.mountpoint != path && mount.has_subtype("mobifs") => {
            ControlError::InsideMount {
                path,
                mount: mount.mountpoint.clone(),
            }
        }
        // One whose daemon was killed is known by its socket, and others than root by its registration.
        Some(mount) if mount.mountpoint != path && (is_ours(mount) || is_steered(mount)) => {
            ControlError::InsideSteered {
                path,
                mount: mount.mountpoint.clone(),
            }
        }
        Some(mount) if mount.is_fuse() => ControlError::NotMounted { path },
        // Sockets of root are not shown to others.
        Some(mount) if mount.mountpoint == path && !is_root() && is_steered(mount) => {
            ControlError::NotPermitted { path }
        }
        Some(mount) if mount.mountpoint == path && Claim::is_taken(&path) => out_of_reach(path),
        _ => match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => ControlError::Missing { path },
            _ => ControlError::NotMounted { path },
        },
    }
}

/// A mount of ours at `path`, with one over it that is not.
fn covered_at(path: &Path, table: &[MountEntry]) -> Option<ControlError> {
    let mut here = table.iter().rev().filter(|mount| mount.mountpoint == path);
    let top = here.next()?;
    let covered = here.find(|mount| is_ours(mount) || is_steered(mount))?;
    // The other way round, the path leads to it.
    if covered.has_device_of(top) {
        return None;
    }
    Some(ControlError::Covered {
        path: path.to_owned(),
        what: match covered.has_subtype("mobifs") {
            true => "a MobiFS mount",
            false => "a steered filesystem",
        },
        by: format!("{} {}", top.kind, top.source.display()),
    })
}

impl ControlClient {
    /// Connects to the daemon of the mount at `path`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        let mut mount = find_mount(path)?;
        for _ in 0..LOOKS_MAX {
            let client = Self::connect_to(&mount)?;
            // The mount may have ended before the connection was made, and its device number
            // may belong to another one by now, whose daemon it is that listens.
            let again = find_mount(path)?;
            if again == mount {
                return Ok(client);
            }
            mount = again;
        }
        Err(ControlError::NotMounted {
            path: mount.mountpoint,
        })
    }

    pub(super) fn connect_to(mount: &MountEntry) -> Result<Self, ControlError> {
        let mountpoint = mount.mountpoint.clone();
        let (mut refused, mut is_there) = (false, false);
        for candidate in socket_candidates(mount) {
            match Self::connect_at(&candidate, mount) {
                Ok(Some(client)) => return Ok(client),
                Ok(None) => refused = true,
                Err(error) => {
                    refused |= error.kind() == io::ErrorKind::PermissionDenied;
                    is_there |= error.kind() != io::ErrorKind::NotFound;
                }
            }
        }
        let own = rustix::process::geteuid().as_raw();
        let stranger = own != 0 && mount.user_id.is_some_and(|owner| owner != own);
        if refused || stranger {
            return Err(ControlError::NotPermitted { path: mountpoint });
        }
        if !is_there && mount.is_fuse() && is_served(mountpoint.clone()) {
            return Err(out_of_reach(mountpoint));
        }
        Err(gone(mount))
    }

    /// Connects to a socket; none if another user than the mount's has made it.
    pub(super) fn connect_at(socket: &Path, mount: &MountEntry) -> io::Result<Option<Self>> {
        let stream = UnixStream::connect(socket)?;
        let maker = maker_of(&stream, mount);
        Ok(maker.map(|maker| Self {
            mount: mount.clone(),
            stream,
            maker: maker.pid,
        }))
    }

    /// The mount.
    pub const fn mount(&self) -> &MountEntry {
        &self.mount
    }

    /// Where the mount is.
    pub fn mountpoint(&self) -> &Path {
        &self.mount.mountpoint
    }

    /// Sends a request and waits for the reply. If the daemon dies meanwhile and another
    /// one takes over, it is asked again: every request may be repeated.
    ///
    /// # Errors
    /// [`ControlError::Io`]; [`ControlError::DaemonGone`] if it died and no other took over;
    /// [`ControlError::NoAnswer`] if there is no reply within the limit.
    pub fn ask(
        &mut self,
        request: &Request,
        patience: &AnswerPatience,
    ) -> Result<Reply, ControlError> {
        let mut daemons = 1;
        loop {
            let source = match self.exchange(request, patience) {
                Ok(reply) => return Ok(reply),
                Err(source) => source,
            };
            if let (io::ErrorKind::TimedOut, Some(limit)) = (source.kind(), patience.limit) {
                let daemon = self.daemon();
                return Err(ControlError::NoAnswer { daemon, limit });
            }
            if has_died(&source) && daemons < DAEMONS_MAX {
                match Self::connect_to(&self.mount) {
                    // A socket that outlives the daemon leads to its successor.
                    Ok(next) if self.is_of_same_mount(&next) => {
                        self.stream = next.stream;
                        daemons += 1;
                        continue;
                    }
                    // It died between the connection and its answer, and has no successor that
                    // commands can reach.
                    Err(
                        gone
                        @ (ControlError::DaemonGone { .. } | ControlError::SteeringGone { .. }),
                    ) => return Err(gone),
                    // What answers there now belongs to another mount.
                    _ if !self.mount.is_in_table() => return Err(gone(&self.mount)),
                    _ => {}
                }
            }
            let path = self.mount.mountpoint.clone();
            return Err(ControlError::Io { path, source });
        }
    }

    /// Whether a socket that was found later leads to a successor of this one's daemon.
    fn is_of_same_mount(&self, next: &Self) -> bool {
        // Without the process's number, the mount in the table is what says so.
        next.maker == self.maker && (self.maker.is_some() || self.mount.is_in_table())
    }

    /// The daemon in words. After a takeover its process is not known to the client.
    fn daemon(&self) -> String {
        let mountpoint = self.mount.mountpoint.display();
        let is_ours = |pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim_end() == "mobifs")
        };
        match self.maker.filter(is_ours) {
            Some(pid) => format!("process {pid}, which serves {mountpoint}"),
            None => format!("the daemon of {mountpoint}"),
        }
    }

    fn exchange(&self, request: &Request, patience: &AnswerPatience) -> io::Result<Reply> {
        let mut stream = &self.stream;
        stream.write_all(&[&serde_json::to_vec(request)?[..], b"\n"].concat())?;
        let mut reader = BufReader::new(stream);
        let mut answer = Vec::new();
        // What has come before a pause stays in `answer`.
        let read = || reader.read_until(b'\n', &mut answer);
        self.wait_patiently(patience, read)?;
        if answer.pop().is_none() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended"));
        }
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Reads from the daemon; explains why that takes long, and gives up at the limit.
    fn wait_patiently(
        &self,
        patience: &AnswerPatience,
        mut read: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let start = Instant::now();
        let mut was_explained = false;
        loop {
            let remaining = match patience
                .limit
                .map(|limit| limit.saturating_sub(start.elapsed()))
            {
                Some(Duration::ZERO) => return Err(io::ErrorKind::TimedOut.into()),
                remaining => remaining.unwrap_or(Duration::MAX),
            };
            let pause = if was_explained {
                remaining
            } else {
                remaining.min(QUIET)
            };
            let endless = pause == Duration::MAX;
            self.stream.set_read_timeout((!endless).then_some(pause))?;
            match read() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !was_explained && start.elapsed() >= QUIET {
                        was_explained = true;
                        (patience.report)(&format!("waiting for {}", self.daemon()));
                    }
                }
                done => return done,
            }
        }
    }

    /// Waits until the daemon has ended (or closed the connection for another reason); false if
    /// it has not at the limit.
    pub fn wait_for_end(&self, patience: &AnswerPatience) -> bool {
        let mut rest = [0; 64];
        loop {
            match self.wait_patiently(patience, || (&self.stream).read(&mut rest)) {
                Ok(1..) => {}
                Err(error) => return error.kind() != io::ErrorKind::TimedOut,
                Ok(0) => return true,
            }
        }
    }
}

/// The daemon of this mount does not run any more.
fn gone(mount: &MountEntry) -> ControlError {
    let path = mount.mountpoint.clone();
    if mount.is_fuse() {
        ControlError::DaemonGone { path }
    } else {
        ControlError::SteeringGone { path }
    }
}

/// A daemon lives, and has no socket where this process looks for it.
fn out_of_reach(path: PathBuf) -> ControlError {
    match mobifs_host::daemon_here(&path) {
        Some(pid) => ControlError::SocketGone { path, pid },
        None => ControlError::OutOfReach { path },
    }
}

/// How long a daemon that cannot be asked has to show that it serves its mount.
const SERVED_WAIT: Duration = Duration::from_secs(2);

/// Whether a process serves the mount: the kernel says at once that none does. A look at the mount waits for its
/// daemon, which may be stopped, so another thread looks.
fn is_served(mountpoint: PathBuf) -> bool {
    let (sender, receiver) = std::sync::mpsc::channel();
    let look = move || sender.send(rustix::fs::statfs(&mountpoint).map(drop));
    let Ok(_thread) = std::thread::Builder::new().spawn(look) else {
        return false;
    };
    let dead = [Errno::NOTCONN, Errno::CONNABORTED];
    let seen = receiver.recv_timeout(SERVED_WAIT);
    !matches!(seen, Ok(Err(errno)) if dead.contains(&errno))
}

/// The process that made the control socket of a mount, if that can be had at once. Successors of
/// that process answer on the same one.
pub(crate) fn maker_of_socket(mount: &MountEntry) -> Option<u32> {
    socket_candidates(mount).iter().find_map(|path| {
        let stream = connect_at_once(path).ok()?;
        maker_of(&stream, mount)?.pid
    })
}

/// Whether this error means that the peer has ended.
fn has_died(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// The process that made the socket, if it is of the user who mounted: in a directory that
/// others may write to, another user could have put a socket.
fn maker_of(stream: &UnixStream, mount: &MountEntry) -> Option<Peer> {
    let peer = Peer::of(stream).ok()?;
    let is_owner = mount.user_id.is_none_or(|owner| peer.user == owner);
    is_owner.then_some(peer)
}
