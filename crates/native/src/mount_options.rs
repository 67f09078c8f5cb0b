//! Mount options of filesystems: read, and changed so that every other option stays.
//!
//! A change goes through the mount API of Linux 5.2 (`fspick`, `fsconfig`), which is given only
//! what changes, and touches the filesystem's own options only. mount(2) with `MS_REMOUNT` would
//! set the flags of the mount (`nosuid`, `noatime`, …) anew, and lose those that it is not given.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mobifs_host::MountEntry;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use rustix::io::{Errno, read};
use rustix::mount::{
    FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fspick,
};

/// Options as the kernel shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionList(Vec<String>);

impl OptionList {
    /// Options with commas between them.
    pub fn parse(text: &str) -> Self {
        let words = text.split([',', '\n']).filter(|word| !word.is_empty());
        Self(words.map(str::to_owned).collect())
    }

    /// Whether this option is there, by itself.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|option| option == name)
    }

    /// The value of an option, `NAME=VALUE`.
    pub fn value(&self, name: &str) -> Option<&str> {
        let mut options = self.0.iter().rev();
        options.find_map(|option| {
            let (key, value) = option.split_once('=')?;
            (key == name).then_some(value)
        })
    }

    /// The value as a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.parse().ok()
    }
}

/// The options of one mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Options of the mount.
    pub mount: OptionList,
    /// Options of the filesystem, the same through each mount of it. Those that are the default may be
    /// left out.
    pub filesystem: OptionList,
}

impl MountOptions {
    /// The options of the mount with this number, as this process sees it; none if it is not mounted.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn of(mount_id: u64) -> io::Result<Option<Self>> {
        let table = std::fs::read("/proc/self/mountinfo")?;
        Ok(Self::find(&String::from_utf8_lossy(&table), mount_id))
    }

    fn find(table: &str, mount_id: u64) -> Option<Self> {
        let id = format!("{mount_id} ");
        let line = table.lines().find(|line| line.starts_with(&id))?;
        // id parent major:minor root mountpoint options [optional…] - type source superoptions
        let mount = line.split(' ').nth(5)?;
        let (_, of_filesystem) = line.split_once(" - ")?;
        Some(Self {
            mount: OptionList::parse(mount),
            filesystem: OptionList::parse(of_filesystem.split(' ').nth(2)?),
        })
    }

    /// Whether nothing can be written to the filesystem, through whichever mount: it was mounted so,
    /// or has met an error.
    pub fn is_filesystem_read_only(&self) -> bool {
        let states = ["ro", "emergency_ro", "shutdown"];
        states.iter().any(|state| self.filesystem.has(state))
    }

    /// Whether nothing can be written through this mount.
    pub fn is_read_only(&self) -> bool {
        self.mount.has("ro") || self.is_filesystem_read_only()
    }
}

/// One option to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `NAME`.
    Flag(&'static str),
    /// `NAME=VALUE`.
    Value(&'static str, String),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => f.write_str(name),
            Self::Value(name, value) => write!(f, "{name}={value}"),
        }
    }
}

/// Why options were not changed.
#[derive(Debug, thiserror::Error)]
#[error("the kernel does not take the mount options {options}: {reason}")]
pub struct ChangeError {
    options: String,
    reason: String,
}

/// The directory that this mount shows at its mount point. What is changed through it is changed of this
/// filesystem, also when another one is mounted over it, or when the mount was moved or detached.
///
/// # Errors
/// [`io::ErrorKind::ResourceBusy`]: another filesystem is mounted over it.
pub fn root_of(mount: &MountEntry) -> io::Result<OwnedFd> {
    let root = open(
        &mount.mountpoint,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let about = statx(&root, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    // Linux 5.8 has the number.
    let is_known = StatxFlags::from_bits_retain(about.stx_mask).contains(StatxFlags::MNT_ID);
    if is_known && about.stx_mnt_id != mount.id {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    Ok(root)
}

/// Changes options of the filesystem with this [root](root_of), and no others.
///
/// # Errors
/// The kernel's reason, in its words where it has any.
pub fn change(root: impl AsFd, changes: &[Change]) -> Result<(), ChangeError> {
    let mut reason = String::new();
    let failed = |reason: String| ChangeError {
        options: changes
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(","),
        reason,
    };
    try_change(root.as_fd(), changes, &mut reason).map_err(|errno| match errno {
        Errno::NOSYS => failed("this needs Linux 5.2 or newer".to_owned()),
        errno if reason.is_empty() => failed(io::Error::from(errno).to_string()),
        _ => failed(reason),
    })
}

fn try_change(root: BorrowedFd<'_>, changes: &[Change], reason: &mut String) -> Result<(), Errno> {
    let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    let filesystem = fspick(root, c"", flags)?;
    let done = changes
        .iter()
        .try_for_each(|change| match change {
            Change::Flag(name) => fsconfig_set_flag(&filesystem, *name),
            Change::Value(name, value) => fsconfig_set_string(&filesystem, *name, value.as_str()),
        })
        .and_then(|()| fsconfig_reconfigure(&filesystem));
    if done.is_err() {
        // Messages come one at a time: `e EXT4-fs: …`, errors and warnings alike.
        let mut message = [0; 512];
        while let Ok(length @ 1..) = read(&filesystem, &mut message) {
            let text = String::from_utf8_lossy(&message[..length]);
            let text = text.trim();
            let text = text.split_once(' ').map_or(text, |(_, text)| text);
            if !reason.is_empty() {
                reason.push_str("; ");
            }
            reason.push_str(text);
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_by_the_number_of_the_mount() {
        let table = "36 35 8:1 / /a rw,nosuid,noatime shared:1 - ext4 /dev/sda1 rw,data=journal\n\
                     3 1 8:2 / /b\\040c ro,relatime - ext4 /dev/sda2 rw,commit=7,stripe=4,commit=9\n";
        let a = MountOptions::find(table, 36).unwrap();
        assert!(a.mount.has("nosuid") && !a.is_read_only());
        assert_eq!(a.filesystem.value("data"), Some("journal"));
        assert_eq!(a.filesystem.number("commit"), None);
        let b = MountOptions::find(table, 3).unwrap();
        assert!(b.is_read_only() && !b.filesystem.has("commit"));
        assert_eq!(
            b.filesystem.number("commit"),
            Some(9),
            "the last one counts"
        );
        assert_eq!(MountOptions::find(table, 6), None);
        assert_eq!(MountOptions::find("", 3), None);
        assert_eq!(MountOptions::find("3 1 8:2 /", 3), None);
    }

    #[test]
    fn names_are_whole_words() {
        let options = OptionList::parse("rw,flushoncommit,subvol=/a=b,errors=remount-ro");
        assert!(options.has("flushoncommit") && !options.has("ro") && !options.has("flush"));
        assert_eq!(options.value("subvol"), Some("/a=b"));
        assert_eq!(options.value("sub"), None);
        let lines = OptionList::parse("rw\nbarrier\ncommit=5\ndata=journal\n");
        assert_eq!(lines.number("commit"), Some(5));
    }

    #[test]
    fn changes_are_shown_as_mount_takes_them() {
        let changes = [
            Change::Flag("flushoncommit"),
            Change::Value("commit", "30".to_owned()),
        ];
        let shown: Vec<_> = changes.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["flushoncommit", "commit=30"]);
    }
}
