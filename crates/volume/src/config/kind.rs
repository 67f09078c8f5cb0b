//! Kinds of values in the configuration.

use toml::de::DeValue;

use super::size;

/// What the value of a key has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A size: a number of bytes, or a text with a unit.
    Size,
    /// A whole number of milliseconds.
    Milliseconds,
    /// A whole number of microseconds.
    Microseconds,
    /// A whole number.
    Count,
    /// A whole number that is not positive.
    Slope,
    /// `true` or `false`.
    Flag,
    /// A text.
    Text,
    /// A list of globs.
    Globs,
}

impl Kind {
    const fn expectation(self) -> &'static str {
        match self {
            Self::Size => "a size, such as \"512MiB\" or 4096 (bytes)",
            Self::Milliseconds => "a number of milliseconds without a unit, such as 30000",
            Self::Microseconds => "a number of microseconds without a unit, such as 100000",
            Self::Count => "a whole number, such as 16",
            Self::Slope => "a whole number that is not positive, such as -20000",
            Self::Flag => "true or false, without quotes",
            Self::Text => "a text in quotes",
            Self::Globs => "a list of globs in brackets, such as [\"*\", \"home/*\"]",
        }
    }

    /// Checks the kind of a value, and of it only what the type in the program cannot hold.
    pub(super) fn check(self, value: &DeValue<'_>) -> Result<(), String> {
        let fits = match (self, value) {
            (Self::Size, DeValue::String(text)) => return size::parse(text).map(drop),
            (Self::Slope, DeValue::Integer(_))
            | (Self::Flag, DeValue::Boolean(_))
            | (Self::Text, DeValue::String(_)) => true,
            (
                Self::Size | Self::Milliseconds | Self::Microseconds | Self::Count,
                DeValue::Integer(number),
            ) => {
                if number.as_str().starts_with('-') {
                    return Err(format!("must not be negative, as {} is", number.as_str()));
                }
                true
            }
            (Self::Globs, DeValue::Array(globs)) => {
                globs.iter().all(|glob| glob.get_ref().is_str())
            }
            _ => false,
        };
        if fits {
            return Ok(());
        }
        Err(format!("must be {}", self.expectation()))
    }
}
