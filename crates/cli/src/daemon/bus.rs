//! What the system bus tells goes to the volume.

use std::sync::Arc;

use mobifs_bus::{BusListener, BusOptions, BusWatcher};
use mobifs_runtime::{BatterySource, EventSources, Volume};

/// Starts to listen to the system bus; none if that is not wanted, or there is no way to.
pub(super) fn watch(volume: &Arc<Volume>, sources: &EventSources) -> Option<BusWatcher> {
    if !sources.system_bus {
        return None;
    }
    let is_user_watched = sources.input.is_some();
    let options = BusOptions::system(is_user_watched, sources.battery_low_percent);
    let listener = Arc::new(VolumeListener(Arc::clone(volume)));
    BusWatcher::start(listener, &options)
        .inspect_err(|error| tracing::warn!(%error, "not listening to the system bus"))
        .ok()
}

struct VolumeListener(Arc<Volume>);

impl BusListener for VolumeListener {
    fn user_event(&self) {
        self.0.user_event();
    }

    fn user_left(&self) {
        self.0.user_left();
    }

    fn set_battery_low(&self, is_low: bool) {
        self.0.set_battery_low(BatterySource::Upower, is_low);
    }

    fn set_screen(&self, is_on: bool) {
        if let Err(error) = self.0.set_screen(is_on) {
            tracing::error!(%error, "not everything is committed");
        }
    }

    fn power_goes(&self) {
        match self.0.power_goes() {
            Ok(()) => tracing::info!("committed before the machine sleeps or goes off"),
            Err(error) => {
                tracing::error!(%error, "the machine sleeps or goes off with changes in memory");
            }
        }
    }
}
