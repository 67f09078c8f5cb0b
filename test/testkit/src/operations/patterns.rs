//! What real programs do: sequences of calls that belong together.

use super::generator::Generator;
use super::{FileRef, Operation, Payload, RenameMode};

/// Page of a database, in bytes.
const DATABASE_PAGE_BYTES: u32 = 4096;

impl Generator<'_> {
    pub(super) fn pattern(&mut self) {
        match self.random.below(8) {
            0 => self.rollback_journal(),
            1 => self.write_ahead_log(),
            2 => self.save_by_rename(),
            3 => self.save_in_place(),
            4 => self.joint_transaction(),
            5 => self.log_of_similar_pages(),
            6 => self.rollback_journal_of_pages(),
            _ => self.append_log(),
        }
    }

    /// A transaction of SQLite in its rollback-journal mode.
    fn rollback_journal(&mut self) {
        let database = format!("{}/db", self.working_directory());
        let journal = format!("{database}-journal");
        self.run(Operation::CreateFile {
            path: database.clone(),
            mode: 0o644,
        });
        self.run(Operation::CreateFile {
            path: journal.clone(),
            mode: 0o644,
        });
        let pages: Vec<u64> = (0..=self.random.below(3))
            .map(|_| self.random.below(12))
            .collect();
        self.write(&journal, 0, 512);
        for (index, _) in pages.iter().enumerate() {
            self.write(&journal, 512 + index as u64 * 4104, DATABASE_PAGE_BYTES + 8);
        }
        self.fsync(&journal);
        self.write(&journal, 0, 12);
        self.fsync(&journal);
        for &page in &pages {
            self.write(
                &database,
                page * u64::from(DATABASE_PAGE_BYTES),
                DATABASE_PAGE_BYTES,
            );
        }
        self.write(&database, 24, 16);
        self.fsync(&database);
        if self.random.chance(70) {
            self.run(Operation::Unlink { path: journal });
        } else {
            self.truncate(&journal, 0);
        }
    }

    /// A transaction of SQLite over databases of several apps; sometimes the program is killed in it.
    fn joint_transaction(&mut self) {
        let home = self.working_directory();
        let other = self.other_app();
        let joint = format!("{home}/db-mj{:06X}90A", self.random.below(8));
        let databases = [home, other].map(|app| format!("{app}/db"));
        for database in &databases {
            for path in [database.clone(), format!("{database}-journal")] {
                self.run(Operation::CreateFile { path, mode: 0o644 });
            }
            self.write(&format!("{database}-journal"), 0, 512);
        }
        self.run(Operation::CreateFile {
            path: joint.clone(),
            mode: 0o644,
        });
        self.write(&joint, 0, 60);
        self.fsync(&joint);
        for database in &databases {
            let journal = format!("{database}-journal");
            self.write(&journal, 512, DATABASE_PAGE_BYTES + 60);
            self.fsync(&journal);
            let page = self.random.below(12);
            self.write(
                database,
                page * u64::from(DATABASE_PAGE_BYTES),
                DATABASE_PAGE_BYTES,
            );
            self.fsync(database);
        }
        if self.random.chance(20) {
            return;
        }
        self.run(Operation::Unlink { path: joint });
        for database in &databases {
            let path = format!("{database}-journal");
            self.run(Operation::Unlink { path });
        }
    }

    /// Frames of SQLite's write-ahead log, sometimes a checkpoint of it.
    fn write_ahead_log(&mut self) {
        let database = format!("{}/db", self.working_directory());
        let log = format!("{database}-wal");
        self.run(Operation::CreateFile {
            path: log.clone(),
            mode: 0o644,
        });
        self.write(&log, 0, 32);
        for _ in 0..=self.random.below(3) {
            let frame = self.random.below(6);
            self.write(&log, 32 + frame * 4120, DATABASE_PAGE_BYTES + 24);
        }
        self.fsync(&log);
        if self.random.chance(40) {
            let page = self.random.below(12);
            self.write(
                &database,
                page * u64::from(DATABASE_PAGE_BYTES),
                DATABASE_PAGE_BYTES,
            );
            self.fsync(&database);
        }
    }

    /// How editors and settings libraries replace a file.
    fn save_by_rename(&mut self) {
        let file = format!("{}/settings", self.working_directory());
        let temporary = format!("{file}.tmp");
        self.run(Operation::CreateFile {
            path: temporary.clone(),
            mode: 0o600,
        });
        let length = self.random.below(9000) as u32;
        self.write(&temporary, 0, length);
        self.fsync(&temporary);
        self.run(Operation::Rename {
            from: temporary,
            to: file,
            mode: RenameMode::Replace,
        });
    }

    fn append_log(&mut self) {
        let log = format!("{}/log", self.working_directory());
        self.run(Operation::CreateFile {
            path: log.clone(),
            mode: 0o640,
        });
        for _ in 0..=self.random.below(4) {
            let data = Payload {
                tag: self.next_tag(),
                length: 20 + self.random.below(180) as u32,
            };
            self.run(Operation::Append {
                file: FileRef::Path(log.clone()),
                data,
            });
        }
        if self.random.chance(10) {
            let old = format!("{log}.1");
            self.run(Operation::Rename {
                from: log,
                to: old,
                mode: RenameMode::Replace,
            });
        }
    }

    /// A file of some size that is cut off and written anew, sometimes only from some place
    /// on, and gets the room for more.
    fn save_in_place(&mut self) {
        let file = format!("{}/document", self.working_directory());
        self.run(Operation::CreateFile {
            path: file.clone(),
            mode: 0o644,
        });
        let kept = self.random.below(4) * 4096;
        self.truncate(&file, kept);
        if self.random.chance(50) {
            self.fsync(&file);
        }
        // Long enough, most times, to be written to its place at once.
        let length = 40_000 + self.random.below(120_000);
        self.write(&file, kept, length as u32);
        if self.random.chance(70) {
            self.fsync(&file);
        }
        if self.random.chance(50) {
            let more = self.random.below(100_000);
            self.truncate(&file, kept + length + more);
        }
    }

    pub(super) fn truncate(&mut self, path: &str, size: u64) {
        self.run(Operation::Truncate {
            file: FileRef::Path(path.to_owned()),
            size,
        });
    }

    pub(super) fn write(&mut self, path: &str, offset: u64, length: u32) {
        let data = Payload {
            tag: self.next_tag(),
            length,
        };
        self.run(Operation::Write {
            file: FileRef::Path(path.to_owned()),
            offset,
            data,
        });
    }

    pub(super) fn fsync(&mut self, path: &str) {
        self.run(Operation::Fsync {
            file: FileRef::Path(path.to_owned()),
        });
    }
}
