//! Databases whose pages change by a row at a time: what their logs and rollback journals get is for the most part
//! somewhere already.

use super::generator::Generator;
use super::payload::SqlitePart;
use super::{FileRef, Operation};

const PAGE_BYTES: u64 = 4096;
/// Pages of a database.
const PAGES: u64 = 6;
/// Frames of a log before it begins anew.
const LOG_FRAMES: u64 = 8;
const LOG_HEADER_BYTES: u64 = 32;
const LOG_FRAME_HEADER_BYTES: u64 = 24;
const ROLLBACK_HEADER_BYTES: u64 = 512;
const ROLLBACK_FRAME_BYTES: u64 = 4 + PAGE_BYTES + 4;

impl Generator<'_> {
    /// Transactions in WAL mode: each frame is an earlier version of its page but for a row. Sometimes a
    /// checkpoint, after which the log begins anew.
    pub(super) fn log_of_similar_pages(&mut self) {
        let database = self.database_of_pages();
        let log = format!("{database}-wal");
        self.create(&log);
        let salt = self.random.below(200) as u8;
        self.write_part(&log, 0, SqlitePart::Log { salt });
        let transactions = 1 + self.random.below(4);
        let mut frames: Vec<u64> = Vec::new();
        for _ in 0..transactions {
            for _ in 0..=self.random.below(2) {
                let page = self.random.below(PAGES);
                self.add_frame(&database, &log, (page, salt), &frames);
                frames.push(page);
                if frames.len() as u64 == LOG_FRAMES {
                    self.checkpoint_log(&database, &log, &frames);
                    frames.clear();
                }
            }
            self.fsync(&log);
        }
        if self.random.chance(40) {
            self.checkpoint_log(&database, &log, &frames);
        }
    }

    /// A transaction in one of the modes with a rollback journal: it has the pages as they were. The next one writes
    /// over it, if it is not deleted.
    pub(super) fn rollback_journal_of_pages(&mut self) {
        let database = self.database_of_pages();
        let journal = format!("{database}-journal");
        self.create(&journal);
        self.write_part(&journal, 0, SqlitePart::RollbackJournal);
        let count = 1 + self.random.below(3);
        let first = self.random.below(PAGES);
        let pages: Vec<u64> = (0..count).map(|number| (first + number) % PAGES).collect();
        for (index, &page) in pages.iter().enumerate() {
            let at = ROLLBACK_HEADER_BYTES + index as u64 * ROLLBACK_FRAME_BYTES;
            let number = number_of(page);
            self.write_part(&journal, at, SqlitePart::RollbackFrame { page: number });
            self.copy((&database, page * PAGE_BYTES), (&journal, at + 4));
            self.write(&journal, at + 4 + PAGE_BYTES, 4);
        }
        self.fsync(&journal);
        for &page in &pages {
            self.change_row(&database, page * PAGE_BYTES);
        }
        self.fsync(&database);
        match self.random.weighted(&[5, 3, 2]) {
            0 => {
                let zeros = super::Payload { tag: 0, length: 28 };
                self.run(Operation::Write {
                    file: FileRef::Path(journal.clone()),
                    offset: 0,
                    data: zeros,
                });
                self.fsync(&journal);
            }
            1 => self.run(Operation::Unlink { path: journal }),
            _ => self.truncate(&journal, 0),
        }
    }

    /// The app's database, which has all its pages.
    fn database_of_pages(&mut self) -> String {
        let database = format!("{}/db", self.working_directory());
        self.create(&database);
        if self.random.chance(15) {
            self.write(&database, 0, (PAGES * PAGE_BYTES) as u32);
        }
        self.write_part(&database, 0, SqlitePart::Database);
        database
    }

    /// Adds a frame: the last version of its page, in which a row changes.
    fn add_frame(&mut self, database: &str, log: &str, (page, salt): (u64, u8), frames: &[u64]) {
        let at = frame_at(frames.len());
        let number = number_of(page);
        self.write_part(log, at, SqlitePart::LogFrame { page: number, salt });
        let content = at + LOG_FRAME_HEADER_BYTES;
        match frames.iter().rposition(|&earlier| earlier == page) {
            Some(earlier) => {
                let from = frame_at(earlier) + LOG_FRAME_HEADER_BYTES;
                self.copy((log, from), (log, content));
            }
            None => self.copy((database, page * PAGE_BYTES), (log, content)),
        }
        self.change_row(log, content);
    }

    /// The pages of the log go to the database; sometimes the log is deleted after it.
    fn checkpoint_log(&mut self, database: &str, log: &str, frames: &[u64]) {
        for (index, &page) in frames.iter().enumerate() {
            let from = frame_at(index) + LOG_FRAME_HEADER_BYTES;
            self.copy((log, from), (database, page * PAGE_BYTES));
        }
        self.fsync(database);
        if self.random.chance(20) {
            let path = log.to_owned();
            self.run(Operation::Unlink { path });
            self.create(log);
        }
    }

    fn change_row(&mut self, path: &str, page_at: u64) {
        let at = 100 + self.random.below(PAGE_BYTES - 200);
        let length = 8 + self.random.below(60) as u32;
        self.write(path, page_at + at, length);
    }

    fn create(&mut self, path: &str) {
        let path = path.to_owned();
        self.run(Operation::CreateFile { path, mode: 0o644 });
    }

    fn write_part(&mut self, path: &str, offset: u64, part: SqlitePart) {
        self.run(Operation::Write {
            file: FileRef::Path(path.to_owned()),
            offset,
            data: part.payload(),
        });
    }

    /// Copies a page.
    fn copy(&mut self, (from, from_offset): (&str, u64), (to, to_offset): (&str, u64)) {
        self.run(Operation::CopyRange {
            from: FileRef::Path(from.to_owned()),
            from_offset,
            to: FileRef::Path(to.to_owned()),
            to_offset,
            length: PAGE_BYTES as u32,
        });
    }
}

fn frame_at(number: usize) -> u64 {
    LOG_HEADER_BYTES + number as u64 * (LOG_FRAME_HEADER_BYTES + PAGE_BYTES)
}

/// SQLite's number of a page: the first one is 1.
const fn number_of(page: u64) -> u8 {
    page as u8 + 1
}
