//! How a phone is used.

use serde::{Deserialize, Serialize};

use crate::error::AgeError;

/// The largest seed, so that it is a number in every program that reads the report.
pub const SEED_MAX: u64 = (1 << 53) - 1;

/// How a phone is used; the default is S4's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Everything follows from it.
    pub seed: u64,
    /// Days after the one on which the apps are installed.
    pub days: u32,
    /// How long the phone is used on a day.
    pub minutes_per_day: f64,
    /// Sizes of files and of large databases by this factor.
    pub scale: f64,
    /// How full the filesystem is made by one file before the first app is installed, of 1000.
    pub start_full_permille: u32,
    /// From here on the filesystem counts as full, of 1000.
    pub full_permille: u32,
    /// Bytes of pictures that are deleted when it is.
    pub clean_bytes: u64,
    /// Days between two updates of all apps.
    pub update_days: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            days: 30,
            minutes_per_day: 3.7 * 60.0,
            scale: 1.0,
            start_full_permille: 700,
            full_permille: 980,
            clean_bytes: 300_000_000,
            update_days: 10,
        }
    }
}

/// A share as the command line has it.
fn percent(permille: u32) -> String {
    format!("{} %", f64::from(permille) / 10.0)
}

impl Settings {
    /// # Errors
    /// A number is out of its range.
    pub fn check(&self) -> Result<(), AgeError> {
        let checks = [
            (
                "--seed",
                self.seed <= SEED_MAX,
                self.seed.to_string(),
                "0 to 9007199254740991",
            ),
            (
                "--days",
                (1..=3650).contains(&self.days),
                self.days.to_string(),
                "1 to 3650",
            ),
            (
                "--minutes-per-day",
                (1.0..=1440.0).contains(&self.minutes_per_day),
                self.minutes_per_day.to_string(),
                "1 to 1440",
            ),
            (
                "--scale",
                (0.000_1..=100.0).contains(&self.scale),
                self.scale.to_string(),
                "0.0001 to 100",
            ),
            (
                "--start-full",
                self.start_full_permille < self.full_permille,
                percent(self.start_full_permille),
                "less than --full",
            ),
            (
                "--full",
                (1..=1000).contains(&self.full_permille),
                percent(self.full_permille),
                "above 0 and up to 100 %",
            ),
            (
                "--update-days",
                self.update_days > 0,
                self.update_days.to_string(),
                "1 at least",
            ),
            (
                "--clean",
                self.clean_bytes > 0,
                self.clean_bytes.to_string(),
                "1 byte at least",
            ),
        ];
        match checks.into_iter().find(|&(_, is_right, ..)| !is_right) {
            Some((name, _, value, range)) => Err(AgeError::OutOfRange { name, value, range }),
            None => Ok(()),
        }
    }

    /// A number by the scale.
    pub(crate) fn scaled(&self, number: u64) -> u64 {
        (number as f64 * self.scale) as u64
    }
}
