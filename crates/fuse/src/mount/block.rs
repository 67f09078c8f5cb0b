//! Mounting as root so that `sync(2)` and `syncfs(2)` reach the daemon.
//!
//! Linux sends FUSE_SYNCFS to mounts of type `fuseblk` only (since 6.18), and those
//! need a block device. A loop device over a little memory serves; see
//! [`super::loop_device`].
//!
//! The mount table would show that device as the source. Tools that compare the
//! source with `/etc/fstab` (`mount -a`, `findmnt`) would then not recognise the
//! mount, and `fsname=` could not be honoured. The kernel shows the source *as it was
//! written*, and looks it up relative to the root directory of the thread that
//! mounts. So a thread of our own with a root directory of its own (a small memory
//! filesystem that is attached nowhere) mounts, in which the wanted name is a node of
//! the loop device.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, mkdirat, mknodat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::loop_device::LoopDevice;
use crate::options::{AccessTimes, MountOptions};
use crate::transport::DeviceTransport;

/// First release whose `fuseblk` mounts get FUSE_SYNCFS.
const RELEASE_MIN: (u32, u32) = (6, 18);

/// A `fuseblk` mount.
pub(super) fn mount(mountpoint: &Path, options: &MountOptions) -> io::Result<DeviceTransport> {
    check_release()?;
    let device = LoopDevice::new()?;
    let transport = DeviceTransport::open()?;
    // The loop device stays until the mount has it, then belongs to the mount alone.
    let detached = mount_detached(&device, &transport, options)?;
    move_mount(
        &detached,
        "",
        CWD,
        mountpoint,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?;
    Ok(transport)
}

fn check_release() -> io::Result<()> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Err(io::Error::other(format!(
            "cannot parse the kernel's version {release}"
        )));
    };
    if (major, minor) < RELEASE_MIN {
        return Err(io::Error::other(format!(
            "Linux 6.18 or newer is needed, this is {release}"
        )));
    }
    Ok(())
}

/// Makes the mount, attached nowhere yet, on a thread whose root directory can be
/// changed without affecting other threads.
fn mount_detached(
    device: &LoopDevice,
    transport: &DeviceTransport,
    options: &MountOptions,
) -> io::Result<OwnedFd> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let shown = match enter_private_root(device, &options.source_name) {
                Ok(()) => options.source_name.clone(),
                Err(error) => {
                    let device = device.path();
                    tracing::info!(%error, ?device, "the mount table will show the loop device");
                    // This thread's root is unchanged: only the last step of `enter_private_root`
                    // enters it.
                    device.to_string_lossy().into_owned()
                }
            };
            configure_and_mount(&shown, transport, options)
        });
        worker
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the mounting thread panicked")))
    })
}

/// Gives the calling thread a root directory in which `name` is a node of `device`.
fn enter_private_root(device: &LoopDevice, name: &str) -> io::Result<()> {
    let components: Vec<_> = Path::new(name)
        .components()
        .filter(|component| !matches!(component, Component::RootDir | Component::CurDir))
        .collect();
    if components.contains(&Component::ParentDir) || name.ends_with('/') {
        return Err(io::Error::other(
            "the source name is not the path of a file",
        ));
    }
    let Some((last, directories)) = components.split_last() else {
        return Err(io::Error::other("the source name is the root directory"));
    };
    // SAFETY: only this thread's root and working directory are unshared, not its
    // descriptor table.
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?;
    let mut directory = root.try_clone()?;
    for component in directories {
        let name = component.as_os_str();
        mkdirat(&directory, name, Mode::RWXU)?;
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        directory = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
    }
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(
        &directory,
        last.as_os_str(),
        FileType::BlockDevice,
        mode,
        device.number()?,
    )?;
    rustix::process::fchdir(&root)?;
    rustix::process::chroot(".")?;
    Ok(())
}

fn configure_and_mount(
    source: &str,
    transport: &DeviceTransport,
    options: &MountOptions,
) -> io::Result<OwnedFd> {
    let context = fsopen("fuseblk", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set =
        |key: &str, value: &str| -> Result<(), Errno> { fsconfig_set_string(&context, key, value) };
    set("source", source)?;
    set("subtype", &options.subtype)?;
    set("fd", &transport.as_fd().as_raw_fd().to_string())?;
    set("rootmode", "40000")?;
    set("user_id", &rustix::process::geteuid().as_raw().to_string())?;
    set("group_id", &rustix::process::getegid().as_raw().to_string())?;
    set("blksize", "4096")?;
    if let Some(bytes) = options.max_read_bytes {
        set("max_read", &bytes.to_string())?;
    }
    let flags = [
        ("default_permissions", true),
        ("allow_other", options.allows_others(true)),
        ("ro", options.read_only),
        ("sync", options.synchronous),
        ("dirsync", options.synchronous_directories),
    ];
    for (key, _) in flags.into_iter().filter(|&(_, wanted)| wanted) {
        fsconfig_set_flag(&context, key)?;
    }
    fsconfig_create(&context)?;
    Ok(fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        mount_attributes(options),
    )?)
}

fn mount_attributes(options: &MountOptions) -> MountAttrFlags {
    let mut attributes = match options.access_times {
        AccessTimes::Relative => MountAttrFlags::MOUNT_ATTR_RELATIME,
        AccessTimes::Never => MountAttrFlags::MOUNT_ATTR_NOATIME,
        AccessTimes::Strict => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
    };
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, options.no_suid);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, options.no_dev);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, options.no_exec);
    attributes.set(
        MountAttrFlags::MOUNT_ATTR_NODIRATIME,
        options.no_directory_access_times,
    );
    attributes
}
