//! What a user can do so that a filesystem can be steered.

use std::path::Path;

/// Whether the machine runs from this filesystem, which then cannot be unmounted.
pub(super) fn is_root(mountpoint: &Path) -> bool {
    mountpoint == Path::new("/")
}

/// How a command finds a filesystem that may not be mounted.
pub(crate) fn unmounted(mountpoint: &Path) -> &'static str {
    if is_root(mountpoint) {
        "from a rescue system, as the machine runs from it"
    } else {
        "unmounted"
    }
}

/// A journal can be added to a filesystem that is mounted, and is used from the next mount on.
pub(super) fn how_to_add_a_journal(mountpoint: &Path, device: &str, mib: u64) -> String {
    if is_root(mountpoint) {
        return format!(
            "`tune2fs -J size={mib} {device}` and `tune2fs -o journal_data {device}` (or `rootflags=data=journal` on \
             the kernel's command line), then restart the machine"
        );
    }
    format!("unmount it, `tune2fs -J size={mib} {device}`, and mount it with data=journal")
}

/// How to get a mount option that no remount can set.
pub(crate) fn how_to_mount_with(mountpoint: &Path, option: &str) -> String {
    let path = mountpoint.display();
    if is_root(mountpoint) {
        return format!(
            "put `rootflags={option}` on the kernel's command line and {option} into /etc/fstab, and restart \
             the machine"
        );
    }
    format!("unmount {path} and mount it with `-o {option}`, in /etc/fstab as well")
}
