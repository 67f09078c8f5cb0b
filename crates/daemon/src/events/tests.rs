//! Events from recorded bytes and made-up kernel files.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mobifs_store::MemoryStore;

use super::battery::{Batteries, BatteryWatch, Charge};
use super::input::{EVENT_BYTES, input_of};
use super::screen::{ScreenWatch, Screens};
use mobifs_volume::EventSources;

use super::{EventWatcher, UserInput};
use mobifs_volume::{BatterySource, Config, Volume, VolumeOptions};

/// A tap as a touchscreen sent it: type, code and value of each event.
const TAP: [(u16, u16, i32); 8] = [
    (3, 0x39, 45),
    (3, 0x35, 512),
    (3, 0x36, 800),
    (1, 0x14a, 1),
    (0, 0, 0),
    (3, 0x39, -1),
    (1, 0x14a, 0),
    (0, 0, 0),
];

fn bytes(events: &[(u16, u16, i32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, code, value) in events {
        bytes.extend_from_slice(&[7; EVENT_BYTES - 8]);
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&code.to_ne_bytes());
        bytes.extend_from_slice(&value.to_ne_bytes());
    }
    bytes
}

#[test]
fn input_is_a_key_a_touch_other_or_none() {
    use UserInput::{Key, Other, Touch};
    assert_eq!(input_of(&bytes(&TAP)), Some(Touch));
    let mouse = [(0, 0, 0), (2, 0, -3)];
    assert_eq!(input_of(&bytes(&mouse)), Some(Other), "it was moved");
    let click = [(2, 0, -3), (1, 0x110, 1)];
    assert_eq!(input_of(&bytes(&click)), Some(Touch));
    assert_eq!(input_of(&bytes(&[(4, 4, 30), (1, 30, 1)])), Some(Key));
    assert_eq!(input_of(&bytes(&[(1, 0x130, 1)])), Some(Other), "a game");
    // Synchronisation, a scan code, a switch (the lid), a lamp, force feedback.
    let others = [(0, 0, 0), (4, 4, 30), (5, 0, 1), (17, 1, 1), (21, 0, 0)];
    assert_eq!(input_of(&bytes(&others)), None);
    assert_eq!(input_of(&[]), None);
    let half = &bytes(&TAP)[..EVENT_BYTES - 1];
    assert_eq!(input_of(half), None, "half an event");
}

/// What the machine has, made up.
struct Machine {
    directory: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["input", "classes", "power", "drm", "backlight"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn sources(&self) -> EventSources {
        EventSources {
            input: Some(self.path("input")),
            input_classes: self.path("classes"),
            memory_pressure: None,
            power_supplies: self.path("power"),
            battery_low_percent: 10,
            connectors: Some(self.path("drm")),
            backlights: self.path("backlight"),
            ..EventSources::default()
        }
    }

    /// A device; what is written to the answer comes from it.
    fn plug(&self, name: &str, keys: &str) -> fs::File {
        let class = self.path("classes").join(name).join("device/capabilities");
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join("key"), keys).unwrap();
        let path = self.path("input").join(name);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
    }

    fn supply(&self, name: &str, files: &[(&str, &str)]) {
        self.write_class("power", name, files);
    }

    fn connector(&self, name: &str, status: &str, dpms: &str) {
        self.write_class("drm", name, &[("status", status), ("dpms", dpms)]);
    }

    fn light(&self, power: &str) {
        self.write_class("backlight", "panel", &[("bl_power", power)]);
    }

    fn write_class(&self, class: &str, name: &str, files: &[(&str, &str)]) {
        let directory = self.path(class).join(name);
        fs::create_dir_all(&directory).unwrap();
        for (file, content) in files {
            fs::write(directory.join(file), format!("{content}\n")).unwrap();
        }
    }
}

fn volume(config: &str) -> Arc<Volume> {
    let config = Config::parse(config, Path::new("test")).unwrap();
    let options = VolumeOptions::new(&config);
    Volume::start(Arc::new(MemoryStore::new()), options).unwrap()
}

/// Ends when the condition holds; if it never does, the runner's limit ends us.
fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

#[test]
fn use_of_a_device_is_seen_also_on_one_that_is_plugged_in_later() {
    let machine = Machine::new();
    let mut lid = machine.plug("event0", "0\n");
    let mut screen = machine.plug("event1", "400 0 0 0 0 0\n");
    machine.plug("mouse0", "70000 0\n");
    let volume = volume("");
    let watcher = EventWatcher::start(volume.clone(), &machine.sources(), None).unwrap();
    let operations = || volume.status().user.operations;
    lid.write_all(&bytes(&TAP)).unwrap();
    screen.write_all(&bytes(&[(0, 0, 0)])).unwrap();
    screen.write_all(&bytes(&TAP)).unwrap();
    wait_until(|| operations() == 1);
    let mut keyboard = machine.plug("event2", "fffffffe\n");
    // What comes within a tenth of a second counts as the same operation.
    wait_until(|| {
        keyboard
            .try_clone()
            .unwrap()
            .write_all(&bytes(&[(1, 30, 1)]))
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        operations() >= 2
    });
    keyboard.flush().unwrap();
    drop(watcher);
}

#[test]
fn the_charge_is_that_of_the_machine() {
    let machine = Machine::new();
    let batteries = Batteries::new(&machine.path("power"));
    assert_eq!(batteries.charge(), None);
    machine.supply("AC", &[("type", "Mains"), ("online", "0")]);
    machine.supply(
        "hidpp",
        &[
            ("type", "Battery"),
            ("scope", "Device"),
            ("capacity", "3"),
            ("status", "Discharging"),
        ],
    );
    machine.supply("silent", &[("type", "Battery"), ("status", "Unknown")]);
    assert_eq!(batteries.charge(), None);
    let battery = |name, percent, status| {
        let files = [
            ("type", "Battery"),
            ("capacity", percent),
            ("status", status),
        ];
        machine.supply(name, &files);
    };
    battery("BAT0", "7", "Discharging");
    battery("BAT1", "40", "Discharging");
    let charge = |percent, is_discharging| {
        Some(Charge {
            percent,
            is_discharging,
        })
    };
    assert_eq!(batteries.charge(), charge(40, true));
    battery("BAT1", "9", "Charging");
    assert_eq!(batteries.charge(), charge(9, false));
}

#[test]
fn a_battery_is_low_until_it_is_charged_by_some_more() {
    let machine = Machine::new();
    let mut watch = BatteryWatch::new(Batteries::new(&machine.path("power")), 10);
    let mut look = |percent: &str, status| {
        let files = [
            ("type", "Battery"),
            ("capacity", percent),
            ("status", status),
        ];
        machine.supply("BAT0", &files);
        watch.look()
    };
    assert_eq!(look("11", "Discharging"), None);
    assert_eq!(look("10", "Discharging"), Some(true));
    assert_eq!(look("9", "Discharging"), None);
    assert_eq!(look("14", "Discharging"), None, "not by so little");
    assert_eq!(look("16", "Discharging"), Some(false));
    assert_eq!(look("2", "Discharging"), Some(true));
    assert_eq!(look("2", "Charging"), Some(false));
    assert_eq!(look("lots", "Discharging"), None);
}

#[test]
fn a_low_battery_makes_every_app_durable() {
    let machine = Machine::new();
    let files = [
        ("type", "Battery"),
        ("capacity", "5"),
        ("status", "Discharging"),
    ];
    machine.supply("BAT0", &files);
    let volume = volume("[defaults]\nage_max_ms = 1000000\n");
    let watcher = EventWatcher::start(volume.clone(), &machine.sources(), None).unwrap();
    wait_until(|| volume.status().battery_low);
    let classes = || volume.status().apps.into_iter().map(|app| app.class);
    assert!(classes().all(|class| class == "durable"));
    // The configuration, loaded again, does not charge it.
    let config = Config::parse("", Path::new("test")).unwrap();
    volume.reload(&config).unwrap();
    assert!(classes().all(|class| class == "durable"));
    drop(watcher);
    volume.set_battery_low(BatterySource::Upower, true);
    volume.set_battery_low(BatterySource::Kernel, false);
    assert!(volume.status().battery_low, "one still says so");
    assert!(classes().all(|class| class == "durable"));
    volume.set_battery_low(BatterySource::Upower, false);
    assert!(!volume.status().battery_low);
    assert!(classes().all(|class| class == "relaxed"));
}

#[test]
fn a_screen_is_on_if_its_connector_and_its_light_are() {
    let machine = Machine::new();
    let screens = Screens::new(&machine.path("drm"), &machine.path("backlight"));
    assert_eq!(screens.is_one_on(), None);
    machine.write_class("drm", "card0", &[("dev", "226:0")]);
    machine.write_class("drm", "version", &[]);
    machine.connector("card0-DP-1", "disconnected", "Off");
    assert_eq!(screens.is_one_on(), None, "nothing is connected");
    machine.light("4");
    assert_eq!(screens.is_one_on(), Some(false), "only a light");
    machine.light("0");
    assert_eq!(screens.is_one_on(), Some(true));
    machine.connector("card0-eDP-1", "connected", "Off");
    assert_eq!(screens.is_one_on(), Some(false));
    machine.connector("card0-eDP-1", "connected", "On");
    assert_eq!(screens.is_one_on(), Some(true));
    machine.light("4");
    assert_eq!(screens.is_one_on(), Some(false), "its light is off");
    machine.connector("card0-DP-1", "connected", "On");
    assert_eq!(
        screens.is_one_on(),
        Some(true),
        "which another one does not have"
    );
    machine.connector("card0-DP-1", "connected", "Standby");
    assert_eq!(screens.is_one_on(), Some(false));
}

#[test]
fn only_changes_of_a_screen_are_reported() {
    let machine = Machine::new();
    let screens = Screens::new(&machine.path("drm"), &machine.path("backlight"));
    let mut watch = ScreenWatch::new(screens);
    let mut look = |dpms| {
        machine.connector("card0-HDMI-A-1", "connected", dpms);
        watch.look()
    };
    assert_eq!(look("On"), None, "as a mount takes it to be");
    assert_eq!(look("Off"), Some(false));
    assert_eq!(look("Suspend"), None);
    machine.connector("card0-HDMI-A-1", "disconnected", "Off");
    assert_eq!(watch.look(), None, "no device reports a battery");
    machine.connector("card0-HDMI-A-1", "connected", "On");
    assert_eq!(watch.look(), Some(true));
}

#[test]
fn standby_begins_where_the_screen_is_off() {
    let machine = Machine::new();
    machine.light("4");
    let volume = volume("");
    let unwatched = EventSources {
        connectors: None,
        ..machine.sources()
    };
    drop(EventWatcher::start(volume.clone(), &unwatched, None).unwrap());
    assert!(!volume.status().screen_off);
    let watcher = EventWatcher::start(volume.clone(), &machine.sources(), None).unwrap();
    wait_until(|| volume.status().screen_off);
    drop(watcher);
}

#[test]
fn a_machine_without_anything_is_passed_over() {
    let machine = Machine::new();
    let nothing = EventSources {
        input: Some(machine.path("absent")),
        memory_pressure: Some(machine.path("absent")),
        ..machine.sources()
    };
    let watcher = EventWatcher::start(volume(""), &nothing, None).unwrap();
    assert!(watcher.thread.is_none());
}
