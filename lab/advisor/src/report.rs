//! The advice, for programs.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cost::ModelSource;
use crate::database::JournalMode;

/// Version of the document.
pub const SCHEMA: u32 = 1;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Another journal mode of SQLite.
    JournalMode,
    /// Databases grow in larger steps.
    PreallocateDatabases,
    /// Files that grow by small writes get their room in larger steps.
    PreallocateFiles,
    /// What exists is defragmented.
    Defragment,
}

/// What advice costs in flash writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Wear {
    /// Bytes that copying programs, with the filesystem's metadata.
    pub copied_bytes: u64,
    /// Bytes that remapping programs, on a device that can; none where nothing can be remapped.
    pub remapped_bytes: Option<u64>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// What kind of thing.
    pub what: What,
    /// Files that it is about.
    pub files: u64,
    /// Their size.
    pub bytes: u64,
    /// What to do: a command, a pragma, a setting.
    pub action: String,
    /// The step of a preallocation.
    pub step_bytes: Option<u64>,
    /// Their pieces now.
    pub pieces: u64,
    /// Their pieces once it is done, at most; of advice for writers: of files that are made anew so.
    #[serde(rename = "pieces_foretold_max")]
    pub pieces_predicted_max: u64,
    /// How much sooner all of them are read then.
    pub saved_ms: f64,
    /// Room that stays unused meanwhile, on average.
    pub unused_bytes: Option<u64>,
    /// What it programs once.
    pub wear: Option<Wear>,
    /// Why, and what speaks against it.
    pub why: String,
    /// The files that gain most.
    pub first: Vec<String>,
}

/// What pieces cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ModelReport {
    /// Milliseconds for each piece: a.
    pub piece_ms: f64,
    /// Milliseconds for each megabyte (10⁶ bytes): b of a file is this times its size.
    pub megabyte_ms: f64,
    /// Where both come from.
    pub source: ModelSource,
}

/// What a trace said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TraceReport {
    /// Files that it reads.
    pub files: u64,
    /// Those of them that lie here.
    pub files_here: u64,
    /// Bytes that it reads.
    pub read_bytes: u64,
}

/// The whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdviceReport {
    /// [`SCHEMA`]
    pub schema: u32,
    /// What was looked at.
    pub path: String,
    /// The filesystem, by its name.
    pub filesystem: String,
    /// Where it is mounted.
    pub mountpoint: String,
    /// Nothing can be changed on it now.
    pub is_read_only: bool,
    /// The root of the store of MobiFS in which it lies.
    pub store: Option<String>,
    /// Files with a degree of fragmentation.
    pub files: u64,
    /// Their size.
    pub bytes: u64,
    /// Their mean degree.
    pub mean_dof: Option<f64>,
    /// The mean degree of each kind.
    pub mean_dof_by_kind: BTreeMap<&'static str, Option<f64>>,
    /// Databases, by journal mode.
    pub databases: BTreeMap<JournalMode, u64>,
    /// What pieces cost.
    pub model: ModelReport,
    /// Reading all files once, by the model.
    pub read_ms: f64,
    /// Reading all files once, by the model, if each had no more pieces than it must.
    pub read_ms_whole: f64,
    /// What a trace said.
    pub trace: Option<TraceReport>,
    /// What to do, what gains most first.
    pub advice: Vec<Advice>,
    /// Sentences about it.
    pub notes: Vec<String>,
}
