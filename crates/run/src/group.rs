//! A control group for the command, by which a daemon can tell apps apart.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use mobifs_host::mounts;

/// A group below the one that this process is in.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    path: PathBuf,
}

impl Group {
    /// Puts this process into the group of an app; `None` where that is not possible, as for users
    /// whose groups are root's.
    pub(crate) fn enter(app: &str) -> Option<Self> {
        let path = own_group()?.join(format!("mobifs-{}", as_name(app)));
        let is_new = fs::create_dir(&path).is_ok();
        let group = Self { path };
        if fs::write(group.path.join("cgroup.procs"), "0").is_ok() {
            return Some(group);
        }
        if is_new {
            group.remove();
        }
        None
    }

    /// A group that another process has entered.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Where it is.
    pub(crate) fn into_path(self) -> OsString {
        self.path.into_os_string()
    }

    /// Removes the group if nothing is in it.
    pub(crate) fn remove(&self) {
        let _in_use = fs::remove_dir(&self.path);
    }
}

fn own_group() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let below = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = mounts().ok()?;
    let mount = mounts
        .iter()
        .find(|mount| mount.kind == "cgroup2" && mount.root == Path::new("/"))?;
    Some(mount.mountpoint.join(below))
}

fn as_name(app: &str) -> String {
    app.replace(['/', '\n'], "_")
}
