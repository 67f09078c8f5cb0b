//! What a power cut leaves of what was not flushed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a power cut leaves of the data that the device had not made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keep {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// A random part; plain writes may be torn at sectors.
    Random {
        /// The same seed, after the same commands, leaves the same.
        seed: u64,
    },
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::All => f.write_str("all"),
            Self::Random { seed } => write!(f, "random:{seed}"),
        }
    }
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not 'none', 'all' or 'random:SEED'");
        match text {
            "none" => Ok(Self::None),
            "all" => Ok(Self::All),
            _ => {
                let seed = text.strip_prefix("random:").ok_or_else(bad)?;
                let seed = seed.parse().map_err(|_| bad())?;
                Ok(Self::Random { seed })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_understood() {
        for keep in [Keep::None, Keep::All, Keep::Random { seed: 12 }] {
            assert_eq!(keep.to_string().parse(), Ok(keep));
        }
        for bad in ["", "random", "random:", "random:x", "some"] {
            assert!(bad.parse::<Keep>().unwrap_err().contains("random:SEED"));
        }
    }
}
