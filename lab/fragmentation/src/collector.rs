//! Puts the measurement together, file by file, in memory that has a bound: what grows with the tree
//! are files with several names, up to their last one, and shared extents, up to a limit.

use std::cmp::Ordering;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::hash::{Hash as _, Hasher as _};
use std::io;
use std::path::Path;

use crate::benefit::{Benefit, Model};
use crate::csv::Csv;
use crate::distribution::DofDistribution;
use crate::error::path_text;
use crate::extent::Extent;
use crate::facts::FileFacts;
use crate::free::FreeCounter;
use crate::kind::{Kind, is_rollback_journal};
use crate::layout::{Layout, Places};
use crate::names::shown;
use crate::report::{CdfPoint, Counts, Filesystem, LeftOut, Report, SCHEMA, Worth, WorthFile};
use crate::shape::{FS_LEVELS, FileShape, Pieces};

/// Shared extents that are remembered.
const SHARED_MAX: usize = 1_000_000;
/// Failures that are reported one by one.
const FAILURES_REPORTED: usize = 5;
const DAY_SECONDS: i64 = 24 * 60 * 60;

/// A file, as it was measured.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredFile<'f> {
    /// Its path.
    pub path: &'f [u8],
    /// Its size.
    pub bytes: u64,
    /// Its kind.
    pub kind: Kind,
    /// How it lies.
    pub shape: &'f FileShape,
}

/// What each file is handed to.
pub(crate) type EachFile<'w> = &'w mut dyn FnMut(&MeasuredFile<'_>);

/// Sums over files.
#[derive(Clone, Debug, Default)]
struct Tally {
    files: u64,
    fragmented: u64,
    dof_sum: f64,
    dof_sum_of_fragmented: f64,
    size_sum_of_fragmented: f64,
    extents: u64,
    least: u64,
    bytes: u64,
    levels_of_fragmented: [u64; FS_LEVELS],
}

impl Tally {
    fn add(&mut self, size: u64, shape: &FileShape, dof: f64) {
        self.files += 1;
        self.dof_sum += dof;
        self.extents += shape.extents;
        self.least += shape.least;
        self.bytes = self.bytes.saturating_add(shape.new_bytes);
        if dof > 1.0 {
            self.fragmented += 1;
            self.dof_sum_of_fragmented += dof;
            self.size_sum_of_fragmented += size as f64;
            add_levels(&mut self.levels_of_fragmented, &shape.levels);
        }
    }

    fn counts(&self) -> Counts {
        let mean = |sum: f64, of: u64| (of > 0).then(|| sum / of as f64);
        Counts {
            files: self.files,
            fragmented_files: self.fragmented,
            mean_dof: mean(self.dof_sum, self.files),
            mean_dof_of_fragmented: mean(self.dof_sum_of_fragmented, self.fragmented),
            mean_bytes_of_fragmented: mean(self.size_sum_of_fragmented, self.fragmented),
            extents: self.extents,
            least_extents: self.least,
            bytes: self.bytes,
            fs_levels: self.levels_of_fragmented,
        }
    }
}

fn add_levels(sums: &mut [u64; FS_LEVELS], levels: &[u64; FS_LEVELS]) {
    for (sum, count) in sums.iter_mut().zip(levels) {
        *sum += count;
    }
}

/// A candidate for the list of what is worth defragmenting.
#[derive(Clone, Debug)]
struct Candidate {
    saved_ms: f64,
    path: Vec<u8>,
    kind: Kind,
    size: u64,
    shape: FileShape,
    days_since_read: Option<u64>,
}

/// The other way round, so that a heap has on top what goes first.
impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_gain = other.saved_ms.total_cmp(&self.saved_ms);
        by_gain.then_with(|| self.path.cmp(&other.path))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// One filesystem of the measurement.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) about: Filesystem,
    pub(crate) block_bytes: u64,
    pub(crate) layout: Layout,
}

pub(crate) struct Collector<'w> {
    pub(crate) places: Vec<Place>,
    pub(crate) left_out: LeftOut,
    pub(crate) notes: Vec<String>,
    csv: Option<Csv<'w>>,
    each: Option<EachFile<'w>>,
    model: Model,
    worth_max: usize,
    now_s: i64,
    all: Tally,
    kinds: [Tally; Kind::ALL.len()],
    levels_of_all: [u64; FS_LEVELS],
    distribution: DofDistribution,
    dof_max: Option<f64>,
    unwritten_bytes: u64,
    shared_bytes: u64,
    encoded_files: u64,
    inline_files: u64,
    worth: Worth,
    candidates: BinaryHeap<Candidate>,
    /// Names that files with several have left to be seen.
    links: HashMap<(usize, u64), u64>,
    shared: HashSet<u64>,
    is_shared_full: bool,
    failures_reported: usize,
    /// The places of the file under way.
    current: Places,
    seen: u64,
}

impl<'w> Collector<'w> {
    pub(crate) fn new(
        model: Model,
        worth_max: usize,
        now_s: i64,
        (csv, each): (Option<Csv<'w>>, Option<EachFile<'w>>),
    ) -> Self {
        Self {
            places: Vec::new(),
            left_out: LeftOut::default(),
            notes: Vec::new(),
            csv,
            each,
            model,
            worth_max,
            now_s,
            all: Tally::default(),
            kinds: Default::default(),
            levels_of_all: [0; FS_LEVELS],
            distribution: DofDistribution::default(),
            dof_max: None,
            unwritten_bytes: 0,
            shared_bytes: 0,
            encoded_files: 0,
            inline_files: 0,
            worth: Worth {
                model_piece_ms: model.piece_ms,
                model_megabyte_ms: model.megabyte_ms,
                ..Worth::default()
            },
            candidates: BinaryHeap::new(),
            links: HashMap::new(),
            shared: HashSet::new(),
            is_shared_full: false,
            failures_reported: 0,
            current: Places::default(),
            seen: 0,
        }
    }

    /// Files that were looked at, for progress.
    pub(crate) const fn seen(&self) -> u64 {
        self.seen
    }

    /// Whether a file with several names was measured under an earlier one.
    pub(crate) fn is_known(&mut self, place: usize, inode: u64, names: u64) -> bool {
        if names < 2 {
            return false;
        }
        let Some(left) = self.links.get_mut(&(place, inode)) else {
            self.links.insert((place, inode), names - 1);
            return false;
        };
        *left -= 1;
        if *left == 0 {
            self.links.remove(&(place, inode));
        }
        self.left_out.further_links += 1;
        true
    }

    /// Begins a file.
    pub(crate) fn begin(&mut self, place: usize, size: u64) -> Pieces {
        self.seen += 1;
        self.current.clear();
        let place = self.places.get(place);
        Pieces::new(
            size,
            place.map_or(1, |place| place.block_bytes),
            place.and_then(|place| place.about.extent_bytes_max),
        )
    }

    /// An extent of the file that has begun.
    pub(crate) fn extent(&mut self, place: usize, pieces: &mut Pieces, extent: Extent) {
        let is_new = !extent.is_shared || self.is_first(place, &extent);
        let (layout, current) = (self.places.get_mut(place), &mut self.current);
        let mut layout = layout.map(|place| &mut place.layout);
        pieces.push(extent, is_new, &mut |run| {
            current.add(run);
            if let Some(layout) = layout.as_mut().filter(|_| run.new_bytes > 0) {
                layout.take(run);
            }
        });
    }

    fn is_first(&mut self, place: usize, extent: &Extent) -> bool {
        let mut hasher = DefaultHasher::new();
        (place, extent.physical, extent.length).hash(&mut hasher);
        let key = hasher.finish();
        if self.shared.len() < SHARED_MAX {
            return self.shared.insert(key);
        }
        let is_first = !self.shared.contains(&key);
        self.is_shared_full |= is_first;
        is_first
    }

    /// The file has no more extents.
    pub(crate) fn finish(
        &mut self,
        place: usize,
        pieces: Pieces,
        facts: &FileFacts<'_>,
    ) -> io::Result<()> {
        let (layout, current) = (self.places.get_mut(place), &mut self.current);
        let mut layout = layout.map(|place| &mut place.layout);
        let shape = pieces.finish(&mut |run| {
            current.add(run);
            if let Some(layout) = layout.as_mut().filter(|_| run.new_bytes > 0) {
                layout.take(run);
            }
        });
        let Some(dof) = shape.dof() else {
            *if shape.is_unplaced {
                &mut self.left_out.unplaced
            } else if facts.size == 0 {
                &mut self.left_out.empty
            } else {
                &mut self.left_out.without_blocks
            } += 1;
            return Ok(());
        };
        self.add(facts, &shape, dof);
        if let Some(place) = self.places.get_mut(place) {
            place.about.files += 1;
            let layout = &mut place.layout;
            layout.consider(facts.path, facts.kind, facts.size, &shape, &self.current);
        }
        if let Some(each) = &mut self.each {
            each(&MeasuredFile {
                path: facts.path,
                bytes: facts.size,
                kind: facts.kind,
                shape: &shape,
            });
        }
        let benefit = Benefit::of(&shape, self.model);
        if benefit.is_worth_it() && !is_rollback_journal(facts.path) {
            self.add_candidate(facts, &shape, benefit);
        }
        match &mut self.csv {
            Some(csv) => csv.row(facts, &shape, dof, benefit.saved_ms),
            None => Ok(()),
        }
    }

    fn add(&mut self, facts: &FileFacts<'_>, shape: &FileShape, dof: f64) {
        self.all.add(facts.size, shape, dof);
        if let Some(kind) = self.kinds.get_mut(facts.kind.index()) {
            kind.add(facts.size, shape, dof);
        }
        add_levels(&mut self.levels_of_all, &shape.levels);
        self.distribution.add(dof);
        self.dof_max = Some(self.dof_max.map_or(dof, |most| most.max(dof)));
        self.unwritten_bytes = self.unwritten_bytes.saturating_add(shape.unwritten_bytes);
        self.shared_bytes = self.shared_bytes.saturating_add(shape.shared_bytes);
        self.encoded_files += u64::from(shape.is_encoded);
        self.inline_files += u64::from(shape.is_inline);
    }

    fn add_candidate(&mut self, facts: &FileFacts<'_>, shape: &FileShape, benefit: Benefit) {
        self.worth.files += 1;
        self.worth.bytes = self.worth.bytes.saturating_add(shape.mapped_bytes);
        self.worth.saved_ms += benefit.saved_ms;
        let is_full = self.candidates.len() >= self.worth_max;
        let least = self.candidates.peek();
        if is_full && least.is_none_or(|least| least.saved_ms >= benefit.saved_ms) {
            return;
        }
        if is_full {
            self.candidates.pop();
        }
        let days = (self.now_s.saturating_sub(facts.read_s)) / DAY_SECONDS;
        self.candidates.push(Candidate {
            saved_ms: benefit.saved_ms,
            path: facts.path.to_vec(),
            kind: facts.kind,
            size: facts.size,
            shape: *shape,
            days_since_read: u64::try_from(days).ok(),
        });
    }

    /// Something could not be read, which is counted; the first of them are reported.
    pub(crate) fn failed(&mut self, path: &[u8], error: &io::Error) {
        match error.kind() {
            io::ErrorKind::NotFound => {
                self.left_out.vanished += 1;
                return;
            }
            io::ErrorKind::PermissionDenied => self.left_out.not_permitted += 1,
            _ => self.left_out.failed += 1,
        }
        self.report(|| format!("{} could not be read: {error}", shown(path)));
    }

    /// A damaged object of an image.
    pub(crate) fn damaged(&mut self, path: &[u8], said: &str) {
        self.left_out.damaged += 1;
        self.report(|| format!("{} is damaged: {said}", shown(path)));
    }

    fn report(&mut self, sentence: impl FnOnce() -> String) {
        if self.failures_reported < FAILURES_REPORTED {
            self.failures_reported += 1;
            self.notes.push(sentence());
        }
    }

    /// Takes up what is free of a filesystem; `extents` hands over start and length of each.
    pub(crate) fn free<E>(
        &mut self,
        place: usize,
        extents: impl FnOnce(&mut dyn FnMut(u64, u64)) -> Result<bool, E>,
    ) -> Result<(), E> {
        let Some(place) = self.places.get_mut(place) else {
            return Ok(());
        };
        let mut counter = FreeCounter::default();
        let layout = &mut place.layout;
        let mut done = |start, length| layout.leave_free(start, length);
        if extents(&mut |start, length| counter.push(start, length, &mut done))? {
            place.about.free = Some(counter.finish(&mut done));
        } else {
            let about = &place.about;
            self.notes.push(format!(
                "{} on {} does not report its free extents (a mounted ext4 or XFS does, and an \
                 image of ext4)",
                about.name,
                path_text(Path::new(&about.source))
            ));
        }
        Ok(())
    }

    /// The report, and the filesystems with their layouts.
    pub(crate) fn into_report(mut self) -> io::Result<(Report, Vec<Place>)> {
        if let Some(csv) = &mut self.csv {
            csv.flush()?;
        }
        self.say_what_is_left_out();
        let mut first: Vec<_> = self.candidates.into_iter().collect();
        first.sort_unstable();
        self.worth.first = first.iter().map(Candidate::reported).collect();
        let all = self.all.counts();
        let kinds = || Kind::ALL.into_iter().zip(&self.kinds);
        let kinds: std::collections::BTreeMap<_, _> = kinds()
            .map(|(kind, tally)| (kind.name(), tally.counts()))
            .collect();
        let share = |part: u64, of: u64| (of > 0).then(|| part as f64 / of as f64);
        let sqlite = self.kinds.get(Kind::Sqlite.index());
        let sqlite = sqlite.map_or(0, |tally| tally.fragmented);
        let cdf = self.distribution.cumulative().into_iter();
        let report = Report {
            schema: SCHEMA,
            files: all.files,
            mean_dof: all.mean_dof,
            mean_dof_by_kind: kinds
                .iter()
                .map(|(&kind, counts)| (kind, counts.mean_dof))
                .collect(),
            fragmented_files: all.fragmented_files,
            fragmented_share: share(all.fragmented_files, all.files),
            sqlite_share_of_fragmented: share(sqlite, all.fragmented_files),
            dof_median: self.distribution.quantile(0.5),
            dof_90: self.distribution.quantile(0.9),
            dof_99: self.distribution.quantile(0.99),
            dof_max: self.dof_max,
            fs_levels: all.fs_levels,
            fs_levels_of_all_files: self.levels_of_all,
            kinds,
            all,
            dof_cdf: cdf.map(|(dof, share)| CdfPoint { dof, share }).collect(),
            unwritten_bytes: self.unwritten_bytes,
            shared_bytes: self.shared_bytes,
            encoded_files: self.encoded_files,
            inline_files: self.inline_files,
            worth: self.worth,
            left_out: self.left_out,
            filesystems: self
                .places
                .iter()
                .map(|place| place.about.clone())
                .collect(),
            notes: self.notes,
        };
        Ok((report, self.places))
    }

    fn say_what_is_left_out(&mut self) {
        self.notes.extend(self.left_out.sentences());
        if self.is_shared_full {
            self.notes.push(format!(
                "more than {SHARED_MAX} extents are shared: further ones count once for each file"
            ));
        }
        if self.encoded_files > 0 {
            let files = if self.encoded_files == 1 {
                "file is"
            } else {
                "files are"
            };
            self.notes.push(format!(
                "{} {files} compressed: how much room their extents take is not reported, and those \
                 that may be neighbours count as such",
                self.encoded_files
            ));
        }
    }
}

impl Candidate {
    fn reported(&self) -> WorthFile {
        WorthFile {
            path: shown(&self.path),
            kind: self.kind,
            bytes: self.size,
            dof: self.shape.dof().unwrap_or(1.0),
            extents: self.shape.extents,
            mean_fragment_bytes: self.shape.mapped_bytes / self.shape.runs.max(1),
            saved_ms: self.saved_ms,
            days_since_read: self.days_since_read,
        }
    }
}
