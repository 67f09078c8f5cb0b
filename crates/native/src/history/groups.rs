//! The control groups of apps, which can be made to stand still.

use std::fs;
use std::path::{Path, PathBuf};

use mobifs_host::mounts;
use mobifs_steered::is_frozen;

/// How the groups are called that `mobifs run` makes.
const PREFIX: &str = "mobifs-";
/// Units of systemd have groups of their own, which may be called so, too.
const UNITS: [&str; 5] = [".service", ".scope", ".slice", ".socket", ".mount"];
/// Groups are not nested deeper.
const DEPTH_MAX: u32 = 16;

/// The groups of apps that something is in, but for those that this process is in itself, and those
/// that another program has made stand still.
pub(super) fn groups_of_apps() -> Vec<PathBuf> {
    let mut groups = Vec::new();
    if let Some((root, own)) = hierarchy() {
        let is_other = |group: &Path| !own.starts_with(group);
        collect(&root, &is_other, DEPTH_MAX, &mut groups);
    }
    groups
}

/// Where the hierarchy is mounted, and the group of this process.
fn hierarchy() -> Option<(PathBuf, PathBuf)> {
    let mounted = mounts().ok()?;
    let mount = mounted
        .into_iter()
        .find(|mount| mount.kind == "cgroup2" && mount.root == Path::new("/"))?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let own = mount.mountpoint.join(own);
    Some((mount.mountpoint, own))
}

fn collect(
    directory: &Path,
    is_other: &dyn Fn(&Path) -> bool,
    depth: u32,
    groups: &mut Vec<PathBuf>,
) {
    let Some(depth) = depth.checked_sub(1) else {
        return;
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        let is_app = is_of_app(&entry.file_name().to_string_lossy()) && is_other(&path);
        if is_app && has("populated 1", &path) && !is_frozen(&path) {
            groups.push(path);
        } else {
            collect(&path, is_other, depth, groups);
        }
    }
}

fn is_of_app(name: &str) -> bool {
    name.starts_with(PREFIX) && !UNITS.iter().any(|unit| name.ends_with(unit))
}

/// Whether everything in it stands still, or nothing is in it any more.
pub(super) fn stands_still(group: &Path) -> bool {
    has("frozen 1", group) || !has("populated 1", group)
}

fn has(event: &str, group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_systemd_are_no_apps() {
        for name in ["mobifs-mail", "mobifs-db.sqlite", "mobifs-"] {
            assert!(is_of_app(name), "{name}");
        }
        for name in [
            "mobifs-steer@data.service",
            "mobifs-x.scope",
            "user.slice",
            "mobifs",
        ] {
            assert!(!is_of_app(name), "{name}");
        }
    }
}
