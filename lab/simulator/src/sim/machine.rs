//! What the machine's own states are to a daemon.

use mobifs_engine::MachineEvent;
use mobifs_trace::DeviceState;

/// The event that a daemon gets; none where nothing happened meanwhile and there is nothing to undo.
pub(super) const fn machine_event(state: DeviceState) -> Option<MachineEvent> {
    match state {
        DeviceState::ScreenOn => Some(MachineEvent::ScreenOn),
        DeviceState::ScreenOff => Some(MachineEvent::ScreenOff),
        DeviceState::Suspend | DeviceState::Shutdown => Some(MachineEvent::PowerGoes),
        DeviceState::BatteryLow => Some(MachineEvent::BatteryLow),
        DeviceState::BatteryOk => Some(MachineEvent::BatteryOk),
        DeviceState::Resume => None,
    }
}
