//! What a measurement says, as programs read it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::free::FreeSpace;
use crate::names::number;
use crate::shape::FS_LEVELS;

/// Version of the JSON document.
pub const SCHEMA: u32 = 1;

/// Counts of files of one kind, or of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Files with a degree of fragmentation.
    pub files: u64,
    /// Those whose degree is above 1.
    pub fragmented_files: u64,
    /// Mean degree; none without files.
    pub mean_dof: Option<f64>,
    /// Mean degree of the fragmented ones.
    pub mean_dof_of_fragmented: Option<f64>,
    /// Mean size of the fragmented ones.
    pub mean_bytes_of_fragmented: Option<f64>,
    /// Extents of all files.
    pub extents: u64,
    /// The least number that they could have.
    pub least_extents: u64,
    /// Bytes that have a place; shared ones once.
    pub bytes: u64,
    /// Fragments of the fragmented files, of each level.
    pub fs_levels: [u64; FS_LEVELS],
}

/// A point of the cumulative distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CdfPoint {
    /// A degree of fragmentation.
    pub dof: f64,
    /// The share of files that have this one or a lower one.
    pub share: f64,
}

/// What was seen and is in no count, or only once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Files of no bytes.
    pub empty: u64,
    /// Files of holes only.
    pub without_blocks: u64,
    /// Files with content that has no place yet.
    pub unplaced: u64,
    /// Further names of files that have several.
    pub further_links: u64,
    /// Files that were not read for the given number of days.
    pub not_read_lately: u64,
    /// Files and directories that were gone when it was their turn.
    pub vanished: u64,
    /// Files and directories that this user may not read.
    pub not_permitted: u64,
    /// Files and directories that could not be read for another reason.
    pub failed: u64,
    /// Files and directories of an image that are damaged.
    pub damaged: u64,
    /// Images that are damaged beside their files and directories: cut short, or with free room that is not known.
    pub damaged_images: u64,
    /// Directories where another filesystem is mounted.
    pub other_filesystems: u64,
    /// Nested subvolumes of btrfs.
    pub subvolumes: u64,
    /// Symbolic links, pipes, sockets, devices.
    pub no_files: u64,
    /// Parts of the tree that were lost because a directory was moved meanwhile.
    pub moved_directories: u64,
}

impl LeftOut {
    /// What people have to know of it.
    pub(crate) fn sentences(&self) -> Vec<String> {
        // Of each: how many, what is said of one, and of several.
        let table = [
            (
                self.other_filesystems,
                "directory was not entered, because another filesystem is mounted there (give it \
                 as a path of its own)",
                "directories were not entered, because other filesystems are mounted there (give \
                 them as paths of their own)",
            ),
            (
                self.subvolumes,
                "nested subvolume was not entered (give it as a path of its own)",
                "nested subvolumes were not entered (give them as paths of their own)",
            ),
            (
                self.empty,
                "file is empty and in no count",
                "files are empty and in no count",
            ),
            (
                self.without_blocks,
                "file has no blocks and is in no count",
                "files have no blocks and are in no count",
            ),
            (
                self.unplaced,
                "file has content without a place yet and is in no count",
                "files have content without a place yet and are in no count",
            ),
            (
                self.further_links,
                "further name of a file with several was seen; each file counts once",
                "further names of files with several were seen; each file counts once",
            ),
            (
                self.not_read_lately,
                "file was not read lately and is in no count",
                "files were not read lately and are in no count",
            ),
            (
                self.vanished,
                "file or directory was gone when it was its turn",
                "files and directories were gone when it was their turn",
            ),
            (
                self.not_permitted,
                "file or directory may not be read by this user",
                "files and directories may not be read by this user",
            ),
            (
                self.failed,
                "file or directory could not be read",
                "files and directories could not be read",
            ),
            (
                self.moved_directories,
                "tree was left unfinished, because a directory was moved meanwhile; measure again",
                "trees were left unfinished, because directories were moved meanwhile; measure \
                 again",
            ),
        ];
        let seen = table.into_iter().filter(|&(count, ..)| count > 0);
        seen.map(|(count, one, several)| {
            let what = if count == 1 { one } else { several };
            format!("{} {what}", number(count))
        })
        .collect()
    }
}

/// A file that is worth defragmenting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorthFile {
    /// Its path, as `shown` writes it.
    pub path: String,
    /// Its kind.
    pub kind: crate::kind::Kind,
    /// Its size.
    pub bytes: u64,
    /// Its degree of fragmentation.
    pub dof: f64,
    /// Its extents.
    pub extents: u64,
    /// Mean size of its fragments.
    pub mean_fragment_bytes: u64,
    /// How much sooner it would be read, by the model.
    pub saved_ms: f64,
    /// Whole days since it was read, as far as the filesystem keeps that.
    pub days_since_read: Option<u64>,
}

/// Files that are worth defragmenting.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Worth {
    /// How many.
    pub files: u64,
    /// What would have to be written to defragment them by copying.
    pub bytes: u64,
    /// How much sooner all of them would be read.
    pub saved_ms: f64,
    /// The model's milliseconds for each piece.
    pub model_piece_ms: f64,
    /// The model's milliseconds for each megabyte.
    pub model_megabyte_ms: f64,
    /// The first ones, those that gain most first.
    pub first: Vec<WorthFile>,
}

/// A filesystem that was measured, or a part of one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Filesystem {
    /// Its name: ext4, btrfs, …
    pub name: String,
    /// Its device or image.
    pub source: String,
    /// Whether it was read from an image.
    pub is_image: bool,
    /// Bytes that one extent has at most, as the degree counts; none: no limit.
    pub extent_bytes_max: Option<u64>,
    /// Its size.
    pub size_bytes: u64,
    /// Files measured on it.
    pub files: u64,
    /// Its free room; none if it does not report it.
    pub free: Option<FreeSpace>,
}

/// The whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA`]
    pub schema: u32,
    /// Files with a degree of fragmentation.
    pub files: u64,
    /// Their mean degree; none without files.
    pub mean_dof: Option<f64>,
    /// The mean degree of each kind.
    pub mean_dof_by_kind: BTreeMap<&'static str, Option<f64>>,
    /// Files whose degree is above 1.
    pub fragmented_files: u64,
    /// Their share of all.
    pub fragmented_share: Option<f64>,
    /// The share of SQLite files among the fragmented ones.
    pub sqlite_share_of_fragmented: Option<f64>,
    /// Degrees below which half, nine tenths and 99 of 100 files are, and the highest.
    pub dof_median: Option<f64>,
    /// See `dof_median`.
    pub dof_90: Option<f64>,
    /// See `dof_median`.
    pub dof_99: Option<f64>,
    /// See `dof_median`.
    pub dof_max: Option<f64>,
    /// All files.
    pub all: Counts,
    /// Files of each kind.
    pub kinds: BTreeMap<&'static str, Counts>,
    /// The cumulative distribution of degrees.
    pub dof_cdf: Vec<CdfPoint>,
    /// Fragments of fragmented files, of each level.
    pub fs_levels: [u64; FS_LEVELS],
    /// Fragments of all files, of each level.
    pub fs_levels_of_all_files: [u64; FS_LEVELS],
    /// Bytes that are allocated and were never written.
    pub unwritten_bytes: u64,
    /// Bytes that are shared between files, once for each of them.
    pub shared_bytes: u64,
    /// Files with compressed data.
    pub encoded_files: u64,
    /// Files within metadata.
    pub inline_files: u64,
    /// What is worth defragmenting.
    pub worth: Worth,
    /// What is in no count.
    pub left_out: LeftOut,
    /// What was measured.
    pub filesystems: Vec<Filesystem>,
    /// Sentences about this measurement.
    pub notes: Vec<String>,
}
