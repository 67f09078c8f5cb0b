//! Real mounts: the `mobifs` binary, the kernel, a directory of a disk.

mod fixture;
mod program;
mod scripts;
mod witness;

use std::path::Path;

pub use fixture::{Mount, Places, is_mounted};
pub use program::{Program, printed, succeed};
pub use scripts::live_mounted;
pub use witness::{Witness, pieces};

/// Why no mount can be made here, if so.
pub fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    (!Path::new("/dev/fuse").exists()).then_some("no /dev/fuse")
}
