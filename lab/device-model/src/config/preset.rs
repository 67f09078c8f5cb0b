//! The devices of the design document, as files that a user can copy and change.

use std::str::FromStr;

use super::Config;
use super::error::ConfigError;

/// A device that comes with the crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// A microSD card of 2012.
    MicroSd,
    /// eMMC 5.1.
    Emmc51,
    /// UFS 3.1.
    Ufs31,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 3] = [Self::MicroSd, Self::Emmc51, Self::Ufs31];

    /// The name that [`Preset::from_str`] understands.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MicroSd => "microsd",
            Self::Emmc51 => "emmc51",
            Self::Ufs31 => "ufs31",
        }
    }

    /// The preset's file.
    pub const fn toml(self) -> &'static str {
        match self {
            Self::MicroSd => include_str!("../../presets/microsd.toml"),
            Self::Emmc51 => include_str!("../../presets/emmc51.toml"),
            Self::Ufs31 => include_str!("../../presets/ufs31.toml"),
        }
    }

    /// The preset as a configuration.
    ///
    /// # Errors
    /// None in a released crate: a test reads every preset.
    pub fn config(self) -> Result<Config, ConfigError> {
        Config::from_toml(self.toml())
    }
}

impl FromStr for Preset {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        Self::ALL
            .into_iter()
            .find(|preset| preset.name() == name)
            .ok_or_else(|| ConfigError::UnknownPreset(name.to_owned()))
    }
}

impl Config {
    /// A preset with the values of `changes` in place of its own. A changed value is
    /// written as in a preset, with `source` or `assumed`.
    ///
    /// # Errors
    /// As [`Config::from_toml`].
    pub fn from_preset_with(preset: Preset, changes: &str) -> Result<Self, ConfigError> {
        let mut base: toml::Table =
            toml::from_str(preset.toml()).map_err(|error| ConfigError::toml(&error))?;
        let changes: toml::Table =
            toml::from_str(changes).map_err(|error| ConfigError::toml(&error))?;
        merge(&mut base, changes);
        let config: Self = base.try_into().map_err(|error| ConfigError::toml(&error))?;
        config.validate()?;
        Ok(config)
    }
}

/// Lays `changes` over `base`; a value with its origin is replaced as one.
fn merge(base: &mut toml::Table, changes: toml::Table) {
    for (key, change) in changes {
        match (base.get_mut(&key), change) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new))
                if !new.contains_key("value") =>
            {
                merge(old, new);
            }
            (_, change) => {
                base.insert(key, change);
            }
        }
    }
}
