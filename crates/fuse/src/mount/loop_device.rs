//! Loop block devices: over a file, and over a few kilobytes of memory.
//!
//! The latter because the kernel sends `sync(2)` and `syncfs(2)` only to FUSE mounts that
//! have a block device. Nothing is ever read from or written to that one.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl};
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// Size of the device over memory: no filesystem lives on it, but it must not be empty.
const DEVICE_BYTES: u64 = 64 * 1024;
/// How often another process may take a free device before this one does.
const ATTEMPTS_MAX: usize = 16;

const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Room in `LoopInfo` for a name and the NUL after it.
const NAME_BYTES: usize = 64;

/// `struct loop_info64`.
#[derive(FromZeros, IntoBytes, Immutable)]
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[derive(FromZeros, IntoBytes, Immutable)]
#[repr(C)]
struct LoopConfig {
    descriptor: u32,
    block_bytes: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `LOOP_CTL_GET_FREE`: takes nothing, returns the number of a free device.
struct GetFree;

// SAFETY: the kernel takes no pointer for this request and writes no memory; the
// number is the call's own return value.
unsafe impl Ioctl for GetFree {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

/// A device in use. It disappears by itself when the last user (this value, or the mount) closes
/// it, also when the process is killed.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    device: File,
}

impl LoopDevice {
    /// Sets one up over memory.
    pub(super) fn new() -> std::io::Result<Self> {
        let memory = memfd_create("mobifs", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, DEVICE_BYTES)?;
        let memory = File::from(memory);
        Self::set_up(&memory, b"mobifs: lets sync(2) reach a mount", 0)
    }

    /// Sets one up over `file`, past the page cache: requests to the device reach the
    /// file at once and side by side. `shown_name` is what `losetup(8)` lists.
    ///
    /// # Errors
    /// If this process may not, or the kernel has no loop devices.
    pub fn over_file(file: &File, shown_name: &[u8]) -> std::io::Result<Self> {
        Self::set_up(file, shown_name, LO_FLAGS_DIRECT_IO)
    }

    fn set_up(file: &File, shown_name: &[u8], flags: u32) -> std::io::Result<Self> {
        let control = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/loop-control")?;
        let mut last_error = Errno::BUSY;
        for _ in 0..ATTEMPTS_MAX {
            // SAFETY: `GetFree` describes this request of the loop control device.
            let number = unsafe { ioctl(&control, GetFree) }?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            match configure(&device, file, shown_name, flags) {
                Ok(()) => return Ok(Self { path, device }),
                // Another program has taken the loop device between the two calls.
                Err(Errno::BUSY) => last_error = Errno::BUSY,
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(last_error.into())
    }

    /// Path of the device node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device's number.
    pub(super) fn number(&self) -> rustix::io::Result<u64> {
        Ok(rustix::fs::fstat(&self.device)?.st_rdev)
    }
}

fn configure(device: &File, file: &File, shown_name: &[u8], flags: u32) -> Result<(), Errno> {
    let mut config = LoopConfig::new_zeroed();
    config.descriptor = u32::try_from(file.as_raw_fd()).map_err(|_| Errno::BADF)?;
    config.info.flags = LO_FLAGS_AUTOCLEAR | flags;
    let shown = &shown_name[..shown_name.len().min(NAME_BYTES - 1)];
    config.info.file_name[..shown.len()].copy_from_slice(shown);
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, which `LoopConfig`
    // mirrors, and writes nothing.
    unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<LoopInfo>(), size_of::<LoopConfig>()), (232, 304));
    }
}
