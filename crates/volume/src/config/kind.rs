//! Kinds of values in the configuration.

use toml::de::{DeInteger, DeValue};

use super::size;

/// Longest time that can be set: a commit interval of the kernel cannot be longer, and no age that
/// anyone means is.
pub(super) const MILLISECONDS_MAX: u64 = 2_147_483_000;

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

    /// The largest number that makes sense.
    const fn max(self) -> u64 {
        match self {
            Self::Milliseconds => MILLISECONDS_MAX,
            _ => i64::MAX as u64,
        }
    }

    /// Whether a number is one that makes sense for this kind.
    ///
    /// # Errors
    /// A sentence with the largest that does.
    pub(super) fn check_number(self, number: u64) -> Result<(), String> {
        if number <= self.max() {
            return Ok(());
        }
        Err(self.too_large(&number.to_string()))
    }

    fn too_large(self, number: &str) -> String {
        let days = match self {
            Self::Milliseconds => " (24 days)",
            _ => "",
        };
        format!("{number} is too large: at most {}{days}", self.max())
    }

    /// Checks a number as TOML writes it, which no type may hold.
    fn check_digits(self, number: &DeInteger<'_>) -> Result<(), String> {
        if number.as_str().starts_with('-') {
            return Err(format!("must not be negative, as {} is", number.as_str()));
        }
        let digits = number.as_str().trim_start_matches('+');
        match u64::from_str_radix(digits, number.radix()) {
            Ok(value) => self.check_number(value),
            Err(_) => Err(self.too_large(digits)),
        }
    }

    /// Checks the kind of a value, and that a number is none that no program can work with.
    pub(super) fn check(self, value: &DeValue<'_>) -> Result<(), String> {
        let fits = match (self, value) {
            (Self::Size, DeValue::String(text)) => return size::parse(text).map(drop),
            (Self::Slope, DeValue::Integer(number)) => {
                if i64::from_str_radix(number.as_str(), number.radix()).is_err() {
                    return Err(format!("is too large a number: {}", number.as_str()));
                }
                true
            }
            (Self::Flag, DeValue::Boolean(_)) | (Self::Text, DeValue::String(_)) => true,
            (
                Self::Size | Self::Milliseconds | Self::Microseconds | Self::Count,
                DeValue::Integer(number),
            ) => return self.check_digits(number),
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
