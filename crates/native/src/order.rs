//! In which order a btrfs writes.

/// What steering a btrfs does not promise.
pub const ORDER_NOTE: &str = "btrfs writes content before a commit, file by file, while programs go on, \
     so a commit is not one point in time: nothing is promised, durability calls block, as without MobiFS, \
     and only when it commits is steered";
