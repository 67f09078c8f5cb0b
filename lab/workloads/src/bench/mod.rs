//! Benches of parts of MobiFS in this process, without a kernel or a device.

pub mod engine_write;
pub mod outlive;
pub mod policy_cost;
