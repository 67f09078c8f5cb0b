//! Mounting as an ordinary user, through the setuid program `fusermount3`: it mounts
//! and hands back the `/dev/fuse` descriptor over a socket.

use std::fs::File;
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use super::error::{MountError, UnmountError};
use crate::options::{AccessTimes, MountOptions};
use crate::transport::{DEVICE, DeviceTransport};

const PROGRAM: &str = "fusermount3";

/// Mounts through the helper.
pub(super) fn mount(
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<DeviceTransport, MountError> {
    let handshake = |errno| MountError::Handshake(errno);
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(handshake)?;
    // The helper's end of the socket is its standard input: that way it is the only
    // descriptor that crosses, and no other child of this process can inherit it.
    let mut child = Command::new(PROGRAM)
        .arg("-o")
        .arg(option_list(options))
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| spawn_error(mountpoint, &error))?;
    let device = receive_descriptor(&ours);
    let mut complaint = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // What cannot be read is missing from a message, nothing more.
        let _ = stderr.read_to_string(&mut complaint);
    }
    let status = child.wait().map_err(|source| MountError::Mountpoint {
        path: mountpoint.to_owned(),
        source,
    })?;
    match device {
        Ok(Some(device)) if status.success() => {
            DeviceTransport::from_descriptor(device).map_err(MountError::Device)
        }
        Err(errno) => Err(handshake(errno)),
        Ok(_) => Err(MountError::FusermountRefused(one_line(&complaint))),
    }
}

/// Whether the helper is there and may do what it is there for.
///
/// # Errors
/// [`MountError`]: why no mount can be made through it.
pub(super) fn check() -> Result<(), MountError> {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let program = std::env::split_paths(&directories)
        .map(|directory| directory.join(PROGRAM))
        .find(|program| program.is_file())
        .ok_or(MountError::FusermountMissing)?;
    if !has_roots_rights(&program) {
        return Err(MountError::FusermountPowerless(program));
    }
    check_device(Path::new(DEVICE))
}

/// Whether a program runs with root's rights, or with some of them.
fn has_roots_rights(program: &Path) -> bool {
    let is_set_uid = program
        .metadata()
        .is_ok_and(|about| about.uid() == 0 && about.mode() & 0o4000 != 0);
    let capabilities = rustix::fs::getxattr(program, "security.capability", &mut [0_u8; 64]);
    is_set_uid || capabilities.is_ok()
}

/// The helper opens the device with the user's rights.
fn check_device(device: &Path) -> Result<(), MountError> {
    let opened = File::options().read(true).write(true).open(device);
    match opened {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let about = device.metadata().map_err(MountError::Device)?;
            let mode = about.mode() & 0o7777;
            Err(MountError::DeviceNotPermitted { mode })
        }
        Err(error) => Err(MountError::Device(error)),
        Ok(_) => Ok(()),
    }
}

fn spawn_error(mountpoint: &Path, error: &std::io::Error) -> MountError {
    if error.kind() == std::io::ErrorKind::NotFound {
        return MountError::FusermountMissing;
    }
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    MountError::from_errno(mountpoint, errno)
}

/// The descriptor that the helper sends; none if it goes away without.
fn receive_descriptor(socket: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(_) => break,
        }
    }
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// The options for the helper. It knows fewer options than `mount(2)`, so what is the
/// default anyway is not mentioned.
fn option_list(options: &MountOptions) -> String {
    let mut list = vec![
        format!("fsname={}", escape(&options.source_name)),
        format!("subtype={}", escape(&options.subtype)),
        "default_permissions".to_owned(),
    ];
    let mut add_if = |wanted: bool, option: &str| {
        if wanted {
            list.push(option.to_owned());
        }
    };
    add_if(options.allows_others(false), "allow_other");
    add_if(options.read_only, "ro");
    add_if(options.no_suid, "nosuid");
    add_if(options.no_dev, "nodev");
    add_if(options.no_exec, "noexec");
    add_if(options.synchronous, "sync");
    add_if(options.synchronous_directories, "dirsync");
    add_if(options.access_times == AccessTimes::Never, "noatime");
    if let Some(bytes) = options.max_read_bytes {
        list.push(format!("max_read={bytes}"));
    }
    list.join(",")
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

fn one_line(complaint: &str) -> String {
    let line = complaint.trim().replace('\n', "; ");
    line.trim_start_matches("fusermount3: ").to_owned()
}

/// Unmounts through the helper.
pub(super) fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), UnmountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(mountpoint)
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => UnmountError::FusermountMissing,
        _ => UnmountError::FusermountRefused(error.to_string()),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = one_line(&String::from_utf8_lossy(&output.stderr));
    let path = mountpoint.to_owned();
    Err(if complaint.contains("busy") {
        UnmountError::Busy(path)
    } else if complaint.contains("not found in") || complaint.contains("not mounted") {
        UnmountError::NotMounted(path)
    } else {
        UnmountError::FusermountRefused(complaint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_with_roots_rights_is_seen() {
        use std::os::unix::fs::PermissionsExt as _;
        let program = tempfile::NamedTempFile::new().unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(program.path(), std::fs::Permissions::from_mode(mode))
                .unwrap();
            has_roots_rights(program.path())
        };
        let is_roots = program.path().metadata().unwrap().uid() == 0;
        assert!(!with_mode(0o755));
        assert_eq!(with_mode(0o4755), is_roots);
        assert!(!has_roots_rights(Path::new("/absent")));
    }

    #[test]
    fn a_missing_device_and_one_that_is_not_permitted_have_errors_of_their_own() {
        assert!(matches!(
            check_device(Path::new("/absent/fuse")),
            Err(MountError::Device(_))
        ));
        check_device(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn a_comma_in_a_name_does_not_become_an_option() {
        let options = MountOptions {
            source_name: "a,suid\\".to_owned(),
            ..MountOptions::default()
        };
        let expected = "fsname=a\\,suid\\\\,subtype=mobifs,default_permissions";
        assert_eq!(option_list(&options), expected);
    }

    #[test]
    fn a_helper_that_dies_without_a_descriptor_is_noticed() {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        drop(theirs);
        assert!(receive_descriptor(&ours).unwrap().is_none());
    }
}
