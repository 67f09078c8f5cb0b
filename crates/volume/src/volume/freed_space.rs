//! When the journal is applied for the sake of what deletions free.
//!
//! What was deleted and committed keeps its room in the lower filesystem until it is applied. An
//! app that goes on committing puts applying off, and with it the room that other programs on
//! that filesystem wait for. So that is bounded: by a share of what is available, and by an age.
//!
//! An unnecessary apply costs flash writes: it writes what would have been overwritten in the
//! journal. Large deletions are worth that: one apply a minute is little beside the writes that
//! made the deleted files. Small ones wait longer. What was written since the last apply and went
//! to the journal has no room in the lower filesystem that its deletion could free, so an app that
//! makes and deletes temporary files causes no applies. And an apply that failed, or freed nothing
//! (a program still has the deleted file open, a snapshot has its blocks), makes the next one wait
//! longer.

use std::collections::BTreeMap;

use mobifs_base::{MonotonicNs, ObjectId, PAGE_BYTES_U64, SpaceInfo};
use mobifs_engine::SizeChange;
use mobifs_store::placement::{MANY_FILES_BYTES, RUN_PAGES_MIN};

/// Deletions of so much are applied after [`AGE_MAX_MS`], smaller ones after
/// [`SMALL_AGE_MAX_MS`].
const LARGE_BYTES: u64 = 1 << 20;
const AGE_MAX_MS: u64 = 60_000;
const SMALL_AGE_MAX_MS: u64 = 600_000;
/// This part of what is available is not left waiting for an apply.
const URGENT_SHARE: u64 = 4;
/// Less than this is never urgent: where nothing is available, each deletion would be.
const URGENT_BYTES_MIN: u64 = 64 << 10;
/// Time between two applies for the sake of deletions. It doubles with each that frees nothing, up
/// to [`SMALL_AGE_MAX_MS`].
const GAP_MS: u64 = 10_000;
/// More doublings would not change anything.
const DOUBLINGS_MAX: u32 = 6;
const _: () = assert!(GAP_MS << DOUBLINGS_MAX >= SMALL_AGE_MAX_MS);
/// A file that grows by so much in one transaction is written to its place when it is committed, and
/// so are all files of a transaction in which they grow by [`MANY_FILES_BYTES`] together: what is
/// deleted of them frees room also if it was not applied.
const DIRECT_BYTES: u64 = RUN_PAGES_MIN * PAGE_BYTES_U64;

/// What deletions free with the next apply.
#[derive(Debug, Default)]
pub(super) struct FreedSpace {
    waiting: Option<Waiting>,
    /// Bytes that files have in the journal only, for files that have grown since the last apply.
    unapplied: BTreeMap<ObjectId, u64>,
    last_apply: Option<LastApply>,
}

/// Deletions that wait for an apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    bytes: u64,
    /// When the first of them was committed.
    since: MonotonicNs,
}

/// The last apply that was to free something.
#[derive(Clone, Copy, Debug)]
struct LastApply {
    at: MonotonicNs,
    /// How many applies in a row, with this one, have freed nothing.
    fruitless: u32,
}

/// What an apply that has begun is to free.
#[derive(Debug)]
pub(super) struct Freeing {
    waiting: Option<Waiting>,
    unapplied: BTreeMap<ObjectId, u64>,
}

impl FreedSpace {
    /// A transaction was committed that changes sizes like this.
    pub(super) fn committed(&mut self, sizes: &[SizeChange], now: MonotonicNs) {
        let grown = sizes.iter().map(|change| change.grown_bytes);
        let is_direct = grown.fold(0, u64::saturating_add) >= MANY_FILES_BYTES;
        let freed = sizes.iter().map(|change| self.changed(change, is_direct));
        let bytes = freed.fold(0, u64::saturating_add);
        if bytes > 0 {
            self.add(Waiting { bytes, since: now });
        }
    }

    /// Records a change of a file; returns what it frees in the lower filesystem once it is
    /// applied.
    fn changed(&mut self, change: &SizeChange, is_direct: bool) -> u64 {
        let unapplied_bytes = self.unapplied.remove(&change.id).unwrap_or(0);
        let freed_bytes = change.freed_bytes.saturating_sub(unapplied_bytes);
        if change.is_deleted {
            return freed_bytes;
        }
        let left_bytes = unapplied_bytes.saturating_sub(change.freed_bytes);
        let in_journal = !is_direct && change.grown_bytes < DIRECT_BYTES;
        let grown_bytes = if in_journal { change.grown_bytes } else { 0 };
        if left_bytes + grown_bytes > 0 {
            self.unapplied.insert(change.id, left_bytes + grown_bytes);
        }
        // Data written in place of the truncated part needs the room.
        freed_bytes.saturating_sub(change.grown_bytes)
    }

    fn add(&mut self, more: Waiting) {
        self.waiting = Some(match self.waiting {
            None => more,
            Some(waiting) => Waiting {
                bytes: waiting.bytes.saturating_add(more.bytes),
                since: waiting.since.min(more.since),
            },
        });
    }

    /// Nothing waits to be applied.
    pub(super) fn all_is_applied(&mut self) {
        let _freed = self.begin_apply();
    }

    /// An apply begins. What is committed from now on may miss it.
    pub(super) fn begin_apply(&mut self) -> Freeing {
        Freeing {
            waiting: self.waiting.take(),
            unapplied: std::mem::take(&mut self.unapplied),
        }
    }

    /// The apply has ended; `outcome` is the room before and after it, none if it failed.
    pub(super) fn end_apply(
        &mut self,
        freeing: Freeing,
        outcome: Option<(SpaceInfo, SpaceInfo)>,
        now: MonotonicNs,
    ) {
        let Freeing { waiting, unapplied } = freeing;
        if outcome.is_none() {
            for (id, bytes) in unapplied {
                *self.unapplied.entry(id).or_default() += bytes;
            }
            waiting.into_iter().for_each(|waiting| self.add(waiting));
        }
        if waiting.is_none() {
            return;
        }
        let has_freed =
            outcome.is_some_and(|(before, after)| after.available_bytes > before.available_bytes);
        let before = self.last_apply.map_or(0, |last| last.fruitless);
        let fruitless = if has_freed { 0 } else { before + 1 };
        self.last_apply = Some(LastApply { at: now, fruitless });
    }

    /// Whether an apply that begins now frees anything, as far as is known.
    pub(super) const fn is_waited_for(&self) -> bool {
        self.waiting.is_some()
    }

    /// When to apply for the sake of what was deleted, with so much available in the lower
    /// filesystem; none: nothing waits.
    pub(super) fn due_at(&self, available_bytes: u64) -> Option<MonotonicNs> {
        let Waiting { bytes, since } = self.waiting?;
        let age_max_ms = match bytes {
            _ if bytes >= (available_bytes / URGENT_SHARE).max(URGENT_BYTES_MIN) => 0,
            LARGE_BYTES.. => AGE_MAX_MS,
            _ => SMALL_AGE_MAX_MS,
        };
        let due_at = since.after_ms(age_max_ms);
        let Some(LastApply { at, fruitless }) = self.last_apply else {
            return Some(due_at);
        };
        let gap_ms = (GAP_MS << fruitless.min(DOUBLINGS_MAX)).min(SMALL_AGE_MAX_MS);
        Some(due_at.max(at.after_ms(gap_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: u64 = 1 << 40;
    const FILE: ObjectId = ObjectId(7);

    fn at(seconds: u64) -> MonotonicNs {
        MonotonicNs(0).after_ms(seconds * 1000)
    }

    const fn deleted(freed_bytes: u64) -> SizeChange {
        SizeChange {
            id: FILE,
            is_deleted: true,
            freed_bytes,
            grown_bytes: 0,
        }
    }

    const fn changed(freed_bytes: u64, grown_bytes: u64) -> SizeChange {
        SizeChange {
            id: FILE,
            is_deleted: false,
            freed_bytes,
            grown_bytes,
        }
    }

    fn after(changes: &[SizeChange]) -> FreedSpace {
        let mut freed = FreedSpace::default();
        for change in changes {
            freed.committed(&[*change], at(0));
        }
        freed
    }

    fn space(available_bytes: u64) -> SpaceInfo {
        SpaceInfo {
            available_bytes,
            ..SpaceInfo::default()
        }
    }

    #[test]
    fn a_deletion_is_applied_the_sooner_the_more_it_frees() {
        let due = |bytes, available| after(&[deleted(bytes)]).due_at(available);
        assert_eq!(due(0, PLENTY), None);
        assert_eq!(due(1, PLENTY), Some(at(600)));
        assert_eq!(due(LARGE_BYTES - 1, PLENTY), Some(at(600)));
        assert_eq!(due(LARGE_BYTES, PLENTY), Some(at(60)));
        assert_eq!(due(LARGE_BYTES, 4 * LARGE_BYTES + 4), Some(at(60)));
        assert_eq!(due(LARGE_BYTES, 4 * LARGE_BYTES), Some(at(0)));
        // Where nothing is available not every deletion is urgent.
        assert_eq!(due(URGENT_BYTES_MIN - 1, 0), Some(at(600)));
        assert_eq!(due(URGENT_BYTES_MIN, 0), Some(at(0)));
        // Small ones add up, and the age is that of the first.
        let mut freed = after(&[deleted(LARGE_BYTES / 2)]);
        freed.committed(&[deleted(LARGE_BYTES / 2)], at(50));
        assert_eq!(freed.due_at(PLENTY), Some(at(60)));
    }

    #[test]
    fn what_was_not_applied_frees_nothing() {
        for (changes, expected) in [
            // A temporary file that only the journal had.
            (&[changed(0, 8192), deleted(8192)][..], 0),
            // Part of it was there before.
            (&[changed(0, 8192), deleted(12288)], 4096),
            // Written to its place when it was committed.
            (
                &[changed(0, DIRECT_BYTES), deleted(DIRECT_BYTES)],
                DIRECT_BYTES,
            ),
            // Written anew again and again.
            (
                &[changed(0, 4096), changed(4096, 4096), changed(4096, 4096)],
                0,
            ),
            (&[changed(4096, 4096)], 0),
            (&[changed(4096, 0)], 4096),
            // Another file with this number is not affected.
            (&[changed(0, 8192), deleted(8192), deleted(8192)], 8192),
        ] {
            let bytes = after(changes).waiting.map_or(0, |waiting| waiting.bytes);
            assert_eq!(bytes, expected, "{changes:?}");
        }
        // Many small files of one transaction go to their places, too.
        let sizes: Vec<SizeChange> = (0..256)
            .map(|id| SizeChange {
                id: ObjectId(id),
                ..changed(0, 4096)
            })
            .collect();
        let mut freed = FreedSpace::default();
        freed.committed(&sizes, at(0));
        freed.committed(&[deleted(4096)], at(0));
        assert!(freed.is_waited_for());
        // What was applied is in the lower filesystem.
        let mut freed = after(&[changed(0, 8192)]);
        let freeing = freed.begin_apply();
        freed.end_apply(freeing, Some((space(1), space(1))), at(1));
        freed.committed(&[deleted(8192)], at(2));
        assert_eq!(freed.due_at(PLENTY), Some(at(602)));
    }

    #[test]
    fn an_apply_that_fails_or_frees_nothing_makes_the_next_wait() {
        let mut freed = FreedSpace::default();
        let mut now = at(0);
        for gap_seconds in [20, 40, 80, 160, 320, 600, 600] {
            freed.committed(&[deleted(LARGE_BYTES)], now);
            let freeing = freed.begin_apply();
            assert_eq!(freed.due_at(0), None, "it is on its way");
            freed.end_apply(freeing, Some((space(5), space(5))), now);
            freed.committed(&[deleted(LARGE_BYTES)], now);
            let due = now.after_ms(gap_seconds * 1000);
            assert_eq!(freed.due_at(0), Some(due));
            now = due;
        }
        // A failed one has freed nothing: all of it waits on.
        let freeing = freed.begin_apply();
        freed.end_apply(freeing, None, now);
        assert_eq!(freed.due_at(0), Some(now.after_ms(600_000)));
        assert_eq!(
            freed.waiting.map(|waiting| waiting.bytes),
            Some(LARGE_BYTES)
        );
        // One that frees something ends that.
        let freeing = freed.begin_apply();
        freed.end_apply(freeing, Some((space(5), space(6))), now);
        freed.committed(&[deleted(LARGE_BYTES)], now);
        assert_eq!(freed.due_at(0), Some(now.after_ms(GAP_MS)));
    }

    #[test]
    fn an_apply_that_was_to_free_nothing_says_nothing() {
        let mut freed = FreedSpace::default();
        let freeing = freed.begin_apply();
        freed.end_apply(freeing, Some((space(5), space(5))), at(0));
        freed.committed(&[deleted(LARGE_BYTES)], at(1));
        assert_eq!(freed.due_at(0), Some(at(1)));
    }
}
