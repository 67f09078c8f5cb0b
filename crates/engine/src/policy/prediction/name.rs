//! What a predictor is called.

/// The predictors by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PredictorName {
    /// [`StateMachine`](super::StateMachine).
    #[default]
    StateMachine,
    /// [`LastMinimum`](super::LastMinimum).
    LastMin,
    /// [`LastAverage`](super::LastAverage).
    LastAverage,
}

impl PredictorName {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::StateMachine, Self::LastMin, Self::LastAverage];

    /// The name, as configurations write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StateMachine => "state-machine",
            Self::LastMin => "last-min",
            Self::LastAverage => "last-average",
        }
    }

    /// The predictor of this name; none if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }
}
