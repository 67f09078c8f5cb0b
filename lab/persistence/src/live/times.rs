//! How long a commit takes at the device, and what its commit block takes of that.

use mobifs_base::VirtualNs;

use crate::figures::CommitTimes;

/// When a command was under way: from and to, in ns.
pub(crate) type Interval = (u64, u64);

/// What a command wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Content of files.
    Data,
    /// Blocks of the log.
    Log,
}

/// Time in which at least one command was under way, in ms.
pub(crate) fn covered_ms(intervals: &[Interval]) -> f64 {
    let mut sorted = intervals.to_vec();
    sorted.sort_unstable();
    let (mut covered, mut until) = (0, 0);
    for (start, end) in sorted {
        covered += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    covered as f64 / 1e6
}

/// Follows the commands between commits.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    data: Vec<Interval>,
    log: Vec<Interval>,
    /// The last flush since the last commit, and whether one came before it.
    flush: Option<Interval>,
    /// A commit block was written; the flush after it has not come.
    committing: Option<Committing>,
    done: Vec<CommitTimes>,
    ratios: Vec<f64>,
}

#[derive(Debug)]
struct Committing {
    data: Vec<Interval>,
    log: Vec<Interval>,
    flush: Option<Interval>,
    block: Interval,
}

impl Clock {
    pub(crate) fn write(&mut self, what: Written, (at, done_at): (VirtualNs, VirtualNs)) {
        match what {
            Written::Data => self.data.push((at.0, done_at.0)),
            Written::Log => self.log.push((at.0, done_at.0)),
        }
    }

    /// A flush: the one after a commit block, the one before the next, or one of an fsync without a commit.
    pub(crate) fn flush(&mut self, (at, done_at): (VirtualNs, VirtualNs)) {
        if let Some(committing) = self.committing.take() {
            self.conclude(&committing, Some((at.0, done_at.0)));
            return;
        }
        // What came before an earlier flush was made durable by that one.
        if let Some((earlier, _)) = self.flush.replace((at.0, done_at.0)) {
            self.data.retain(|interval| interval.0 >= earlier);
        }
    }

    /// A commit block was written.
    pub(crate) fn commit(&mut self, (at, done_at): (VirtualNs, VirtualNs)) {
        if let Some(committing) = self.committing.take() {
            self.conclude(&committing, None);
        }
        self.committing = Some(Committing {
            data: std::mem::take(&mut self.data),
            log: std::mem::take(&mut self.log),
            flush: self.flush.take(),
            block: (at.0, done_at.0),
        });
    }

    /// Whatever came before does not count.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    fn conclude(&mut self, commit: &Committing, after: Option<Interval>) {
        let ends: Vec<Interval> = [commit.flush, Some(commit.block), after]
            .into_iter()
            .flatten()
            .collect();
        let rest: Vec<Interval> = commit.data.iter().chain(&commit.log).copied().collect();
        let all: Vec<Interval> = ends.iter().chain(&rest).copied().collect();
        self.done.push(CommitTimes {
            data_ms: covered_ms(&commit.data),
            log_ms: covered_ms(&commit.log),
            flush_before_ms: covered_ms(commit.flush.as_slice()),
            commit_block_ms: covered_ms(&[commit.block]),
            flush_after_ms: covered_ms(after.as_slice()),
        });
        let whole = covered_ms(&all);
        if whole > 0.0 {
            self.ratios.push(covered_ms(&ends) / whole);
        }
    }

    /// R_commit of each commit, and its times.
    pub(crate) fn finish(mut self) -> (Vec<f64>, Vec<CommitTimes>) {
        if let Some(committing) = self.committing.take() {
            self.conclude(&committing, None);
        }
        (self.ratios, self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(from: u64, to: u64) -> (VirtualNs, VirtualNs) {
        (VirtualNs(from * 1_000_000), VirtualNs(to * 1_000_000))
    }

    #[test]
    fn the_commit_block_is_its_write_and_the_flushes_around_it() {
        let mut clock = Clock::default();
        // An fsync without a commit.
        clock.write(Written::Data, ms(0, 9));
        clock.flush(ms(9, 10));
        clock.write(Written::Data, ms(10, 12));
        clock.write(Written::Log, ms(11, 14));
        clock.flush(ms(14, 16));
        clock.commit(ms(16, 17));
        clock.flush(ms(17, 20));
        let (ratios, times) = clock.finish();
        assert_eq!(times.len(), 1);
        let times = times[0];
        assert_eq!((times.data_ms, times.log_ms), (2.0, 3.0));
        assert_eq!(
            (
                times.flush_before_ms,
                times.commit_block_ms,
                times.flush_after_ms
            ),
            (2.0, 1.0, 3.0)
        );
        // 6 of 10 ms, in which two writes overlapped.
        assert_eq!(ratios, [0.6]);
    }
}
