//! Large and small files by turns up to a mark, then small ones deleted at random (S4, 4.3 and 5.2).

use std::fs::{self, File, OpenOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use mobifs_numerics::Random;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::checksum::Checksum;
use crate::content::{mix, write_content};
use crate::error::{AgeError, OnPath as _};
use crate::space::Space;

/// The directory that the files are put into, within the one that is given.
pub const DIRECTORY: &str = "filled";
/// Small files of one directory.
const FILES_PER_DIRECTORY: u64 = 1000;
/// The file that takes the free room that the others leave, among the large ones.
const REST_NAME: &str = "rest.bin";
/// Its size is a multiple of this, so that it does not depend on when the kernel writes metadata.
const REST_STEP_BYTES: u64 = 1 << 20;
/// What that file leaves: room for its own metadata, and less than a step.
pub const REST_LEFT_BYTES: u64 = 2 << 20;
/// What the plan leaves for the metadata of a small file, so that it is met and not an error.
const METADATA_BYTES_PER_FILE: u64 = 512;

/// How full S4 calls what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Utilisation {
    /// As it was made: nothing is filled.
    Low,
    /// Less than 80 % used.
    Moderate,
    /// 80 to 95 %.
    High,
    /// More than 95 %.
    Full,
}

impl Utilisation {
    /// The parts of 1000 that are to be used when the filling ends.
    const fn target_permille(self) -> u32 {
        match self {
            Self::Low => 0,
            Self::Moderate => 750,
            Self::High => 900,
            Self::Full => 985,
        }
    }

    const fn contains(self, used_permille: u32) -> bool {
        match self {
            Self::Low => true,
            Self::Moderate => used_permille < 800,
            Self::High => 800 <= used_permille && used_permille <= 950,
            Self::Full => used_permille > 950,
        }
    }

    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "Low (as it was)",
            Self::Moderate => "Moderate (below 80 %)",
            Self::High => "High (80 to 95 %)",
            Self::Full => "Full (above 95 %)",
        }
    }
}

/// Sizes from the least to the most, each as likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// The least.
    pub least_bytes: u64,
    /// The most.
    pub most_bytes: u64,
}

impl Sizes {
    const fn draw(self, random: &mut Random) -> u64 {
        self.least_bytes + random.below(self.most_bytes - self.least_bytes + 1)
    }
}

/// The small files of a procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Small {
    /// Their sizes.
    pub sizes: Sizes,
    /// Their share of all bytes that are filled, of 1000.
    pub share_permille: u32,
}

impl Small {
    /// 4 to 500 KB, a share of three tenths: enough to get from the mark to each target.
    pub const USUAL: Self = Self {
        sizes: Sizes {
            least_bytes: 4 << 10,
            most_bytes: 500_000,
        },
        share_permille: 300,
    };
}

/// How degraded free room is in S4's 5.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ageing {
    /// No small files: no holes.
    None,
    /// Small files of 64 KB on average.
    Moderate,
    /// Small files of 8 KB on average.
    Severe,
}

/// What ends the deletions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deletion {
    /// The filesystem is used to so many of 1000 parts.
    ToPermille(u32),
    /// Deletes until this many bytes of small files are gone.
    Bytes(u64),
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Procedure {
    /// Sizes, contents and the order of deletions follow from it.
    pub seed: u64,
    /// What the result has to be.
    pub utilisation: Utilisation,
    /// Files are made until so many of 1000 parts are used.
    pub mark_permille: u32,
    /// Sizes of large files.
    pub large: Sizes,
    /// The small files, if any.
    pub small: Option<Small>,
    /// One more file takes the free room at the mark, but for [`REST_LEFT_BYTES`] at most.
    #[serde(default)]
    pub takes_rest: bool,
    /// What is deleted at the end.
    pub deletion: Deletion,
    /// Large files are written. Otherwise their room is allocated (`fallocate`), where the filesystem can:
    /// they lie the same way, read as zeros, and cost no writes.
    pub large_is_written: bool,
}

impl Procedure {
    /// S4's 4.3: up to 99.5 %, and from there to 75, 90 or 98.5 %. For [`Utilisation::Full`] the free room at the
    /// mark is taken, too: on a large filesystem it is more than an app needs, and lies in a few extents, in which
    /// new files would be whole.
    #[must_use]
    pub const fn new(seed: u64, utilisation: Utilisation) -> Self {
        Self {
            seed,
            utilisation,
            mark_permille: 995,
            large: Sizes {
                least_bytes: 10_000_000,
                most_bytes: 16_000_000,
            },
            small: Some(Small::USUAL),
            takes_rest: matches!(utilisation, Utilisation::Full),
            deletion: Deletion::ToPermille(utilisation.target_permille()),
            large_is_written: false,
        }
    }

    /// S4's 5.2 on a filesystem of `total_bytes`: the three states end at 94.5 % used, of which
    /// `deleted_bytes` were small files before. Twice as many small files are made as are deleted, so
    /// that what is deleted is small holes and not one after the other.
    #[must_use]
    pub fn aged(seed: u64, ageing: Ageing, total_bytes: u64, deleted_bytes: u64) -> Self {
        const END_PERMILLE: u64 = 945;
        let permille = |bytes: u64| bytes.saturating_mul(1000).div_ceil(total_bytes.max(1));
        let sizes = |least_bytes, most_bytes| Sizes {
            least_bytes,
            most_bytes,
        };
        let sizes = match ageing {
            Ageing::None => None,
            Ageing::Moderate => Some(sizes(4 << 10, 124_000)),
            Ageing::Severe => Some(sizes(4 << 10, 12_000)),
        };
        let share = permille(deleted_bytes.saturating_mul(2)) * 1000 / END_PERMILLE;
        let deleted = if sizes.is_some() { deleted_bytes } else { 0 };
        Self {
            mark_permille: (END_PERMILLE + permille(deleted)).min(999) as u32,
            small: sizes.map(|sizes| Small {
                sizes,
                share_permille: share.clamp(1, 999) as u32,
            }),
            deletion: Deletion::Bytes(deleted),
            ..Self::new(seed, Utilisation::High)
        }
    }

    /// With as many small files as the target needs on a filesystem that is `before` like this: one
    /// that is partly used before has room for fewer.
    #[must_use]
    pub fn fitting(mut self, before: Space) -> Self {
        let mark = before.share(self.full_permille());
        if let (Some(small), Deletion::ToPermille(target)) = (&mut self.small, self.deletion) {
            let filled = mark.saturating_sub(before.used_bytes).max(1);
            let deleted = mark.saturating_sub(before.share(target));
            // A fifth more, as the last file that is deleted is not the last one that is there.
            let needed = (u128::from(deleted) * 1200 / u128::from(filled)).min(950) as u32;
            small.share_permille = small.share_permille.max(needed);
        }
        self
    }

    /// How full it is before small files are deleted.
    const fn full_permille(&self) -> u32 {
        if self.takes_rest {
            1000
        } else {
            self.mark_permille
        }
    }

    /// # Errors
    /// A number is out of its range.
    pub fn check(&self) -> Result<(), AgeError> {
        let wrong = |name, value: String, range| Err(AgeError::OutOfRange { name, value, range });
        if self.mark_permille == 0 || self.mark_permille > 1000 {
            let range = "from 1 to 1000 parts of the filesystem";
            return wrong("the mark", self.mark_permille.to_string(), range);
        }
        if let Deletion::ToPermille(target) = self.deletion
            && target > self.full_permille()
        {
            return wrong("the target", target.to_string(), "not above the mark");
        }
        let sizes = [Some(self.large), self.small.map(|small| small.sizes)];
        for sizes in sizes.into_iter().flatten() {
            if sizes.least_bytes == 0 || sizes.least_bytes > sizes.most_bytes {
                let value = format!("{} to {}", sizes.least_bytes, sizes.most_bytes);
                return wrong(
                    "the size of files",
                    value,
                    "from the least, above 0, to the most",
                );
            }
        }
        match self.small {
            Some(small) if !(1..1000).contains(&small.share_permille) => {
                let value = small.share_permille.to_string();
                wrong("the share of small files", value, "from 1 to 999 of 1000")
            }
            _ => Ok(()),
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Files are being made.
    Filling {
        /// Bytes that they take.
        bytes: u64,
        /// Bytes that they are to take.
        of_bytes: u64,
    },
    /// Small files are being deleted.
    Deleting {
        /// Bytes that they took.
        bytes: u64,
        /// Bytes that are to be freed.
        of_bytes: u64,
    },
}

/// Gets the progress, and says whether to go on.
pub type Watch<'w> = dyn FnMut(Progress) -> ControlFlow<()> + 'w;

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// How.
    pub procedure: Procedure,
    /// The filesystem before.
    pub before: Space,
    /// The filesystem after.
    pub after: Space,
    /// Large files.
    pub large_files: u64,
    /// Their bytes.
    pub large_bytes: u64,
    /// Whether room was allocated for them, or they were written.
    pub large_were_allocated: bool,
    /// Small files that were made.
    pub small_files_made: u64,
    /// Small files that were deleted.
    pub small_files_deleted: u64,
    /// What the deleted ones took.
    pub deleted_bytes: u64,
    /// The filesystem was full before the mark: the files up to there were made. Two runs can differ then.
    pub was_full_early: bool,
    /// Names, sizes and contents of all files.
    pub checksum: u64,
}

/// Fills the filesystem of an empty directory (`lost+found` may be in it); the files are in
/// [`DIRECTORY`] below it.
///
/// # Errors
/// The directory has something in it, the filesystem is too small or does not take what is planned, or
/// the caller stops it. What was made until then stays, and [`resume`] goes on with it.
pub fn run(
    directory: &Path,
    procedure: &Procedure,
    watch: &mut Watch<'_>,
) -> Result<Filled, AgeError> {
    procedure.check()?;
    refuse_content(directory, &["lost+found"])?;
    let before = Space::of(directory)?;
    resume(directory, procedure, before, watch)
}

/// Goes on with what [`run`] had begun on a filesystem that was `before` like this. The result is
/// the same as without the interruption.
///
/// # Errors
/// As those of [`run`].
pub fn resume(
    directory: &Path,
    procedure: &Procedure,
    before: Space,
    watch: &mut Watch<'_>,
) -> Result<Filled, AgeError> {
    resume_and_apply(directory, procedure, before, watch, &|| Ok(()))
}

/// As [`resume`]; `apply` brings everything to its place before the use of the filesystem is measured.
pub(crate) fn resume_and_apply(
    directory: &Path,
    procedure: &Procedure,
    before: Space,
    watch: &mut Watch<'_>,
    apply: &dyn Fn() -> Result<(), AgeError>,
) -> Result<Filled, AgeError> {
    procedure.check()?;
    let root = directory.join(DIRECTORY);
    fs::create_dir_all(&root).at("make", &root)?;
    let mut filling = Filling::new(&root, procedure, before, watch);
    if procedure.utilisation != Utilisation::Low {
        filling.make_files()?;
        if procedure.takes_rest {
            filling.take_rest()?;
        }
        // A file that is deleted before its blocks are allocated leaves no hole.
        apply()?;
        filling.write_out()?;
        filling.delete_files()?;
    }
    let mut filled = filling.filled;
    apply()?;
    filled.after = Space::of(directory)?;
    filled.checksum = Checksum::new().of(&root)?;
    let used_permille = filled.after.used_permille();
    let by_target = matches!(procedure.deletion, Deletion::ToPermille(_));
    if by_target && !procedure.utilisation.contains(used_permille) {
        return Err(AgeError::Missed {
            path: directory.to_owned(),
            used_permille,
            asked: procedure.utilisation.name(),
        });
    }
    Ok(filled)
}

/// Refuses a directory that has anything but the names that are allowed.
pub(crate) fn refuse_content(directory: &Path, allowed: &[&str]) -> Result<(), AgeError> {
    match fs::metadata(directory) {
        Ok(about) if about.is_dir() => {}
        Ok(_) => return Err(AgeError::NoDirectory(directory.to_owned())),
        Err(error) => return Err(error).at("look at", directory),
    }
    for entry in fs::read_dir(directory).at("list", directory)? {
        let name = entry.at("list", directory)?.file_name();
        if !allowed.iter().any(|allowed| name == *allowed) {
            return Err(AgeError::NotEmpty {
                path: directory.to_owned(),
                found: name.into(),
            });
        }
    }
    Ok(())
}

struct Filling<'f, 'w> {
    root: &'f Path,
    procedure: &'f Procedure,
    watch: &'f mut Watch<'w>,
    random: Random,
    allocates: bool,
    /// What all files take by the plan.
    taken_bytes: u64,
    /// Sizes of the small files, by their numbers.
    small: Vec<u64>,
    filled: Filled,
}

impl<'f, 'w> Filling<'f, 'w> {
    fn new(
        root: &'f Path,
        procedure: &'f Procedure,
        before: Space,
        watch: &'f mut Watch<'w>,
    ) -> Self {
        Self {
            root,
            procedure,
            watch,
            random: Random::new(mix(procedure.seed, 0)),
            allocates: !procedure.large_is_written,
            taken_bytes: 0,
            small: Vec::new(),
            filled: Filled {
                procedure: *procedure,
                before,
                after: before,
                large_files: 0,
                large_bytes: 0,
                large_were_allocated: false,
                small_files_made: 0,
                small_files_deleted: 0,
                deleted_bytes: 0,
                was_full_early: false,
                checksum: 0,
            },
        }
    }

    /// Bytes that the files take at the mark: decided beforehand, so that nothing depends on when the
    /// kernel writes what.
    fn budget_bytes(&self) -> Result<u64, AgeError> {
        let before = self.filled.before;
        let mark = before.share(self.procedure.mark_permille);
        let large = self.procedure.large.most_bytes;
        if mark < before.used_bytes + large {
            return Err(AgeError::NoRoom {
                path: self.root.to_owned(),
                free_bytes: mark.saturating_sub(before.used_bytes),
                needed_bytes: large,
                advice: "take a larger filesystem, a higher mark, or smaller files",
            });
        }
        Ok(mark - before.used_bytes)
    }

    fn make_files(&mut self) -> Result<(), AgeError> {
        let budget = self.budget_bytes()?;
        let mut owed_small = 0_u64;
        loop {
            let size = self.procedure.large.draw(&mut self.random);
            let rest = budget.saturating_sub(self.taken_bytes);
            let fits = self.filled.before.taken(size) <= rest;
            if fits {
                self.make_large(size)?;
            }
            let Some(small) = self.procedure.small else {
                if fits && !self.filled.was_full_early {
                    continue;
                }
                break;
            };
            let share = u64::from(small.share_permille);
            owed_small += size * share / (1000 - share);
            // What no large file fits into is filled by small ones.
            let until = if fits { owed_small } else { rest };
            let mut made = 0;
            while made < until && !self.filled.was_full_early {
                let size = small.sizes.draw(&mut self.random);
                let taken = self.filled.before.taken(size) + METADATA_BYTES_PER_FILE;
                if self.taken_bytes + taken > budget {
                    break;
                }
                self.make_small(size)?;
                made += taken;
            }
            if !fits || self.filled.was_full_early {
                break;
            }
            owed_small = owed_small.saturating_sub(made);
        }
        self.tell(Progress::Filling {
            bytes: self.taken_bytes,
            of_bytes: budget,
        })
    }

    fn tell(&mut self, progress: Progress) -> Result<(), AgeError> {
        match (self.watch)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(AgeError::Cancelled),
        }
    }

    fn make_large(&mut self, size: u64) -> Result<(), AgeError> {
        if self.filled.was_full_early {
            return Ok(());
        }
        let budget = self.budget_bytes()?;
        self.tell(Progress::Filling {
            bytes: self.taken_bytes,
            of_bytes: budget,
        })?;
        let directory = self.root.join("large");
        if self.filled.large_files == 0 {
            fs::create_dir_all(&directory).at("make", &directory)?;
        }
        let path = directory.join(format!("{:06}.bin", self.filled.large_files));
        match self.make_large_at(&path, size) {
            Ok(()) => {
                self.filled.large_files += 1;
                self.filled.large_bytes += size;
                self.taken_bytes += self.filled.before.taken(size);
                Ok(())
            }
            Err(error) => self.end_if_full(&path, error),
        }
    }

    fn make_large_at(&mut self, path: &Path, size: u64) -> Result<(), AgeError> {
        if self.is_made(path, size)? {
            self.filled.large_were_allocated |= self.allocates;
            return Ok(());
        }
        let file = new_file(path)?;
        if self.allocates {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
                Ok(()) => {
                    self.filled.large_were_allocated = true;
                    return Ok(());
                }
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.allocates = false,
                Err(error) => return Err(error).at("allocate", path),
            }
        }
        let seed = mix(self.procedure.seed, 2 * self.filled.large_files + 1);
        write_content(&file, seed, 0, size).at("write", path)
    }

    fn take_rest(&mut self) -> Result<(), AgeError> {
        let directory = self.root.join("large");
        fs::create_dir_all(&directory).at("make", &directory)?;
        let path = directory.join(REST_NAME);
        let made = fs::metadata(&path).map_or(0, |about| about.len());
        let left = Space::of(self.root)?.free_bytes + made;
        let size = left.saturating_sub(REST_STEP_BYTES) / REST_STEP_BYTES * REST_STEP_BYTES;
        if size == 0 || self.filled.was_full_early {
            return Ok(());
        }
        if let Err(error) = self.make_large_at(&path, size) {
            return self.end_if_full(&path, error);
        }
        self.filled.large_files += 1;
        self.filled.large_bytes += size;
        self.taken_bytes += size;
        Ok(())
    }

    /// Whether an interrupted run has made the file as a whole: its size is there only with its last byte.
    fn is_made(&self, path: &Path, size: u64) -> Result<bool, AgeError> {
        match fs::metadata(path) {
            Ok(about) => Ok(about.len() == size && about.blocks() > 0),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).at("look at", path),
        }
    }

    fn small_path(&self, number: u64) -> PathBuf {
        let directory = format!("small/{:04}", number / FILES_PER_DIRECTORY);
        self.root.join(directory).join(format!("{number:07}.bin"))
    }

    fn make_small(&mut self, size: u64) -> Result<(), AgeError> {
        let number = self.small.len() as u64;
        let path = self.small_path(number);
        let made = self.make_small_at(&path, number, size);
        if let Err(error) = made {
            return self.end_if_full(&path, error);
        }
        self.small.push(size);
        self.filled.small_files_made += 1;
        self.taken_bytes += self.filled.before.taken(size) + METADATA_BYTES_PER_FILE;
        Ok(())
    }

    fn make_small_at(&self, path: &Path, number: u64, size: u64) -> Result<(), AgeError> {
        if number.is_multiple_of(FILES_PER_DIRECTORY)
            && let Some(directory) = path.parent()
        {
            fs::create_dir_all(directory).at("make", directory)?;
        }
        if self.is_made(path, size)? {
            return Ok(());
        }
        let mut content = vec![0; size as usize];
        Random::new(mix(self.procedure.seed, 2 * number + 2)).fill(&mut content);
        new_file(path)?.write_all_at(&content, 0).at("write", path)
    }

    /// A full filesystem ends the filling; the file that did not fit is taken away.
    fn end_if_full(&mut self, path: &Path, error: AgeError) -> Result<(), AgeError> {
        if !error.is_no_room() {
            return Err(error);
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).at("remove", path);
            }
            _ => {}
        }
        let space = Space::of(self.root)?;
        if space.free_files == Some(0) {
            return Err(AgeError::NoInodes(self.root.to_owned()));
        }
        self.filled.was_full_early = true;
        Ok(())
    }

    /// Has the filesystem allocate and write what is only in memory.
    fn write_out(&self) -> Result<(), AgeError> {
        let root = File::open(self.root).at("open", self.root)?;
        rustix::fs::syncfs(&root).at("write out", self.root)
    }

    fn delete_files(&mut self) -> Result<(), AgeError> {
        let before = self.filled.before;
        let of_bytes = match self.procedure.deletion {
            Deletion::Bytes(bytes) => bytes,
            Deletion::ToPermille(target) => {
                (before.used_bytes + self.taken_bytes).saturating_sub(before.share(target))
            }
        };
        let mut order: Vec<u64> = (0..self.small.len() as u64).collect();
        let mut random = Random::new(mix(self.procedure.seed, 0) ^ 1);
        while self.filled.deleted_bytes < of_bytes {
            if order.is_empty() {
                return Err(self.too_few(of_bytes));
            }
            let number = order.swap_remove(random.below(order.len() as u64) as usize);
            let path = self.small_path(number);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).at("delete", &path);
                }
                _ => {}
            }
            self.filled.small_files_deleted += 1;
            self.filled.deleted_bytes += before.taken(self.small[number as usize]);
            let bytes = self.filled.deleted_bytes;
            self.tell(Progress::Deleting { bytes, of_bytes })?;
        }
        Ok(())
    }

    fn too_few(&self, of_bytes: u64) -> AgeError {
        let before = self.filled.before;
        let permille = |bytes: u64| (bytes * 1000 / before.total_bytes().max(1)) as u32;
        let full = before.used_bytes + self.taken_bytes;
        AgeError::FewSmall {
            path: self.root.to_owned(),
            used_permille: permille(full.saturating_sub(self.filled.deleted_bytes)),
            target_permille: permille(full.saturating_sub(of_bytes)),
        }
    }
}

fn new_file(path: &Path) -> Result<File, AgeError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    options.open(path).at("make", path)
}
