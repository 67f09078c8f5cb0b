//! The state that a store needs when its process is killed and a successor goes on with the same
//! object ids, and the sink that it is reported to.

use mobifs_base::{ByteRange, FileKind, Name, ObjectId};

/// Receives the state that a store needs if its process is killed and a successor goes on with the
/// same ids.
///
/// The store calls it while it holds its own locks, so it must not call the store. What it received
/// until the kill is handed over to the successor as a [`RestartState`].
pub trait RestartSink: Send + Sync {
    /// The store's present knowledge of an object; none: no more.
    fn object(&self, id: ObjectId, known: Option<&KnownObject>);

    /// The tagged transaction that is about to be written to the journal; none: it did not get
    /// there. The intent of one that got there is not withdrawn: it then names a committed
    /// transaction.
    fn intent(&self, intent: Option<Intent>);
}

/// A store's knowledge of one object, besides what is in the journal and the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownObject {
    /// Where it is in the lower filesystem; none: not there, or not known.
    pub location: Option<KnownLocation>,
    /// The object is in use, with or without a name ([`Store::pin`](crate::Store::pin)).
    pub is_pinned: bool,
    /// Ranges, in bytes, spilled to its stage file before a transaction created it
    /// ([`Store::spill`](crate::Store::spill)).
    pub spilled: Vec<ByteRange>,
}

/// Where an object of the lower filesystem can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownLocation {
    /// Its inode number.
    pub inode: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Its known names in the tree: directory and name.
    pub names: Vec<(ObjectId, Name)>,
    /// The object has a name in `limbo/`: its inode number.
    pub in_limbo: bool,
    /// The object has a name in `stage/`: its id.
    pub in_stage: bool,
}

/// A tagged transaction on its way to the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// [`Transaction::tags`](crate::Transaction::tags); one at least.
    pub tags: Vec<u64>,
    /// The journal's epoch in which it is written.
    pub epoch: u64,
    /// Which transaction of this epoch it becomes.
    pub sequence: u64,
}

/// The state that a sink received, for the successor of a killed process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartState {
    /// Every object of which the store held state, in any order, each once.
    pub objects: Vec<(ObjectId, KnownObject)>,
    /// The last intent that was recorded and not withdrawn.
    pub intent: Option<Intent>,
    /// The highest id that the engine or the kernel holds. Objects that the store finds later get
    /// ids above it and above those of `objects`; 0: none.
    pub ids_above: u64,
}
