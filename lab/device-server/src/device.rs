//! The interface of a modelled device for the port, so that it can be tested with a simple one.

use mobifs_base::VirtualNs;
use serde_json::Value;

use crate::block::Refusal;
use crate::keep::Keep;

/// A device that says when it would be done, and never waits. Addresses are in bytes and
/// whole sectors; `at` never goes back.
pub(crate) trait Device: Send {
    /// Reads; returns when it is done.
    fn read(&mut self, at: VirtualNs, offset: u64, out: &mut [u8]) -> Result<VirtualNs, Refusal>;

    /// Writes. `durable`: as a reliable write.
    fn write(
        &mut self,
        at: VirtualNs,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<VirtualNs, Refusal>;

    /// Writes whole pages that have the content of others already, by sharing it; promises what a
    /// write promises that is not durable. None: it is not the same content, or cannot be shared
    /// now, and nothing has changed.
    fn share(
        &mut self,
        at: VirtualNs,
        from: u64,
        to: u64,
        data: &[u8],
    ) -> Result<Option<VirtualNs>, Refusal>;

    /// Makes durable what was done before `at`.
    fn flush(&mut self, at: VirtualNs) -> Result<VirtualNs, Refusal>;

    /// Gives whole pages up; they read as zeros, durably when it is done.
    fn discard(&mut self, at: VirtualNs, offset: u64, bytes: u64) -> Result<VirtualNs, Refusal>;

    /// Cuts the power.
    fn cut(&mut self, at: VirtualNs, keep: Keep) -> Result<Value, Refusal>;

    /// Switches the power on; returns when the device is ready, and what recovery found.
    fn power_on(&mut self, at: VirtualNs) -> (VirtualNs, Value);

    /// Reads what is durable, past the model, at no cost: after a cut, what it left.
    fn peek(&self, offset: u64, out: &mut [u8]) -> Result<(), Refusal>;

    /// Lets time pass, and returns what was counted until now.
    fn stats(&mut self, now: VirtualNs) -> Result<Value, Refusal>;

    /// Makes everything durable, if it has power, and returns the state beside the content,
    /// to be loaded again.
    fn save(&mut self) -> Result<Vec<u8>, Refusal>;
}
