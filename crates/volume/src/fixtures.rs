//! What tests of several modules make.

use mobifs_base::{DeviceNumber, FileKind};
use mobifs_engine::NodeSpec;

/// A new object with the usual permissions.
pub(crate) const fn node(kind: FileKind) -> NodeSpec<'static> {
    NodeSpec {
        kind,
        mode: 0o755,
        rdev: DeviceNumber(0),
        symlink_target: None,
    }
}
