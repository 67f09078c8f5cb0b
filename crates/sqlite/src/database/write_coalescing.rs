//! Coalescing SQLite's small writes.
//!
//! SQLite writes a frame of its log in two writes and an entry of a rollback journal in three, some
//! of them four bytes long, and a transaction has several. Each write is an operation of the engine
//! with a copy of every page that it touches. So adjacent writes are held back and joined into one:
//! those to the log until a transaction is committed, those to a journal until another operation.
//!
//! No connection can notice. Only the connection that has the right to write makes them, and until
//! it publishes frames through the shared memory, or releases its lock, no other connection reads,
//! or depends on, that content; and a power cut or kill between two writes has always been
//! possible. All the same, any other operation than a read writes what waits first
//! ([`crate::database::Database::flush`]). If that fails the write stays here and is read from
//! here: a writer whose disk fails rolls its transaction back, and needs all that it wrote for
//! that.

use std::sync::atomic::{AtomicBool, Ordering};

use mobifs_base::ObjectId;
use parking_lot::Mutex;

use crate::failure::Failure;

/// Bytes before the first frame of a log.
const LOG_HEADER_BYTES: usize = 32;
/// Bytes before the page of a frame.
const FRAME_HEADER_BYTES: usize = 24;
/// Where a frame's header says how large the database is when the frame is committed; zero: it
/// does not commit anything.
const COMMITTED_SIZE: std::ops::Range<usize> = 4..8;
/// A journal with content begins with this.
const JOURNAL_MAGIC_FIRST: u8 = 0xd9;
/// At most so much is held back.
const RUN_BYTES_MAX: usize = 64 << 10;

/// Pieces without a gap.
#[derive(Debug)]
struct Run {
    file: ObjectId,
    at: u64,
    /// Empty: nothing is held back. The memory is kept for the next ones.
    bytes: Vec<u8>,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            file: ObjectId::ROOT,
            at: 0,
            bytes: Vec::new(),
        }
    }
}

impl Run {
    fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }

    fn ends_at(&self, file: ObjectId, at: u64) -> bool {
        self.file == file && self.end() == at
    }
}

/// The held-back writes of a database, if there are any: there is one writer.
#[derive(Debug, Default)]
pub(crate) struct CoalescedWrites {
    is_there: AtomicBool,
    run: Mutex<Run>,
}

impl CoalescedWrites {
    /// Writes them, if there are any. If that fails they stay held back.
    pub(crate) fn flush(
        &self,
        write: impl FnOnce(ObjectId, u64, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !self.is_there.load(Ordering::Acquire) {
            return Ok(());
        }
        self.empty(&mut self.run.lock(), write)
    }

    fn empty(
        &self,
        run: &mut Run,
        write: impl FnOnce(ObjectId, u64, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !run.bytes.is_empty() {
            write(run.file, run.at, &run.bytes)?;
            run.bytes.clear();
            self.is_there.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Adds a piece to adjacent ones. Others are written first, unless the file begins anew with
    /// this one. False if so much is held back now that it has to be written.
    pub(crate) fn add(
        &self,
        (file, at): (ObjectId, u64),
        data: &[u8],
        write: impl FnOnce(ObjectId, u64, &[u8]) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let mut run = self.run.lock();
        if run.file == file && at == 0 {
            run.bytes.clear();
        }
        if !run.ends_at(file, at) {
            self.empty(&mut run, write)?;
        }
        if run.bytes.is_empty() {
            (run.file, run.at) = (file, at);
        }
        run.bytes.extend_from_slice(data);
        self.is_there.store(true, Ordering::Release);
        Ok(run.bytes.len() < RUN_BYTES_MAX)
    }

    /// The size of a file of `bytes` with its held-back writes.
    pub(crate) fn size(&self, file: ObjectId, bytes: u64) -> u64 {
        if !self.is_there.load(Ordering::Acquire) {
            return bytes;
        }
        let run = self.run.lock();
        let is_longer = run.file == file && !run.bytes.is_empty();
        if is_longer {
            bytes.max(run.end())
        } else {
            bytes
        }
    }

    /// Overlays a file's held-back writes on `length` bytes that were read from it at `at`; returns
    /// the new length.
    pub(crate) fn overlay(&self, file: ObjectId, at: u64, out: &mut [u8], length: usize) -> usize {
        if !self.is_there.load(Ordering::Acquire) {
            return length;
        }
        let run = self.run.lock();
        let first = at.max(run.at);
        let end = (at + out.len() as u64).min(run.end());
        if run.file != file || first >= end {
            return length;
        }
        let (from, to) = ((first - at) as usize, (end - at) as usize);
        if length < from {
            out[length..from].fill(0);
        }
        let start = (first - run.at) as usize;
        out[from..to].copy_from_slice(&run.bytes[start..start + (to - from)]);
        length.max(to)
    }

    /// Drops a file's held-back writes from here on.
    pub(crate) fn truncate(&self, file: ObjectId, at: u64) {
        let mut run = self.run.lock();
        if run.file != file {
            return;
        }
        let kept = at.saturating_sub(run.at);
        run.bytes
            .truncate(usize::try_from(kept).unwrap_or(usize::MAX));
        if run.bytes.is_empty() {
            self.is_there.store(false, Ordering::Release);
        }
    }

    /// Drops a file's held-back writes: its content does not matter any more.
    pub(crate) fn discard(&self, file: ObjectId) {
        let mut run = self.run.lock();
        if run.file == file {
            run.bytes.clear();
            self.is_there.store(false, Ordering::Release);
        }
    }
}

/// The file that a write goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoalescedFile {
    /// The write-ahead log.
    Log,
    /// A rollback journal.
    Journal,
}

/// The kind of a write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WriteRole {
    /// It can wait for what follows.
    Continues,
    /// It completes something that SQLite relies on.
    Completes,
    /// It does not continue what was written before.
    Standalone,
    /// The log begins anew. Its old content is in the database and does not matter any more: later
    /// writes need not be kept apart from it.
    RestartsLog,
    /// The journal ends; its content does not matter any more.
    EndsJournal,
}

/// Whether a write to a rollback journal ends it.
pub(crate) fn ends_journal(at: u64, data: &[u8]) -> bool {
    at == 0 && data.first() != Some(&JOURNAL_MAGIC_FIRST)
}

/// Writes of one connection to its log or journal.
#[derive(Debug, Default)]
pub(crate) struct WriteClassifier {
    /// Where its last write ended: only a write that follows there is held back. Headers that
    /// SQLite corrects later lie elsewhere.
    end: Option<u64>,
    /// The frame whose header was written last commits a transaction.
    commits: bool,
    /// Where that frame begins.
    frame_at: u64,
}

/// Whether a write to the log is the header of a frame that commits a transaction.
pub(crate) fn begins_commit(data: &[u8]) -> bool {
    data.len() == FRAME_HEADER_BYTES && data[COMMITTED_SIZE] != [0; 4]
}

impl WriteClassifier {
    /// What a write of `data` to `at` is.
    pub(crate) fn classify(&mut self, kind: CoalescedFile, at: u64, data: &[u8]) -> WriteRole {
        let follows = self.end.replace(at + data.len() as u64) == Some(at);
        match kind {
            CoalescedFile::Log => self.classify_log(follows, at, data),
            CoalescedFile::Journal if ends_journal(at, data) => WriteRole::EndsJournal,
            CoalescedFile::Journal if at == 0 || follows => WriteRole::Continues,
            CoalescedFile::Journal => WriteRole::Standalone,
        }
    }

    fn classify_log(&mut self, follows: bool, at: u64, data: &[u8]) -> WriteRole {
        if at == 0 && data.len() == LOG_HEADER_BYTES {
            return WriteRole::RestartsLog;
        }
        let is_header = data.len() == FRAME_HEADER_BYTES;
        if is_header {
            self.commits = begins_commit(data);
            self.frame_at = at;
        }
        match (follows, is_header || !self.commits) {
            (false, _) => WriteRole::Standalone,
            (true, true) => WriteRole::Continues,
            (true, false) => WriteRole::Completes,
        }
    }

    /// The last write failed, so its end is unknown. Returns from where on it must not be in the
    /// log, if it was part of a frame that was to commit a transaction: that is rolled back.
    pub(crate) fn failed(&mut self, kind: CoalescedFile) -> Option<u64> {
        self.end = None;
        let commits = std::mem::take(&mut self.commits);
        (kind == CoalescedFile::Log && commits).then_some(self.frame_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: ObjectId = ObjectId(7);
    const JOURNAL: ObjectId = ObjectId(8);

    /// A header of a frame; `size` is not zero if it commits.
    fn header(size: u8) -> Vec<u8> {
        let mut header = vec![1; FRAME_HEADER_BYTES];
        header[COMMITTED_SIZE].copy_from_slice(&[0, 0, 0, size]);
        header
    }

    /// What the writes are.
    fn looked(kind: CoalescedFile, writes: &[(u64, Vec<u8>)]) -> Vec<WriteRole> {
        let mut writer = WriteClassifier::default();
        let writes = writes
            .iter()
            .map(|(at, data)| writer.classify(kind, *at, data));
        writes.collect()
    }

    #[test]
    fn frames_wait_until_one_commits() {
        let page = || vec![3; 512];
        let writes = [
            (0, vec![1; LOG_HEADER_BYTES]),
            (32, header(0)),
            (56, page()),
            (568, header(9)),
            (592, page()),
        ];
        use WriteRole::{Completes, Continues, RestartsLog};
        assert_eq!(
            looked(CoalescedFile::Log, &writes),
            [RestartsLog, Continues, Continues, Continues, Completes]
        );
    }

    #[test]
    fn a_connection_that_goes_on_with_a_log_says_so_first() {
        let writes = [(5000, header(9)), (5024, vec![3; 512])];
        assert_eq!(
            looked(CoalescedFile::Log, &writes),
            [WriteRole::Standalone, WriteRole::Completes]
        );
    }

    #[test]
    fn corrected_headers_do_not_wait() {
        let writes = [
            (0, vec![1; LOG_HEADER_BYTES]),
            (32, header(0)),
            (56, vec![3; 512]),
            (32, header(0)),
            (568, header(9)),
        ];
        use WriteRole::{Continues, RestartsLog, Standalone};
        assert_eq!(
            looked(CoalescedFile::Log, &writes),
            [RestartsLog, Continues, Continues, Standalone, Standalone]
        );
    }

    #[test]
    fn a_journal_waits_until_it_is_corrected_or_ends() {
        let begins = vec![JOURNAL_MAGIC_FIRST; 512];
        let writes = [
            (0, begins.clone()),
            (512, vec![0; 4]),
            (516, vec![3; 512]),
            (1028, vec![0; 4]),
            (8, vec![0, 0, 0, 1]),
            (1032, vec![0; 4]),
            (0, vec![0; 28]),
            (0, begins),
        ];
        use WriteRole::{Continues, EndsJournal, Standalone};
        let expected = [
            Continues,
            Continues,
            Continues,
            Continues,
            Standalone,
            Standalone,
            EndsJournal,
            Continues,
        ];
        assert_eq!(looked(CoalescedFile::Journal, &writes), expected);
    }

    #[test]
    fn after_a_failure_nothing_is_known_to_follow() {
        let mut writer = WriteClassifier::default();
        assert_eq!(
            writer.classify(CoalescedFile::Log, 0, &[1; 32]),
            WriteRole::RestartsLog
        );
        assert_eq!(writer.failed(CoalescedFile::Log), None);
        assert_eq!(
            writer.classify(CoalescedFile::Log, 32, &header(0)),
            WriteRole::Standalone
        );
    }

    /// The frame stayed held back, and was written to the log once there was room: a transaction
    /// that had failed was in the database after the next kill.
    #[test]
    fn a_frame_that_commits_does_not_wait_when_it_has_failed() {
        let coalesced = CoalescedWrites::default();
        let mut writer = WriteClassifier::default();
        let page = vec![3; 512];
        let writes = [
            (32, header(0)),
            (56, page.clone()),
            (568, header(9)),
            (592, page),
        ];
        for (at, data) in &writes {
            writer.classify(CoalescedFile::Log, *at, data);
            add(&coalesced, LOG, *at, data);
        }
        assert_eq!(writer.failed(CoalescedFile::Log), Some(568));
        coalesced.truncate(JOURNAL, 0);
        coalesced.truncate(LOG, 568);
        let kept = [header(0), vec![3; 512]].concat();
        assert_eq!(flushed(&coalesced), Some((LOG, 32, kept)));
        add(&coalesced, LOG, 592, &[1; 512]);
        coalesced.truncate(LOG, 568);
        assert_eq!(flushed(&coalesced), None, "its header is written");
        assert_eq!(writer.failed(CoalescedFile::Log), None, "once");
    }

    /// Adds a piece; what was written because of it.
    fn add(
        coalesced: &CoalescedWrites,
        file: ObjectId,
        at: u64,
        data: &[u8],
    ) -> Option<(u64, Vec<u8>)> {
        let mut written = None;
        let added = coalesced.add((file, at), data, |_, at, run| {
            written = Some((at, run.to_vec()));
            Ok(())
        });
        assert!(added.unwrap());
        written
    }

    fn flushed(coalesced: &CoalescedWrites) -> Option<(ObjectId, u64, Vec<u8>)> {
        let mut written = None;
        let flushed = coalesced.flush(|file, at, run| {
            written = Some((file, at, run.to_vec()));
            Ok(())
        });
        flushed.unwrap();
        written
    }

    #[test]
    fn what_follows_is_one_write_and_what_does_not_is_written_before() {
        let coalesced = CoalescedWrites::default();
        assert_eq!(flushed(&coalesced), None);
        assert_eq!(add(&coalesced, LOG, 32, &[1; 24]), None);
        assert_eq!(add(&coalesced, LOG, 56, &[2; 8]), None);
        let run = [vec![1; 24], vec![2; 8]].concat();
        assert_eq!(add(&coalesced, LOG, 72, &[3]), Some((32, run)), "a gap");
        assert_eq!(add(&coalesced, JOURNAL, 73, &[4]), Some((72, vec![3])));
        assert_eq!(flushed(&coalesced), Some((JOURNAL, 73, vec![4])));
        assert_eq!(flushed(&coalesced), None);
    }

    #[test]
    fn what_cannot_be_written_waits_on() {
        let coalesced = CoalescedWrites::default();
        add(&coalesced, LOG, 32, &[1; 24]);
        let refused = coalesced.flush(|_, _, _| Err(Failure::Misuse("no")));
        refused.unwrap_err();
        let refused = coalesced.add((JOURNAL, 0), &[1], |_, _, _| Err(Failure::Misuse("no")));
        refused.unwrap_err();
        assert_eq!(flushed(&coalesced), Some((LOG, 32, vec![1; 24])));
    }

    #[test]
    fn what_waits_can_be_read() {
        let coalesced = CoalescedWrites::default();
        add(&coalesced, LOG, 10, &[1, 2, 3, 4]);
        let read = |at, file: &[u8]| {
            let mut out = [9; 4];
            out[..file.len()].copy_from_slice(file);
            let length = coalesced.overlay(LOG, at, &mut out, file.len());
            out[..length].to_vec()
        };
        assert_eq!(read(8, &[7, 7]), [7, 7, 1, 2]);
        assert_eq!(read(7, &[7]), [7, 0, 0, 1], "a hole before it");
        assert_eq!(read(12, &[]), [3, 4]);
        assert_eq!(read(9, &[7, 7, 7, 7]), [7, 1, 2, 3]);
        assert_eq!(read(6, &[7, 7]), [7, 7], "after what is read");
        assert_eq!(read(14, &[]), [0; 0], "before it");
        let mut out = [9; 4];
        assert_eq!(coalesced.overlay(JOURNAL, 10, &mut out, 0), 0);
        assert_eq!(coalesced.size(LOG, 3), 14);
        assert_eq!(coalesced.size(LOG, 20), 20);
        assert_eq!(coalesced.size(JOURNAL, 3), 3);
    }

    #[test]
    fn what_waits_of_a_file_is_forgotten_when_it_ends_or_begins_anew() {
        let coalesced = CoalescedWrites::default();
        add(&coalesced, LOG, 32, &[1; 24]);
        coalesced.discard(JOURNAL);
        assert!(flushed(&coalesced).is_some());
        add(&coalesced, LOG, 32, &[1; 24]);
        coalesced.discard(LOG);
        assert_eq!(flushed(&coalesced), None);
        add(&coalesced, JOURNAL, 0, &[1]);
        assert_eq!(add(&coalesced, JOURNAL, 0, &[2]), None);
        assert_eq!(flushed(&coalesced), Some((JOURNAL, 0, vec![2])));
    }

    #[test]
    fn so_much_waits_and_no_more() {
        let coalesced = CoalescedWrites::default();
        let (mut at, mut has_room) = (0, true);
        while has_room {
            let added = coalesced.add((LOG, at), &[1; 4096], |_, _, _| Ok(()));
            (at, has_room) = (at + 4096, added.unwrap());
        }
        assert_eq!(at, RUN_BYTES_MAX as u64);
    }
}
