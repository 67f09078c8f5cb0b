//! How often an apply tries steps that a full filesystem refuses.
//!
//! A refusal without room may be slow: btrfs first flushes everything that might free some, for 40
//! ms, and an apply with thousands of changes held the journal for minutes, only to carry all of
//! them over. So after some refusals in a row of the same kind of step the gaps between two
//! attempts double, and the skipped steps count as refused: of *n* steps about `log2 n` more are
//! tried. A success resets the gaps.
//!
//! **A skipped step loses nothing.** It is treated as one that the filesystem has refused: its
//! change is carried over to the next epoch ([`carry`](super::carry)), durably, and reads return
//! the committed state. Every apply begins with other steps
//! ([`Work::rotate_entries`](super::work::Work::rotate_entries)), so each is tried eventually,
//! whatever is refused before it.
//!
//! Only refusals for lack of room count: they concern the whole filesystem, others a single object.

use std::io;

use rustix::io::Errno;

/// After so many refusals in a row the filesystem is taken to be full; fewer may concern single
/// objects.
const IN_A_ROW_MAX: u32 = 16;
/// Gaps double up to this power of two.
const GAP_POWER_MAX: u32 = 20;

/// Rotates the steps so that each apply starts after the ones that the apply before certainly tried.
pub(super) fn rotate_for_apply<T>(steps: &mut [T], apply: u64) {
    let begin = apply.saturating_mul(u64::from(IN_A_ROW_MAX));
    if let Some(begin) = begin.checked_rem(steps.len() as u64) {
        steps.rotate_left(begin as usize);
    }
}

/// The results of the steps of one kind so far.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// The error of the refusals in a row.
    errno: i32,
    in_a_row: u32,
    /// How many of the next steps are skipped.
    left_out: u32,
}

impl Backoff {
    /// Runs a step, or skips it and returns the error of the last refusal.
    pub(super) fn attempt<T>(&mut self, step: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.left_out > 0 {
            self.left_out -= 1;
            return Err(io::Error::from_raw_os_error(self.errno));
        }
        let done = step();
        let refusal = done.as_ref().err().and_then(io::Error::raw_os_error);
        self.record(refusal.filter(|&errno| is_want_of_room(errno)));
        done
    }

    /// Records the result of a step: none if it was not refused for lack of room.
    fn record(&mut self, refusal: Option<i32>) {
        let Some(errno) = refusal else {
            *self = Self::default();
            return;
        };
        if errno != self.errno {
            (self.errno, self.in_a_row) = (errno, 0);
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        if let Some(power) = self.in_a_row.checked_sub(IN_A_ROW_MAX) {
            self.left_out = 1 << power.min(GAP_POWER_MAX);
        }
    }
}

fn is_want_of_room(errno: i32) -> bool {
    [Errno::NOSPC, Errno::DQUOT]
        .map(Errno::raw_os_error)
        .contains(&errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of the steps that were tried of so many that all end like this.
    fn tried(steps: u32, end: impl Fn(u32) -> io::Result<()>) -> Vec<u32> {
        let mut backoff = Backoff::default();
        let mut tried = Vec::new();
        for number in 0..steps {
            let is_refused = end(number).is_err();
            let done = backoff.attempt(|| {
                tried.push(number);
                end(number)
            });
            assert!(
                done.is_err() || !is_refused,
                "what was left out is an error"
            );
        }
        tried
    }

    #[test]
    fn steps_are_left_out_after_refusals_in_a_row() {
        for errno in [Errno::NOSPC, Errno::DQUOT] {
            let tried = tried(3000, |_| Err(errno.into()));
            assert_eq!(
                tried.iter().take(16).copied().collect::<Vec<_>>(),
                (0..16).collect::<Vec<_>>()
            );
            assert_eq!(tried.get(16..19), Some(&[17, 20, 25][..]));
            assert!(tried.len() < 30, "{tried:?}");
        }
    }

    #[test]
    fn a_success_or_another_error_in_between_ends_the_row() {
        let some_room = |number: u32| {
            if number % 16 == 15 {
                Ok(())
            } else {
                Err(Errno::NOSPC.into())
            }
        };
        assert_eq!(tried(200, some_room).len(), 200);
        let two_errors = |number: u32| {
            let errno = if number % 16 < 8 {
                Errno::NOSPC
            } else {
                Errno::DQUOT
            };
            Err(errno.into())
        };
        assert_eq!(tried(200, two_errors).len(), 200);
    }

    #[test]
    fn refusals_of_single_objects_leave_nothing_out() {
        for errno in [Errno::PERM, Errno::XDEV, Errno::MLINK, Errno::IO] {
            assert_eq!(tried(200, |_| Err(errno.into())).len(), 200, "{errno}");
        }
    }

    #[test]
    fn room_that_comes_back_is_found() {
        let tried = tried(3000, |number| {
            if number < 100 {
                Err(Errno::NOSPC.into())
            } else {
                Ok(())
            }
        });
        let after = tried.iter().filter(|&&number| number >= 100).count();
        assert!(after > 2800, "{after}");
    }

    /// Which of so many objects an apply asks for, in order, where all but `possible` are refused.
    fn asked_for(objects: usize, apply: u64, possible: Option<usize>) -> Vec<usize> {
        let mut steps: Vec<usize> = (0..objects).collect();
        rotate_for_apply(&mut steps, apply);
        let mut backoff = Backoff::default();
        let mut asked = Vec::new();
        for object in steps {
            let _refused = backoff.attempt(|| {
                asked.push(object);
                if possible == Some(object) {
                    Ok(())
                } else {
                    Err(Errno::NOSPC.into())
                }
            });
        }
        asked
    }

    #[test]
    fn the_apply_after_refusals_begins_with_the_objects_that_were_left_out() {
        let first = asked_for(100, 0, None);
        assert_eq!(first[..16], (0..16).collect::<Vec<_>>());
        assert_eq!(first[16..], [17, 20, 25, 34, 51, 84]);
        let second = asked_for(100, 1, None);
        assert_eq!(second[..16], (16..32).collect::<Vec<_>>());
        assert_eq!(second[16..], [33, 36, 41, 50, 67, 0]);
        // After the last one comes the first.
        let seventh = asked_for(100, 6, None);
        let ring: Vec<usize> = (96..100).chain(0..12).collect();
        assert_eq!(seventh[..16], ring);
        // Fewer than are tried in a row: each apply asks for all.
        for turn in [0, 1, 7, u64::MAX] {
            let mut few = asked_for(5, turn, None);
            few.sort_unstable();
            assert_eq!(few, [0, 1, 2, 3, 4], "turn {turn}");
        }
        assert_eq!(asked_for(0, 3, None), Vec::<usize>::new());
    }

    #[test]
    fn every_object_is_asked_for_after_some_applies_whatever_is_refused_before() {
        for objects in [17, 100, 160, 1000] {
            let applies = (objects as u64).div_ceil(u64::from(IN_A_ROW_MAX));
            for possible in 0..objects {
                let asked = (0..applies)
                    .any(|apply| asked_for(objects, apply, Some(possible)).contains(&possible));
                assert!(asked, "object {possible} of {objects}");
            }
        }
    }
}
