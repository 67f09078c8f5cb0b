//! What is listened to around a mount.

use std::path::PathBuf;

use super::errors::Fault;
use super::raw::RawConfig;

/// What is listened to, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSources {
    /// Directory of the input devices; none: they are not looked at.
    pub input: Option<PathBuf>,
    /// What the kernel reports of them.
    pub input_classes: PathBuf,
    /// Whether many requests after a pause are taken for a user. (The volume detects bursts, not
    /// this watcher.)
    pub bursts: bool,
    /// Whether the daemon listens to the system bus.
    pub system_bus: bool,
    /// The kernel's account of stalls for lack of memory; none: not looked at.
    pub memory_pressure: Option<PathBuf>,
    /// The kernel's account of batteries.
    pub power_supplies: PathBuf,
    /// Charge, in percent, at which a battery is low; 0: batteries are not looked at.
    pub battery_low_percent: u8,
    /// The kernel's account of what is connected to graphics cards; none: screens are not
    /// looked at.
    pub connectors: Option<PathBuf>,
    /// The kernel's account of backlights.
    pub backlights: PathBuf,
}

impl Default for EventSources {
    fn default() -> Self {
        Self {
            input: Some("/dev/input".into()),
            input_classes: "/sys/class/input".into(),
            bursts: false,
            system_bus: true,
            memory_pressure: Some("/proc/pressure/memory".into()),
            power_supplies: "/sys/class/power_supply".into(),
            battery_low_percent: 10,
            connectors: Some("/sys/class/drm".into()),
            backlights: "/sys/class/backlight".into(),
        }
    }
}

pub(super) fn events(raw: &RawConfig) -> Result<EventSources, Fault> {
    let mut sources = EventSources::default();
    match raw.user_events.as_deref() {
        None | Some("auto") => {}
        Some("bursts") => sources.bursts = true,
        Some("none") => sources.input = None,
        Some(other) => {
            let message = format!("\"{other}\" is none of \"auto\", \"bursts\" and \"none\"");
            return Err(Fault::new("user_events", message));
        }
    }
    sources.system_bus = raw.system_bus.unwrap_or(true);
    if raw.screens == Some(false) {
        sources.connectors = None;
    }
    if raw.memory_pressure == Some(false) {
        sources.memory_pressure = None;
    }
    if let Some(percent) = raw.battery_low_percent {
        let percent = u8::try_from(percent).ok().filter(|&percent| percent <= 100);
        sources.battery_low_percent =
            percent.ok_or_else(|| Fault::new("battery_low_percent", "must be at most 100"))?;
    }
    Ok(sources)
}
