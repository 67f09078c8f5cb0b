//! S4 §5.2, Figs. 10 to 12: an app is installed and launched, and a table is scanned, on filesystems at High
//! whose free room is whole, in holes of 64 KB, or in holes of 8 KB.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mobifs_charts::{Bars, Legend, Table, bar_chart};
use mobifs_device_server::DeviceCounts;
use mobifs_experiments::{Criterion, figure, size};
use rusqlite::{Connection, OpenFlags};
use serde::Serialize;
use serde_json::json;

use super::{GIB, MIB};
use crate::aged::{Free, State, age, age_written};
use crate::apps::write_file;
use crate::degrees::Degrees;
use crate::disk::{Disk, Wanted};
use crate::error::FragError;
use crate::outcome::{Figure, Outcome};
use crate::pieces::read_through;
use crate::settings::{Extent, Settings};

const STATES: [State; 3] = [State::None, State::Holes64, State::Holes8];
/// Files of an app beside its program.
const DEX_FILES: u64 = 21;
/// The larger of S4's two (§5.3.3).
const MAPPING_CACHE_BYTES: u64 = 128 << 10;
/// The size of the filesystem: S4's 500 MB of small files are a twentieth of it. On 16 GiB, with High ending
/// at 94.5 %, 400 MB were left that had never been filled, and the app lay whole in them.
const FULL_BYTES: u64 = 9536 * MIB;
const LAUNCH: &str = "S4 §5.2.1, Fig. 10";
const INSTALL: &str = "S4 §5.2.2, Fig. 11";
const SCAN: &str = "S4 §5.2.3, Fig. 12";

/// What was measured in one state.
#[derive(Clone, Debug, Serialize)]
struct Point {
    state: State,
    free: Free,
    install: DeviceCounts,
    launch: DeviceCounts,
    scan: DeviceCounts,
    executables: Degrees,
    database: Degrees,
}

struct Sizes {
    disk_bytes: u64,
    package_bytes: u64,
    dex_bytes: u64,
    database_bytes: u64,
}

/// The experiment.
pub(crate) fn run(settings: &Settings) -> Result<Outcome, FragError> {
    let sizes = Sizes {
        disk_bytes: settings.extent.of(3 * GIB / 2, 4 * GIB, FULL_BYTES),
        package_bytes: settings.extent.of(MIB, 20 * MIB, 60 * MIB),
        dex_bytes: settings.extent.of(100_000, 1_500_000, 3_200_000),
        database_bytes: settings.extent.of(MIB, 64_000_000, 201_000_000),
    };
    let database = tempfile::Builder::new()
        .prefix("mobifs-frag-database-")
        .tempdir_in(&settings.scratch)
        .map_err(|error| FragError::io(&settings.scratch, error))?;
    let tiles = database.path().join("mirth_cache.db");
    make_database(&tiles, sizes.database_bytes, settings)?;
    let points = STATES
        .iter()
        .map(|&state| measure(state, &sizes, &tiles, settings))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Outcome {
        name: "waits",
        title: "What a user waits for: launch, install, table scan (S4 Figs. 10 to 12)",
        method: format!(
            "An ext4 of {} is filled to High, without small files (No), or with small ones of 64 \
             or 8 KB of which {} MB are deleted again. Install: a package of {} MB is written, read \
             and unpacked into {DEX_FILES} files and a program, each durable. Launch: after a new mount that program, \
             which is this one, is executed, and the files beside it are read, so that the pattern is \
             the real one of the kernel's loader. Scan: a database of {} MB is copied there, and after a new mount SQLite \
             scans its table. Times are the device's (virtual time, eMMC 5.1): the sum of the latencies of all \
             its commands; S4's have the phone's CPU in them.",
            size(sizes.disk_bytes),
            (sizes.disk_bytes / 20).min(500_000_000) / 1_000_000,
            sizes.package_bytes / MIB,
            sizes.database_bytes / 1_000_000,
        ),
        tables: vec![table(&points)],
        figures: vec![Figure {
            caption: "Time against that on free room in one piece, as in S4 Figs. 10 to 12"
                .to_owned(),
            svg: picture_of(&points)?,
        }],
        criteria: criteria(&points),
        notes: Vec::new(),
        data: json!({ "points": points }),
        seconds: 0.0,
    })
}

/// Tiles of a map, as Earth keeps them.
fn make_database(path: &Path, bytes: u64, settings: &Settings) -> Result<(), FragError> {
    const TILE_BYTES: u64 = 20_000;
    let mut connection = Connection::open(path)?;
    connection.execute_batch("CREATE TABLE tile (id INTEGER PRIMARY KEY, image BLOB)")?;
    let transaction = connection.transaction()?;
    for _ in 0..bytes / TILE_BYTES {
        settings.check()?;
        transaction
            .prepare_cached("INSERT INTO tile (image) VALUES (randomblob(?1))")?
            .execute([TILE_BYTES])?;
    }
    Ok(transaction.commit()?)
}

fn measure(
    state: State,
    sizes: &Sizes,
    tiles: &Path,
    settings: &Settings,
) -> Result<Point, FragError> {
    settings.check()?;
    let wanted = Wanted {
        mapping_cache_bytes: Some(MAPPING_CACHE_BYTES),
        ..Wanted::ext4(sizes.disk_bytes, settings.seed)
    };
    let mut disk = Disk::new(&settings.scratch, wanted)?;
    let free = if settings.extent == Extent::Full {
        age_written(&disk, state, settings)?
    } else {
        age(&disk, state, settings)?
    };
    disk.rest(settings)?;
    let before = disk.counts()?;
    let app = install(&disk, sizes, settings)?;
    let install = disk.counts()?.since(&before);
    let executables = Degrees::of(&app)?;
    let launch = launch(&mut disk, &app)?;
    for path in &app {
        fs::remove_file(path).map_err(|error| FragError::io(path, error))?;
    }
    disk.sync()?;
    settings.check()?;
    let copy = disk.root().join("mirth_cache.db");
    copy_durably(tiles, &copy)?;
    let database = Degrees::of(std::slice::from_ref(&copy))?;
    let scan = scan(&mut disk, &copy)?;
    Ok(Point {
        state,
        free,
        install,
        launch,
        scan,
        executables,
        database,
    })
}

fn copy_durably(from: &Path, to: &Path) -> Result<(), FragError> {
    fs::copy(from, to).map_err(|error| FragError::io(to, error))?;
    let copied = File::open(to).and_then(|file| file.sync_all());
    copied.map_err(|error| FragError::io(to, error))
}

/// The files of the app; its program is the first.
fn install(disk: &Disk, sizes: &Sizes, settings: &Settings) -> Result<Vec<PathBuf>, FragError> {
    let root = disk.root();
    let package = root.join("app.apk");
    write_file(&package, sizes.package_bytes)?;
    read_through(&package)?;
    let program = root.join("program");
    let own = std::env::current_exe().map_err(|error| FragError::io(&program, error))?;
    copy_durably(&own, &program)?;
    let mut files = vec![program];
    for number in 0..DEX_FILES {
        settings.check()?;
        let path = root.join(format!("classes{number}.dex"));
        write_file(&path, sizes.dex_bytes)?;
        files.push(path);
    }
    disk.sync()?;
    fs::remove_file(&package).map_err(|error| FragError::io(&package, error))?;
    Ok(files)
}

fn launch(disk: &mut Disk, app: &[PathBuf]) -> Result<DeviceCounts, FragError> {
    disk.remount()?;
    disk.sync()?;
    let before = disk.counts()?;
    let Some((program, others)) = app.split_first() else {
        return Err(FragError::NoResult("an app without files"));
    };
    // What it says does not matter, nor whether it knows the option: it was loaded and began.
    let ran = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    ran.map_err(|error| FragError::io(program, error))?;
    for path in others {
        read_through(path)?;
    }
    Ok(disk.counts()?.since(&before))
}

fn scan(disk: &mut Disk, database: &Path) -> Result<DeviceCounts, FragError> {
    disk.remount()?;
    let before = disk.counts()?;
    let connection = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let query = "SELECT sum(instr(image, x'00')) FROM tile";
    let _sum: i64 = connection.query_row(query, [], |row| row.get(0))?;
    drop(connection);
    Ok(disk.counts()?.since(&before))
}

type Of = fn(&Point) -> DeviceCounts;

/// What is timed: its name and where it is.
const TIMED: [(&str, Of); 3] = [
    ("launch", |point| point.launch),
    ("install", |point| point.install),
    ("table scan", |point| point.scan),
];

fn ratio(points: &[Point], of: Of, state: State) -> f64 {
    let time = |state| {
        let mut points = points.iter();
        let found = points.find(|point| point.state == state);
        found.map_or(f64::NAN, |point| of(point).busy_ms)
    };
    time(state) / time(State::None)
}

fn table(points: &[Point]) -> Table {
    let mut table = Table::new(
        "ms of the device, and requests",
        &[
            "free room",
            "launch",
            "install",
            "table scan",
            "files' DoF, mean",
            "highest",
            "their pieces, KB",
            "database's DoF",
        ],
    );
    for point in points {
        let cell = |counts: DeviceCounts| {
            format!(
                "{} ({})",
                figure(counts.busy_ms),
                counts.reads + counts.writes
            )
        };
        table.rows.push(vec![
            point.state.name().to_owned(),
            cell(point.launch),
            cell(point.install),
            cell(point.scan),
            figure(point.executables.mean_dof),
            figure(point.executables.dof_max),
            figure(point.executables.mean_fragment_bytes / 1e3),
            figure(point.database.mean_dof),
        ]);
    }
    table
}

fn picture_of(points: &[Point]) -> Result<String, FragError> {
    let bars = Bars {
        categories: TIMED.map(|(name, _)| name.to_owned()).to_vec(),
        series: STATES
            .iter()
            .map(|&state| {
                let values = TIMED.map(|(_, of)| Some(ratio(points, of, state)));
                (state.name().to_owned(), values.to_vec())
            })
            .collect(),
    };
    let caption = "time against free room without holes (S4 Figs. 10 to 12)".to_owned();
    Ok(bar_chart(640, caption, "×", Legend::UpperRight, &bars)?)
}

fn criteria(points: &[Point]) -> Vec<Criterion> {
    let severe = |of: Of| ratio(points, of, State::Holes8);
    let severe_point = points.iter().find(|point| point.state == State::Holes8);
    // Between states, with a little scatter.
    let step = |of: Of| {
        let states = [State::None, State::Holes64, State::Holes8];
        let pairs = states.windows(2);
        pairs
            .map(|pair| ratio(points, of, pair[1]) / ratio(points, of, pair[0]))
            .fold(f64::NAN, f64::min)
    };
    let [(_, launch), (_, install), (_, scan)] = TIMED;
    let (of_pieces, of_install) = (piece_evidence(severe_point), install_evidence(points));
    let mut criteria = vec![
        Criterion::new(
            "launch: Severe ÷ No",
            LAUNCH,
            "1.79 (Chrome on S6)",
            severe(launch),
        )
        .at_least(1.2)
        .at_most(1.79 * 2.0),
        Criterion::new(
            "launch: No, Moderate, Severe: least step",
            LAUNCH,
            "increases as ageing became worse",
            step(launch),
        )
        .at_least(0.97),
        piece_criterion(severe_point, &of_pieces),
        install_criterion(severe(install), &of_install),
        Criterion::new(
            "install, with 0.17 ms for each request (the slope of S4's Fig. 9): Severe ÷ No",
            INSTALL,
            "2.08",
            with_host(points, install),
        )
        .judged_if(false),
        Criterion::new(
            "table scan: Severe ÷ No",
            SCAN,
            "increased noticeably (figure only)",
            severe(scan),
        )
        .at_least(1.2),
        Criterion::new(
            "table scan: No, Moderate, Severe: least step",
            SCAN,
            "increased as fragmentation degraded",
            step(scan),
        )
        .at_least(0.97),
    ];
    criteria.extend(of_pieces);
    criteria.extend(of_install);
    criteria
}

fn piece_criterion(severe: Option<&Point>, evidence: &[Criterion]) -> Criterion {
    let mean_kb = severe.map_or(f64::NAN, |point| {
        point.executables.mean_fragment_bytes / 1e3
    });
    Criterion::new(
            "Severe: mean size of the pieces of executables",
            LAUNCH,
            "15 KB (Chrome)",
            mean_kb,
        )
        .in_unit("KB")
        .at_least(7.5)
        .at_most(30.0)
        .explained_by(
            "pieces are as large as the free extents that ageing leaves; S4 does not say how large its own \
             were, and in ours holes of neighbours that were both deleted are one",
            evidence,
        )
}

fn install_criterion(measured: f64, evidence: &[Criterion]) -> Criterion {
    Criterion::new(
            "install: Severe ÷ No",
            INSTALL,
            "25 s ÷ 12 s = 2.08 (Facebook on S6)",
            measured,
        )
        .at_least(1.2)
        .at_most(2.08 * 2.0)
        .explained_by(
            "S4's time has the CPU time of each request in it and ours is the device's alone, whose write \
             cache collects small requests and programs them as whole stripes, wherever they go: requests \
             multiply as on the phone, bytes do not",
            evidence,
        )
}

/// Severe against No, with what a phone's CPU adds for each request.
fn with_host(points: &[Point], of: Of) -> f64 {
    const REQUEST_MS: f64 = 0.17;
    let time = |state| {
        let found = points.iter().find(|point| point.state == state).map(of);
        found.map_or(f64::NAN, |counts| {
            counts.busy_ms + REQUEST_MS * (counts.reads + counts.writes) as f64
        })
    };
    time(State::Holes8) / time(State::None)
}

fn piece_evidence(severe: Option<&Point>) -> [Criterion; 1] {
    let ratio = severe.map_or(f64::NAN, |point| {
        point.executables.mean_fragment_bytes / point.free.mean_bytes
    });
    [Criterion::new(
        "Severe: pieces of executables ÷ free extents, mean sizes",
        LAUNCH,
        "not measured in S4",
        ratio,
    )
    .at_least(1.0 / 3.0)
    .at_most(3.0)]
}

fn install_evidence(points: &[Point]) -> [Criterion; 2] {
    let ratio = |of: fn(&DeviceCounts) -> u64| {
        let count = |state| {
            let found = points.iter().find(|point| point.state == state);
            found.map_or(f64::NAN, |point| of(&point.install) as f64)
        };
        count(State::Holes8) / count(State::None)
    };
    [
        Criterion::new(
            "install: write requests, Severe ÷ No",
            INSTALL,
            "not measured in S4",
            ratio(|counts| counts.writes),
        )
        .at_least(2.0),
        Criterion::new(
            "install: bytes written, Severe ÷ No",
            INSTALL,
            "not measured in S4",
            ratio(|counts| counts.bytes_written),
        )
        .at_most(1.15),
    ]
}
