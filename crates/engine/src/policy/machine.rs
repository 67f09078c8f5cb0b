//! The state of the machine that matters for commits: screen, sleep, power.
//!
//! In standby (the screen is off, the machine is awake) a flush would wake a device that rests, at
//! up to 129 % more energy (S0 Insight 3, S1 Insight IV). So everything is committed on the way
//! into standby, when no user waits any more and the device is still awake, and commits of later
//! changes are postponed as far as the promises allow.

/// Something that happens to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineEvent {
    /// The screen was switched on.
    ScreenOn,
    /// The screen was switched off: standby begins.
    ScreenOff,
    /// The machine is about to sleep or to be switched off.
    PowerGoes,
    /// The battery is nearly empty.
    BatteryLow,
    /// The battery is no longer nearly empty, or is being charged.
    BatteryOk,
}

/// What follows from the events so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    screen_off: bool,
    battery_low: bool,
}

impl Machine {
    /// An event; true if everything is to be committed because of it.
    #[must_use]
    pub const fn happened(&mut self, event: MachineEvent) -> bool {
        let before = *self;
        match event {
            MachineEvent::ScreenOn => self.screen_off = false,
            MachineEvent::ScreenOff => self.screen_off = true,
            MachineEvent::PowerGoes => return true,
            MachineEvent::BatteryLow => self.battery_low = true,
            MachineEvent::BatteryOk => self.battery_low = false,
        }
        (self.screen_off && !before.screen_off) || (self.battery_low && !before.battery_low)
    }

    /// Whether the screen is off.
    pub const fn is_screen_off(&self) -> bool {
        self.screen_off
    }

    /// Whether the battery is nearly empty.
    pub const fn is_battery_low(&self) -> bool {
        self.battery_low
    }

    /// Whether commits are postponed. Never with a battery that may be empty before the next
    /// one.
    pub const fn is_standby(&self) -> bool {
        self.screen_off && !self.battery_low
    }
}
