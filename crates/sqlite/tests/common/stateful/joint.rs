//! Programs that end in the middle of a transaction over two databases.

use std::fs;
use std::time::Duration;

use rusqlite::OpenFlags;
use serde_json::{Value, json};

use super::super::programs::Answer;
use super::{PROCESSES, World};

impl World<'_> {
    /// A program commits over both databases, as the only one that has them open, and is killed.
    pub(super) fn kill_in_a_commit_over_both(&mut self, (process, connection): (usize, usize)) {
        let slot = (process % PROCESSES, connection);
        for open in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(open);
        }
        let database = self.dice.below(2) as usize;
        let parameters = ["", "&class=durable"][self.dice.below(2) as usize];
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        self.open_with(slot, database, parameters, flags);
        if !self.open.contains_key(&slot) {
            return;
        }
        self.attach(slot);
        // With a log there is no transaction over both.
        let mode = ["delete", "truncate", "persist"][self.dice.below(3) as usize];
        for schema in ["main", "x"] {
            self.say(slot, &format!("PRAGMA {schema}.journal_mode={mode}"));
        }
        self.kill_in_a_call(slot);
        self.remove_ended_journals();
    }

    /// The oracle's programs leave them where they are. A directory that cannot be written to then has
    /// one, and MobiFS's has none.
    fn remove_ended_journals(&self) {
        for database in 0..2 {
            let mut journal = self.path(1, database).into_os_string();
            journal.push("-journal");
            let has_ended = |content: Vec<u8>| content.first().is_none_or(|&first| first == 0);
            if self.open.is_empty() && fs::read(&journal).is_ok_and(has_ended) {
                fs::remove_file(&journal).unwrap();
            }
        }
    }

    /// Has a program execute a call and kills it meanwhile; what it answers, if it does.
    pub(super) fn end_in_a_call(
        &mut self,
        process: usize,
        call: &Value,
        is_joint: bool,
        patience: Duration,
    ) -> Option<Answer> {
        // A moment of a commit over two databases is rarely hit by chance.
        let instant = if is_joint && self.dice.below(4) > 0 {
            1 + self.dice.below(12)
        } else {
            0
        };
        let actor = &mut self.actors[process][0];
        if instant > 0 {
            self.steps.push(format!("it ends at instant {instant}"));
            actor.call(&json!({ "do": "end at", "instant": instant }));
            actor.send(call);
        } else {
            actor.send(call);
            std::thread::sleep(patience);
            actor.process.kill().unwrap();
        }
        let answer = actor.answer();
        self.finished.joint_kills += u64::from(instant > 0 && answer.is_none());
        let _killed = actor.process.kill();
        actor.process.wait().unwrap();
        answer
    }
}
