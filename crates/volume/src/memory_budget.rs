//! How much memory a mount may use for what is not committed.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// Never more than this unless it is configured.
const BUDGET_BYTES_MAX: u64 = 2 << 30;
/// Never less: a single large operation must fit.
const BUDGET_BYTES_MIN: u64 = 16 << 20;

/// A quarter of the memory there is (of the machine, of the control group that the process lives
/// in, or within the limits of the process), at most 2 GiB.
pub(crate) fn default_bytes() -> u64 {
    let total = machine_bytes();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group_limit(&groups, Path::new("/sys/fs/cgroup"));
    let limits = [group, limited_bytes()];
    budget(total, limits.into_iter().flatten().min())
}

/// The memory of the machine.
pub(crate) fn machine_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    #[expect(
        clippy::useless_conversion,
        reason = "the fields are 32 bits wide on 32-bit machines"
    )]
    let total = u64::from(machine.totalram).saturating_mul(u64::from(machine.mem_unit));
    total
}

/// The memory that the limits of this process leave it, if they do.
fn limited_bytes() -> Option<u64> {
    let limits = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current);
    limits.into_iter().flatten().min()
}

fn budget(total_bytes: u64, limit_bytes: Option<u64>) -> u64 {
    let available = limit_bytes.map_or(total_bytes, |limit| limit.min(total_bytes));
    (available / 4).clamp(BUDGET_BYTES_MIN, BUDGET_BYTES_MAX)
}

/// The tightest memory limit of the process's control groups: `groups` is the text
/// of `/proc/self/cgroup`, `root` where the hierarchies are mounted.
fn group_limit(groups: &str, root: &Path) -> Option<u64> {
    let mut tightest: Option<u64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (base, file) = if controllers.is_empty() {
            (root.to_owned(), "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        let mut group = base.join(path.trim_start_matches('/'));
        while group.starts_with(&base) {
            // "max" (no limit) is not a number.
            let limit = fs::read_to_string(group.join(file));
            if let Some(bytes) = limit.ok().and_then(|text| text.trim().parse().ok()) {
                tightest = Some(tightest.map_or(bytes, |other| other.min(bytes)));
            }
            if !group.pop() {
                break;
            }
        }
    }
    tightest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_within_bounds() {
        assert_eq!(budget(4 << 30, None), 1 << 30);
        assert_eq!(budget(64 << 30, None), 2 << 30);
        assert_eq!(budget(8 << 20, None), 16 << 20);
        assert_eq!(budget(64 << 30, Some(512 << 20)), 128 << 20);
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("memory.max"), "max\n").unwrap();
        fs::write(root.path().join("a/memory.max"), "1000\n").unwrap();
        let old = root.path().join("memory/c");
        fs::create_dir_all(&old).unwrap();
        fs::write(old.join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(group_limit("0::/a/b\n", root.path()), Some(1000));
        assert_eq!(
            group_limit("4:memory:/c\n0::/a/b\n", root.path()),
            Some(1000)
        );
        assert_eq!(group_limit("4:cpu:/c\n", root.path()), None);
    }
}
