//! The model beside a mount, and every state that a power cut of it may leave.

use mobifs_base::FileKind;

use crate::harness::execute_on_both;
use crate::layout::Layout;
use crate::model::{Model, State};
use crate::operations::{Operation, Payload};
use crate::target::Target;
use crate::timeline::Timeline;
use crate::tree::{Compare, Tree};

/// The kernel cuts a write that does not start on a page at the next page.
const PAGE_BYTES: u64 = 4096;
/// The kernel passes at most so much in one request.
const REQUEST_BYTES_MAX: u64 = 1 << 20;

/// Where a write with `O_DIRECT` that is submitted page by page is cut.
fn pages(length: u64) -> impl Iterator<Item = u64> {
    (1..length.div_ceil(PAGE_BYTES)).map(|page| page * PAGE_BYTES)
}

/// Where the kernel cuts a write in two: each part is an operation of its own, and a
/// commit may come between them. Lengths of what was written before each cut.
pub fn pieces(offset: u64, length: u64) -> impl Iterator<Item = u64> {
    let first = (PAGE_BYTES - offset % PAGE_BYTES) % PAGE_BYTES;
    (0..)
        .map(move |number| first + number * REQUEST_BYTES_MAX)
        .skip_while(|&written| written == 0)
        .take_while(move |&written| written < length)
}

/// Executes operations on a mount and on the model, and knows the history of both.
#[derive(Debug)]
pub struct ModelHistory {
    model: Model,
    timeline: Timeline,
    layout: Layout,
    executed: Vec<(usize, Operation)>,
}

impl ModelHistory {
    /// Starts at a state that is committed.
    pub fn new(state: State, layout: Layout) -> Self {
        Self {
            timeline: Timeline::new(layout, state.clone()),
            model: Model::new(state),
            layout,
            executed: Vec::new(),
        }
    }

    /// The executed operations, each with its step of the history.
    pub fn executed(&self) -> &[(usize, Operation)] {
        &self.executed
    }

    /// The model.
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// Executes one operation on both and compares the answers. If they differ, the
    /// operation counts as one that may have happened.
    ///
    /// # Errors
    /// How the answers differ.
    pub fn execute(
        &mut self,
        target: &mut impl Target,
        operation: &Operation,
    ) -> Result<(), String> {
        self.record_pieces(operation);
        let agreed = execute_on_both(&mut self.model, target, operation);
        self.timeline.step(self.model.state());
        self.executed
            .push((self.timeline.last(), operation.clone()));
        agreed?;
        self.record_durable(operation);
        Ok(())
    }

    /// An app was committed.
    pub fn committed(&mut self, app: &str) {
        self.timeline.committed(app);
    }

    /// Everything was committed.
    pub fn all_committed(&mut self) {
        self.timeline.all_committed();
    }

    /// Whether the model has a directory at this path, and the layout makes it an app.
    pub fn is_app(&self, app: &str) -> bool {
        let paths = self.model.state().paths();
        let found = paths.get(app);
        found.is_some_and(|(_, inode)| inode.kind() == FileKind::Directory)
            && self.timeline.may_be_app(app)
    }

    /// Checks a tree found after a power cut.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn explain(&self, found: &Tree, compare: Compare) -> Result<(), String> {
        self.timeline.explain(found, compare).map(drop)
    }

    fn record_pieces(&mut self, operation: &Operation) {
        let (file, offset, data) = match operation {
            Operation::Write { file, offset, data } => (file, Some(*offset), *data),
            Operation::Append { file, data } => (file, self.model.size(file), *data),
            Operation::WriteDirect { file, offset, data } => (file, Some(*offset), *data),
            _ => return,
        };
        let Some(offset) = offset else { return };
        let length = u64::from(data.length);
        let cuts: Vec<u64> = match operation {
            Operation::WriteDirect { .. } => pages(length).collect(),
            _ => pieces(offset, length).collect(),
        };
        for written in cuts {
            let length = written as u32;
            let piece = Operation::Write {
                file: file.clone(),
                offset,
                data: Payload { length, ..data },
            };
            let mut partial = self.model.clone();
            if partial.execute(&piece).is_ok() {
                self.timeline.step(partial.state());
            }
        }
    }

    fn record_durable(&mut self, operation: &Operation) {
        if let Some(synced) = self.timeline.synced_by(&self.model, operation)
            && self.layout.is_durable(&synced.app)
        {
            self.timeline.synced(&synced);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_cut_where_the_kernel_cuts_them() {
        let cut = |offset, length| pieces(offset, length).collect::<Vec<u64>>();
        assert!(cut(0, 9000).is_empty());
        assert!(cut(4096, 100).is_empty());
        assert!(cut(1, 4095).is_empty());
        assert_eq!(cut(1, 4096), [4095]);
        assert_eq!(cut(5000, 9000), [3192]);
        assert_eq!(cut(0, (2 << 20) + 1), [1 << 20, 2 << 20]);
        assert_eq!(cut(4095, (1 << 20) + 2), [1, (1 << 20) + 1]);
    }
}
