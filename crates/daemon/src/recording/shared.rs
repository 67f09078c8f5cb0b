//! What the workers, the writing thread and status requests share of a recording.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mobifs_base::{DeviceState, ObservedOperation, UserOperation};
use mobifs_recording::Observation;
use parking_lot::Mutex;

use super::buffer::Buffer;
use super::processes::Processes;
use crate::adapter::{OperationObserver, observation_clock};
use crate::events::{EventObserver, UserInput};

/// What the workers, the writing thread and status requests share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) buffer: Buffer,
    pub(super) processes: Processes,
    /// Observations written so far.
    pub(super) events: AtomicU64,
    pub(super) lost: AtomicU64,
    /// No observation is accepted any more.
    pub(super) has_ended: AtomicBool,
    /// Why it has ended before the mount.
    pub(super) stopped: Mutex<Option<String>>,
    /// To be written between observations, in order.
    pub(super) frames: Mutex<Vec<Vec<u8>>>,
}

impl Shared {
    fn add(&self, observation: &Observation<'_>) {
        if !self.has_ended.load(Ordering::Relaxed) {
            self.buffer.push(observation);
        }
    }

    fn device(&self, state: DeviceState) {
        let at = observation_clock();
        self.add(&Observation::Device { at, state });
    }

    pub(super) fn user(&self, operation: UserOperation) {
        let at = observation_clock();
        self.add(&Observation::User { at, operation });
    }

    /// Nothing can be written any more.
    pub(super) fn stop(&self, why: String) {
        self.has_ended.store(true, Ordering::SeqCst);
        tracing::warn!("the recording ends here, the mount goes on: {why}");
        *self.stopped.lock() = Some(why);
    }
}

impl OperationObserver for Shared {
    fn observe(&self, observed: &ObservedOperation<'_>) {
        if self.has_ended.load(Ordering::Relaxed) {
            return;
        }
        let process = self.processes.of(observed.thread, observed.begun_at);
        self.buffer.push(&Observation::Operation {
            process,
            observed: *observed,
        });
    }
}

impl EventObserver for Shared {
    fn user_acted(&self, what: UserInput) {
        self.user(match what {
            UserInput::Touch => UserOperation::Touch,
            UserInput::Key => UserOperation::Key,
            UserInput::Other => UserOperation::Other,
        });
    }

    fn battery_changed(&self, is_low: bool) {
        let state = if is_low {
            DeviceState::BatteryLow
        } else {
            DeviceState::BatteryOk
        };
        self.device(state);
    }

    fn screen_changed(&self, is_on: bool) {
        self.device(if is_on {
            DeviceState::ScreenOn
        } else {
            DeviceState::ScreenOff
        });
    }
}
