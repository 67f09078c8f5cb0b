//! Histories in which other programs take the room.

use rusqlite::OpenFlags;
use serde_json::json;

use super::{Open, PROCESSES, World, look};

impl World<'_> {
    /// There is no room while a connection writes, and perhaps while its process closes all that
    /// it has open, or is killed. What is refused has changed nothing, and what was not comes to
    /// its place when there is room again.
    pub(super) fn work_on_a_full_disk(&mut self, slot: (usize, usize)) {
        let (process, connection) = slot;
        let is_fit = |open: &Open| !open.in_transaction && !open.is_exclusive && !open.is_unsafe;
        let Some(open) = self.open.get(&slot).cloned() else {
            return;
        };
        let mut own = self.open.iter().filter(|((it, _), _)| *it == process);
        let is_all_fit = own.all(|(_, open)| is_fit(open));
        if self.disk.is_none() || process == PROCESSES || open.is_immutable || !is_all_fit {
            return;
        }
        let number = self.number;
        let rows = 1 + self.dice.below(2000);
        let sql = match self.dice.below(3) {
            0 => format!("UPDATE t SET n = {number}"),
            1 => format!("INSERT INTO t(n, b) VALUES ({number}, 'full')"),
            _ => format!(
                "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < {rows}) \
                 INSERT INTO t(n, b) SELECT {number}, printf('%0900d', x) FROM c"
            ),
        };
        let call =
            |sql: &str| json!({ "do": "run", "connection": connection, "sql": sql, "alone": true });
        if self.dice.below(2) == 0 {
            // The oracle has no classes.
            let class = call("PRAGMA mobifs_class = durable");
            let answer = self.actors[process][0].call(&class);
            self.steps
                .push(format!("{process}: {class} -> {}", answer.words));
        }
        let is_taken_late = self.dice.below(2) == 0;
        if is_taken_late {
            let begun = call(&format!("BEGIN IMMEDIATE; {sql}"));
            self.both(process, &open.databases, |_, _| begun.clone());
        }
        self.fill();
        let last = call(if is_taken_late { "COMMIT" } else { &sql });
        if !is_taken_late || self.are_in_transaction(slot) == [true; 2] {
            self.both(process, &open.databases, |_, _| last.clone());
        }
        self.roll_back(slot);
        let mut closed = Vec::new();
        match self.dice.below(3) {
            0 => {
                let slots = self.open.keys().copied();
                let slots: Vec<_> = slots.filter(|slot| slot.0 == process).collect();
                for slot in slots {
                    closed.extend(self.disconnect(slot));
                }
            }
            1 => self.end(process),
            _ => {}
        }
        if let Some(disk) = &self.disk {
            disk.clear();
        }
        self.steps.push("there is room again".to_owned());
        // The last connection to a database says it.
        let words: String = closed.iter().map(|(_, words)| words.as_str()).collect();
        for (database, _) in closed {
            self.look_after_a_full_disk(database, &words);
        }
    }

    /// Other programs take all the room where MobiFS has its databases.
    fn fill(&mut self) {
        self.steps.push("the disk is full".to_owned());
        if let Some(disk) = &self.disk {
            disk.fill();
        }
    }

    /// The last connection to a database closes when other programs have taken the room for what it
    /// has changed: that is so in each history that has a disk, because by chance it is rare.
    pub(super) fn close_last_on_a_full_disk(&mut self, database: usize) {
        if self.disk.is_none() {
            return;
        }
        let process = 0;
        let mode = ["delete", "truncate", "persist", "wal"][self.dice.below(4) as usize];
        self.open_with(
            (process, 0),
            database,
            "",
            OpenFlags::SQLITE_OPEN_READ_WRITE,
        );
        let statements = [
            format!("PRAGMA journal_mode={mode}"),
            "INSERT INTO t(n, b) SELECT 0, printf('%0900d', value) FROM \
             (WITH RECURSIVE c(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM c \
             WHERE value < 3000) SELECT value FROM c)"
                .to_owned(),
        ];
        for sql in statements {
            let call = json!({ "do": "run", "connection": 0, "sql": sql, "alone": true });
            self.both(process, &[database], |_, _| call.clone());
        }
        self.fill();
        let closed = self.disconnect((process, 0));
        if let Some(disk) = &self.disk {
            disk.clear();
        }
        self.steps.push("there is room again".to_owned());
        self.finished.closes_on_full_disks += 1;
        for (database, words) in closed {
            self.look_after_a_full_disk(database, &words);
        }
    }

    /// The last close on a full disk leaves an ordinary database, or says that it does not.
    fn look_after_a_full_disk(&mut self, database: usize, words: &str) {
        // A program without MobiFS that has it open keeps no mark from staying.
        let mut open = self.open.values();
        let is_in_use = open.any(|open| !open.is_foreign && open.databases.contains(&database));
        if is_in_use || self.is_unclean[database] {
            return;
        }
        let is_marked =
            look(&self.path(0, database)).is_err_and(|error| error.contains("not a database"));
        if is_marked {
            let steps = self.steps.join("\n");
            assert!(
                !words.is_empty(),
                "no message about a mark that stays:\n{steps}"
            );
            self.is_unclean[database] = true;
            self.finished.marks_left += 1;
        }
        self.look_plainly(database);
    }
}
