//! A deterministic model of eMMC, UFS and microSD devices.
//!
//! [`Model`] takes commands with the virtual time at which the host issues them and says when they
//! end; it counts what reaches the cells, and has no content. [`Device`] adds content over a
//! [`Medium`] and decides what a power cut leaves of it. A [`Config`] describes a device; three
//! [`Preset`]s come with the crate. `docs/FLASH.md` says what is modelled.

#![forbid(unsafe_code)]

mod address;
mod config;
mod device;
mod ftl;
mod host;
mod model;
mod packed;

pub use address::{Lpn, PAGE_BYTES, SECTOR_BYTES, SECTORS_PER_PAGE, Sector};
pub use config::{
    AccountingConfig, BackgroundConfig, Config, ConfigError, EnergyConfig, GarbageCollectionConfig,
    GeometryConfig, InterfaceConfig, MappingConfig, Origin, Parameter, Preset, RemapConfig,
    SlcConfig, TimingConfig, VictimPolicy, WearConfig, WhenFull, WriteCacheConfig,
};
pub use device::{CutReport, Device, DeviceError, Keep, Medium, MemoryMedium};
pub use ftl::{CauseCounters, FlashCounters, InvariantError, LoadError};
pub use host::Host;
pub use mobifs_base::VirtualNs;
pub use model::{
    Command, CommandError, CommandKind, CommandStats, Completion, EnergyStats, LatencyStats, Model,
    PackedPart, RegionStats, SaveError, Stats, WearStats, WriteKind,
};
