//! `mobifs-lab workload` and other benches: one per call, its measurement as one line of JSON.

use clap::{Args, Subcommand};
use mobifs_workloads::workload::{Limit, Measured, WorkloadError, files, pages, sqlite, stream};
use std::path::PathBuf;
use std::time::Duration;

use crate::failure::{Code, Failure, put};

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Run a workload in a directory of the filesystem to measure.
    Workload {
        /// The directory; it is made if missing.
        #[arg(long, global = true, default_value = ".")]
        dir: PathBuf,
        #[command(subcommand)]
        workload: Workload,
    },
    /// Measure what one write costs inside the engine, without kernel, store or device.
    EngineWrite,
    /// Measure what each policy costs for a page written.
    Policy,
    /// What it costs that a mount outlives its daemon.
    Outlive,
    /// Check a database that `workload sqlite --statement insert` left behind after a crash;
    /// prints how many of its transactions are there.
    CheckSqlite {
        /// The database file.
        database: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Until {
    /// Stop after this many operations.
    #[arg(long)]
    operations: Option<u64>,
    /// Stop after this many seconds.
    #[arg(long, required_unless_present = "operations")]
    seconds: Option<f64>,
}

impl Until {
    fn limit(&self) -> Limit {
        Limit {
            operations: self.operations,
            time: self
                .seconds
                .map(|seconds| Duration::from_secs_f64(seconds.max(0.0))),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Workload {
    /// SQLite with synchronous=FULL, one row per transaction.
    Sqlite {
        #[arg(long)]
        journal: sqlite::JournalMode,
        #[arg(long)]
        statement: sqlite::Statement,
        #[command(flatten)]
        until: Until,
    },
    /// 4 KiB overwrites at random places of one file.
    RandomWrite {
        /// fdatasync after each write.
        #[arg(long)]
        fsync: bool,
        /// Size of the file.
        #[arg(long, default_value_t = 64)]
        mebibytes: u64,
        #[command(flatten)]
        until: Until,
    },
    /// Write one new large file.
    SequentialWrite {
        /// fsync at the end, inside the measured time.
        #[arg(long)]
        fsync: bool,
        #[arg(long, default_value_t = 256)]
        mebibytes: u64,
    },
    /// Read the file that sequential-write made.
    SequentialRead,
    /// Create small files in one directory, then unlink them.
    CreateUnlink {
        #[arg(long, default_value_t = 5000)]
        files: u64,
        /// Size of each file.
        #[arg(long, default_value_t = 4096)]
        bytes: usize,
    },
    /// Make a tree of empty files, a thousand to a directory.
    MakeTree {
        #[arg(long)]
        files: u64,
    },
    /// List a tree and ask for every entry's attributes.
    Walk,
}

fn perform(directory: &std::path::Path, workload: &Workload) -> Result<Measured, WorkloadError> {
    std::fs::create_dir_all(directory).map_err(|source| WorkloadError::File {
        path: directory.to_owned(),
        source,
    })?;
    match workload {
        Workload::Sqlite {
            journal,
            statement,
            until,
        } => sqlite::transactions(directory, *journal, *statement, until.limit()),
        Workload::RandomWrite {
            fsync,
            mebibytes,
            until,
        } => pages::random_write(directory, mebibytes << 20, *fsync, until.limit()),
        Workload::SequentialWrite { fsync, mebibytes } => {
            stream::write(directory, mebibytes << 20, *fsync)
        }
        Workload::SequentialRead => stream::read(directory),
        Workload::CreateUnlink { files, bytes } => files::create_unlink(directory, *files, *bytes),
        Workload::MakeTree { files } => files::make_tree(directory, *files),
        Workload::Walk => files::walk(directory),
    }
}

fn measure(command: &BenchCommand) -> Result<String, WorkloadError> {
    match command {
        BenchCommand::Workload { dir, workload } => perform(dir, workload).and_then(|measured| {
            serde_json::to_string(&measured).map_err(|e| WorkloadError::Wrong(e.to_string()))
        }),
        BenchCommand::EngineWrite => mobifs_workloads::bench::engine_write::measure()
            .and_then(|measured| serde_json::to_string(&measured).map_err(|e| e.to_string()))
            .map_err(WorkloadError::Wrong),
        BenchCommand::Policy => {
            serde_json::to_string(&mobifs_workloads::bench::policy_cost::measure())
                .map_err(|e| WorkloadError::Wrong(e.to_string()))
        }
        BenchCommand::Outlive => mobifs_workloads::bench::outlive::measure()
            .and_then(|measured| serde_json::to_string(&measured).map_err(|e| e.to_string()))
            .map_err(WorkloadError::Wrong),
        BenchCommand::CheckSqlite { database } => {
            sqlite::check_prefix(database).map(|count| count.to_string())
        }
    }
}

pub(crate) fn run(command: &BenchCommand) -> Result<(), Failure> {
    let line = measure(command).map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
    put(&(line + "\n"))
}
