//! Real mounts: the `mobifs` binary, the kernel, a directory of a disk.

mod fixture;
mod program;
mod scripts;
mod witness;

pub use mobifs_skip::why_no_mounts as obstacle;

pub use fixture::{Mount, Places, is_mounted};
pub use program::{Program, printed, succeed};
pub use scripts::live_mounted;
pub use witness::{Witness, pieces};
