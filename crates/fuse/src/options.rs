//! Mount options, as `-o` and `/etc/fstab` give them.

use thiserror::Error;

/// What an option string cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionError {
    /// There is no such option.
    #[error("unknown mount option '{0}'")]
    Unknown(String),
    /// The option needs a value.
    #[error("mount option '{0}' needs a value, as in '{0}=…'")]
    ValueMissing(&'static str),
    /// The value is not one of the possible ones.
    #[error("mount option '{name}': '{value}' is not {expected}")]
    BadValue {
        /// Which option.
        name: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// An option that FUSE filesystems of other libraries know and this one does not
    /// offer, with the reason.
    #[error("mount option '{name}' is not offered: {reason}")]
    NotOffered {
        /// Which option.
        name: &'static str,
        /// Why.
        reason: &'static str,
    },
}

/// Whether the mount should be of a kind that `sync(2)` and `syncfs(2)` reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncFsMode {
    /// If the system allows it; otherwise an ordinary mount.
    #[default]
    Auto,
    /// Yes, or the mount fails.
    On,
    /// No: an ordinary FUSE mount.
    Off,
}

/// How access times are to be kept. The kernel only shows this in the mount table and
/// leaves access times to the filesystem, which sees a read only if the page cache does not
/// serve it; the filesystem has to be made with what [`AccessTimes::Never`] asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// The kernel's default.
    #[default]
    Relative,
    /// `noatime`
    Never,
    /// `strictatime`
    Strict,
}

/// How the threads that answer requests are placed. Which one is fastest depends on
/// the machine and on what else it does: see the crate's `workers` module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerPlacement {
    /// One bound to each usable CPU.
    #[default]
    Pinned,
    /// As many as usable CPUs, each wherever the scheduler puts it.
    Floating,
    /// One, wherever the scheduler puts it; more only while it is blocked.
    Single,
}

/// Everything about a mount that can be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one independent mount option"
)]
pub struct MountOptions {
    /// Refuse all changes.
    pub read_only: bool,
    /// Whether other users may enter. Default: yes for root, as with any disk filesystem; no for
    /// other users.
    pub allow_other: Option<bool>,
    /// Ignore set-user-id and set-group-id bits.
    pub no_suid: bool,
    /// Ignore device nodes.
    pub no_dev: bool,
    /// Refuse to execute.
    pub no_exec: bool,
    /// Make every write synchronous.
    pub synchronous: bool,
    /// Make every change of a directory synchronous.
    pub synchronous_directories: bool,
    /// Access times of files.
    pub access_times: AccessTimes,
    /// No access times of directories.
    pub no_directory_access_times: bool,
    /// What the mount table shows as the source.
    pub source_name: String,
    /// What the mount table shows after `fuse.`.
    pub subtype: String,
    /// Largest READ, in bytes; none: as large as the protocol allows.
    pub max_read_bytes: Option<u32>,
    /// Whether `sync(2)` should reach the mount.
    pub sync_fs: SyncFsMode,
    /// How the threads that answer requests are placed.
    pub workers: WorkerPlacement,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            allow_other: None,
            no_suid: false,
            no_dev: false,
            no_exec: false,
            synchronous: false,
            synchronous_directories: false,
            access_times: AccessTimes::default(),
            no_directory_access_times: false,
            source_name: "mobifs".to_owned(),
            subtype: "mobifs".to_owned(),
            max_read_bytes: None,
            sync_fs: SyncFsMode::default(),
            workers: WorkerPlacement::default(),
        }
    }
}

/// Smallest `max_read=`: below a page, reading would not work.
const MAX_READ_BYTES_MIN: u32 = 4096;

impl MountOptions {
    /// Applies a comma-separated list, later options over earlier ones. A comma
    /// within a value is written `\,`.
    ///
    /// # Errors
    /// [`OptionError`], naming the first option that is wrong; the options before it
    /// are applied.
    pub fn apply(&mut self, list: &str) -> Result<(), OptionError> {
        for option in split(list) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option.as_str(), None),
            };
            match value {
                Some(value) => self.apply_with_value(name, value, &option)?,
                None => self.apply_flag(name)?,
            }
        }
        Ok(())
    }

    /// Whether other users may enter, by whether root mounts.
    pub fn allows_others(&self, as_root: bool) -> bool {
        self.allow_other.unwrap_or(as_root)
    }

    fn apply_flag(&mut self, name: &str) -> Result<(), OptionError> {
        match name {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = Some(true),
            "noallow_other" => self.allow_other = Some(false),
            "suid" => self.no_suid = false,
            "nosuid" => self.no_suid = true,
            "dev" => self.no_dev = false,
            "nodev" => self.no_dev = true,
            "exec" => self.no_exec = false,
            "noexec" => self.no_exec = true,
            "sync" => self.synchronous = true,
            "async" => self.synchronous = false,
            "dirsync" => self.synchronous_directories = true,
            "atime" | "relatime" | "nostrictatime" => {
                self.access_times = AccessTimes::Relative;
            }
            "noatime" => self.access_times = AccessTimes::Never,
            "strictatime" | "norelatime" => self.access_times = AccessTimes::Strict,
            "diratime" => self.no_directory_access_times = false,
            "nodiratime" => self.no_directory_access_times = true,
            "defaults" => {
                self.read_only = false;
                self.no_suid = false;
                self.no_dev = false;
                self.no_exec = false;
                self.synchronous = false;
            }
            // Always on: modes, owners and ACLs are enforced by the kernel.
            "default_permissions" => {}
            // They are for mount(8), the init system and other tools that read the table.
            "auto" | "noauto" | "nofail" | "_netdev" | "user" | "nouser" | "users" | "owner"
            | "group" | "loud" | "silent" | "nonempty" | "lazytime" | "nolazytime" | "iversion"
            | "noiversion" | "mand" | "nomand" => {}
            "fsname" => return Err(OptionError::ValueMissing("fsname")),
            "subtype" => return Err(OptionError::ValueMissing("subtype")),
            "max_read" => return Err(OptionError::ValueMissing("max_read")),
            "syncfs" => return Err(OptionError::ValueMissing("syncfs")),
            "workers" => return Err(OptionError::ValueMissing("workers")),
            "allow_root" => {
                return Err(OptionError::NotOffered {
                    name: "allow_root",
                    reason: "the kernel cannot admit root alone; use allow_other, modes are \
                             enforced",
                });
            }
            "auto_unmount" => {
                return Err(OptionError::NotOffered {
                    name: "auto_unmount",
                    reason: "a mount must outlive a crash of its daemon",
                });
            }
            _ if name.starts_with("x-") || name.starts_with("X-") => {}
            _ => return Err(OptionError::Unknown(name.to_owned())),
        }
        Ok(())
    }

    fn apply_with_value(
        &mut self,
        name: &str,
        value: &str,
        option: &str,
    ) -> Result<(), OptionError> {
        match name {
            "fsname" if value.is_empty() => return Err(OptionError::ValueMissing("fsname")),
            "fsname" => value.clone_into(&mut self.source_name),
            "subtype" if value.is_empty() => return Err(OptionError::ValueMissing("subtype")),
            "subtype" => value.clone_into(&mut self.subtype),
            "max_read" => {
                let bytes = value
                    .parse()
                    .ok()
                    .filter(|&bytes| bytes >= MAX_READ_BYTES_MIN);
                let bad = || OptionError::BadValue {
                    name: "max_read",
                    value: value.to_owned(),
                    expected: "a number of bytes from 4096 on",
                };
                self.max_read_bytes = Some(bytes.ok_or_else(bad)?);
            }
            "syncfs" => self.sync_fs = sync_fs_mode(value)?,
            "workers" => self.workers = worker_placement(value)?,
            "comment" | "user" | "uhelper" | "helper" => {}
            _ if name.starts_with("x-") || name.starts_with("X-") => {}
            _ => return Err(OptionError::Unknown(option.to_owned())),
        }
        Ok(())
    }
}

fn sync_fs_mode(value: &str) -> Result<SyncFsMode, OptionError> {
    match value {
        "auto" => Ok(SyncFsMode::Auto),
        "on" => Ok(SyncFsMode::On),
        "off" => Ok(SyncFsMode::Off),
        _ => Err(OptionError::BadValue {
            name: "syncfs",
            value: value.to_owned(),
            expected: "'auto', 'on' or 'off'",
        }),
    }
}

fn worker_placement(value: &str) -> Result<WorkerPlacement, OptionError> {
    match value {
        "pinned" => Ok(WorkerPlacement::Pinned),
        "floating" => Ok(WorkerPlacement::Floating),
        "single" => Ok(WorkerPlacement::Single),
        _ => Err(OptionError::BadValue {
            name: "workers",
            value: value.to_owned(),
            expected: "'pinned', 'floating' or 'single'",
        }),
    }
}

/// Splits at commas that no backslash precedes; takes such backslashes out.
fn split(list: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut characters = list.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if matches!(characters.peek(), Some(',' | '\\')) => {
                // `peek` just saw it.
                if let (Some(last), Some(next)) = (options.last_mut(), characters.next()) {
                    last.push(next);
                }
            }
            ',' => options.push(String::new()),
            _ => {
                if let Some(last) = options.last_mut() {
                    last.push(character);
                }
            }
        }
    }
    options.retain(|option| !option.is_empty());
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::default();
        options.apply(list).map(|()| options)
    }

    #[test]
    fn the_standard_options_are_honoured() {
        let options =
            parse("ro,allow_other,nosuid,nodev,noexec,noatime,fsname=a\\,b,subtype=s").unwrap();
        let expected = MountOptions {
            read_only: true,
            allow_other: Some(true),
            no_suid: true,
            no_dev: true,
            no_exec: true,
            access_times: AccessTimes::Never,
            source_name: "a,b".to_owned(),
            subtype: "s".to_owned(),
            ..MountOptions::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn later_options_win() {
        let options = parse("ro,nosuid,rw,suid,syncfs=on,syncfs=off,workers=single").unwrap();
        let expected = MountOptions {
            sync_fs: SyncFsMode::Off,
            workers: WorkerPlacement::Single,
            ..MountOptions::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn what_fstab_carries_for_others_is_passed_over() {
        let list = "defaults,noauto,nofail,_netdev,x-systemd.automount,comment=backup,user=me";
        assert_eq!(parse(list).unwrap(), MountOptions::default());
        assert_eq!(parse(",,").unwrap(), MountOptions::default());
    }

    #[test]
    fn unknown_options_are_refused_by_name() {
        for bad in ["frobnicate", "big_writes=1", "uid=0"] {
            assert_eq!(
                parse(bad).unwrap_err(),
                OptionError::Unknown(bad.to_owned())
            );
        }
        assert_eq!(
            parse("fsname").unwrap_err(),
            OptionError::ValueMissing("fsname")
        );
        assert!(
            parse("max_read=100")
                .unwrap_err()
                .to_string()
                .contains("4096")
        );
        assert!(
            parse("syncfs=maybe")
                .unwrap_err()
                .to_string()
                .contains("'maybe'")
        );
        assert!(
            parse("auto_unmount")
                .unwrap_err()
                .to_string()
                .contains("not offered")
        );
    }

    #[test]
    fn others_may_enter_roots_mount_unless_an_option_forbids_it() {
        let default = MountOptions::default();
        assert!(default.allows_others(true));
        assert!(!default.allows_others(false));
        assert!(parse("allow_other").unwrap().allows_others(false));
        assert!(!parse("noallow_other").unwrap().allows_others(true));
    }
}
