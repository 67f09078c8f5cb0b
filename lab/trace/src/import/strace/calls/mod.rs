//! What each call means.

mod attributes;
mod content;
mod descriptors;
mod names;
mod processes;

use super::{Call, Import, Moment};
use crate::import::ImportReport;

/// Calls that move data in ways that are not followed.
const UNFOLLOWED: [&str; 8] = [
    "splice",
    "tee",
    "vmsplice",
    "io_uring_setup",
    "io_uring_enter",
    "io_submit",
    "sync_file_range",
    "process_vm_writev",
];

impl Import {
    /// Takes a call. None if its arguments cannot be understood.
    pub(super) fn dispatch(
        &mut self,
        call: &Call<'_>,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Option<()> {
        let groups = [
            Self::descriptor_call,
            Self::content_call,
            Self::name_call,
            Self::attribute_call,
            Self::process_call,
        ];
        for group in groups {
            if group(self, call, moment, report)? {
                return Some(());
            }
        }
        if UNFOLLOWED.contains(&call.name) {
            report.leave_out(&format!("{} is not followed", call.name));
        }
        Some(())
    }
}

/// Whether a call belongs to a group; none if its arguments cannot be understood.
type Taken = Option<bool>;
