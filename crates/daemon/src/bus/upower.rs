//! UPower: batteries, and the lid.

use std::sync::Arc;

use super::BusListener;
use super::connection::Connection;
use super::error::BusError;
use super::logind::Logind;
use super::message::Message;
use super::service::{PROPERTIES, properties};
use super::wire::Value;

pub(super) const NAME: &str = "org.freedesktop.UPower";
const PATH: &str = "/org/freedesktop/UPower";
/// Stands for all batteries of the machine together.
const DISPLAY_PATH: &str = "/org/freedesktop/UPower/devices/DisplayDevice";
const DEVICE: &str = "org.freedesktop.UPower.Device";

/// `WarningLevel`: low. Above are critical, and the level at which the machine is saved.
const WARNING_LOW: u32 = 3;
/// A low battery counts as charged again when it has so much more, in percent.
const RECOVERED_PERCENT: f64 = 5.0;

/// The connection's use of UPower while the service is there.
pub(super) struct Upower {
    listener: Arc<dyn BusListener>,
    /// Charge, in percent, at which a battery is low; 0: batteries are not looked at.
    low_percent: u8,
    is_low: bool,
    is_lid_closed: bool,
}

impl Upower {
    pub(super) const fn new(listener: Arc<dyn BusListener>, low_percent: u8) -> Self {
        Self {
            listener,
            low_percent,
            is_low: false,
            is_lid_closed: false,
        }
    }

    /// The signals to subscribe to.
    pub(super) fn match_rules() -> Vec<String> {
        [PATH, DISPLAY_PATH]
            .map(|path| {
                format!("type='signal',sender='{NAME}',path='{path}',interface='{PROPERTIES}'")
            })
            .to_vec()
    }

    /// UPower is there, or has signalled a change. (When the service stops, its last report stays
    /// valid: it starts again.)
    pub(super) fn look(&mut self, connection: &Connection) -> Result<(), BusError> {
        let machine = properties(connection, NAME, PATH, NAME)?;
        let is_true = |name| is_true(&machine, name);
        if self.low_percent > 0 {
            let battery = properties(connection, NAME, DISPLAY_PATH, DEVICE)?;
            self.set_low(is_true("OnBattery") && self.is_nearly_empty(&battery));
        }
        let is_lid_closed = is_true("LidIsPresent") && is_true("LidIsClosed");
        if is_lid_closed != self.is_lid_closed {
            // In a dock other screens are used.
            if is_lid_closed && Logind::is_docked(connection)? != Some(false) {
                return Ok(());
            }
            self.is_lid_closed = is_lid_closed;
            self.listener.set_screen(!is_lid_closed);
        }
        Ok(())
    }

    /// Whether a signal is about what is looked at.
    pub(super) fn concerns(signal: &Message) -> bool {
        let path = signal.path.as_deref();
        signal.interface.as_deref() == Some(PROPERTIES)
            && path.is_some_and(|path| [PATH, DISPLAY_PATH].contains(&path))
    }

    fn is_nearly_empty(&self, battery: &Value) -> bool {
        let level = battery.property("WarningLevel").and_then(Value::as_u32);
        let percent = battery.property("Percentage").and_then(Value::as_double);
        let is_present = is_true(battery, "IsPresent");
        let enough =
            f64::from(self.low_percent) + if self.is_low { RECOVERED_PERCENT } else { 0.0 };
        let has_little = percent.is_some_and(|percent| percent <= enough);
        level.is_some_and(|level| level >= WARNING_LOW) || (is_present && has_little)
    }

    fn set_low(&mut self, is_low: bool) {
        if is_low != self.is_low {
            self.is_low = is_low;
            self.listener.set_battery_low(is_low);
        }
    }
}

fn is_true(properties: &Value, name: &str) -> bool {
    properties.property(name).and_then(Value::as_bool) == Some(true)
}
