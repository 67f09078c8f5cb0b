//! The operands of operations: paths, open files, places in them and content.

use mobifs_base::FileKind;

use super::super::{FileRef, Payload, Slot};
use super::{Generator, NAMES, is_directory};
use crate::model::{Body, Inode};

/// Numbers of open files.
const SLOTS: u64 = 4;
/// Directories are not made deeper than this.
const DEPTH_MAX: usize = 5;

impl Generator<'_> {
    pub(super) fn slot(&mut self) -> Slot {
        self.random.below(SLOTS) as Slot
    }

    /// A slot that holds an open file, if there is one.
    pub(super) fn open_slot(&mut self) -> Slot {
        let open: Vec<Slot> = self.model.open_slots().collect();
        if open.is_empty() {
            self.slot()
        } else {
            *self.random.pick(&open)
        }
    }

    /// A slot that holds something else than a file, if there is one.
    pub(super) fn held_slot(&mut self) -> Slot {
        let held: Vec<Slot> = self.model.held_slots().collect();
        if held.is_empty() {
            self.slot()
        } else {
            *self.random.pick(&held)
        }
    }

    pub(super) fn xattr_name(&mut self) -> String {
        self.random
            .pick(&["user.a", "user.b", "user.c"])
            .to_string()
    }

    pub(super) fn payload(&mut self) -> Payload {
        // Zeros now and then: they look like holes.
        let tag = if self.random.chance(5) {
            0
        } else {
            self.next_tag()
        };
        Payload {
            tag,
            length: self.length(),
        }
    }

    pub(super) fn length(&mut self) -> u32 {
        let large = u32::from(self.profile.large);
        match self.random.weighted(&[12, 12, 4, 1 + 3 * large, large]) {
            0 => *self.random.pick(&[0, 1, 7, 100, 511, 512, 1000]),
            1 => *self.random.pick(&[4095, 4096, 4097, 8192, 10_000]),
            2 => 16_384 + self.random.below(32_768) as u32,
            3 => 65_536 + self.random.below(100_000) as u32,
            _ => 1_000_000 + self.random.below(300_000) as u32,
        }
    }

    pub(super) fn offset(&mut self, file: &FileRef) -> u64 {
        let size = self.size(file);
        let gigabytes = u32::from(self.profile.large);
        match self.random.weighted(&[8, 8, 8, 8, 6, 2, gigabytes]) {
            0 => 0,
            1 => size,
            2 => self.random.below(size + 1),
            3 => self.random.below(size / 4096 + 1) * 4096,
            4 => size + self.random.below(6000),
            5 => size + self.random.below(300_000),
            _ => *self.random.pick(&[(5 << 30) + 123, (1 << 32) - 5, 1 << 33]),
        }
    }

    pub(super) fn size(&self, file: &FileRef) -> u64 {
        let FileRef::Path(path) = file else {
            return 10_000;
        };
        let paths = self.model.state().paths();
        let found = paths.get(path).map(|(_, inode)| &inode.body);
        match found {
            Some(Body::Regular(content)) => content.size(),
            _ => 0,
        }
    }

    pub(super) fn file(&mut self) -> FileRef {
        if self.random.chance(25) && self.model.open_slots().next().is_some() {
            return FileRef::Handle(self.open_slot());
        }
        FileRef::Path(self.existing(|kind| kind == FileKind::Regular))
    }

    /// Where paths are drawn from: the app that works, or anywhere.
    pub(super) fn scope(&mut self) -> String {
        if self.random.chance(self.profile.cross_percent) {
            String::new()
        } else {
            self.app.clone()
        }
    }

    /// A path that exists and is of that kind, if there is one.
    pub(super) fn existing(&mut self, accept: impl Fn(FileKind) -> bool) -> String {
        self.existing_inode(|inode| accept(inode.kind()))
    }

    /// A path whose object is accepted, if there is one.
    pub(super) fn existing_inode(&mut self, accept: impl Fn(&Inode) -> bool) -> String {
        let scope = self.scope();
        let paths = self.model.state().paths();
        let is_inside = |path: &str| {
            path.strip_prefix(scope.as_str())
                .is_some_and(|rest| scope.is_empty() || rest.starts_with('/'))
        };
        let found: Vec<&String> = paths
            .iter()
            .filter(|(path, (_, inode))| !path.is_empty() && is_inside(path) && accept(inode))
            .map(|(path, _)| path)
            .collect();
        if found.is_empty() {
            return self.new_path();
        }
        (*self.random.pick(&found)).clone()
    }

    /// A name in a directory that exists; the name may exist, too.
    pub(super) fn new_path(&mut self) -> String {
        let scope = self.scope();
        let paths = self.model.state().paths();
        let directories: Vec<&String> = paths
            .iter()
            .filter(|(path, (_, inode))| {
                is_directory(inode.kind())
                    && (scope.is_empty()
                        || **path == scope
                        || path.starts_with(&format!("{scope}/")))
                    && path.split('/').count() < DEPTH_MAX
            })
            .map(|(path, _)| path)
            .collect();
        let directory = if directories.is_empty() {
            scope
        } else {
            (*self.random.pick(&directories)).clone()
        };
        let name = self.name();
        if directory.is_empty() {
            name
        } else {
            format!("{directory}/{name}")
        }
    }

    pub(super) fn name(&mut self) -> String {
        if self.random.chance(2) {
            let longest = if self.random.chance(50) { 255 } else { 256 };
            return "n".repeat(longest);
        }
        self.random.pick(&NAMES).to_string()
    }

    pub(super) fn any_path(&mut self) -> String {
        let mut path = self.random.pick(&self.profile.apps).clone();
        for _ in 0..self.random.below(4) {
            path.push('/');
            path.push_str(&self.name());
        }
        path
    }
}
