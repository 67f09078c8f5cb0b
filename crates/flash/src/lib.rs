//! A deterministic model of eMMC, UFS and microSD devices.

#![forbid(unsafe_code)]

mod address;
mod config;
mod device;
mod ftl;
mod model;
mod packed;
mod random;

pub use address::{Lpn, PAGE_BYTES, SECTOR_BYTES, SECTORS_PER_PAGE, Sector};
pub use config::{
    AccountingConfig, BackgroundConfig, Config, ConfigError, EnergyConfig, GarbageCollectionConfig,
    GeometryConfig, InterfaceConfig, MappingConfig, Origin, Parameter, Preset, RemapConfig,
    SlcConfig, TimingConfig, VictimPolicy, WearConfig, WhenFull, WriteCacheConfig,
};
pub use device::{CutReport, Device, DeviceError, Keep, Medium, MemoryMedium};
pub use ftl::{CauseCounters, FlashCounters, InvariantError, LoadError};
pub use mobifs_types::VirtualNs;
pub use model::{
    Command, CommandError, CommandKind, CommandStats, Completion, EnergyStats, LatencyStats, Model,
    PackedPart, RegionStats, SaveError, Stats, WearStats, WriteKind,
};
