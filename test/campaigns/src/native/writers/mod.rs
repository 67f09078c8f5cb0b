//! Programs that write to a filesystem, each in a directory of its own, step by step.
//!
//! What a power cut left of one tells after which of its steps the filesystem is. A write of several
//! pages may be divided between two pages: ext4 begins a transaction for each of them. All other calls
//! are there as a whole or not at all.

mod filler;
mod found;
mod names;
mod pairs;
mod records;
mod resized;
mod rows;
mod stores;

use std::convert::Infallible;
use std::fs;
use std::path::Path;

use clap::ValueEnum;
use mobifs_workloads::workload::sqlite::JournalMode;

pub use found::Found;
use resized::Sizes;

use crate::history::{
    self, DIRECT, DURABLE_SUFFIX, Divided, Kind, LARGE, PostMark, content, with_room,
};

/// Which program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Writer {
    /// Small records in eight files in turn, each with the time of its step.
    Records,
    /// Names that are made, linked, renamed and removed.
    Names,
    /// Two files that are replaced by renames, one after the other.
    Pairs,
    /// Large writes that begin and end within pages.
    Large,
    /// `O_DIRECT`.
    Direct,
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
    /// Stores into a shared mapping, in order.
    Stores,
    /// Documents saved by rename.
    Editor,
    /// Commits of a repository.
    Git,
    /// A file that is written within, shortened to whole pages, and allocated again.
    Resized,
    /// … shortened to any size, which ext4 with `data=journal` has a fault in.
    Shortened,
    /// A file that grows until the filesystem is full, and is emptied then.
    Filler,
}

impl From<Divided> for Found {
    fn from(divided: Divided) -> Self {
        Self {
            next_began: divided.next_began,
            ..Self::after(divided.step)
        }
    }
}

impl Writer {
    /// What the directory of the app begins with.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether it waits and tries again where there is no room.
    pub const fn bears_a_full_disk(self) -> bool {
        !matches!(
            self,
            Self::Mapped
                | Self::Stores
                | Self::Editor
                | Self::Git
                | Self::Resized
                | Self::Shortened
        )
    }

    /// Whether its steps are stores into mappings.
    pub const fn stores_into_mappings(self) -> bool {
        matches!(self, Self::Mapped | Self::Stores)
    }

    /// Whether each of its steps ends with a call after which it is durable, if it is asked to.
    pub const fn can_be_durable(self) -> bool {
        matches!(
            self,
            Self::RowsTruncate
                | Self::RowsPersist
                | Self::RowsWal
                | Self::Mapped
                | Self::Stores
                | Self::Editor
        )
    }

    /// Whether it may write without any pause: a step is little, and nothing grows with their number.
    pub const fn is_quick(self) -> bool {
        matches!(
            self,
            Self::Records
                | Self::Names
                | Self::Mapped
                | Self::Stores
                | Self::Pairs
                | Self::Resized
                | Self::Shortened
        )
    }

    /// Mean pause after a step that leaves the machine to others, in microseconds: by what it writes.
    pub const fn pause_us(self) -> u64 {
        match self {
            Self::Records | Self::Names => 2_000,
            Self::Large | Self::Direct => 40_000,
            Self::Filler => 20_000,
            _ => 8_000,
        }
    }

    /// Works in `app` from the first step on, until something fails.
    ///
    /// # Errors
    /// What has failed.
    pub fn work(self, app: &Path, pause_us: u64) -> Result<Infallible, String> {
        fs::create_dir_all(app).map_err(|error| format!("{}: {error}", app.display()))?;
        if let Some(kind) = self.history() {
            return history::work(kind, app, 0, &PostMark::SMALL, pause_us, false);
        }
        history::begin(pause_us);
        match self {
            Self::Records => records::work(app),
            Self::Names => names::work(app),
            Self::Pairs => pairs::work(app),
            Self::Large => LARGE.work(app, 0, false),
            Self::Direct => DIRECT.work(app, 0, false),
            Self::RowsDelete => rows::work(app, JournalMode::Delete),
            Self::RowsTruncate => rows::work(app, JournalMode::Truncate),
            Self::RowsPersist => rows::work(app, JournalMode::Persist),
            Self::RowsWal => rows::work(app, JournalMode::Wal),
            Self::Stores => stores::work(app, pause_us),
            Self::Resized => resized::work(app, Sizes::OfPages),
            Self::Shortened => resized::work(app, Sizes::Any),
            Self::Filler => filler::work(app),
            Self::Mapped | Self::Editor | Self::Git => Err("it is a history".to_owned()),
        }
    }

    /// What a power cut left of it; none if that does not tell.
    ///
    /// # Errors
    /// It is as it never was after any of its steps.
    pub fn check(self, app: &Path) -> Result<Option<Found>, String> {
        if !app.exists() {
            return Ok(Some(Found::after(0)));
        }
        if let Some(kind) = self.history() {
            return kind.find(app).map(Found::after).map(Some);
        }
        match self {
            Self::Records => records::check(app),
            Self::Names => names::check(app),
            Self::Pairs => pairs::check(app),
            Self::Large => LARGE.check(app).map(Found::from),
            Self::Direct => DIRECT.check(app).map(Found::from),
            Self::Stores => stores::check(app),
            Self::Resized => resized::check(app, Sizes::OfPages),
            Self::Shortened => resized::check(app, Sizes::Any),
            Self::Filler => return filler::check(app),
            _ => rows::check(app),
        }
        .map(Some)
    }

    /// The same where files need not be of one moment: up to which step all that it did is there; none if that
    /// does not tell.
    ///
    /// # Errors
    /// A file is as it never was.
    pub fn check_each_file(self, app: &Path) -> Result<Option<Found>, String> {
        if self != Self::Records {
            return Ok(None);
        }
        if !app.exists() {
            return Ok(Some(Found::after(0)));
        }
        records::check_each_file(app).map(Some)
    }

    const fn history(self) -> Option<Kind> {
        match self {
            Self::Mapped => Some(Kind::Mapped),
            Self::Editor => Some(Kind::Editor),
            Self::Git => Some(Kind::Git),
            _ => None,
        }
    }
}

/// The directory of an app.
pub fn app_name(writer: Writer, is_durable: bool) -> String {
    let suffix = if is_durable { DURABLE_SUFFIX } else { "" };
    writer.name() + suffix
}
