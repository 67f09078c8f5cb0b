//! All that happens around a mount, from the machine's devices and from the system bus.

use std::sync::Arc;

use mobifs_volume::EventSources;

use super::{EventTarget, EventWatcher};
use crate::bus::{self, BusWatcher};

/// Passes all events around a mount on, until it is dropped.
#[derive(Debug)]
pub struct AroundWatcher {
    _events: Option<EventWatcher>,
    _bus: Option<BusWatcher>,
}

impl AroundWatcher {
    /// Starts to listen to what these sources have.
    pub fn start(target: &Arc<dyn EventTarget>, sources: &EventSources) -> Self {
        let events = EventWatcher::start(Arc::clone(target), sources, None);
        let events = events.inspect_err(|error| {
            tracing::warn!(%error, "cannot watch for events; the daemon goes on without them");
        });
        Self {
            _events: events.ok(),
            _bus: bus::watch(target, sources, None),
        }
    }
}
