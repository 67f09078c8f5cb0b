//! How a configuration is refused.

use thiserror::Error;

/// Why a configuration or a capacity is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// TOML that does not parse, or keys that are not those of a configuration.
    #[error("the configuration cannot be read: {0}")]
    Toml(String),
    /// No preset has that name.
    #[error("there is no preset '{0}'; there are microsd, emmc51 and ufs31")]
    UnknownPreset(String),
    /// A value out of its range.
    #[error("{key} = {value} is out of range: {range}")]
    OutOfRange {
        /// The key with its section.
        key: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
    /// A capacity that the model cannot have.
    #[error("a capacity of {0} bytes is not possible: {1}")]
    Capacity(u64, &'static str),
    /// A capacity whose mapping the log of remaps has no room for.
    #[error(
        "a capacity of {given_bytes} bytes is not possible: at most {most_bytes} bytes are, because a discard of all of \
         it has to fit half of remap.log_pages"
    )]
    CapacityAbove {
        /// What was given.
        given_bytes: u64,
        /// What is possible.
        most_bytes: u64,
    },
}

impl ConfigError {
    pub(super) fn toml(error: &toml::de::Error) -> Self {
        Self::Toml(error.to_string().trim_end().to_owned())
    }
}
