//! Attributes of objects and of the filesystem.

use mobifs_base::{MODE_MASK, Timestamp};
use mobifs_fuse::Call;
use mobifs_fuse::protocol::{SetAttrArgs, StatFsReply, set_attr};
use mobifs_volume::{AttributeChange, Node, SetIdBits, TimeChange};

use super::{Adapter, Outcome, caller, fs, object};

impl Adapter {
    pub(super) fn set_attributes(&self, call: &Call<'_>, args: &SetAttrArgs) -> Outcome<Node> {
        let change = AttributeChange {
            set_id: self.set_id_bits(call, object(call), takes_set_id(args)),
            ..attribute_change(args)
        };
        let changed = self
            .volume
            .set_attributes(&caller(call, 0), object(call), &change);
        // A rollback journal may have been cut off, and that not be durable.
        if changed.is_err() && change.size.is_some() {
            call.invalidate_attributes(object(call).0);
        }
        changed.map_err(fs)
    }

    pub(super) fn stat_fs(&self) -> Outcome<StatFsReply> {
        let space = self.volume.statfs().map_err(fs)?;
        let block_bytes = space.block_bytes.max(1);
        Ok(StatFsReply {
            blocks: space.total_bytes / block_bytes,
            blocks_free: space.free_bytes / block_bytes,
            blocks_available: space.available_bytes / block_bytes,
            files: space.total_inodes,
            files_free: space.free_inodes,
            block_bytes: u32::try_from(block_bytes).unwrap_or(u32::MAX),
            name_bytes_max: self.volume.name_bytes_max() as u32,
            fragment_bytes: u32::try_from(block_bytes).unwrap_or(u32::MAX),
            ..StatFsReply::default()
        })
    }
}

fn attribute_change(args: &SetAttrArgs) -> AttributeChange {
    let given = |flag: u32| args.valid & flag != 0;
    let time = |is_given: u32, is_now: u32, seconds: i64, ns: u32| {
        if given(is_now) {
            Some(TimeChange::Now)
        } else {
            given(is_given).then(|| TimeChange::At(Timestamp::new(seconds, ns)))
        }
    };
    AttributeChange {
        mode: given(set_attr::MODE).then_some(args.mode as u16 & MODE_MASK),
        uid: given(set_attr::UID).then_some(args.uid),
        gid: given(set_attr::GID).then_some(args.gid),
        size: given(set_attr::SIZE).then_some(args.size),
        atime: time(
            set_attr::ATIME,
            set_attr::ATIME_NOW,
            args.atime,
            args.atime_ns,
        ),
        mtime: time(
            set_attr::MTIME,
            set_attr::MTIME_NOW,
            args.mtime,
            args.mtime_ns,
        ),
        ctime: given(set_attr::CTIME).then(|| Timestamp::new(args.ctime, args.ctime_ns)),
        set_id: SetIdBits::Stay,
    }
}

/// Whether the set-id bits must go. A change of owner takes them in any case; the kernel says
/// so only for a change of size, where it depends on the caller. The kernel sends a request that
/// changes nothing where it has decided that the bits must go: for a chown to the owner that a file
/// has, and before a fallocate or a copy by a caller that may not leave them.
fn takes_set_id(args: &SetAttrArgs) -> bool {
    const OWNER: u32 = set_attr::UID | set_attr::GID;
    args.valid & (OWNER | set_attr::KILL_SUIDGID) != 0 || args.valid & set_attr::CHANGES == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_marked_valid_changes() {
        let args = SetAttrArgs {
            valid: set_attr::MODE | set_attr::MTIME | set_attr::ATIME | set_attr::ATIME_NOW,
            mode: 0o100_644,
            uid: 5,
            size: 9,
            mtime: -3,
            mtime_ns: 7,
            ..SetAttrArgs::default()
        };
        let expected = AttributeChange {
            mode: Some(0o644),
            atime: Some(TimeChange::Now),
            mtime: Some(TimeChange::At(Timestamp::new(-3, 7))),
            ..AttributeChange::default()
        };
        assert_eq!(attribute_change(&args), expected);
    }

    #[test]
    fn a_change_of_nothing_takes_the_set_id_bits() {
        for valid in [0, set_attr::CTIME] {
            let args = SetAttrArgs {
                valid,
                ..SetAttrArgs::default()
            };
            assert!(takes_set_id(&args), "{valid:#x}");
        }
        let of_mode = SetAttrArgs {
            valid: set_attr::MODE | set_attr::CTIME,
            ..SetAttrArgs::default()
        };
        assert!(!takes_set_id(&of_mode));
    }

    #[test]
    fn a_new_owner_takes_the_set_id_bits() {
        let args = SetAttrArgs {
            valid: set_attr::GID,
            ..SetAttrArgs::default()
        };
        assert!(takes_set_id(&args));
    }
}
