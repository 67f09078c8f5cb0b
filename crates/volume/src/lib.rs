//! What moves a live MobiFS engine: threads, clock, checkpointer, control socket.
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
mod control;
mod events;
mod fault_points;
mod forecast;
pub mod handover;
mod heap;
mod holder;
mod inherited;
mod last_commit;
mod limits;
mod lock;
mod lock_table;
mod memory_budget;
mod mount_users;
mod opened;
mod places;
mod status;
mod volume;

pub use app_name::AppName;
pub use app_selection::AppSelection;
pub use arena::{Arena, ArenaError, Entered, InFlightRequest, RequestSlot, enter};
pub use clock::{Clock, SystemClock};
pub use config::{
    Config, ConfigError, PolicyChange, PolicySettings, Rules, SettingError, Size, class_name,
    config_keys, parse_class, parse_policy, parse_size,
};
pub use control::{
    AnswerPatience, ControlClient, ControlError, ControlHandler, ControlServer, ErrorKind, Reply,
    Request, find_mount, remove_stale_sockets,
};
pub use events::{EventObserver, EventSources, EventWatcher, UserInput};
#[cfg(feature = "fault-points")]
pub use fault_points::{FAULT_POINTS, FAULTS};
pub use fault_points::{arm_fault_points, fault_point, patience};
pub use heap::keep_few_heaps;
pub use holder::{Holder, HolderState, ServedMount};
pub use inherited::reset_inherited;
pub use last_commit::{CommitPass, LastCommit, LastCommitError};
pub use limits::{LimitError, raise_limits};
pub use lock::StoreLock;
pub use mobifs_engine::{
    AllocateMode, AttributeChange, Caller, Class, FsError, KernelHeld, Node, NodeSpec,
    ReadDirEntry, References, RenameMode, SetIdBits, TimeChange, Whence, WriteAt, XattrMode,
};
pub use mount_users::{MountUser, users_of, users_of_device};
pub use opened::{OpenOptions, OpenedStore, Resumption};
pub use places::{PlaceError, PlaceOptions, Places, check_store};
pub use status::{
    AppReport, AppTotals, CheckpointReport, MemoryStatus, PolicyReport, RecordingStatus,
    SCHEMA_VERSION, Status, StoreStatus, TransactionCounts, UserReport,
};
pub use volume::{BatterySource, Checkpointer, KernelCache, Volume, VolumeError, VolumeOptions};
