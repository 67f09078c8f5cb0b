//! What drives a MobiFS engine: threads, clock, checkpointer, control socket.
#![deny(unsafe_code)]

mod app_name;
mod app_selection;
#[expect(
    unsafe_code,
    reason = "memory that outlives the process is mapped and used by address"
)]
mod arena;
mod clock;
mod config;
mod examination;
mod fault_points;
#[cfg(test)]
mod fixtures;
mod forecast;
mod heap;
mod last_commit;
mod lock;
mod memory_budget;
mod opened;
mod status;
mod volume;

pub use app_name::AppName;
pub use app_selection::AppSelection;
pub use arena::{Arena, ArenaError, Entered, InFlightRequest, RequestSlot, enter};
pub use clock::{Clock, SystemClock};
pub use config::{
    Config, ConfigError, ConfigKeys, EventSources, HistoryRules, Kind, LastingSettings,
    PolicyChange, PolicyKey, PolicySettings, Rules, SettingError, Size, check_policy, class_name,
    config_keys, parse_class, parse_policy, parse_size,
};
pub use examination::{inspect, salvage, survey};
#[cfg(feature = "fault-points")]
pub use fault_points::{FAULT_POINTS, FAULTS};
pub use fault_points::{arm_fault_points, fault_point, patience};
pub use heap::keep_few_heaps;
pub use last_commit::{CommitPass, LastCommit, LastCommitError};
pub use lock::{LOCK, LockOwner, OwnerState, ServedMount, StoreLock};
pub use mobifs_engine::{
    AllocateMode, AttributeChange, Caller, Class, FsError, KernelHeld, Node, NodeSpec,
    ReadDirEntry, References, RenameMode, SetIdBits, TimeChange, Whence, WriteAt, XattrMode,
};
pub use opened::{OpenOptions, OpenedStore, Resumption};
pub use status::{
    AppReport, AppTotals, CalibrationReport, CheckpointReport, HistoryStatus, JournalReport,
    MemoryStatus, NativeStatus, PolicyReport, RecordingStatus, SCHEMA_VERSION, Status, StoreStatus,
    TransactionCounts, UserReport, WriteTimesReport, bytes, rfc3339,
};
pub use volume::{
    AppliedState, BatterySource, CallingThreads, Checkpointer, KernelCache, SyncCaller, Volume,
    VolumeError, VolumeOptions, WRITER_LOCK_AT, is_rollback_journal,
};
