//! Extended attributes.

use mobifs_fuse::protocol::{GetXattrReply, SetXattrArgs, set_xattr, syscall};
use mobifs_fuse::{Call, Delivery};
use mobifs_volume::XattrMode;
use rustix::io::Errno;

use super::{Adapter, Outcome, fs, object};

/// Names in this namespace are shown to the privileged only.
const TRUSTED: &[u8] = b"trusted.";

impl Adapter {
    pub(super) fn get_xattr(&self, call: &Call<'_>, size: u32, name: &[u8]) -> Delivery {
        match self.volume.get_xattr(object(call), name) {
            Ok(value) => send_sized(call, size, &value),
            Err(error) => call.reply().error(fs(error)),
        }
    }

    pub(super) fn list_xattrs(&self, call: &Call<'_>, size: u32) -> Delivery {
        let names = match self.volume.list_xattrs(object(call)) {
            Ok(names) => names,
            Err(error) => return call.reply().error(fs(error)),
        };
        let mut list = Vec::new();
        for name in &names {
            // The kernel checks permission to read or write these, not to list their names.
            if call.header().uid == 0 || !name.starts_with(TRUSTED) {
                list.extend_from_slice(name);
                list.push(0);
            }
        }
        send_sized(call, size, &list)
    }

    pub(super) fn set_xattr(
        &self,
        call: &Call<'_>,
        args: &SetXattrArgs,
        name: &[u8],
        value: &[u8],
    ) -> Outcome<()> {
        const NEVER: u32 = syscall::XATTR_CREATE | syscall::XATTR_REPLACE;
        let mode = match args.flags {
            0 => XattrMode::Any,
            syscall::XATTR_CREATE => XattrMode::Create,
            syscall::XATTR_REPLACE => XattrMode::Replace,
            // Allowed, and in one of its two ways impossible.
            NEVER => {
                let there = self.volume.get_xattr(object(call), name).map_err(fs);
                return there.and(Err(Errno::EXIST));
            }
            _ => return Err(Errno::INVAL),
        };
        let kill_sgid = args.set_xattr_flags & set_xattr::ACL_KILL_SGID != 0;
        self.volume
            .set_xattr(object(call), name, value, mode, kill_sgid)
            .map_err(fs)
    }
}

/// A size of zero asks how much there is.
fn send_sized(call: &Call<'_>, size: u32, bytes: &[u8]) -> Delivery {
    let reply = call.reply();
    match usize::try_from(size) {
        // Values have at most 64 KiB and lists are bounded by the lower filesystem's
        // room for them, so the length fits.
        Ok(0) => reply.value(&GetXattrReply {
            size: bytes.len() as u32,
            padding: 0,
        }),
        Ok(size) if size >= bytes.len() => reply.bytes(bytes),
        _ => reply.error(Errno::RANGE),
    }
}
