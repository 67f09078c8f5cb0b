//! Input devices (evdev): that the user uses them, and how (a key, a touch); not what for.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::inotify;

use super::observer::UserInput;

/// `struct input_event`: a `struct timeval`, then type, code and value.
const TYPE_AT: usize = 2 * size_of::<libc::c_long>();
pub(super) const EVENT_BYTES: usize = TYPE_AT + 8;

/// Types of events that come from hands: keys and buttons, movements, positions.
const EV_KEY: u16 = 1;
const EV_REL: u16 = 2;
const EV_ABS: u16 = 3;
/// Codes of buttons, which are no keys: of mice, of games, of pens and fingers (`BTN_…`).
const BUTTONS: RangeInclusive<u16> = 0x100..=0x15f;
const MOUSE_BUTTONS: RangeInclusive<u16> = 0x110..=0x11f;
const TOOLS: RangeInclusive<u16> = 0x140..=0x14f;

/// The machine's input devices with keys or buttons, those that come later included.
/// (Without any, it is a sensor: a lid, an accelerometer.)
#[derive(Debug)]
pub(super) struct InputDevices {
    directory: PathBuf,
    classes: PathBuf,
    /// Signals that a device appears, or may be read.
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
                tracing::debug!(%error, "cannot watch input devices");
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

    /// What becomes readable at an event.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let devices = self.devices.values().map(|device| device.as_fd());
        [self.changes.as_fd()].into_iter().chain(devices)
    }

    /// Takes all pending events; returns what the user did with a device, if anything.
    pub(super) fn take(&mut self) -> Option<UserInput> {
        if self.take_changes() {
            self.find();
        }
        let mut input = None;
        self.devices.retain(|_, device| match drain(device) {
            Ok(what) => {
                input = input.max(what);
                true
            }
            // It was unplugged.
            Err(_) => false,
        });
        input
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

/// Reads all that a device has; says what a user did with it, if anything.
///
/// # Errors
/// If nothing can come from it any more.
fn drain(device: &mut File) -> std::io::Result<Option<UserInput>> {
    let mut buffer = [0; 64 * EVENT_BYTES];
    let mut input = None;
    loop {
        match device.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => input = input.max(input_of(&buffer[..length])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(input),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// What a hand did, if one of these events came from one; of several the one that says most.
/// An incomplete one at the end counts for nothing: the kernel gives whole ones.
pub(super) fn input_of(events: &[u8]) -> Option<UserInput> {
    let inputs = events.chunks_exact(EVENT_BYTES).filter_map(|event| {
        let number = |at: usize| u16::from_ne_bytes([event[at], event[at + 1]]);
        match (number(TYPE_AT), number(TYPE_AT + 2)) {
            (EV_KEY, code) if MOUSE_BUTTONS.contains(&code) || TOOLS.contains(&code) => {
                Some(UserInput::Touch)
            }
            (EV_KEY, code) if BUTTONS.contains(&code) => Some(UserInput::Other),
            (EV_KEY, _) => Some(UserInput::Key),
            // Multi-touch screens report only positions.
            (EV_ABS, _) => Some(UserInput::Touch),
            (EV_REL, _) => Some(UserInput::Other),
            _ => None,
        }
    });
    inputs.max()
}
