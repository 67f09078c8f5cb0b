//! User namespaces, which may not map the owner of a file.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The map of the initial user namespace: all user ids, each to itself.
const ALL: [&str; 3] = ["0", "0", "4294967295"];

/// Whether the user namespace of this process does not map the owner of a path.
pub(crate) fn hides_owner_of(path: &Path) -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let owner = fs::symlink_metadata(path).map(|about| about.uid().to_string());
    let is_unknown = owner.is_ok_and(|owner| owner == read("/proc/sys/kernel/overflowuid").trim());
    is_unknown && !maps_all(&read("/proc/self/uid_map"))
}

fn maps_all(map: &str) -> bool {
    map.split_whitespace().eq(ALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_initial_namespace_maps_all_user_ids() {
        assert!(maps_all("         0          0 4294967295\n"));
        for other in ["", "0 1000 1\n", "0 1000 1\n1 100000 65536\n"] {
            assert!(!maps_all(other), "{other}");
        }
    }
}
