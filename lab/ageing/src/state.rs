//! What a run has done, on the disk: replaced as a whole after each day.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{AgeError, OnPath as _};
use crate::fill::{Filled, Procedure};
use crate::place::Location;
use crate::profile::Source;
use crate::settings::Settings;
use crate::space::Space;

/// The format of states and reports.
pub const SCHEMA: u32 = 1;
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A day that is over; day 0 is the installation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Day {
    /// Which.
    pub day: u32,
    /// Apps that were installed, updated or used.
    pub sessions: u64,
    /// Writes of files, deletions and transactions.
    pub steps: u64,
    /// How often pictures were deleted because the filesystem was full.
    pub cleanings: u64,
    /// How many.
    pub pictures_cleaned: u64,
    /// The filesystem at its end.
    pub space: Space,
    /// Names, sizes and contents of the tree.
    pub checksum: String,
    /// Files that were measured.
    pub files: u64,
    /// Files with a degree of fragmentation above 1.
    pub fragmented_files: u64,
    /// Mean degree of fragmentation.
    pub mean_dof: Option<f64>,
    /// Mean degree of fragmentation of each kind.
    pub mean_dof_by_kind: BTreeMap<String, Option<f64>>,
    /// Mean size of files of each kind.
    pub mean_bytes_by_kind: BTreeMap<String, u64>,
    /// Fragments of fragmented files, of each level.
    pub fs_levels: Vec<u64>,
    /// Written since the day before, or since it was resumed.
    pub written_bytes: u64,
    /// How long it took here.
    pub seconds: f64,
    /// A run ended within this day, and the next one went on.
    pub resumed: bool,
}

/// A profile within the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Kept {
    pub(crate) fn source(&self) -> Source {
        Source {
            name: self.name.clone(),
            text: self.text.clone(),
        }
    }
}

/// Ageing by scenarios.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenarios {
    /// How the phone is used.
    pub settings: Settings,
    pub(crate) profiles: Vec<Kept>,
    /// A checksum of all profiles.
    pub profiles_checksum: String,
    /// The filesystem before.
    pub before: Space,
    /// The file that was there first.
    pub filler_bytes: u64,
    /// That file is whole.
    pub is_prepared: bool,
    /// What counted the written bytes.
    pub written_by: String,
    /// The days that are over.
    pub days: Vec<Day>,
    /// A day was begun and is not over.
    pub is_within_day: bool,
}

/// Ageing by large and small files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LargeAndSmall {
    /// How.
    pub procedure: Procedure,
    /// The filesystem before.
    pub before: Space,
    /// What came of it.
    pub filled: Option<Filled>,
}

/// How a place is aged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// By scenarios of a phone.
    Scenarios(Scenarios),
    /// By large and small files.
    LargeAndSmall(LargeAndSmall),
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// [`SCHEMA`]
    pub schema: u32,
    /// Where the files are.
    #[serde(rename = "site")]
    pub location: Location,
    /// What is done there.
    pub work: Work,
}

impl State {
    /// The state at a path.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn load(path: &Path) -> Result<Self, AgeError> {
        let wrong = |message: String| AgeError::State {
            path: path.to_owned(),
            message,
        };
        let bytes = match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(wrong(
                    "there is no run to resume; start one without --resume".to_owned(),
                ));
            }
            other => other.at("look at", path)?.len(),
        };
        let damaged = |what: &str| AgeError::Damaged {
            path: path.to_owned(),
            what: what.to_owned(),
        };
        if bytes > FILE_BYTES_MAX {
            return Err(damaged("is damaged (it is too large)"));
        }
        let text = fs::read(path).at("read", path)?;
        let state: Self = serde_json::from_slice(&text)
            .map_err(|error| damaged(&format!("is damaged ({error})")))?;
        if state.schema != SCHEMA {
            return Err(damaged("is of another version of this program"));
        }
        Ok(state)
    }

    /// Replaces the state on the disk.
    pub(crate) fn save(&self) -> Result<(), AgeError> {
        let path = self.location.state_path();
        let text = serde_json::to_vec_pretty(self).map_err(|error| AgeError::State {
            path: path.clone(),
            message: error.to_string(),
        })?;
        let new = path.with_extension("json.new");
        let mut file = File::create(&new).at("make", &new)?;
        file.write_all(&text).at("write", &new)?;
        file.sync_all().at("sync", &new)?;
        fs::rename(&new, &path).at("replace", &path)?;
        let parent = path.parent().unwrap_or(Path::new("."));
        let directory = File::open(parent).at("open", parent)?;
        directory.sync_all().at("sync", parent)
    }
}
