//! Scripts: sequences of events that proptest generates and shrinks.

use std::fmt;

use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::{Event, Profile, generate};
use crate::shrink::Pieces;

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

/// Shrinks a script as [`Pieces`] does.
#[derive(Clone, Debug)]
pub struct ScriptTree {
    seed: u64,
    events: Pieces<Event>,
}

impl ScriptTree {
    /// A tree whose first value is `script`.
    pub fn new(script: Script) -> Self {
        Self {
            seed: script.seed,
            events: Pieces::new(script.events),
        }
    }
}

impl ValueTree for ScriptTree {
    type Value = Script;

    fn current(&self) -> Script {
        Script {
            seed: self.seed,
            events: self.events.items().to_vec(),
        }
    }

    fn simplify(&mut self) -> bool {
        self.events.stays_out()
    }

    fn complicate(&mut self) -> bool {
        self.events.comes_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_prints_as_source() {
        let events = vec![Event::SyncApp("alpha".into()), Event::Cut];
        let text = format!("{:?}", Script { seed: 7, events });
        let expected = "// generated from seed 0x7\n[\n    SyncApp(\"alpha\".into()),\n    Cut,\n]";
        assert_eq!(text, expected);
    }
}
