//! What a history does, as plain data: every part can be left out and the rest stays valid, so that
//! a failing history can be shrunk.

use mobifs_numerics::Random;

/// One operation; the numbers choose among what exists when it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) verb: Verb,
    pub(super) numbers: [u64; 4],
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    CreateFile,
    CreateDirectory,
    CreateSymlink,
    CreateFifo,
    /// A few bytes somewhere.
    Write,
    /// Many scattered pages: more than fits a small journal.
    Scatter,
    /// A run long enough to be written straight to its place.
    WriteBig,
    Append,
    /// Grows and shrinks.
    Truncate,
    Punch,
    Allocate,
    /// Moves anything, replacing what is there.
    Rename,
    Exchange,
    Link,
    /// Removes a file, or a directory with all that is in it.
    Remove,
    /// Removes a name and makes something new under it.
    Recreate,
    SetAttributes,
    SetXattr,
    RemoveXattr,
    /// Removes a file, an empty directory or another object that stays open.
    RemoveOpen,
    /// Spills pages of a removed file that is open.
    SpillRemoved,
    /// A file without a name, with spilled pages.
    CreateUnnamed,
    /// Gives a file without a name one.
    LinkUnnamed,
    /// Closes a file that has no name.
    Close,
    /// A transaction in the log of a database: frames that are earlier pages but for a row; sometimes a
    /// checkpoint before it.
    LogPages,
    /// A transaction with a rollback journal, which has the pages as they were.
    RollBackPages,
}

/// Verbs with their weight.
const WEIGHTS: &[(Verb, u64)] = &[
    (Verb::CreateFile, 12),
    (Verb::CreateDirectory, 8),
    (Verb::CreateSymlink, 2),
    (Verb::CreateFifo, 1),
    (Verb::Write, 14),
    (Verb::Scatter, 2),
    (Verb::WriteBig, 5),
    (Verb::Append, 8),
    (Verb::Truncate, 7),
    (Verb::Punch, 5),
    (Verb::Allocate, 2),
    (Verb::Rename, 16),
    (Verb::Exchange, 5),
    (Verb::Link, 6),
    (Verb::Remove, 8),
    (Verb::Recreate, 4),
    (Verb::SetAttributes, 4),
    (Verb::SetXattr, 4),
    (Verb::RemoveXattr, 2),
    (Verb::RemoveOpen, 4),
    (Verb::SpillRemoved, 2),
    (Verb::CreateUnnamed, 3),
    (Verb::LinkUnnamed, 3),
    (Verb::Close, 2),
    (Verb::LogPages, 3),
    (Verb::RollBackPages, 3),
];

/// Verbs of a history that is about what is in a few files: the effects of one transaction meet the
/// next ones much more often.
const CONTENT_WEIGHTS: &[(Verb, u64)] = &[
    (Verb::CreateFile, 1),
    (Verb::Write, 6),
    (Verb::Scatter, 1),
    (Verb::WriteBig, 8),
    (Verb::Append, 4),
    (Verb::Truncate, 10),
    (Verb::Punch, 5),
    (Verb::Allocate, 2),
    (Verb::Rename, 1),
];

/// Verbs of a history that is about a database.
const DATABASE_WEIGHTS: &[(Verb, u64)] = &[
    (Verb::LogPages, 20),
    (Verb::RollBackPages, 12),
    (Verb::CreateFile, 1),
    (Verb::CreateDirectory, 1),
    (Verb::Write, 3),
    (Verb::WriteBig, 3),
    (Verb::Truncate, 4),
    (Verb::Punch, 2),
    (Verb::Rename, 2),
    (Verb::Exchange, 1),
    (Verb::Link, 1),
    (Verb::Remove, 1),
    (Verb::Recreate, 1),
    (Verb::RemoveOpen, 2),
    (Verb::SpillRemoved, 2),
    (Verb::LinkUnnamed, 1),
    (Verb::Close, 1),
];

/// What a history is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Topic {
    Anything,
    Content,
    Database,
}

impl Topic {
    pub(super) fn random(dice: &mut Random) -> Self {
        match dice.below(5) {
            0 => Self::Content,
            1 => Self::Database,
            _ => Self::Anything,
        }
    }

    const fn weights(self) -> &'static [(Verb, u64)] {
        match self {
            Self::Anything => WEIGHTS,
            Self::Content => CONTENT_WEIGHTS,
            Self::Database => DATABASE_WEIGHTS,
        }
    }
}

impl Operation {
    fn random(dice: &mut Random, topic: Topic) -> Self {
        let weights = topic.weights();
        let total = weights.iter().map(|(_, weight)| weight).sum();
        let mut at = dice.below(total);
        let chosen = weights
            .iter()
            .find(|(_, weight)| match at.checked_sub(*weight) {
                Some(rest) => {
                    at = rest;
                    false
                }
                None => true,
            });
        let verb = chosen.map_or(Verb::Write, |(verb, _)| *verb);
        let numbers = [
            dice.next_u64(),
            dice.next_u64(),
            dice.next_u64(),
            dice.next_u64(),
        ];
        Self { verb, numbers }
    }
}

/// What happens after a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Nothing,
    /// Everything is brought to its place.
    Apply,
    /// Content is written ahead of an apply.
    WriteAhead,
    /// The store forgets the objects that may be forgotten; they are looked up again.
    Forget,
    /// The store is dropped without closing, and opened again.
    Drop,
    /// The store is closed and opened again.
    Close,
}

/// One transaction and what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) operations: Vec<Operation>,
    pub(super) after: After,
}

impl Step {
    pub(super) fn random(dice: &mut Random, topic: Topic) -> Self {
        let count = match (topic, dice.below(10)) {
            (_, 0..=3) | (Topic::Content | Topic::Database, 4..=7) => 1,
            (_, 4..=7) => 1 + dice.below(6),
            _ => 1 + dice.below(24),
        };
        let operations = (0..count).map(|_| Operation::random(dice, topic)).collect();
        let after = match dice.below(20) {
            0..=2 => After::Apply,
            3..=4 => After::Forget,
            5 => After::Drop,
            6 => After::Close,
            7..=9 => After::WriteAhead,
            _ => After::Nothing,
        };
        Self { operations, after }
    }
}

/// A whole history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct History {
    /// What makes the tree that is there before the store is.
    pub(super) before: Vec<Operation>,
    pub(super) steps: Vec<Step>,
    pub(super) journal_bytes: u64,
    pub(super) direct_bytes_max: u64,
    pub(super) held_bytes_max: u64,
}

impl History {
    pub(super) fn random(seed: u64) -> Self {
        let mut dice = Random::new(seed);
        let topic = Topic::random(&mut dice);
        let before = (0..dice.below(30))
            .map(|_| Operation::random(&mut dice, Topic::Anything))
            .collect();
        let most = match topic {
            Topic::Content | Topic::Database => 24,
            Topic::Anything => 10,
        };
        let steps = (0..3 + dice.below(most))
            .map(|_| Step::random(&mut dice, topic))
            .collect();
        let pick =
            |dice: &mut Random, choices: &[u64]| choices[dice.below(choices.len() as u64) as usize];
        Self {
            before,
            steps,
            journal_bytes: pick(&mut dice, &[64 << 10, 96 << 10, 256 << 10, 1 << 20]),
            direct_bytes_max: pick(&mut dice, &[0, 8 << 10, 1 << 20]),
            held_bytes_max: pick(&mut dice, &[64 << 10, 1 << 30]),
        }
    }

    pub(super) fn operation_count(&self) -> usize {
        self.before.len()
            + self
                .steps
                .iter()
                .map(|step| step.operations.len())
                .sum::<usize>()
    }
}
