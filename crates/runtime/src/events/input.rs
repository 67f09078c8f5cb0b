//! Input devices (evdev): that somebody uses them, not what for.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::inotify;

/// `struct input_event`: a `struct timeval`, then type, code and value.
const TYPE_AT: usize = 2 * size_of::<libc::c_long>();
pub(super) const EVENT_BYTES: usize = TYPE_AT + 8;

/// Types of events that come from hands: keys and buttons, movements, positions.
const EV_KEY: u16 = 1;
const EV_REL: u16 = 2;
const EV_ABS: u16 = 3;

/// The machine's input devices with keys or buttons, those that come later included.
/// (Without any, it is a sensor: a lid, an accelerometer.)
#[derive(Debug)]
pub(super) struct InputDevices {
    directory: PathBuf,
    classes: PathBuf,
    /// Tells when a device appears, or may be read.
    changes: OwnedFd,
    devices: BTreeMap<OsString, File>,
}

impl InputDevices {
    /// None where there is no such directory.
    pub(super) fn open(directory: &Path, classes: &Path) -> Option<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let wanted = inotify::WatchFlags::CREATE | inotify::WatchFlags::ATTRIB;
        let changes = inotify::init(flags).and_then(|changes| {
            inotify::add_watch(&changes, directory, wanted)?;
            Ok(changes)
        });
        let changes = match changes {
            Ok(changes) => changes,
            Err(error) => {
                tracing::debug!(%error, "input devices are not watched");
                return None;
            }
        };
        let mut devices = Self {
            directory: directory.to_owned(),
            classes: classes.to_owned(),
            changes,
            devices: BTreeMap::new(),
        };
        devices.find();
        Some(devices)
    }

    /// What becomes readable when something happens.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let devices = self.devices.values().map(|device| device.as_fd());
        [self.changes.as_fd()].into_iter().chain(devices)
    }

    /// Takes everything that has happened; true if somebody used a device.
    pub(super) fn take(&mut self) -> bool {
        if self.take_changes() {
            self.find();
        }
        let mut is_used = false;
        self.devices.retain(|_, device| match drain(device) {
            Ok(used) => {
                is_used |= used;
                true
            }
            // It was unplugged.
            Err(_) => false,
        });
        is_used
    }

    fn take_changes(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.changes, &mut buffer);
        let mut is_changed = false;
        while reader.next().is_ok() {
            is_changed = true;
        }
        is_changed
    }

    /// Opens the devices that are not open yet and may be.
    fn find(&mut self) {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return;
        };
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name();
            let is_device = name.as_bytes().starts_with(b"event");
            if !is_device || self.devices.contains_key(&name) || !self.has_keys(&name) {
                continue;
            }
            let nonblocking = libc::O_NONBLOCK;
            let opened = OpenOptions::new()
                .read(true)
                .custom_flags(nonblocking)
                .open(entry.path());
            if let Ok(device) = opened {
                self.devices.insert(name, device);
            }
        }
    }

    fn has_keys(&self, name: &OsStr) -> bool {
        let path = self.classes.join(name).join("device/capabilities/key");
        // Words of a bit mask, in hexadecimal.
        fs::read_to_string(path)
            .is_ok_and(|mask| mask.chars().any(|digit| !matches!(digit, '0' | ' ' | '\n')))
    }
}

/// Reads all that a device has; true if any of it came from a user.
///
/// # Errors
/// If nothing can come from it any more.
fn drain(device: &mut File) -> std::io::Result<bool> {
    let mut buffer = [0; 64 * EVENT_BYTES];
    let mut is_used = false;
    loop {
        match device.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => is_used |= is_from_user(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(is_used),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether one of these events came from a hand. An incomplete one at the end counts for
/// nothing: the kernel gives whole ones.
pub(super) fn is_from_user(events: &[u8]) -> bool {
    events.chunks_exact(EVENT_BYTES).any(|event| {
        let kind = u16::from_ne_bytes([event[TYPE_AT], event[TYPE_AT + 1]]);
        matches!(kind, EV_KEY | EV_REL | EV_ABS)
    })
}
