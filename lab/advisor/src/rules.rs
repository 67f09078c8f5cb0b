//! The rules for those who write: pure, from how files lie to what would keep them whole.

use mobifs_fragmentation::FreeSpace;
use mobifs_fragmentation::{Model, number, size};

use crate::database::JournalMode;
use crate::report::{Advice, What};

const KIB: u64 = 1 << 10;
/// The step that S4 recommends (Fig. 16): at least 83 % of databases are in one piece with it.
const STEP_BYTES: u64 = 128 * KIB;
/// The largest step that is advised: what stays unused grows with it.
const STEP_BYTES_MAX: u64 = 1024 * KIB;
/// No step is smaller: what S4 counts as level 1.
const STEP_BYTES_MIN: u64 = 32 * KIB;
/// A file should have no more steps than about so many.
const STEPS_WANTED: u64 = 8;
/// Frames of a log after which SQLite writes them to the database (`wal_autocheckpoint`).
const CHECKPOINT_FRAMES: u64 = 1000;
/// Frames for each page that a database grows by, where no trace tells: each transaction writes its
/// table's last page and others again.
pub(crate) const FRAMES_FOR_A_PAGE: f64 = 5.0;
/// Advice that saves less is none.
const SAVED_LEAST_MS: f64 = 1.0;
/// Files that are named.
pub(crate) const NAMED: usize = 5;

/// A file that grows, as it lies.
#[derive(Clone, Debug)]
pub(crate) struct Growing {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) pieces: u64,
    pub(crate) least: u64,
}

/// A database, as it lies.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    pub(crate) file: Growing,
    pub(crate) page_bytes: u32,
    pub(crate) mode: JournalMode,
    /// Frames that a log gets for each page that it grows by.
    pub(crate) frames_for_a_page: f64,
}

impl Database {
    /// Pieces that it gets if it grows by checkpoints of a log: one for each, and the first page.
    fn pieces_by_log(&self) -> u64 {
        let pages = self
            .file
            .bytes
            .div_ceil(u64::from(self.page_bytes.max(512)));
        let frames = (pages as f64 * self.frames_for_a_page).ceil() as u64;
        1 + frames.div_ceil(CHECKPOINT_FRAMES)
    }
}

impl Growing {
    /// Pieces that it gets if it grows in such steps.
    fn pieces_by_steps(&self, step_bytes: u64) -> u64 {
        self.bytes.div_ceil(step_bytes).max(self.least)
    }
}

/// Where files are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) free: Option<&'a FreeSpace>,
    /// In a store of MobiFS the mount decides on room.
    pub(crate) is_store: bool,
    pub(crate) model: Model,
}

/// The step for files of this size: a power of two, small enough that the free room has such runs.
pub(crate) fn step_for(bytes: u64, free: Option<&FreeSpace>) -> u64 {
    let wanted = (bytes / STEPS_WANTED).checked_next_power_of_two();
    let mut step = wanted
        .unwrap_or(STEP_BYTES_MAX)
        .clamp(STEP_BYTES, STEP_BYTES_MAX);
    while step > STEP_BYTES_MIN && !has_runs(free, step) {
        step /= 2;
    }
    step
}

/// Whether half of the free room is in extents of this length at least, as far as is known.
fn has_runs(free: Option<&FreeSpace>, length: u64) -> bool {
    let Some(free) = free else {
        return true;
    };
    // Those of an entry are larger than half of its bound.
    let is_long = |most: Option<u64>| most.is_none_or(|most| most / 2 >= length);
    let long = free.sizes.iter().filter(|sizes| is_long(sizes.bytes_max));
    let long: u64 = long.map(|sizes| sizes.bytes).sum();
    long >= free.bytes / 2
}

/// What keeps databases whole that are written anew.
pub(crate) fn for_databases(databases: &[Database], place: Place<'_>) -> Vec<Advice> {
    let fragmented: Vec<&Database> = databases
        .iter()
        .filter(|database| database.file.pieces > database.file.least)
        .collect();
    let in_journals: Vec<&Database> = fragmented
        .iter()
        .copied()
        .filter(|database| database.mode != JournalMode::Wal && !place.is_store)
        .collect();
    let modes = predicted(
        &in_journals,
        |database| &database.file,
        Database::pieces_by_log,
        place.model,
    );
    let modes = modes.map(|sums| {
        let why = format!(
            "a database grows at a checkpoint then, by up to {} pages at a time, and not by what one transaction \
             adds (S4 Fig. 15). The log itself gets pieces, and is read after a crash only. Not for \
             databases that several machines or read-only media share",
            number(CHECKPOINT_FRAMES)
        );
        sums.advice(What::JournalMode, "PRAGMA journal_mode=WAL".to_owned(), why)
    });
    let steps = by_steps(
        &fragmented,
        |database| &database.file,
        place,
        What::PreallocateDatabases,
    );
    modes.into_iter().chain(steps).collect()
}

/// What keeps other files whole that grow by small writes.
pub(crate) fn for_files(files: &[Growing], place: Place<'_>) -> Option<Advice> {
    let files: Vec<&Growing> = files.iter().collect();
    by_steps(&files, |file| file, place, What::PreallocateFiles)
}

fn by_steps<F>(
    files: &[&F],
    file_of: fn(&F) -> &Growing,
    place: Place<'_>,
    what: What,
) -> Option<Advice> {
    let bytes: u64 = files.iter().map(|file| file_of(file).bytes).sum();
    let mean = bytes.checked_div(files.len() as u64)?;
    let step = step_for(mean, place.free);
    let pieces = |file: &F| file_of(file).pieces_by_steps(step);
    let sums = predicted(files, file_of, pieces, place.model)?;
    let action = match (what, place.is_store) {
        (What::PreallocateDatabases, true) => {
            format!("preallocate_database_bytes of the mount's configuration: {step}")
        }
        (What::PreallocateDatabases, false) => {
            format!("sqlite3_file_control(SQLITE_FCNTL_CHUNK_SIZE) of {step} bytes")
        }
        (_, true) => format!("preallocate_large_bytes of the mount's configuration: {step}"),
        (_, false) => {
            format!("fallocate(FALLOC_FL_KEEP_SIZE) ahead of the end, in steps of {step} bytes")
        }
    };
    let mut why = format!(
        "files get {} at a time, in one piece each where the free room has such runs (S4 Figs. 14, 16)",
        size(step)
    );
    if step < STEP_BYTES {
        why += "; less than the usual 128 KiB, because most free extents are smaller";
    }
    let mut advice = sums.advice(what, action, why);
    advice.step_bytes = Some(step);
    advice.unused_bytes = Some(advice.files * step / 2);
    Some(advice)
}

/// Sums over the files that gain.
struct Sums {
    files: u64,
    bytes: u64,
    pieces: u64,
    pieces_predicted: u64,
    saved_ms: f64,
    first: Vec<String>,
}

impl Sums {
    fn advice(self, what: What, action: String, why: String) -> Advice {
        Advice {
            what,
            files: self.files,
            bytes: self.bytes,
            action,
            step_bytes: None,
            pieces: self.pieces,
            pieces_predicted_max: self.pieces_predicted,
            saved_ms: self.saved_ms,
            unused_bytes: None,
            wear: None,
            why,
            first: self.first,
        }
    }
}

/// Sums what files gain; none if that is next to nothing.
fn predicted<F>(
    files: &[&F],
    file_of: fn(&F) -> &Growing,
    pieces_of: impl Fn(&F) -> u64,
    model: Model,
) -> Option<Sums> {
    let gains = files.iter().map(|file| {
        let after = pieces_of(file);
        (file_of(file), after)
    });
    let mut gains: Vec<(&Growing, u64)> =
        gains.filter(|(file, after)| *after < file.pieces).collect();
    gains.sort_by_key(|&(file, after)| (std::cmp::Reverse(file.pieces - after), file.path.clone()));
    let sum = |of: fn(&(&Growing, u64)) -> u64| gains.iter().map(of).sum::<u64>();
    let pieces = sum(|(file, _)| file.pieces);
    let pieces_predicted = sum(|&(_, after)| after);
    let saved_ms = (pieces - pieces_predicted) as f64 * model.piece_ms;
    (saved_ms >= SAVED_LEAST_MS).then(|| Sums {
        files: gains.len() as u64,
        bytes: sum(|(file, _)| file.bytes),
        pieces,
        pieces_predicted,
        saved_ms,
        first: gains
            .iter()
            .take(NAMED)
            .map(|(file, _)| file.path.clone())
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use mobifs_fragmentation::FreeSize;

    use super::*;

    fn growing(bytes: u64, pieces: u64) -> Growing {
        Growing {
            path: format!("f{bytes}"),
            bytes,
            pieces,
            least: 1,
        }
    }

    fn database(bytes: u64, pieces: u64, mode: JournalMode) -> Database {
        Database {
            file: growing(bytes, pieces),
            page_bytes: 4096,
            mode,
            frames_for_a_page: FRAMES_FOR_A_PAGE,
        }
    }

    fn free(sizes: &[(u64, u64)]) -> FreeSpace {
        let sizes = sizes.iter().map(|&(most, bytes)| FreeSize {
            bytes_max: Some(most),
            extents: bytes / most,
            bytes,
        });
        let sizes: Vec<_> = sizes.collect();
        FreeSpace {
            extents: 1,
            bytes: sizes.iter().map(|size| size.bytes).sum(),
            largest_bytes: 0,
            mean_bytes: None,
            sizes,
        }
    }

    const PLACE: Place<'_> = Place {
        free: None,
        is_store: false,
        model: Model {
            piece_ms: 0.17,
            megabyte_ms: 9.9,
        },
    };

    #[test]
    fn small_transactions_are_answered_by_a_log_or_by_steps() {
        let databases = [
            database(300 * KIB, 20, JournalMode::Delete),
            database(300 * KIB, 30, JournalMode::Persist),
            database(300 * KIB, 9, JournalMode::Wal),
            database(300 * KIB, 1, JournalMode::Delete),
        ];
        let advice = for_databases(&databases, PLACE);
        let [modes, steps] = &advice[..] else {
            panic!("{advice:?}");
        };
        // 75 pages, 375 frames: one checkpoint, and the first page.
        assert_eq!((modes.what, modes.files), (What::JournalMode, 2));
        assert_eq!((modes.pieces, modes.pieces_predicted_max), (50, 4));
        assert!((modes.saved_ms - 46.0 * 0.17).abs() < 1e-9);
        // 300 KiB in steps of 128 KiB.
        assert_eq!((steps.files, steps.step_bytes), (3, Some(128 * KIB)));
        assert_eq!((steps.pieces, steps.pieces_predicted_max), (59, 9));
        assert_eq!(steps.unused_bytes, Some(3 * 64 * KIB));
    }

    #[test]
    fn in_a_store_the_mount_is_configured() {
        let databases = [database(300 * KIB, 20, JournalMode::Delete)];
        let place = Place {
            is_store: true,
            ..PLACE
        };
        let advice = for_databases(&databases, place);
        assert_eq!(advice.len(), 1, "{advice:?}");
        assert!(advice[0].action.contains("preallocate_database_bytes"));
        let advice = for_files(&[growing(300 * KIB, 20)], place).unwrap();
        assert!(advice.action.contains("preallocate_large_bytes"));
    }

    #[test]
    fn few_pieces_are_no_reason() {
        assert!(for_databases(&[], PLACE).is_empty());
        let databases = [database(300 * KIB, 4, JournalMode::Delete)];
        assert!(for_databases(&databases, PLACE).is_empty());
        assert!(for_files(&[growing(1 << 30, 5000)], PLACE).is_some());
        assert!(
            for_files(&[growing(1 << 30, 900)], PLACE).is_none(),
            "pieces of a megabyte"
        );
    }

    #[test]
    fn steps_follow_sizes_and_the_free_room() {
        assert_eq!(step_for(0, None), 128 * KIB);
        assert_eq!(step_for(3 << 20, None), 512 * KIB);
        assert_eq!(step_for(u64::MAX, None), 1024 * KIB);
        let whole = free(&[(4096, 4096), (1 << 30, 1 << 30)]);
        assert_eq!(step_for(3 << 20, Some(&whole)), 512 * KIB);
        // Free extents of 64 to 128 KiB.
        assert_eq!(
            step_for(3 << 20, Some(&free(&[(128 * KIB, 1 << 30)]))),
            64 * KIB
        );
        assert_eq!(step_for(3 << 20, Some(&free(&[(4096, 1 << 30)]))), 32 * KIB);
        assert_eq!(
            step_for(3 << 20, Some(&free(&[]))),
            512 * KIB,
            "nothing is free"
        );
    }

    #[test]
    fn a_large_database_grows_by_checkpoints() {
        // 25,600 pages, 128,000 frames.
        assert_eq!(
            database(100 << 20, 1, JournalMode::Delete).pieces_by_log(),
            129
        );
    }
}
