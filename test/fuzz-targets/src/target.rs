//! What a target is.

/// Whether an input got past the parser; the oracles hold in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was refused, with an error.
    Refused,
    /// It was understood.
    Taken,
}

impl<T, E> From<&Result<T, E>> for Verdict {
    fn from(result: &Result<T, E>) -> Self {
        if result.is_ok() {
            Self::Taken
        } else {
            Self::Refused
        }
    }
}

/// One thing to fuzz.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its program in `test/fuzz`.
    pub name: &'static str,
    /// Tries one input. Panics if an oracle is violated.
    pub run: fn(&[u8]) -> Verdict,
    /// Inputs to start from; at least one of them is taken.
    pub seeds: fn() -> Vec<Vec<u8>>,
}
