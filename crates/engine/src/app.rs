//! Apps: the write log that a change goes to, and its limits.

use crate::policy::transactioning::{Transactioning as _, TransactioningRule};

/// What `fsync` promises to an app.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// `fsync` keeps the order and returns at once.
    #[default]
    Relaxed,
    /// `fsync` returns when everything the app did before is committed.
    Durable,
}

/// Limits of one app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppPolicy {
    /// Meaning of `fsync`.
    pub class: Class,
    /// A transaction closes at this age, in milliseconds since its first change.
    pub age_max_ms: u64,
    /// A transaction closes at this staleness, in pages written.
    pub staleness_max_pages: u64,
    /// When a transaction closes before it reaches one of these limits.
    pub transactioning: TransactioningRule,
}

impl AppPolicy {
    /// Age in milliseconds at which a transaction closes at the latest.
    pub fn due_age_ms(&self) -> u64 {
        let policy = self.transactioning.begin().due_age_ms();
        policy.map_or(self.age_max_ms, |age_ms| age_ms.min(self.age_max_ms))
    }
}

impl Default for AppPolicy {
    fn default() -> Self {
        Self {
            class: Class::Relaxed,
            age_max_ms: 30_000,
            staleness_max_pages: 25_600,
            transactioning: TransactioningRule::default(),
        }
    }
}

/// Decides which directories are apps, and their limits. Paths are relative to the
/// mount, without leading or trailing slash; the app of everything that lies in no
/// app directory has the path `.`.
pub trait AppRules: Send {
    /// Whether the directory at `path` is the root of an app.
    fn is_app(&self, path: &[u8]) -> bool;
    /// Whether some directory inside `path` may be the root of an app; true where that is not
    /// known.
    fn has_apps_below(&self, path: &[u8]) -> bool;
    /// How many names the path of an app can have at most; none: any number. Directories that
    /// lie deeper are never asked about, so that a path need not be built for each of them.
    fn depth_max(&self) -> Option<usize> {
        None
    }
    /// Limits of the app at `path`.
    fn policy(&self, path: &[u8]) -> AppPolicy;
}

/// The default: every top-level directory is an app, all with the same limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopLevelApps(
    /// The limits.
    pub AppPolicy,
);

impl AppRules for TopLevelApps {
    fn is_app(&self, path: &[u8]) -> bool {
        !path.contains(&b'/')
    }

    fn has_apps_below(&self, _path: &[u8]) -> bool {
        false
    }

    fn depth_max(&self) -> Option<usize> {
        Some(1)
    }

    fn policy(&self, _path: &[u8]) -> AppPolicy {
        self.0
    }
}
