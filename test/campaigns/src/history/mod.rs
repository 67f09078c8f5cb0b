//! Programs whose history is checked after a power cut.
//!
//! A history is a sequence of steps, numbered from 1, in a directory of its own (an app). It is
//! worked by a process of its own ([`work`]), which prints each step that has returned to its
//! standard output: a process may be killed by a mount that is gone (a page of a mapping that
//! cannot be read kills), and the campaign must not. After a cut [`History::check`] determines
//! after which step the app's state is.

mod editor;
mod files;
mod git;
mod mapped;
mod postmark;
mod regions;
mod rows;
mod running;
mod steps;

use std::path::Path;

use clap::ValueEnum;
pub(crate) use files::FULL_PAUSE;
pub use files::{content, with_room};
pub use mobifs_workloads::workload::sqlite::JournalMode;
pub use postmark::{Phase, PostMark};
pub use regions::{DIRECT, Divided, LARGE};
pub use running::Running;
pub use steps::{Step, began_ns, begin, boottime_ns, returned};

/// What `fsync` means for an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Order is kept.
    Relaxed,
    /// It returns when everything before it is committed.
    Durable,
}

/// Which program works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// SQLite with a rollback journal that is deleted.
    RowsDelete,
    /// … that is truncated.
    RowsTruncate,
    /// … whose header is overwritten.
    RowsPersist,
    /// SQLite with a write-ahead log.
    RowsWal,
    /// A database in a shared mapping, with two meta pages.
    Mapped,
    /// Documents saved by rename.
    Editor,
    /// Commits of a repository.
    Git,
    /// Large writes that begin and end within pages.
    Large,
    /// Files made, written and deleted.
    PostMark,
}

impl Kind {
    /// Finds the step after which an app's state is.
    ///
    /// # Errors
    /// What is wrong with it; that it takes the range of steps ([`PostMark`]).
    pub fn find(self, app: &Path) -> Result<u64, String> {
        match self {
            Self::PostMark => Err("a PostMark is compared with a range of steps".to_owned()),
            Self::RowsDelete | Self::RowsTruncate | Self::RowsPersist | Self::RowsWal => {
                rows::check(app)
            }
            Self::Mapped => mapped::check(app),
            Self::Editor => editor::check(app),
            Self::Git => git::check(app),
            Self::Large => LARGE.check(app).map(|divided| divided.step),
        }
    }
}

/// A program of one app.
#[derive(Clone, Copy, Debug)]
pub struct History {
    /// What works.
    pub kind: Kind,
    /// What its `fsync` means.
    pub class: Class,
    /// What a PostMark does.
    pub postmark: PostMark,
}

/// Every program in both classes.
pub fn all() -> Vec<History> {
    let classes = [Class::Relaxed, Class::Durable];
    let of_kind = |&kind: &Kind| {
        classes.map(|class| History {
            kind,
            class,
            postmark: PostMark::SMALL,
        })
    };
    Kind::value_variants().iter().flat_map(of_kind).collect()
}

impl History {
    /// The name of its app.
    pub fn app(&self) -> String {
        let kind = self.kind.to_possible_value();
        let kind = kind.map_or_else(String::new, |value| value.get_name().to_owned());
        match self.class {
            Class::Relaxed => kind,
            Class::Durable => kind + DURABLE_SUFFIX,
        }
    }

    /// How many steps a durable app may be behind the last that has returned.
    pub const fn returned_not_promised(&self) -> u64 {
        match self.kind {
            // Git renames a branch's new value into place after its last fsync.
            Kind::Git => 1,
            // Nothing is fsynced.
            Kind::PostMark => u64::MAX,
            _ => 0,
        }
    }

    /// Finds the step after which the app's state is; it must be within `floor..=ceiling`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, app: &Path, floor: u64, ceiling: u64) -> Result<u64, String> {
        if self.kind == Kind::PostMark {
            return self.postmark.check(app, floor, ceiling);
        }
        let found = self.kind.find(app)?;
        if found < floor {
            return Err(format!(
                "is after step {found}, but step {floor} was promised to be there"
            ));
        }
        if found > ceiling {
            return Err(format!(
                "is after step {found}, but only step {ceiling} had begun"
            ));
        }
        Ok(found)
    }
}

/// What names of durable apps end with.
pub const DURABLE_SUFFIX: &str = "-durable";

/// Works in `app`, after step `from`, until something fails. It pauses after each step, for this
/// time on average. `removal_commits`: a transaction of SQLite is durable when its journal is removed.
///
/// # Errors
/// What has failed.
pub fn work(
    kind: Kind,
    app: &Path,
    from: u64,
    postmark: &PostMark,
    pause_us: u64,
    removal_commits: bool,
) -> Result<std::convert::Infallible, String> {
    std::fs::create_dir_all(app).map_err(|error| format!("{}: {error}", app.display()))?;
    begin(pause_us);
    let is_durable = app.to_string_lossy().ends_with(DURABLE_SUFFIX);
    match kind {
        Kind::RowsDelete => rows::work(app, JournalMode::Delete, from, removal_commits),
        Kind::RowsTruncate => rows::work(app, JournalMode::Truncate, from, removal_commits),
        Kind::RowsPersist => rows::work(app, JournalMode::Persist, from, removal_commits),
        Kind::RowsWal => rows::work(app, JournalMode::Wal, from, removal_commits),
        Kind::Mapped => mapped::work(app, pause_us),
        Kind::Editor => editor::work(app, from, is_durable),
        Kind::Git => git::work(app, from),
        Kind::Large => LARGE.work(app, from, is_durable),
        Kind::PostMark => postmark.work(app, from),
    }
}

/// As [`work`], on a mount: there the removal of a rollback journal is durable in a durable app.
///
/// # Errors
/// What has failed.
pub fn work_on_mount(
    kind: Kind,
    app: &Path,
    from: u64,
    postmark: &PostMark,
) -> Result<std::convert::Infallible, String> {
    let is_durable = app.to_string_lossy().ends_with(DURABLE_SUFFIX);
    work(kind, app, from, postmark, 0, is_durable)
}
