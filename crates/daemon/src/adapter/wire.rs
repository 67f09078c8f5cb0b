//! Flags of requests and forms of answers that the protocol has more than one of.

use mobifs_fuse::protocol::{CopyFileRangeReply, WriteReply, syscall};
use mobifs_fuse::{Delivery, Reply};
use mobifs_volume::{Caller, RenameMode};
use rustix::io::Errno;

/// What a rename does if its target exists, and what it leaves.
pub(super) const fn rename_mode(flags: u32, caller: Caller) -> Result<RenameMode, Errno> {
    // Both at once: the kernel has looked the name up, and locks it until the request is answered.
    const WHITEOUT_OF_NEW_NAME: u32 = syscall::RENAME_WHITEOUT | syscall::RENAME_NOREPLACE;
    match flags {
        0 => Ok(RenameMode::Replace),
        syscall::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        syscall::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        syscall::RENAME_WHITEOUT | WHITEOUT_OF_NEW_NAME => Ok(RenameMode::Whiteout(caller)),
        _ => Err(Errno::INVAL),
    }
}

/// The two forms of the request need two forms of the answer.
pub(super) fn send_copied(reply: Reply<'_>, bytes: u64, wide: bool) -> Delivery {
    if wide {
        reply.value(&CopyFileRangeReply {
            bytes_copied: bytes,
        })
    } else {
        // At most `COPY_BYTES_MAX`.
        reply.value(&WriteReply {
            size: bytes as u32,
            padding: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_make_no_sense_together_are_refused() {
        let caller = Caller {
            uid: 7,
            ..Caller::default()
        };
        let mode = |flags| rename_mode(flags, caller);
        assert_eq!(mode(0), Ok(RenameMode::Replace));
        assert_eq!(mode(1), Ok(RenameMode::NoReplace));
        assert_eq!(mode(2), Ok(RenameMode::Exchange));
        assert_eq!(mode(4), Ok(RenameMode::Whiteout(caller)));
        assert_eq!(mode(5), Ok(RenameMode::Whiteout(caller)));
        for flags in [3, 6, 7, 8, u32::MAX] {
            assert_eq!(mode(flags), Err(Errno::INVAL));
        }
    }
}
