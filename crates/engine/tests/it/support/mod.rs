//! An engine driven by hand, without any store.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use mobifs_base::{
    Attributes, DeviceNumber, FileKind, MonotonicNs, ObjectId, ObjectInfo, Timestamp,
};
use mobifs_engine::{
    AppPolicy, AppRules, Caller, Commit, Engine, EngineConfig, Limits, Moment, Need, NodeSpec,
    RemovalMemory, RenameMode, SetIdBits, Stop, TopLevelApps, WriteAt,
};

pub(crate) const ROOT: ObjectId = ObjectId::ROOT;

/// The root of a store in which there is nothing.
pub(crate) fn root() -> ObjectInfo {
    ObjectInfo {
        attributes: Attributes {
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            rdev: DeviceNumber(0),
            size: 0,
            nlink: 2,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
        },
        allocated_bytes: 0,
        foreign: false,
        immutable: false,
    }
}

/// An engine over an empty root, with a clock that moves by hand.
pub(crate) struct Bed {
    pub(crate) engine: Engine,
    pub(crate) now_ms: u64,
}

impl Bed {
    pub(crate) fn new(policy: AppPolicy, limits: Limits) -> Self {
        Self::with_rules(Box::new(TopLevelApps(policy)), limits)
    }

    /// One whose changes can be saved.
    pub(crate) fn saved() -> Self {
        Self::build(Box::<TopLevelApps>::default(), Limits::default(), true)
    }

    pub(crate) fn with_rules(rules: Box<dyn AppRules>, limits: Limits) -> Self {
        Self::build(rules, limits, false)
    }

    fn build(rules: Box<dyn AppRules>, limits: Limits, is_saved: bool) -> Self {
        let mut engine = Engine::new(
            EngineConfig {
                is_saved,
                rules,
                limits,
                hash_seed: 1,
            },
            &root(),
        );
        // The root is empty and has no attributes: answer what it will ask.
        if let Err(Stop::Need(Need::Directory { id, epoch })) = engine.lookup(ROOT, b"x") {
            engine.provide_directory(id, epoch, Vec::new());
        }
        if let Err(Stop::Need(Need::Xattrs { id, epoch })) = engine.list_xattrs(ROOT) {
            engine.provide_xattrs(id, epoch, Vec::new());
        }
        Self { engine, now_ms: 0 }
    }

    pub(crate) fn relaxed() -> Self {
        Self::new(AppPolicy::default(), Limits::default())
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment {
            wall: Timestamp::new(self.now_ms as i64, 0),
            now: MonotonicNs(self.now_ms * 1_000_000),
        }
    }

    pub(crate) fn make(&mut self, parent: ObjectId, name: &str, kind: FileKind) -> ObjectId {
        let spec = NodeSpec {
            kind,
            mode: 0o644,
            rdev: DeviceNumber(0),
            symlink_target: Some(b"target"),
        };
        let moment = self.moment();
        let caller = Caller::default();
        self.engine
            .create(&caller, moment, parent, name.as_bytes(), &spec)
            .unwrap()
            .id
    }

    pub(crate) fn directory(&mut self, parent: ObjectId, name: &str) -> ObjectId {
        self.make(parent, name, FileKind::Directory)
    }

    pub(crate) fn file(&mut self, parent: ObjectId, name: &str) -> ObjectId {
        self.make(parent, name, FileKind::Regular)
    }

    pub(crate) fn write(&mut self, file: ObjectId, offset: u64, data: &[u8]) {
        let moment = self.moment();
        let written = self
            .engine
            .write(moment, file, WriteAt::Offset(offset), data, SetIdBits::Stay)
            .unwrap();
        assert_eq!(written, data.len());
    }

    pub(crate) fn unlink(&mut self, parent: ObjectId, name: &str) {
        self.engine
            .unlink(
                self.moment(),
                parent,
                name.as_bytes(),
                RemovalMemory::WithinBudget,
            )
            .unwrap();
    }

    pub(crate) fn rename(&mut self, from: (ObjectId, &str), to: (ObjectId, &str)) {
        let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
        self.engine
            .rename(self.moment(), from, to, RenameMode::Replace)
            .unwrap();
    }

    /// Commits everything closed, in order.
    pub(crate) fn drain(&mut self) -> Vec<Commit> {
        let mut commits = Vec::new();
        while let Some(commit) = self.engine.next_commit(None) {
            self.engine.committed(commit.transaction);
            commits.push(commit);
        }
        commits
    }

    pub(crate) fn checkpoint(&mut self) -> Vec<Commit> {
        self.engine.close_all();
        self.drain()
    }
}
