//! The engine's side of the contract of [`mobifs_base::room`]: whatever programs do, a transaction
//! that is handed out was promised all the room that a store may need for it.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]
use mobifs_numerics::Random;

use crate::support::{Bed, ROOT};
use mobifs_base::{DeviceNumber, FileKind, ObjectId, PAGE_BYTES_U64, Room};
use mobifs_engine::{
    AllocateMode, AttributeChange, Caller, Commit, FsError, NodeSpec, RemovalMemory, RenameMode,
    SetIdBits, Stop, WriteAt, XattrMode,
};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const PAGES: u64 = 24;
const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0o022,
};

/// An ACL of four entries, in which the owner's group may write.
fn acl() -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    // The tags of acl(5): owner, a user, the group, the mask, others.
    for (tag, id) in [
        (1, u32::MAX),
        (2, 7),
        (4, u32::MAX),
        (16, u32::MAX),
        (32, u32::MAX),
    ] {
        bytes.extend_from_slice(&u16::to_le_bytes(tag));
        bytes.extend_from_slice(&6_u16.to_le_bytes());
        bytes.extend_from_slice(&u32::to_le_bytes(id));
    }
    bytes
}

fn check(commit: &Commit) {
    let needed = Room::of_transaction(&commit.to_transaction());
    assert!(
        commit.promised.covers(needed),
        "{:?} is promised for what takes {needed:?}",
        commit.promised
    );
}

/// Two apps with programs that do anything, and commits that may find no room.
struct History {
    bed: Bed,
    dice: Random,
    directories: [ObjectId; 3],
    unnamed: Vec<ObjectId>,
    /// How often each operation was carried out.
    done: [u32; OPERATIONS as usize],
}

const OPERATIONS: u64 = 15;

impl History {
    fn new(seed: u64) -> Self {
        let mut bed = Bed::relaxed();
        let app = bed.directory(ROOT, "app");
        let inside = bed.directory(app, "inside");
        let other = bed.directory(ROOT, "other");
        let (moment, name) = (bed.moment(), b"system.posix_acl_default");
        bed.engine
            .set_xattr(moment, inside, name, &acl(), XattrMode::Any, false)
            .unwrap();
        Self {
            bed,
            dice: Random::new(seed),
            directories: [app, inside, other],
            unnamed: Vec::new(),
            done: [0; OPERATIONS as usize],
        }
    }

    fn directory(&mut self) -> ObjectId {
        self.directories[self.dice.below(3) as usize]
    }

    fn name(&mut self) -> &'static [u8] {
        NAMES[self.dice.below(NAMES.len() as u64) as usize].as_bytes()
    }

    /// A file with a name, or one without.
    fn file(&mut self) -> Result<ObjectId, Stop> {
        if !self.unnamed.is_empty() && self.dice.below(4) == 0 {
            let which = self.dice.below(self.unnamed.len() as u64);
            return Ok(self.unnamed[which as usize]);
        }
        let (parent, name) = (self.directory(), self.name());
        Ok(self.bed.engine.lookup(parent, name)?.id)
    }

    /// Some bytes, of whole pages or not.
    fn range(&mut self) -> (u64, u64) {
        let unit = [1, PAGE_BYTES_U64][self.dice.below(2) as usize];
        let (start, length) = (self.dice.below(PAGES), 1 + self.dice.below(6));
        let rest = self.dice.below(PAGE_BYTES_U64) / unit;
        let bytes = length * PAGE_BYTES_U64 - self.dice.below(PAGE_BYTES_U64) / unit;
        (start * PAGE_BYTES_U64 + rest, bytes)
    }

    fn make(&mut self, kind: FileKind) -> Result<(), Stop> {
        let spec = NodeSpec {
            kind,
            mode: 0o664,
            rdev: DeviceNumber(0),
            symlink_target: Some(&[b't'; 300]),
        };
        let (parent, name) = (self.directory(), self.name());
        let moment = self.bed.moment();
        let made = self.bed.engine.create(&CALLER, moment, parent, name, &spec);
        made.map(drop)
    }

    fn rename(&mut self) -> Result<(), Stop> {
        let from = (self.directory(), self.name());
        let to = (self.directory(), self.name());
        let mode = match self.dice.below(3) {
            0 => RenameMode::Replace,
            1 => RenameMode::Exchange,
            _ => RenameMode::Whiteout(CALLER),
        };
        self.bed.engine.rename(self.bed.moment(), from, to, mode)
    }

    fn allocate(&mut self) -> Result<(), Stop> {
        let id = self.file()?;
        let keep_size = self.dice.below(2) == 0;
        let mode = match self.dice.below(4) {
            0 => AllocateMode::ZeroRange { keep_size },
            1 => AllocateMode::PunchHole,
            _ => AllocateMode::Allocate { keep_size },
        };
        let (start, length) = self.range();
        let moment = self.bed.moment();
        self.bed.engine.allocate(moment, id, mode, start, length)
    }

    fn write(&mut self) -> Result<(), Stop> {
        let id = self.file()?;
        let (first, pages) = (self.dice.below(PAGES), 1 + self.dice.below(3));
        let data = vec![7; (pages * PAGE_BYTES_U64) as usize];
        let at = WriteAt::Offset(first * PAGE_BYTES_U64);
        let moment = self.bed.moment();
        let written = self
            .bed
            .engine
            .write(moment, id, at, &data, SetIdBits::Stay);
        written.map(drop)
    }

    fn change(&mut self, size: Option<u64>, mode: Option<u16>) -> Result<(), Stop> {
        let id = self.file()?;
        let change = AttributeChange {
            size,
            mode,
            ..AttributeChange::default()
        };
        let moment = self.bed.moment();
        let changed = self.bed.engine.set_attributes(moment, id, &change);
        changed.map(drop)
    }

    fn set_xattr(&mut self) -> Result<(), Stop> {
        let id = self.file()?;
        let (name, length) = (self.dice.below(3), self.dice.below(9000));
        let (name, value) = (format!("user.{name}"), vec![1; length as usize]);
        let (moment, mode) = (self.bed.moment(), XattrMode::Any);
        let engine = &mut self.bed.engine;
        engine.set_xattr(moment, id, name.as_bytes(), &value, mode, false)
    }

    fn make_unnamed(&mut self) -> Result<(), Stop> {
        let (parent, moment) = (self.directory(), self.bed.moment());
        let engine = &mut self.bed.engine;
        let made = engine.create_unnamed(&CALLER, moment, parent, 0o600)?;
        self.unnamed.push(made.id);
        Ok(())
    }

    fn link(&mut self) -> Result<(), Stop> {
        let (id, parent, name) = (self.file()?, self.directory(), self.name());
        let linked = self.bed.engine.link(self.bed.moment(), id, parent, name);
        linked.map(drop)
    }

    fn remove(&mut self) -> Result<(), Stop> {
        let (parent, name) = (self.directory(), self.name());
        let (moment, memory) = (self.bed.moment(), RemovalMemory::WithinBudget);
        self.bed.engine.unlink(moment, parent, name, memory)
    }

    /// Commits one transaction, or finds that there is no room.
    fn commit(&mut self) -> Result<(), Stop> {
        let fails = self.dice.below(3) == 0;
        let commit = self.bed.engine.next_commit(None);
        let commit = commit.ok_or(FsError::NotFound)?;
        check(&commit);
        if fails {
            let refusal = FsError::NoSpace;
            self.bed.engine.commit_failed(commit.transaction, refusal);
        } else {
            self.bed.engine.committed(commit.transaction);
        }
        Ok(())
    }

    fn step(&mut self) {
        self.bed.now_ms += 1;
        let which = self.dice.below(OPERATIONS);
        let size = self.dice.below(PAGES * PAGE_BYTES_U64);
        let done = match which {
            0 | 1 => self.make(FileKind::Regular),
            2 => self.make(FileKind::Symlink),
            3 => self.remove(),
            4 | 5 => self.write(),
            6 => self.allocate(),
            7 => self.change(Some(size), None),
            8 => self.change(None, Some(0o600 | (size as u16 & 0o77))),
            9 => self.set_xattr(),
            10 => self.rename(),
            11 => self.make_unnamed(),
            12 => self.link(),
            13 => {
                self.bed.engine.close_largest();
                Ok(())
            }
            _ => self.commit(),
        };
        self.done[which as usize] += u32::from(done.is_ok());
    }
}

#[test]
fn what_is_handed_out_was_promised_its_room() {
    let mut done = [0; OPERATIONS as usize];
    let mut merges = 0;
    for seed in 0..400 {
        let mut history = History::new(seed);
        for _ in 0..200 {
            history.step();
        }
        history.bed.engine.retry_failed(None);
        history.bed.checkpoint().iter().for_each(check);
        for (sum, more) in done.iter_mut().zip(history.done) {
            *sum += more;
        }
        merges += history.bed.engine.merges();
    }
    assert!(done.iter().all(|&done| done > 400), "{done:?}");
    assert!(merges > 50, "{merges} merges");
}

/// A bed with a committed file, so that nothing else is charged.
fn committed_file() -> (Bed, ObjectId) {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    bed.checkpoint();
    (bed, file)
}

/// Punches every other page of the first hundred.
fn punch(bed: &mut Bed, file: ObjectId) {
    for page in (1..100).step_by(2) {
        let (moment, mode) = (bed.moment(), AllocateMode::PunchHole);
        let start = page * PAGE_BYTES_U64;
        bed.engine
            .allocate(moment, file, mode, start, PAGE_BYTES_U64)
            .unwrap();
    }
}

#[test]
fn holes_in_new_content_keep_a_block_for_each_run_that_is_left() {
    let (mut bed, file) = committed_file();
    bed.write(file, 0, &vec![1; 100 * PAGE_BYTES_U64 as usize]);
    punch(&mut bed, file);
    bed.checkpoint().iter().for_each(check);
}

#[test]
fn holes_in_allocated_room_keep_a_block_for_each_range_that_is_left() {
    let (mut bed, file) = committed_file();
    let (moment, mode) = (bed.moment(), AllocateMode::Allocate { keep_size: false });
    let bytes = 100 * PAGE_BYTES_U64;
    bed.engine.allocate(moment, file, mode, 0, bytes).unwrap();
    punch(&mut bed, file);
    bed.checkpoint().iter().for_each(check);
}

#[test]
fn a_page_that_follows_one_of_an_earlier_transaction_begins_a_run() {
    let (mut bed, file) = committed_file();
    let page = [1; PAGE_BYTES_U64 as usize];
    bed.write(file, 0, &page);
    bed.engine.close_all();
    bed.write(file, PAGE_BYTES_U64, &page);
    bed.engine.close_all();
    let commits = bed.drain();
    assert_eq!(commits.len(), 2);
    commits.iter().for_each(check);
}
