//! Tests of the stack without a kernel, as one program. The tests that mount have programs of their
//! own: a process that another test starts has the files of a mount open for a moment, and an unmount
//! would find them in use.

mod calibration;
mod copied_pages;
mod copied_stores;
mod crash_search;
mod engine_properties;
mod externally_modified;
mod fault_limits;
mod fault_pairs;
mod fault_regressions;
mod fault_search;
mod forged_journals;
mod kill_properties;
mod kill_search;
mod life_search;
mod lookups_during_apply;
mod memory_bounds;
mod model_vs_directory;
mod moved;
mod not_applied;
mod preallocation;
mod regressions;
mod salvage;
mod salvage_bits;
mod stack_crash;
mod virtual_day;
mod write_ahead;
