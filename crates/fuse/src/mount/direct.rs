//! Mounting as root.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::mount::{MountFlags, mount as mount_syscall};

use super::error::MountError;
use crate::options::{AccessTimes, MountOptions};
use crate::transport::DeviceTransport;

/// An ordinary FUSE mount.
pub(super) fn mount(
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<DeviceTransport, MountError> {
    let transport = DeviceTransport::open().map_err(MountError::Device)?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        transport.as_fd().as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if options.allows_others(true) {
        data.push_str(",allow_other");
    }
    if let Some(bytes) = options.max_read_bytes {
        data.push_str(&format!(",max_read={bytes}"));
    }
    let data = std::ffi::CString::new(data).map_err(|_| invalid(mountpoint))?;
    let kind = format!("fuse.{}", options.subtype);
    mount_syscall(
        options.source_name.as_str(),
        mountpoint,
        kind,
        mount_flags(options),
        data.as_c_str(),
    )
    .map_err(|errno| MountError::from_errno(mountpoint, errno))?;
    Ok(transport)
}

fn invalid(mountpoint: &Path) -> MountError {
    MountError::from_errno(mountpoint, rustix::io::Errno::INVAL)
}

fn mount_flags(options: &MountOptions) -> MountFlags {
    let mut flags = match options.access_times {
        AccessTimes::Relative => MountFlags::RELATIME,
        AccessTimes::Never => MountFlags::NOATIME,
        AccessTimes::Strict => MountFlags::STRICTATIME,
    };
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.no_suid);
    flags.set(MountFlags::NODEV, options.no_dev);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    flags.set(MountFlags::SYNCHRONOUS, options.synchronous);
    flags.set(MountFlags::DIRSYNC, options.synchronous_directories);
    flags.set(MountFlags::NODIRATIME, options.no_directory_access_times);
    flags
}
