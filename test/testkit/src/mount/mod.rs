//! Real mounts: the `mobifs` binary, the kernel, a directory of a disk.

mod fixture;
mod model_history;
mod program;
mod scripts;

pub use mobifs_skip::why_no_mounts as obstacle;

pub use fixture::{Mount, Places, is_mounted, scratch, scratch_parent};
pub use model_history::{ModelHistory, pieces};
pub use program::{Program, printed, succeed};
pub use scripts::live_mounted;
