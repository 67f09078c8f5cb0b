//! Scripts: sequences of events that proptest generates and shrinks.

use std::fmt;

use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::{Event, Profile, generate};

/// What a test executes.
#[derive(Clone, PartialEq, Eq)]
pub struct Script {
    /// What the script was generated from, before it was shrunk.
    pub seed: u64,
    /// The events in their order.
    pub events: Vec<Event>,
}

impl fmt::Debug for Script {
    /// Prints the events so that they can be pasted into a regression test.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "// generated from seed {:#x}\n[", self.seed)?;
        for event in &self.events {
            // Every second quote ends a string; the names in use hold no quotes.
            let text = format!("{event:?}");
            let mut quoted = false;
            write!(f, "    ")?;
            for (index, part) in text.split('"').enumerate() {
                if index > 0 {
                    write!(f, "{}", if quoted { "\".into()" } else { "\"" })?;
                    quoted = !quoted;
                }
                write!(f, "{part}")?;
            }
            writeln!(f, ",")?;
        }
        write!(f, "]")
    }
}

/// The strategy that makes scripts of a profile.
#[derive(Clone, Debug)]
pub struct Scripts(pub Profile);

impl Strategy for Scripts {
    type Tree = ScriptTree;
    type Value = Script;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let seed = proptest::num::u64::ANY.new_tree(runner)?.current();
        Ok(ScriptTree::new(Script {
            seed,
            events: generate(&self.0, seed),
        }))
    }
}

/// Shrinks a script by leaving out pieces: first halves, at last single events,
/// until no single event can be left out.
#[derive(Clone, Debug)]
pub struct ScriptTree {
    script: Script,
    /// What the last step left out.
    left_out: Vec<Event>,
    position: usize,
    piece: usize,
    /// Something was left out for good in this pass.
    progress: bool,
}

impl ScriptTree {
    /// A tree whose first value is `script`.
    pub const fn new(script: Script) -> Self {
        let piece = script.events.len().div_ceil(2);
        Self {
            script,
            left_out: Vec::new(),
            position: 0,
            piece,
            progress: false,
        }
    }

    fn leave_out_next(&mut self) -> bool {
        if self.position >= self.script.events.len() {
            if self.piece <= 1 && !self.progress {
                return false;
            }
            self.piece = self.piece.div_ceil(2).max(1);
            self.position = 0;
            self.progress = false;
        }
        let end = (self.position + self.piece).min(self.script.events.len());
        self.left_out = self.script.events.drain(self.position..end).collect();
        !self.left_out.is_empty()
    }
}

impl ValueTree for ScriptTree {
    type Value = Script;

    fn current(&self) -> Script {
        self.script.clone()
    }

    fn simplify(&mut self) -> bool {
        // What was left out last did not matter: it stays out.
        self.progress |= !self.left_out.is_empty();
        self.left_out.clear();
        self.leave_out_next()
    }

    fn complicate(&mut self) -> bool {
        // What was left out last mattered: it comes back, the next piece goes.
        let came_back = self.left_out.len();
        let at = self.position;
        self.script.events.splice(at..at, self.left_out.drain(..));
        self.position += came_back;
        came_back > 0 && self.leave_out_next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shrinks as proptest does.
    fn shrink(events: Vec<Event>, fails: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        let mut tree = ScriptTree::new(Script { seed: 0, events });
        let mut more = tree.simplify();
        while more {
            more = if fails(&tree.current().events) {
                tree.simplify()
            } else {
                tree.complicate()
            };
        }
        tree.current().events
    }

    #[test]
    fn shrinking_ends_with_exactly_what_matters() {
        let app = |n: usize| Event::SyncApp(n.to_string());
        for length in [2, 3, 17, 100] {
            for (a, b) in [(0, 1), (0, length - 1), (length / 2, length - 1)] {
                let events: Vec<Event> = (0..length).map(app).collect();
                let shrunk = shrink(events, |left| {
                    left.contains(&app(a)) && left.contains(&app(b))
                });
                assert_eq!(shrunk.len(), if a == b { 1 } else { 2 }, "{length} {a} {b}");
            }
        }
    }

    #[test]
    fn a_script_prints_as_source() {
        let events = vec![Event::SyncApp("alpha".into()), Event::Cut];
        let text = format!("{:?}", Script { seed: 7, events });
        let expected = "// generated from seed 0x7\n[\n    SyncApp(\"alpha\".into()),\n    Cut,\n]";
        assert_eq!(text, expected);
    }
}
