//! Passes the events of the system bus on to the volume.

use std::sync::Arc;

use super::{BusListener, BusOptions, BusWatcher};
use crate::events::{EventObserver, UserInput};
use mobifs_volume::{BatterySource, EventSources, Volume};

/// Starts to listen to the system bus; none if that is not wanted or not possible.
pub(crate) fn watch(
    volume: &Arc<Volume>,
    sources: &EventSources,
    observer: Option<Arc<dyn EventObserver>>,
) -> Option<BusWatcher> {
    if !sources.system_bus {
        return None;
    }
    let is_user_watched = sources.input.is_some();
    let options = BusOptions::system(is_user_watched, sources.battery_low_percent);
    let listener = Arc::new(VolumeListener {
        volume: Arc::clone(volume),
        observer,
    });
    BusWatcher::start(listener, &options)
        .inspect_err(|error| {
            tracing::warn!(
                %error,
                "cannot listen to the system bus; the mount is served without its events"
            )
        })
        .ok()
}

struct VolumeListener {
    volume: Arc<Volume>,
    observer: Option<Arc<dyn EventObserver>>,
}

impl BusListener for VolumeListener {
    fn user_event(&self) {
        self.volume.user_event();
        if let Some(observer) = &self.observer {
            observer.user_acted(UserInput::Other);
        }
    }

    fn user_left(&self) {
        self.volume.user_left();
    }

    fn set_battery_low(&self, is_low: bool) {
        self.volume.set_battery_low(BatterySource::Upower, is_low);
        if let Some(observer) = &self.observer {
            observer.battery_changed(is_low);
        }
    }

    fn set_screen(&self, is_on: bool) {
        if let Some(observer) = &self.observer {
            observer.screen_changed(is_on);
        }
        if let Err(error) = self.volume.set_screen(is_on) {
            tracing::error!(%error, "the daemon could not commit everything");
        }
    }

    fn power_goes(&self) {
        match self.volume.power_goes() {
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
}
