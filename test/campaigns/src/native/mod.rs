//! Power cuts of filesystems of the kernel that are steered (`mobifs steer`).
//!
//! * [`writers`]: the programs that write, and how their state after a cut is checked;
//! * `setting`, `session`: some of them on a served device that records everything, while the daemon
//!   commits, is killed or is not run;
//! * `snapshots`: those that a cut has left of a btrfs;
//! * `oracle`: what a power cut may leave, defined exactly;
//! * [`campaign`](Campaign): sessions, and many cuts of each.
//!
//! A session is recorded once and cut often: the device's journal tells what was durable at each moment
//! and what was not, of which a random part survives, torn at sectors. Each cut makes an image of that,
//! which the filesystem recovers by its own means.

mod campaign;
mod oracle;
mod recorded;
mod running;
mod session;
mod setting;
mod snapshots;
mod supervisor;
pub mod writers;

pub use campaign::{Campaign, Options, Tally, Violation};
pub use setting::{Only, Subject};
