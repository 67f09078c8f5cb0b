//! The MobiFS daemon: serves a [`Volume`](mobifs_volume::Volume) as a FUSE mount.

mod adapter;
#[doc(hidden)]
pub mod fuzzing;

pub use adapter::{
    OperationObserver, TakeoverError, VolumeMountError, VolumeSession, begin_takeover,
    observation_clock, postpone_takeover,
};
