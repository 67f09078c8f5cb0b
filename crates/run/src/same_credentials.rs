//! Whether the kernel would treat this process as it treats the one whose call waits.
//!
//! Only then may the supervisor make a call in its place. What cannot be seen, as the rules of
//! Landlock, is watched for by the filter instead.

use std::fs;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// Lines of `/proc/PID/status` that decide on rights.
const RIGHTS: [&str; 4] = ["Uid:", "Gid:", "Groups:", "CapEff:"];

/// A process with the rights and the view of files that this one has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Twin {
    /// Its mask of file modes.
    pub(crate) mask: u32,
}

impl Twin {
    /// Looks at a thread.
    pub(crate) fn of(thread: u32) -> Option<Self> {
        let other = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
        let own = fs::read_to_string("/proc/thread-self/status").ok()?;
        let has_rights = RIGHTS.iter().all(|name| {
            let (own, other) = (line(&own, name), line(&other, name));
            own.is_some() && own == other
        });
        let is_twin = has_rights
            && ["user", "mnt"]
                .iter()
                .all(|space| same_namespace(thread, space))
            && label(&thread.to_string()) == label("thread-self")
            && root(&thread.to_string())? == root("thread-self")?;
        let mask = u32::from_str_radix(line(&other, "Umask:")?.trim(), 8).ok()?;
        is_twin.then_some(Self { mask })
    }
}

/// Whether a thread may write files of any size.
pub(crate) fn has_no_size_limit(thread: u32) -> bool {
    let limits = fs::read_to_string(format!("/proc/{thread}/limits")).unwrap_or_default();
    line(&limits, "Max file size").is_some_and(|rest| rest.trim_start().starts_with("unlimited"))
}

/// Whether a thread certainly has room for so many more descriptors.
pub(crate) fn has_free_descriptors(thread: u32, wanted: u64) -> bool {
    let limits = fs::read_to_string(format!("/proc/{thread}/limits")).unwrap_or_default();
    let limit = line(&limits, "Max open files").and_then(|rest| rest.split_whitespace().next());
    // It is never unlimited.
    let limit = limit.and_then(|limit| limit.parse::<u64>().ok());
    let open = count_descriptors(thread);
    limit.zip(open).is_some_and(|(limit, open)| {
        open.checked_add(wanted)
            .is_some_and(|needed| needed <= limit)
    })
}

fn count_descriptors(thread: u32) -> Option<u64> {
    let directory = format!("/proc/{thread}/fd");
    match fs::metadata(&directory).ok()?.len() {
        // Before Linux 6.2, or where there is none.
        0 => Some(fs::read_dir(&directory).ok()?.count() as u64),
        count => Some(count),
    }
}

fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

fn same_namespace(thread: u32, kind: &str) -> bool {
    let link =
        |who: &str| -> Option<PathBuf> { fs::read_link(format!("/proc/{who}/ns/{kind}")).ok() };
    let own = link("thread-self");
    own.is_some() && own == link(&thread.to_string())
}

/// The label of a security module, if there is one.
fn label(who: &str) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{who}/attr/current")).ok()
}

fn root(who: &str) -> Option<(u64, u64)> {
    let path = format!("/proc/{who}/root");
    let asked = StatxFlags::INO | StatxFlags::MNT_ID;
    let found = statx(CWD, path.as_str(), AtFlags::empty(), asked).ok()?;
    Some((found.stx_mnt_id, found.stx_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_its_own_twin() {
        let twin = Twin::of(std::process::id()).unwrap();
        assert!(twin.mask <= 0o777);
        assert!(Twin::of(u32::MAX).is_none());
    }

    #[test]
    fn free_descriptors_are_those_below_the_limit() {
        let own = std::process::id();
        assert!(has_free_descriptors(own, 1));
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        assert!(!has_free_descriptors(own, limit.current.unwrap()));
        assert!(!has_free_descriptors(u32::MAX, 0));
        let listed = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        assert!(count_descriptors(own).unwrap().abs_diff(listed) < 64);
    }
}
