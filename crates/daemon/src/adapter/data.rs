//! File content.

use mobifs_base::{ObjectId, S_ISGID};
use mobifs_fuse::protocol::{
    CopyFileRangeArgs, FallocateArgs, LseekArgs, LseekReply, ReadArgs, WriteArgs, WriteReply,
    syscall, write,
};
use mobifs_fuse::{Call, Delivery};
use mobifs_volume::{AllocateMode, AttributeChange, FsError, SetIdBits, Whence, WriteAt};
use rustix::io::Errno;

use super::set_id::{has_set_id, is_in_group};
use super::{Adapter, Outcome, caller, fs, object};

/// Most that one COPY_FILE_RANGE copies: enough to be worth the request, little enough that the
/// worker is soon free again. Callers repeat the call for the rest.
const COPY_BYTES_MAX: u64 = 8 << 20;

impl Adapter {
    pub(super) fn read(&self, call: &Call<'_>, args: &ReadArgs, scratch: &mut [u8]) -> Delivery {
        let Some(out) = scratch.get_mut(..args.size as usize) else {
            // Larger than was negotiated.
            return call.reply().error(Errno::INVAL);
        };
        let (object, offset) = (object(call), args.offset);
        let read = if args.flags & syscall::O_NOATIME != 0 {
            self.volume.read_unnoticed(object, offset, out)
        } else {
            self.volume.read(object, offset, out)
        };
        match read {
            Ok(bytes) => call.reply().bytes(&out[..bytes]),
            Err(error) => call.reply().error(fs(error)),
        }
    }

    pub(super) fn write(
        &self,
        call: &Call<'_>,
        args: &WriteArgs,
        data: &[u8],
    ) -> Outcome<WriteReply> {
        let object = object(call);
        let kill = args.write_flags & write::KILL_SUIDGID != 0;
        let sync = args.flags & syscall::O_DSYNC != 0;
        // Always at the offset: the kernel resolved O_APPEND already, and for a page written back
        // late the flags are those of any program that has the file open.
        let at = WriteAt::Offset(args.offset);
        let set_id = self.set_id_bits(call, object, kill);
        // Two calls of the volume, the second of which can be repeated: see [`super::in_flight`].
        let was_set_id = kill && self.is_inherited_set_id(object);
        let written = self
            .volume
            .write(object, at, data, set_id, sync)
            .map_err(fs)?;
        if kill {
            self.set_id_lost(call, object, was_set_id);
        }
        // At most the size of the request, which fits.
        Ok(WriteReply {
            size: written as u32,
            padding: 0,
        })
    }

    pub(super) fn seek(&self, call: &Call<'_>, args: &LseekArgs) -> Outcome<LseekReply> {
        let whence = match args.whence {
            syscall::SEEK_DATA => Whence::Data,
            syscall::SEEK_HOLE => Whence::Hole,
            _ => return Err(Errno::INVAL),
        };
        let offset = self
            .volume
            .seek(object(call), args.offset, whence)
            .map_err(fs)?;
        Ok(LseekReply { offset })
    }

    pub(super) fn allocate(&self, call: &Call<'_>, args: &FallocateArgs) -> Outcome<()> {
        const KEEP: u32 = syscall::FALLOC_KEEP_SIZE;
        let keep_size = args.mode & KEEP != 0;
        let mode = match args.mode & !KEEP {
            0 => AllocateMode::Allocate { keep_size },
            syscall::FALLOC_PUNCH_HOLE if keep_size => AllocateMode::PunchHole,
            syscall::FALLOC_ZERO_RANGE => AllocateMode::ZeroRange { keep_size },
            _ => return Err(Errno::OPNOTSUPP),
        };
        let object = object(call);
        self.volume
            .allocate(object, mode, args.offset, args.length)
            .map_err(fs)?;
        self.content_changed(call, object)
    }

    pub(super) fn copy_range(&self, call: &Call<'_>, args: &CopyFileRangeArgs) -> Outcome<u64> {
        let target = ObjectId(args.node_out);
        let length = args.length.min(COPY_BYTES_MAX);
        // With the copy in one change, so that a successor finds both changes or neither.
        let kill = call.header().uid != 0;
        let was_set_id = kill && self.is_inherited_set_id(target);
        let copied = self
            .volume
            .copy_range(
                object(call),
                args.offset_in,
                target,
                args.offset_out,
                length,
                self.set_id_bits(call, target, kill),
            )
            .map_err(fs)?;
        if kill {
            self.set_id_lost(call, target, was_set_id);
        }
        Ok(copied as u64)
    }

    /// Neither this request nor a copy says whether the set-id bits must go. They must
    /// unless the caller is privileged; root is the nearest that can be known.
    pub(super) fn content_changed(&self, call: &Call<'_>, object: ObjectId) -> Outcome<()> {
        if call.header().uid == 0 {
            return Ok(());
        }
        let was_set_id = self.is_inherited_set_id(object);
        if !was_set_id && !self.set_id_files.contains(object) {
            return Ok(());
        }
        let change = AttributeChange {
            set_id: self.set_id_bits(call, object, true),
            ..AttributeChange::default()
        };
        match self
            .volume
            .set_attributes(&caller(call, 0), object, &change)
        {
            Ok(_) | Err(FsError::Stale) => {}
            Err(error) => return Err(fs(error)),
        }
        self.set_id_lost(call, object, was_set_id);
        Ok(())
    }

    /// What becomes of a file's set-id bits if they `go`. The kernel lets the daemon find out
    /// whether the caller is in the file's group.
    pub(super) fn set_id_bits(&self, call: &Call<'_>, object: ObjectId, go: bool) -> SetIdBits {
        const GROUP_EXECUTE: u16 = 0o010;
        if !go {
            return SetIdBits::Stay;
        }
        // Asked for with every write of an unprivileged caller.
        let is_known = self.set_id_files.is_inherited() || self.set_id_files.contains(object);
        if !is_known || call.header().uid == 0 {
            return SetIdBits::Go;
        }
        match self.volume.attributes(object) {
            Ok(node)
                if node.attributes.mode & (S_ISGID | GROUP_EXECUTE) == S_ISGID
                    && !is_in_group(call.header(), node.attributes.gid) =>
            {
                SetIdBits::BothGo
            }
            _ => SetIdBits::Go,
        }
    }

    /// Whether a predecessor may have shown the kernel set-id bits of a file.
    fn is_inherited_set_id(&self, object: ObjectId) -> bool {
        let has_bits = || {
            self.volume
                .attributes(object)
                .is_ok_and(|node| has_set_id(&node))
        };
        self.set_id_files.is_inherited() && has_bits()
    }

    /// Makes the kernel see that a file has lost its set-id bits, if it has seen any.
    /// `inherited`: it may have seen them from a predecessor.
    fn set_id_lost(&self, call: &Call<'_>, object: ObjectId, inherited: bool) {
        if self.set_id_files.remove(object) || inherited {
            call.invalidate_attributes(object.0);
        }
    }
}
