//! Becoming the command, with a supervisor beside it.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use mobifs_steered::{
    Decisions, Device, Directory, MAPPING_FLAG_ENVIRONMENT, MappingFlag, Steered,
};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::calls::ARCHITECTURES;
use crate::filter::FilterOptions;
use crate::group::Group;
use crate::ledger::Ledger;
use crate::listener::{Listener, give_up_new_privileges, install, is_available};
use crate::supervisor::Supervisor;
use crate::supervisor_probe::is_supervised;
use crate::user_namespace::hides_owner_of;
use crate::{background, guards, preload};

/// Tells the library that every filesystem counts as steered.
const UNSAFE_ENVIRONMENT: &str = "MOBIFS_RUN_UNSAFE";
/// The name of the app, for the command and who looks at it.
const APP_ENVIRONMENT: &str = "MOBIFS_APP";

/// Whether calls for durability are heeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// They return at once on steered filesystems.
    Relaxed,
    /// They keep their meaning.
    Durable,
}

/// What decides on calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// The library where it is installed and the program loads it, the supervisor for the rest.
    Both,
    /// The library alone.
    Preload,
    /// The supervisor alone.
    Seccomp,
}

/// A command and how it is to be run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The name by which the daemon accounts.
    pub app: String,
    /// Whether calls for durability are heeded.
    pub class: Class,
    /// Every filesystem counts as steered.
    pub is_unsafe: bool,
    /// What decides on calls.
    pub mechanism: Mechanism,
    /// io_uring can be used; what it makes durable, it makes durable.
    pub allows_rings: bool,
}

/// Why a command was not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No daemon steers a filesystem.
    #[error(
        "no filesystem is steered (no daemon that runs is registered in {}), so nothing would keep the order of what \
         the command writes: start `mobifs steer MOUNTPOINT` first, run the command without `mobifs \
         run`, or use --unsafe, with which a crash can leave any mixture of old and new",
        .directory.display()
    )]
    NothingSteered {
        /// Where registrations are.
        directory: PathBuf,
    },
    /// Registrations are there, and belong to a user whom the namespace does not map.
    #[error(
        "in this user namespace the registrations of steered filesystems in {} cannot be trusted, because root, which \
         owns them, is not mapped into it: start `mobifs run` outside of the namespace, and the namespace by it (`mobifs \
         run -- unshare …`)",
        .directory.display()
    )]
    UserNamespace {
        /// Where registrations are.
        directory: PathBuf,
    },
    /// Registrations cannot be read.
    #[error("cannot look up which filesystems are steered, in {}: {source}", .directory.display())]
    Directory {
        /// Where registrations are.
        directory: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is a listener already.
    #[error(
        "this process already runs under a supervisor of system calls (another `mobifs run`, or a \
         container's), and the kernel allows only one: run the command without `mobifs run`, or \
         with `--mechanism preload`"
    )]
    Nested,
    /// There is a supervisor, and calls are to keep their meaning.
    #[error(
        "this process already runs under `mobifs run`, whose supervisor answers its calls for durability, so they \
         cannot keep their meaning: start the command outside of that `mobifs run`"
    )]
    NestedDurable,
    /// The kernel has no user notification.
    #[error(
        "this kernel cannot pass system calls to a supervisor (seccomp user notification, Linux \
         5.0): use `--mechanism preload`, which reaches dynamically linked programs only"
    )]
    NoSeccomp,
    /// The library is not there.
    #[error(
        "the library libmobifs_run.so is not installed beside this program (../lib/mobifs): install \
         it, or use `--mechanism seccomp`"
    )]
    NoLibrary,
    /// The supervisor ended before it could answer calls.
    #[error(
        "the command was not run, as its supervisor ended before it could answer calls, killed or out of \
         memory: run it again"
    )]
    SupervisorEnded,
    /// A system call failed.
    #[error("the command was not run: cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// Why it was not.
        source: io::Error,
    },
    /// The command cannot be started.
    #[error("cannot start {command}: {source}")]
    Command {
        /// The program.
        command: String,
        /// Why.
        source: io::Error,
    },
}

impl RunError {
    /// What shells exit with in this case: 127 for a command that is not there, 126 for one that
    /// cannot be run. None: it was refused, or its user asked for what does not go together.
    pub fn exit_code(&self) -> Option<u8> {
        match self {
            Self::Command { source, .. } if source.kind() == io::ErrorKind::NotFound => Some(127),
            Self::Command { .. } | Self::SupervisorEnded | Self::System { .. } => Some(126),
            _ => None,
        }
    }

    fn of(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |error| Self::System {
            what,
            source: error.into(),
        }
    }
}

impl Run {
    /// Replaces this process by the command. It must have only one thread.
    ///
    /// `report` gets sentences that say how, `warn` what the user should know in any case.
    ///
    /// # Errors
    /// The command was not started.
    pub fn exec(&self, report: &dyn Fn(&str), warn: &dyn Fn(&str)) -> Result<Infallible, RunError> {
        let mut environment = vec![(APP_ENVIRONMENT, OsString::from(&self.app))];
        if self.class == Class::Durable {
            if is_supervised() {
                return Err(RunError::NestedDurable);
            }
            // An outer command may have brought the library.
            if let Some(list) = std::env::var_os("LD_PRELOAD") {
                environment.push(("LD_PRELOAD", preload::without_library(&list)));
            }
            report("calls for durability keep their meaning");
            let _watcher = Group::enter_watched(&self.app);
            return self.become_command(&environment);
        }
        let directory = Directory::from_environment();
        if !self.is_unsafe
            && let Some(warning) = check_promises(&directory)?
        {
            warn(&warning);
        }
        let library = self.library(report)?;
        if let Some(library) = &library {
            let before = std::env::var_os("LD_PRELOAD");
            let list = preload::with_library(library, before.as_deref());
            environment.push(("LD_PRELOAD", list));
        }
        environment.push((
            UNSAFE_ENVIRONMENT,
            if self.is_unsafe { "1" } else { "" }.into(),
        ));
        let _watcher = if self.mechanism == Mechanism::Preload {
            Group::enter_watched(&self.app)
        } else {
            let mappings = self.install_supervisor(directory, report)?;
            environment.push((MAPPING_FLAG_ENVIRONMENT, mappings));
            None
        };
        self.become_command(&environment)
    }

    fn library(&self, report: &dyn Fn(&str)) -> Result<Option<std::path::PathBuf>, RunError> {
        if self.mechanism == Mechanism::Seccomp {
            return Ok(None);
        }
        let library = preload::library();
        match &library {
            Some(library) => report(&format!(
                "dynamically linked programs load {}",
                library.display()
            )),
            None if self.mechanism == Mechanism::Preload => return Err(RunError::NoLibrary),
            None => {
                report("libmobifs_run.so is not installed: the supervisor decides on all calls")
            }
        }
        Ok(library)
    }

    /// Returns the address of its [`MappingFlag`].
    fn install_supervisor(
        &self,
        directory: Directory,
        report: &dyn Fn(&str),
    ) -> Result<OsString, RunError> {
        if ARCHITECTURES.is_empty() || !is_available() {
            return Err(RunError::NoSeccomp);
        }
        let decisions = if self.is_unsafe {
            Decisions::for_all()
        } else {
            Decisions::by(directory.clone())
        };
        let supervisor = background::spawn(|socket| supervise(socket, decisions, directory));
        let supervisor = supervisor.map_err(RunError::of("start a supervisor"))?;
        let options = FilterOptions {
            refuses_rings: !self.allows_rings,
            skips_everything: self.is_unsafe,
        };
        let installed = match install(options) {
            Err(Errno::ACCESS) => {
                report("no_new_privs is set: programs cannot get more rights (sudo, set-uid)");
                give_up_new_privileges().map_err(RunError::of("set no_new_privs"))?;
                install(options)
            }
            result => result,
        };
        let (listener, calls_are_kept) = installed.map_err(|error| match error {
            Errno::BUSY => RunError::Nested,
            Errno::INVAL | Errno::NOSYS => RunError::NoSeccomp,
            error => RunError::of("install a seccomp filter")(error),
        })?;
        // Only now: a command that is refused leaves no group.
        let group = Group::enter(&self.app);
        let path = group.as_ref().map(|group| group.path().as_os_str());
        let path = path.unwrap_or_default().to_owned();
        hand_over(&supervisor, &listener, calls_are_kept, &path).map_err(|error| {
            if let Some(group) = group {
                group.leave();
            }
            match error {
                Errno::CONNRESET | Errno::PIPE => RunError::SupervisorEnded,
                error => RunError::of("reach the supervisor")(error),
            }
        })
    }

    fn become_command(&self, environment: &[(&str, OsString)]) -> Result<Infallible, RunError> {
        let failed = |source| RunError::Command {
            command: self
                .command
                .first()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            source,
        };
        let words: Result<Vec<CString>, _> =
            self.command.iter().map(|word| c_string(word)).collect();
        let words = words.map_err(failed)?;
        let others = std::env::vars_os().filter(|(name, _)| {
            environment
                .iter()
                .all(|(set, _)| name.as_os_str() != OsStr::new(set))
        });
        let set = environment.iter().filter(|(_, value)| !value.is_empty());
        let set = set.map(|(name, value)| (OsString::from(name), value.clone()));
        let variables: Result<Vec<CString>, _> = others
            .chain(set)
            .map(|(mut name, value)| {
                name.push("=");
                name.push(value);
                c_string(&name)
            })
            .collect();
        let error = exec(&words, &variables.map_err(failed)?);
        Err(failed(error))
    }
}

/// Refuses to run a command where no filesystem is steered. What there is to warn of, if no promise
/// holds at present.
fn check_promises(directory: &Directory) -> Result<Option<String>, RunError> {
    let steered = directory.list().map_err(|error| RunError::Directory {
        directory: directory.path().to_owned(),
        source: error.into(),
    })?;
    if steered.iter().any(Steered::is_in_force) {
        return Ok(None);
    }
    if steered.is_empty() {
        let directory = directory.path().to_owned();
        return Err(if hides_owner_of(&directory) {
            RunError::UserNamespace { directory }
        } else {
            RunError::NothingSteered { directory }
        });
    }
    let places: Vec<String> = steered.iter().map(|one| name_of(one.device())).collect();
    Ok(Some(format!(
        "at present calls for durability wait on every filesystem that is steered ({}): `mobifs status` \
         of each says why",
        places.join(", ")
    )))
}

/// A mount point of a filesystem, else its device.
fn name_of(device: Device) -> String {
    let mounts = mobifs_host::mounts().unwrap_or_default();
    let is_it = |mount: &&mobifs_host::MountEntry| {
        (mount.device_major, mount.device_minor) == (device.major, device.minor)
    };
    let mount = mounts.iter().find(is_it);
    mount.map_or_else(
        || format!("the filesystem {device}"),
        |mount| mount.mountpoint.display().to_string(),
    )
}

fn c_string(word: &OsStr) -> io::Result<CString> {
    Ok(CString::new(word.as_bytes())?)
}

/// Returns only if it fails.
fn exec(words: &[CString], variables: &[CString]) -> io::Error {
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        let pointers = list.iter().map(|word| word.as_ptr());
        pointers.chain([std::ptr::null()]).collect()
    };
    let (words, variables) = (pointers(words), pointers(variables));
    let Some(&program) = words.first().filter(|program| !program.is_null()) else {
        return io::ErrorKind::InvalidInput.into();
    };
    // SAFETY: both lists end with a null pointer, and their strings live until the call returns. Rust
    // ignores SIGPIPE before main begins; the default is what most programs expect.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::execvpe(program, words.as_ptr(), variables.as_ptr());
    }
    io::Error::last_os_error()
}

/// The supervisor's whole life. It ends if it gets no listener.
fn supervise(socket: OwnedFd, decisions: Decisions, directory: Directory) {
    // Where there is no flag, the library in the programs finds none, and looks at each call. The
    // programs find it as long as this process, the outer guard, has its file open.
    let (flag, _file, address) = match MappingFlag::create() {
        Ok((flag, file, address)) => (Some(flag), Some(file), address),
        Err(_) => (None, None, NO_FLAG.to_owned()),
    };
    let Ok(ledger) = Ledger::create() else {
        return;
    };
    let Ok((listener, calls_are_kept, path)) = receive(&socket) else {
        return;
    };
    let listener = Listener::new(listener, ledger);
    let supervisor = Supervisor::new(listener, decisions, directory, calls_are_kept, flag);
    // The command begins when a worker answers, and not before: whichever of the processes is killed until
    // then, either another one takes its place, or the socket closes and the command is not run.
    guards::serve(&Arc::new(supervisor), &|| begin(&socket, &address));
    if !path.is_empty() {
        Group::at(path.into()).remove();
    }
}

/// In the place of an address.
const NO_FLAG: &str = "-";
const ADDRESS_BYTES_MAX: usize = 256;
const PATH_BYTES_MAX: usize = 4096;

/// Gives the supervisor the listener, and waits until it answers calls. What it answers is the address of its
/// flag.
pub(crate) fn hand_over(
    supervisor: &OwnedFd,
    listener: &OwnedFd,
    calls_are_kept: bool,
    path: &OsStr,
) -> Result<OsString, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [listener.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flag = [u8::from(calls_are_kept)];
    let path = path.as_bytes();
    let path = if path.len() < PATH_BYTES_MAX {
        path
    } else {
        b""
    };
    let message = [IoSlice::new(&flag), IoSlice::new(path)];
    sendmsg(supervisor, &message, &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut answer = [0; ADDRESS_BYTES_MAX];
    match rustix::io::read(supervisor, &mut answer)? {
        0 => Err(Errno::CONNRESET),
        length => Ok(OsStr::from_bytes(answer.get(..length).unwrap_or_default()).to_owned()),
    }
}

/// The supervisor's side: the listener, whether calls are kept that it has received, and the path of the group.
pub(crate) fn receive(socket: &OwnedFd) -> Result<(OwnedFd, bool, OsString), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let (mut flag, mut path) = ([0], [0; PATH_BYTES_MAX]);
    let mut message = [IoSliceMut::new(&mut flag), IoSliceMut::new(&mut path)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut message, &mut ancillary, flags)?;
    let listener = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let listener = listener.ok_or(Errno::BADMSG)?;
    let path = path.get(..received.bytes.saturating_sub(1)).unwrap_or(&[]);
    Ok((listener, flag == [1], OsString::from_vec(path.to_vec())))
}

/// Tells who has handed over that calls are answered from now on. A worker that comes later says so to no one.
pub(crate) fn begin(socket: &OwnedFd, address: &str) {
    let _none_waits = rustix::io::write(socket, address.as_bytes());
}
