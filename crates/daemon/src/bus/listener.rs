//! Passes the events of the system bus on to what decides about commits.

use std::sync::Arc;

use super::{BusListener, BusOptions, BusWatcher};
use crate::events::{EventObserver, EventTarget, UserInput};
use mobifs_volume::{BatterySource, EventSources};

/// Starts to listen to the system bus; none if that is not wanted or not possible.
pub(crate) fn watch(
    target: &Arc<dyn EventTarget>,
    sources: &EventSources,
    observer: Option<Arc<dyn EventObserver>>,
) -> Option<BusWatcher> {
    if !sources.system_bus {
        return None;
    }
    let is_user_watched = sources.input.is_some();
    let options = BusOptions::system(is_user_watched, sources.battery_low_percent);
    let listener = Arc::new(Listener {
        target: Arc::clone(target),
        observer,
    });
    BusWatcher::start(listener, &options)
        .inspect_err(|error| {
            tracing::warn!(
                %error,
                "cannot listen to the system bus; the daemon goes on without its events"
            )
        })
        .ok()
}

struct Listener {
    target: Arc<dyn EventTarget>,
    observer: Option<Arc<dyn EventObserver>>,
}

impl BusListener for Listener {
    fn user_event(&self) {
        self.target.user_event();
        if let Some(observer) = &self.observer {
            observer.user_acted(UserInput::Other);
        }
    }

    fn user_left(&self) {
        self.target.user_left();
    }

    fn set_battery_low(&self, is_low: bool) {
        self.target.set_battery_low(BatterySource::Upower, is_low);
        if let Some(observer) = &self.observer {
            observer.battery_changed(is_low);
        }
    }

    fn set_screen(&self, is_on: bool) {
        if let Some(observer) = &self.observer {
            observer.screen_changed(is_on);
        }
        self.target.set_screen(is_on);
    }

    fn power_goes(&self) {
        self.target.power_goes();
    }

    fn falls_asleep(&self) {
        self.target.falls_asleep();
    }

    fn is_awake(&self) {
        self.target.is_awake();
    }
}
