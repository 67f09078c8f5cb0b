//! Whether a file's content is part of the journal's transactions.

use std::os::fd::AsFd;

use rustix::fs::IFlags;
use rustix::fs::ioctl_getflags;

/// `FS_ENCRYPT_FL`: ext4 journals no content that it encrypts, whatever the other flag says.
const ENCRYPTED: u32 = 0x800;

/// Whether an open file or directory has the flag `FS_JOURNAL_DATA_FL`, and the flag has its effect.
pub fn is_journalled(file: impl AsFd) -> bool {
    ioctl_getflags(file)
        .is_ok_and(|flags| flags.contains(IFlags::JOURNALING) && flags.bits() & ENCRYPTED == 0)
}
