//! The schedulers by name.

use alloc::boxed::Box;

use super::{Fifo, ThreeQueues, TransactionScheduler};

/// The schedulers by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedulerName {
    /// [`ThreeQueues`].
    #[default]
    Queues,
    /// [`Fifo`].
    Fifo,
}

impl SchedulerName {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Queues, Self::Fifo];

    /// The name, as configurations write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queues => "queues",
            Self::Fifo => "fifo",
        }
    }

    /// The scheduler of this name; none if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// A scheduler that has skipped nothing yet.
    pub fn begin(self) -> Box<dyn TransactionScheduler> {
        match self {
            Self::Queues => Box::new(ThreeQueues::default()),
            Self::Fifo => Box::new(Fifo),
        }
    }
}
