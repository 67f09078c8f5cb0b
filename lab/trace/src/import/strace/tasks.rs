//! Processes and threads, their working directories and descriptors.

use std::collections::HashMap;

use super::files::FileId;
use super::value::has_flag;

/// An open file; descriptors that were duplicated or inherited share one.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    pub(super) file: FileId,
    /// Where the next read or write goes that does not say.
    pub(super) position: u64,
    pub(super) is_appending: bool,
    /// Descriptors that refer to it.
    references: usize,
}

/// An index into the open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenId(usize);

#[derive(Clone, Copy, Debug)]
struct Descriptor {
    open: OpenId,
    closes_on_exec: bool,
}

/// The beginning of a call that has not ended yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) text: Vec<u8>,
    pub(super) time_ns: u64,
}

/// A task: a process, or a thread of one.
#[derive(Clone, Debug)]
pub(super) struct Task {
    /// The task that leads the process.
    pub(super) process: u32,
    /// Which table of descriptors it uses.
    table: usize,
    /// Which working directory.
    directory: usize,
    pub(super) pending: Option<Pending>,
}

/// All tasks that were seen.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    tasks: HashMap<u32, Task>,
    tables: Vec<HashMap<i64, Descriptor>>,
    /// Working directories; none where they are unknown.
    directories: Vec<Option<Vec<u8>>>,
    open_files: Vec<OpenFile>,
    /// Where the first task was started.
    start: Option<Vec<u8>>,
}

impl Tasks {
    pub(super) fn new(start: Option<Vec<u8>>) -> Self {
        Self {
            start,
            ..Self::default()
        }
    }

    /// The task of a number. One that is not known is the child of a task that is in the middle
    /// of making one, or else it was there from the start.
    pub(super) fn task(&mut self, number: u32) -> &mut Task {
        if !self.tasks.contains_key(&number) {
            match self.expecting() {
                Some((parent, flags)) => self.spawn(parent, number, &flags),
                None => self.begin(number),
            }
        }
        self.tasks.entry(number).or_insert_with(|| Task {
            process: number,
            table: 0,
            directory: 0,
            pending: None,
        })
    }

    fn begin(&mut self, number: u32) {
        self.tables.push(HashMap::new());
        self.directories.push(self.start.clone());
        let task = Task {
            process: number,
            table: self.tables.len() - 1,
            directory: self.directories.len() - 1,
            pending: None,
        };
        self.tasks.insert(number, task);
    }

    /// The task that began first to make another, with the call's text.
    fn expecting(&self) -> Option<(u32, Vec<u8>)> {
        let makes = |text: &[u8]| {
            let names = [&b"clone("[..], b"clone3(", b"fork(", b"vfork("];
            names.iter().any(|name| text.starts_with(name))
        };
        let pending = self.tasks.iter().filter_map(|(&number, task)| {
            let pending = task.pending.as_ref()?;
            makes(&pending.text).then_some((pending.time_ns, number, &pending.text))
        });
        let (_, number, text) = pending.min()?;
        Some((number, text.clone()))
    }

    /// A task was made by `parent`; `flags` is the call's text.
    pub(super) fn spawn(&mut self, parent: u32, number: u32, flags: &[u8]) {
        if self.tasks.contains_key(&number) {
            return;
        }
        let Some(parent) = self.tasks.get(&parent).cloned() else {
            return self.begin(number);
        };
        let mut task = Task {
            process: number,
            pending: None,
            ..parent.clone()
        };
        if has_flag(flags, "CLONE_THREAD") {
            task.process = parent.process;
        }
        if !has_flag(flags, "CLONE_FILES") {
            let table = self.tables[parent.table].clone();
            for descriptor in table.values() {
                self.open_files[descriptor.open.0].references += 1;
            }
            self.tables.push(table);
            task.table = self.tables.len() - 1;
        }
        if !has_flag(flags, "CLONE_FS") {
            self.directories
                .push(self.directories[parent.directory].clone());
            task.directory = self.directories.len() - 1;
        }
        self.tasks.insert(number, task);
    }

    /// A task has ended; the files that no task has open any more.
    pub(super) fn exit(&mut self, number: u32) -> Vec<FileId> {
        let Some(task) = self.tasks.remove(&number) else {
            return Vec::new();
        };
        if self.tasks.values().any(|other| other.table == task.table) {
            return Vec::new();
        }
        let table = std::mem::take(&mut self.tables[task.table]);
        let mut numbers: Vec<_> = table.into_iter().collect();
        numbers.sort_unstable_by_key(|(number, _)| *number);
        let closed = numbers.into_iter();
        closed
            .filter_map(|(_, descriptor)| self.release(descriptor.open))
            .collect()
    }

    /// A task runs another program; the files that no task has open any more.
    pub(super) fn execute(&mut self, number: u32) -> Vec<FileId> {
        let table = self.task(number).table;
        let closing = self.tables[table]
            .iter()
            .filter(|(_, descriptor)| descriptor.closes_on_exec);
        let mut closing: Vec<i64> = closing.map(|(&number, _)| number).collect();
        closing.sort_unstable();
        closing
            .into_iter()
            .filter_map(|descriptor| self.close(number, descriptor))
            .collect()
    }

    pub(super) fn directory(&mut self, number: u32) -> Option<Vec<u8>> {
        let directory = self.task(number).directory;
        self.directories[directory].clone()
    }

    pub(super) fn set_directory(&mut self, number: u32, path: Vec<u8>) {
        let directory = self.task(number).directory;
        self.directories[directory] = Some(path);
    }

    /// Opens a file under a descriptor.
    pub(super) fn open(
        &mut self,
        task: u32,
        descriptor: i64,
        file: FileId,
        flags: &[u8],
    ) -> OpenId {
        let open = OpenId(self.open_files.len());
        self.open_files.push(OpenFile {
            file,
            position: 0,
            is_appending: has_flag(flags, "O_APPEND"),
            references: 0,
        });
        self.set(task, descriptor, open, has_flag(flags, "O_CLOEXEC"));
        open
    }

    /// Lets a descriptor refer to an open file; the file that it referred to, if no other
    /// has it open.
    pub(super) fn set(
        &mut self,
        task: u32,
        descriptor: i64,
        open: OpenId,
        closes_on_exec: bool,
    ) -> Option<FileId> {
        self.open_files[open.0].references += 1;
        let closed = self.close(task, descriptor);
        let table = self.task(task).table;
        let entry = Descriptor {
            open,
            closes_on_exec,
        };
        self.tables[table].insert(descriptor, entry);
        closed
    }

    /// Closes a descriptor; the file, if no descriptor refers to it any more.
    pub(super) fn close(&mut self, task: u32, descriptor: i64) -> Option<FileId> {
        let table = self.task(task).table;
        let closed = self.tables[table].remove(&descriptor)?;
        self.release(closed.open)
    }

    /// The descriptors of a task in a range, in order.
    pub(super) fn descriptors(&mut self, task: u32, first: i64, last: i64) -> Vec<i64> {
        let table = self.task(task).table;
        let numbers = self.tables[table].keys().copied();
        let mut numbers: Vec<i64> = numbers.filter(|&n| n >= first && n <= last).collect();
        numbers.sort_unstable();
        numbers
    }

    fn release(&mut self, open: OpenId) -> Option<FileId> {
        let open = &mut self.open_files[open.0];
        open.references = open.references.saturating_sub(1);
        (open.references == 0).then_some(open.file)
    }

    /// The open file of a descriptor, if it is known.
    pub(super) fn find(&mut self, task: u32, descriptor: i64) -> Option<OpenId> {
        let table = self.task(task).table;
        self.tables[table]
            .get(&descriptor)
            .map(|descriptor| descriptor.open)
    }

    pub(super) fn open_file(&mut self, open: OpenId) -> &mut OpenFile {
        &mut self.open_files[open.0]
    }
}
