//! Batteries, as the kernel reports them (`/sys/class/power_supply`).

use std::fs;
use std::path::{Path, PathBuf};

/// A low battery counts as charged again when it has so much more, in percent.
const RECOVERED_PERCENT: u8 = 5;

/// The charge that remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    /// The charge of the fullest battery, in percent.
    pub(super) percent: u8,
    /// Nothing charges them.
    pub(super) is_discharging: bool,
}

/// The batteries that the machine runs on.
#[derive(Clone, Debug)]
pub(super) struct Batteries {
    directory: PathBuf,
}

impl Batteries {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// The charge of all of them; none if there is no battery, or it does not report one.
    pub(super) fn charge(&self) -> Option<Charge> {
        let supplies = fs::read_dir(&self.directory).ok()?;
        let charges = supplies.filter_map(|supply| charge_of(&supply.ok()?.path()));
        charges.reduce(|one, other| Charge {
            percent: one.percent.max(other.percent),
            is_discharging: one.is_discharging && other.is_discharging,
        })
    }
}

fn charge_of(supply: &Path) -> Option<Charge> {
    let read = |name: &str| {
        let text = fs::read_to_string(supply.join(name)).ok()?;
        Some(text.trim().to_owned())
    };
    // The battery of a mouse has the scope "Device".
    if read("type")? != "Battery" || read("scope").is_some_and(|scope| scope == "Device") {
        return None;
    }
    Some(Charge {
        percent: read("capacity")?.parse().ok()?,
        is_discharging: read("status")? == "Discharging",
    })
}

/// Notices when the charge becomes low, and when it is no longer.
#[derive(Debug)]
pub(super) struct BatteryWatch {
    batteries: Batteries,
    low_percent: u8,
    is_low: bool,
}

impl BatteryWatch {
    pub(super) const fn new(batteries: Batteries, low_percent: u8) -> Self {
        Self {
            batteries,
            low_percent,
            is_low: false,
        }
    }

    /// Whether it is low, if that is news.
    pub(super) fn look(&mut self) -> Option<bool> {
        let charge = self.batteries.charge()?;
        let enough = if self.is_low {
            self.low_percent.saturating_add(RECOVERED_PERCENT)
        } else {
            self.low_percent
        };
        let is_low = charge.is_discharging && charge.percent <= enough;
        (is_low != self.is_low).then(|| {
            self.is_low = is_low;
            is_low
        })
    }
}
