//! Which files get blocks in advance, and how many.

use crate::Preallocation;

/// Smaller files that are not databases get none: most are written once, as a whole.
const LARGE_BYTES_MIN: u64 = 128 << 10;
/// What a SQLite database begins with.
pub(super) const SQLITE_MAGIC: &[u8] = b"SQLite format 3\0";
/// What a rollback journal of SQLite begins with as long as its transaction is not complete.
pub(super) const HOT_JOURNAL_MAGIC: &[u8] = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7";

/// What a growing file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Database,
    /// A log of SQLite (`-wal`), or a rollback journal that is kept between transactions.
    Log,
    Other,
}

impl Kind {
    /// What the name says; none if it says nothing.
    pub(super) fn of_name(name: &[u8]) -> Option<Self> {
        let ends_with = |end: &&str| {
            let at = name.len().checked_sub(end.len());
            at.is_some_and(|at| name[at..].eq_ignore_ascii_case(end.as_bytes()))
        };
        if ["-wal", "-journal"].iter().any(&ends_with) {
            return Some(Self::Log);
        }
        let is_database = [".db", ".db3", ".sqlite", ".sqlite3", ".sqlitedb"];
        is_database.iter().any(ends_with).then_some(Self::Database)
    }
}

/// Steps of up to this size do not depend on what is free.
const LARGE_STEP_BYTES_MIN: u64 = 1 << 20;
/// Larger ones are at most this part of it: so many files that grow may be listed with unused room.
const LARGE_STEP_PARTS: u64 = 64;

/// The largest step where so much is free.
pub(super) fn large_bytes(policy: &Preallocation, free_bytes: u64) -> u64 {
    let part = (free_bytes / LARGE_STEP_PARTS).max(LARGE_STEP_BYTES_MIN);
    policy.large_bytes.min(1 << part.ilog2())
}

/// In steps of this many bytes a file of this size grows from here on; none: nothing is
/// preallocated. Larger files get more at once, so that their pieces are as many as the logarithm
/// of their size, and the unused part is at most as large as the file.
pub(super) fn step_bytes(
    policy: &Preallocation,
    kind: Kind,
    is_new: bool,
    size: u64,
) -> Option<u64> {
    let as_large = |most: u64| {
        let doubled = (size >= LARGE_BYTES_MIN).then(|| 1 << size.ilog2());
        doubled.map_or(0, |bytes: u64| bytes.min(most))
    };
    let bytes = match kind {
        Kind::Database if policy.database_bytes == 0 => 0,
        Kind::Database => policy.database_bytes.max(as_large(policy.large_bytes)),
        Kind::Log => policy.database_bytes,
        Kind::Other if is_new => 0,
        Kind::Other => as_large(policy.large_bytes),
    };
    (bytes > 0).then_some(bytes)
}

/// Where the preallocation of a file of this size ends: at a multiple of the step, because that is
/// what allocators have large pieces for, and at least a quarter of a step further on.
pub(super) fn end_of(size: u64, step_bytes: u64) -> Option<u64> {
    size.checked_add(step_bytes / 4)?
        .checked_next_multiple_of(step_bytes)
}

/// Where what ext4 reserves for a file ends when it writes a block that ends here: small files get a power of two,
/// larger ones a part of 2, 4 or 8 MiB (`ext4_mb_normalize_request`).
pub(super) fn reserved_end(end: u64) -> u64 {
    const KIB: u64 = 1 << 10;
    let unit = match end {
        0..=0x10_0000 => return end.next_power_of_two().max(16 * KIB),
        0x10_0001..=0x40_0000 => 2048 * KIB,
        0x40_0001..=0x80_0000 => 4096 * KIB,
        _ => 8192 * KIB,
    };
    end.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Preallocation = Preallocation {
        database_bytes: 128 << 10,
        large_bytes: 1 << 20,
    };

    #[test]
    fn names_of_databases_and_their_logs_are_known() {
        let kinds = [
            ("a.db", Some(Kind::Database)),
            ("A.SQLITE", Some(Kind::Database)),
            ("a.db-wal", Some(Kind::Log)),
            ("a.db-journal", Some(Kind::Log)),
            ("db", None),
            ("a.dbx", None),
            ("", None),
        ];
        for (name, kind) in kinds {
            assert_eq!(Kind::of_name(name.as_bytes()), kind, "{name}");
        }
    }

    #[test]
    fn steps_grow_with_the_file_up_to_the_limit() {
        let step = |kind, is_new, kib: u64| {
            step_bytes(&POLICY, kind, is_new, kib << 10).map(|bytes| bytes >> 10)
        };
        assert_eq!(step(Kind::Database, true, 8), Some(128));
        assert_eq!(step(Kind::Database, false, 300), Some(256));
        assert_eq!(step(Kind::Database, false, 1 << 20), Some(1024));
        assert_eq!(step(Kind::Log, true, 300), Some(128));
        assert_eq!(step(Kind::Log, false, 300), Some(128));
        assert_eq!(step(Kind::Other, false, 127), None);
        assert_eq!(step(Kind::Other, false, 128), Some(128));
        assert_eq!(step(Kind::Other, false, 5000), Some(1024));
        assert_eq!(step(Kind::Other, true, 5000), None);
    }

    #[test]
    fn nothing_is_preallocated_where_it_is_switched_off() {
        let off = Preallocation {
            database_bytes: 0,
            large_bytes: 0,
        };
        for kind in [Kind::Database, Kind::Log, Kind::Other] {
            assert_eq!(step_bytes(&off, kind, false, 1 << 30), None);
        }
    }

    #[test]
    fn what_is_reserved_doubles_and_then_grows_by_parts() {
        let reserved = |kib: u64| reserved_end(kib << 10) >> 10;
        for (end, expected) in [(4, 16), (16, 16), (20, 32), (256, 256), (260, 512)] {
            assert_eq!(reserved(end), expected, "{end} KiB");
        }
        for (end, expected) in [(1024, 1024), (1028, 2048), (4096, 4096), (4100, 8192)] {
            assert_eq!(reserved(end), expected, "{end} KiB");
        }
        assert_eq!(reserved((8 << 10) + 4), 16 << 10);
        assert_eq!(reserved_end(u64::MAX), u64::MAX);
    }

    #[test]
    fn no_size_overflows() {
        assert_eq!(end_of(u64::MAX - 1, 128 << 10), None);
        let step = step_bytes(&POLICY, Kind::Database, false, u64::MAX);
        assert_eq!(step, Some(1 << 20));
        assert_eq!(end_of(128 << 10, 128 << 10), Some(256 << 10));
        assert_eq!(end_of(8 << 10, 128 << 10), Some(128 << 10));
    }
}
