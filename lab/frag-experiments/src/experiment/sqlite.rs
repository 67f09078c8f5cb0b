//! S4 §4.2, Fig. 6, and §6.1.2, Fig. 15: threads that insert rows, each into a database of its own,
//! on a pristine filesystem, by journal mode.

use std::path::PathBuf;

use mobifs_charts::{Bars, Legend, Table, bar_chart};
use mobifs_experiments::{Criterion, figure};
use mobifs_fragmentation::layouts;
use mobifs_workloads::workload::sqlite::{JournalMode, insert, open};
use rusqlite::Connection;
use serde::Serialize;
use serde_json::json;

use super::MIB;
use crate::degrees::{Degrees, files_with_ending, measured};
use crate::disk::{Disk, Filesystem, Wanted};
use crate::error::FragError;
use crate::outcome::{Figure, Outcome};
use crate::settings::{Extent, Settings};
use crate::together::together;

/// mkfs.xfs makes none that is smaller than 300 MB.
const DISK_BYTES: u64 = 512 * MIB;
const MODES: [JournalMode; 3] = [JournalMode::Delete, JournalMode::Persist, JournalMode::Wal];
const FILESYSTEMS: [Filesystem; 3] = [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs];
/// S4's databases on ext4 with five threads.
const PUBLISHED_DOF: f64 = 5.0;
const FIGURE_6: &str = "S4 §4.2.2, Fig. 6";
const FIGURE_15: &str = "S4 §6.1.2, Fig. 15";

/// One run.
#[derive(Clone, Debug, Serialize)]
struct Point {
    filesystem: Filesystem,
    mode: &'static str,
    threads: usize,
    databases: Degrees,
    /// Journals that are there between transactions.
    journals: Option<Degrees>,
    #[serde(skip)]
    layout: Option<String>,
}

/// The experiment.
pub(crate) fn run(settings: &Settings) -> Result<Outcome, FragError> {
    let threads: &[usize] = match settings.extent {
        Extent::Tiny => &[1, 2],
        _ => &[1, 2, 5, 10],
    };
    let rows = settings.extent.of(20, 300, 1000);
    // The log is copied into the database every 1,000 pages.
    let wal_rows = settings.extent.of(20, 1000, 3000);
    let mut points = Vec::new();
    for filesystem in FILESYSTEMS {
        for mode in MODES {
            for &threads in threads {
                settings.check()?;
                // Beside ext4, others are not judged: fewer of them will do.
                let is_extra = filesystem != Filesystem::Ext4 && ![1, 5].contains(&threads);
                if is_extra && settings.extent != Extent::Full {
                    continue;
                }
                let rows = if mode == JournalMode::Wal {
                    wal_rows
                } else {
                    rows
                };
                points.push(measure(settings, filesystem, mode, threads, rows)?);
            }
        }
    }
    Ok(Outcome {
        name: "sqlite",
        title: "Databases that grow beside each other (S4 Figs. 6 and 15)",
        method: format!(
            "1 to 10 threads insert {rows} rows of 100 bytes each into databases of their own (SQLite, \
             synchronous=FULL, an index, a commit for each row) on a filesystem of 512 MiB that was just \
             made. Extents are counted; no figure is a time. In WAL mode there are {wal_rows} rows, so \
             that the log is copied into the database at least once, and the log's index is kept in memory \
             (locking_mode=EXCLUSIVE), because the device is served by the same process."
        ),
        tables: tables(&points, threads),
        figures: figures(&points)?,
        criteria: criteria(&points),
        notes: vec![
            "S4 has APFS (DoF 10) and HFS+ (15) beside ext4 in Fig. 6. Linux cannot write them; XFS \
             and btrfs stand in their place, and are not judged."
                .to_owned(),
            "S4 does not say how many rows its threads inserted; the degree grows with them.".to_owned(),
        ],
        data: json!({ "rows": rows, "wal_rows": wal_rows, "points": points }),
        seconds: 0.0,
    })
}

fn measure(
    settings: &Settings,
    filesystem: Filesystem,
    mode: JournalMode,
    threads: usize,
    rows: u64,
) -> Result<Point, FragError> {
    let wanted = Wanted {
        filesystem,
        ..Wanted::ext4(DISK_BYTES, settings.seed)
    };
    let disk = Disk::new(&settings.scratch, wanted)?;
    let root = disk.root();
    // Open until it is measured: a write-ahead log goes with its last connection.
    let connections = together(threads, |number| {
        fill(root.join(format!("app{number}.db")), mode, rows, settings)
    })?;
    let databases = files_with_ending(&root, ".db")?;
    let mut journals = files_with_ending(&root, ".db-journal")?;
    journals.extend(files_with_ending(&root, ".db-wal")?);
    let layout = (mode == JournalMode::Delete && threads > 1)
        .then(|| measured(&databases).map(|outcome| layouts(&outcome)))
        .transpose()?;
    let point = Point {
        filesystem,
        mode: mode.name(),
        threads,
        databases: Degrees::of(&databases)?,
        journals: if journals.is_empty() {
            None
        } else {
            Some(Degrees::of(&journals)?)
        },
        layout,
    };
    drop(connections);
    Ok(point)
}

fn fill(
    path: PathBuf,
    mode: JournalMode,
    rows: u64,
    settings: &Settings,
) -> Result<Connection, FragError> {
    let connection = if mode == JournalMode::Wal {
        let connection = open(&path, JournalMode::Delete)?;
        connection.execute_batch("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=wal;")?;
        connection
    } else {
        open(&path, mode)?
    };
    for row in 1..=rows {
        settings.check()?;
        insert(&connection, row)?;
    }
    Ok(connection)
}

fn find(
    points: &[Point],
    filesystem: Filesystem,
    mode: JournalMode,
    threads: usize,
) -> Option<&Point> {
    points.iter().find(|point| {
        point.filesystem == filesystem && point.mode == mode.name() && point.threads == threads
    })
}

fn tables(points: &[Point], threads: &[usize]) -> Vec<Table> {
    let table = |filesystem: Filesystem| {
        let mut table = Table::new(
            format!("{}: mean DoF", filesystem.name()),
            &["journal mode", "files"],
        );
        table
            .head
            .extend(threads.iter().map(|threads| format!("{threads} threads")));
        for mode in MODES {
            type Kind = fn(&Point) -> Option<Degrees>;
            let kinds: [(&str, Kind); 2] = [
                ("databases", |point| Some(point.databases)),
                ("journals", |point| point.journals),
            ];
            for (name, of) in kinds {
                let cell = |&threads: &usize| {
                    let point = find(points, filesystem, mode, threads);
                    let degrees = point.and_then(of);
                    degrees.map_or_else(|| "–".to_owned(), |found| figure(found.mean_dof))
                };
                let mut row = vec![mode.name().to_owned(), name.to_owned()];
                row.extend(threads.iter().map(cell));
                table.rows.push(row);
            }
        }
        table
    };
    FILESYSTEMS.map(table).to_vec()
}

fn figures(points: &[Point]) -> Result<Vec<Figure>, FragError> {
    let mut figures = Vec::new();
    for mode in [JournalMode::Persist, JournalMode::Wal] {
        let of_mode: Vec<_> = points
            .iter()
            .filter(|point| point.filesystem == Filesystem::Ext4 && point.mode == mode.name())
            .collect();
        let bars = Bars {
            categories: of_mode
                .iter()
                .map(|point| format!("{} threads", point.threads))
                .collect(),
            series: vec![
                (
                    "databases".to_owned(),
                    of_mode
                        .iter()
                        .map(|point| Some(point.databases.mean_dof))
                        .collect(),
                ),
                (
                    "journals".to_owned(),
                    of_mode
                        .iter()
                        .map(|point| point.journals.map(|found| found.mean_dof))
                        .collect(),
                ),
            ],
        };
        let caption = format!("{} on ext4 (S4 Fig. 15)", mode.name());
        figures.push(Figure {
            caption: format!("{} mode on ext4, as in S4 Fig. 15", mode.name()),
            svg: bar_chart(480, caption, "mean DoF", Legend::UpperLeft, &bars)?,
        });
    }
    for point in points {
        let Some(layout) = &point.layout else {
            continue;
        };
        if point.filesystem != Filesystem::Ext4 && point.threads != 5 {
            continue;
        }
        figures.push(Figure {
            caption: format!(
                "Where databases lie, by block address, one colour a file: {}, {} threads, DELETE \
                 (S4 Fig. 6)",
                point.filesystem.name(),
                point.threads
            ),
            svg: layout.clone(),
        });
    }
    Ok(figures)
}

fn criteria(points: &[Point]) -> Vec<Criterion> {
    let ext4 = |mode, threads| find(points, Filesystem::Ext4, mode, threads);
    let databases =
        |mode, threads| ext4(mode, threads).map_or(f64::NAN, |point| point.databases.mean_dof);
    let journals = |mode, threads| {
        let found = ext4(mode, threads).and_then(|point| point.journals);
        found.map_or(f64::NAN, |found| found.mean_dof)
    };
    let (delete, persist, wal) = (JournalMode::Delete, JournalMode::Persist, JournalMode::Wal);
    let mut criteria = vec![
        Criterion::new(
            "DELETE, 5 threads: mean DoF of databases",
            FIGURE_6,
            "5 (number of rows not given)",
            databases(delete, 5),
        )
        // Of an unknown number of rows only the order can be held against ours.
        .at_least(PUBLISHED_DOF / 3.0)
        .at_most(PUBLISHED_DOF * 3.0),
        Criterion::new(
            "PERSIST, 10 threads: DoF of databases ÷ of journals",
            FIGURE_15,
            "databases badly fragmented, journals lightly",
            databases(persist, 10) / journals(persist, 10),
        )
        .at_least(2.0),
        Criterion::new(
            "WAL, 10 threads: DoF of journals ÷ of databases",
            FIGURE_15,
            "journals badly fragmented, databases lightly",
            journals(wal, 10) / databases(wal, 10),
        )
        .at_least(2.0),
        Criterion::new(
            "10 threads: DoF of databases, WAL ÷ PERSIST",
            FIGURE_15,
            "lightly fragmented in WAL mode, badly in PERSIST",
            databases(wal, 10) / databases(persist, 10),
        )
        .at_most(0.6),
    ];
    for filesystem in [Filesystem::Xfs, Filesystem::Btrfs] {
        let found = find(points, filesystem, delete, 5);
        criteria.push(
            Criterion::new(
                format!("{}: the same as the first", filesystem.name()),
                FIGURE_6,
                "10 on APFS, 15 on HFS+",
                found.map_or(f64::NAN, |point| point.databases.mean_dof),
            )
            .judged_if(false),
        );
    }
    criteria
}
