//! What events around a mount are for: what decides about its commits.

use mobifs_volume::{BatterySource, Volume};

/// Decides when changes are committed, and so has to know what happens around them. Calls come
/// from several threads and may take their time.
pub trait EventTarget: Send + Sync {
    /// The user does something.
    fn user_event(&self);

    /// The user has gone, until the next event.
    fn user_left(&self);

    /// One source says that the battery is low, or no longer.
    fn set_battery_low(&self, source: BatterySource, is_low: bool);

    /// The screen was switched on or off.
    fn set_screen(&self, is_on: bool);

    /// The machine is about to sleep or to be switched off: everything is to be committed when
    /// this returns.
    fn power_goes(&self);

    /// The machine goes to sleep when this returns.
    fn falls_asleep(&self) {}

    /// The machine is awake again, or does not sleep after all.
    fn is_awake(&self) {}

    /// Memory is short.
    fn flush_under_pressure(&self);
}

impl EventTarget for Volume {
    fn user_event(&self) {
        Self::user_event(self);
    }

    fn user_left(&self) {
        Self::user_left(self);
    }

    fn set_battery_low(&self, source: BatterySource, is_low: bool) {
        Self::set_battery_low(self, source, is_low);
    }

    fn set_screen(&self, is_on: bool) {
        if let Err(error) = Self::set_screen(self, is_on) {
            tracing::error!(%error, "the daemon could not commit everything before standby");
        }
    }

    fn power_goes(&self) {
        match Self::power_goes(self) {
            Ok(()) => tracing::info!(
                "the daemon committed everything before the machine sleeps or shuts down"
            ),
            Err(error) => {
                tracing::error!(
                    %error,
                    "the machine sleeps or shuts down with uncommitted changes in memory"
                );
            }
        }
    }

    fn flush_under_pressure(&self) {
        Self::flush_under_pressure(self);
    }
}
