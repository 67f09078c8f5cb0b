//! What can be set for one app: one table, from which every place has its keys.
//!
//! These are the configuration file, `mobifs set`, the URI of a database, and the simulator. The
//! status reports the same keys; what it has of them is tested.

use mobifs_engine::policy::transactioning::TransactioningName;
use serde::{Deserialize, Serialize};

use super::errors::SettingError;
use super::kind::Kind;
use super::size::{self, Size};

/// A key of [`PolicySettings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyKey {
    /// As it is written.
    pub name: &'static str,
    /// What its value has to be.
    pub kind: Kind,
    /// The only policy that it means something to; none: it does to all.
    pub policy: Option<TransactioningName>,
    /// What it means, in one sentence.
    pub summary: &'static str,
}

macro_rules! policy_settings {
    ($($key:ident: $type:ty, $kind:ident, $policy:expr, $summary:literal;)+) => {
        /// What can be set for one app, as it is written: the keys of `[defaults]` and of `[[app]]`, of
        /// `mobifs set`, of a database's URI, and of the restart state. What is absent stays as it is.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields)]
        pub struct PolicySettings {
            $(
                #[doc = $summary]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $key: Option<$type>,
            )+
        }

        impl PolicySettings {
            /// Every key.
            pub const KEYS: &'static [PolicyKey] = &[$(PolicyKey {
                name: stringify!($key),
                kind: Kind::$kind,
                policy: $policy,
                summary: $summary,
            },)+];

            /// Sets what is written for one key.
            ///
            /// # Errors
            /// [`SettingError`] for a text that is no value of its kind.
            pub fn set(&mut self, key: &PolicyKey, text: &str) -> Result<(), SettingError> {
                match key.name {
                    $(stringify!($key) => self.$key = Some(read(key, text)?),)+
                    _ => return Err(SettingError::new(key.name, "is not a setting of an app")),
                }
                Ok(())
            }
        }
    };
}

use TransactioningName::{Fsync, Interval, Quiet, Staleness, Tpl};

policy_settings! {
    class: String, Text, None,
        "`relaxed` or `durable`";
    age_max_ms: u64, Milliseconds, None,
        "Age at which a transaction is committed";
    staleness_max_bytes: Size, Size, None,
        "Amount of changes at which a transaction is committed";
    policy: String, Text, None,
        "What commits a transaction before that: `tpl`, `interval`, `quiet`, `staleness` or `fsync`";
    staleness_min_bytes: Size, Size, Some(Tpl),
        "tpl: amount of changes below which a transaction is not committed for their pattern";
    slope_min_micropercent: i64, Slope, Some(Tpl),
        "tpl: steepest fall of the share of overwritten pages, in millionths of a percent a page";
    window_points: u64, Count, Some(Tpl),
        "tpl: last pages written that the fall is fitted over";
    interval_ms: u64, Milliseconds, Some(Interval),
        "interval: age at which a transaction is committed";
    quiet_ms: u64, Milliseconds, Some(Quiet),
        "quiet: a transaction is committed when nothing changed for so long";
    quiet_age_min_ms: u64, Milliseconds, Some(Quiet),
        "quiet: age below which a transaction is not committed";
    staleness_bytes: Size, Size, Some(Staleness),
        "staleness: amount of changes at which a transaction is committed";
    flush_interval_ms: u64, Milliseconds, Some(Fsync),
        "fsync: age at which a transaction is committed without one";
}

/// A value that is written as a text.
trait FromText: Sized {
    fn from_text(text: &str) -> Result<Self, String>;
}

impl FromText for String {
    fn from_text(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

impl FromText for Size {
    fn from_text(text: &str) -> Result<Self, String> {
        size::parse(text).map(Self)
    }
}

impl FromText for u64 {
    fn from_text(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| {
            format!("\"{text}\" is not a whole number that is not negative and has no unit")
        })
    }
}

impl FromText for i64 {
    fn from_text(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|_| format!("\"{text}\" is not a whole number without a unit"))
    }
}

fn read<T: FromText>(key: &PolicyKey, text: &str) -> Result<T, SettingError> {
    T::from_text(text).map_err(|message| SettingError::new(key.name, message))
}
