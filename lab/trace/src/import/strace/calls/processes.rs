//! Calls that make processes, and those that change where they are.

use super::super::value::{descriptor, string};
use super::super::{Call, Import, Moment};
use super::Taken;
use crate::import::ImportReport;

impl Import {
    pub(super) fn process_call(
        &mut self,
        call: &Call<'_>,
        moment: Moment,
        report: &mut ImportReport,
    ) -> Taken {
        let has_failed = call.outcome.error.is_some();
        match (call.name, call.arguments.as_slice()) {
            ("clone" | "clone3" | "fork" | "vfork", arguments) => {
                let child = call
                    .outcome
                    .value
                    .and_then(|value| u32::try_from(value).ok());
                if let (false, Some(child)) = (has_failed, child) {
                    self.tasks.spawn(moment.task, child, &arguments.join(&b','));
                }
            }
            ("execve" | "execveat", _) => {
                if !has_failed && call.outcome.value.is_some() {
                    let closed = self.tasks.execute(moment.task);
                    self.closed(closed, moment, report);
                    let process = self.tasks.task(moment.task).process;
                    self.mappings.retain(|(owner, ..)| *owner != process);
                }
            }
            ("chdir", [path]) => {
                let path = string(path)?;
                if !has_failed && let Some(path) = self.resolve(moment.task, None, &path, report) {
                    self.tasks.set_directory(moment.task, path);
                }
            }
            ("fchdir", [directory]) => {
                let directory = descriptor(directory)?;
                if let (false, Some(open)) = (has_failed, self.descriptor(moment.task, &directory))
                {
                    let file = self.tasks.open_file(open).file;
                    let path = self.files.path(file);
                    self.tasks.set_directory(moment.task, path);
                }
            }
            ("getcwd", [path, _]) => {
                if let (false, Some(path)) = (has_failed, string(path)) {
                    self.tasks.set_directory(moment.task, path);
                }
            }
            _ => return Some(false),
        }
        Some(true)
    }
}
