//! What the system bus reports of a machine: that it is about to sleep or to be switched off,
//! that its sessions are idle, that its battery is low, that its lid is closed.
//!
//! One thread holds one connection. It listens to logind and UPower, also if they start later; on a
//! machine without a bus it tries again now and then. What follows from an event is up to the
//! [`BusListener`].
//!
//! The client of the bus is our own (docs/DESIGN.md says why): [`wire`] has values, [`message`]
//! messages, [`connection`] calls and their answers.

mod address;
mod connection;
mod error;
pub(crate) mod fuzzing;
mod listener;
mod logind;
mod message;
mod service;
#[cfg(test)]
mod tests;
mod upower;
mod watcher;
mod wire;

pub(crate) use listener::watch;
pub(crate) use watcher::{BusOptions, BusWatcher};

/// Receives the events. Calls come from threads of the watcher and may take their time.
pub(crate) trait BusListener: Send + Sync {
    /// The user is active again after having been idle.
    fn user_event(&self);

    /// The user has gone: every session is idle.
    fn user_left(&self);

    /// The battery is low, or no longer.
    fn set_battery_low(&self, is_low: bool);

    /// No screen is on any more, or one is again.
    fn set_screen(&self, is_on: bool);

    /// The machine is about to sleep or to be switched off, and waits (for some seconds)
    /// until this returns.
    fn power_goes(&self);

    /// The machine goes to sleep when this returns.
    fn falls_asleep(&self) {}

    /// The machine is awake again, or does not sleep after all.
    fn is_awake(&self) {}
}
