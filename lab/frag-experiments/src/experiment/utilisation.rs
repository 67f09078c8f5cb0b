//! S4 §4.3: degrees of databases and of other files by how full the filesystem is (Fig. 7), and by how large
//! it is (Fig. 8).

use mobifs_ageing::Space;
use mobifs_charts::{Bars, Legend, Table, bar_chart};
use mobifs_experiments::{Criterion, figure, size};
use serde::Serialize;
use serde_json::json;

use super::{GIB, MIB};
use crate::aged::{Free, State, age};
use crate::apps::{App, EARTH, FACEBOOK, use_app, write_file};
use crate::degrees::Degrees;
use crate::disk::{Disk, Wanted};
use crate::error::FragError;
use crate::outcome::{Figure, Outcome};
use crate::settings::{Extent, Settings};

const FIGURE_7: &str = "S4 §4.3, Fig. 7";
const FIGURE_8: &str = "S4 §4.3, Fig. 8";
const FOOTNOTE: &str = "S4 §4.3, footnote 4";

/// One app on one filesystem.
#[derive(Clone, Debug, Serialize)]
struct Point {
    app: &'static str,
    state: State,
    disk_bytes: u64,
    free: Free,
    databases: Degrees,
    others: Degrees,
}

fn apps(extent: Extent) -> [App; 2] {
    match extent {
        Extent::Tiny => [
            App {
                threads: 2,
                executables: 2,
                executable_bytes: 100_000,
                ..FACEBOOK
            },
            App {
                threads: 2,
                database_bytes: 300_000,
                executables: 1,
                executable_bytes: 100_000,
                ..EARTH
            },
        ],
        // Fewer executables and smaller databases leave room on a smaller disk.
        Extent::Reduced => [
            App {
                executables: 7,
                ..FACEBOOK
            },
            App {
                database_bytes: EARTH.database_bytes / 3,
                executables: 2,
                ..EARTH
            },
        ],
        Extent::Full => [FACEBOOK, EARTH],
    }
}

fn measure(
    app: &App,
    state: State,
    disk_bytes: u64,
    settings: &Settings,
) -> Result<Point, FragError> {
    settings.check()?;
    let disk = Disk::new(&settings.scratch, Wanted::ext4(disk_bytes, settings.seed))?;
    let free = age(&disk, state, settings)?;
    let files = use_app(&disk, app, 0, settings)?;
    Ok(Point {
        app: app.name,
        state,
        disk_bytes,
        free,
        databases: Degrees::of(&files.databases)?,
        others: Degrees::of(&files.executables)?,
    })
}

/// Fig. 7.
pub(crate) fn run(settings: &Settings) -> Result<Outcome, FragError> {
    let disk_bytes = settings.extent.of(512 * MIB, 2 * GIB, 16 * GIB);
    let states: &[State] = match settings.extent {
        Extent::Tiny => &[State::Low, State::High],
        _ => &[State::Low, State::Moderate, State::High, State::Full],
    };
    let mut points = Vec::new();
    for app in apps(settings.extent) {
        for &state in states {
            points.push(measure(&app, state, disk_bytes, settings)?);
        }
    }
    let filling = if settings.extent == Extent::Tiny {
        None
    } else {
        Some(fill_up(disk_bytes, settings)?)
    };
    Ok(Outcome {
        name: "utilisation",
        title: "Degrees by how full the filesystem is (S4 Fig. 7)",
        method: format!(
            "An ext4 of {} is filled by large files (≥ 10 MB) and small ones (≤ 500 KB) by turns, and \
             small ones are deleted at random (`mobifs frag age` describes it). Then an app is \
             installed and fills its databases, a thread each, by transactions of {} KB (Facebook, {} \
             threads) and {} KB (Earth), which S4 does not give. Extents are counted; no figure is a time.",
            size(disk_bytes),
            FACEBOOK.transaction_bytes / 1000,
            FACEBOOK.threads,
            EARTH.transaction_bytes / 1000
        ),
        tables: vec![table("Mean DoF", &points, |point| {
            format!(
                "{} ({:.0} %)",
                point.state.name(),
                point.free.used_share * 100.0
            )
        })],
        figures: vec![Figure {
            caption: "Degrees of databases and other files, as in S4 Fig. 7".to_owned(),
            svg: bars(&points, "how full", |point| {
                format!("{} {}", point.app, point.state.name())
            })?,
        }],
        criteria: criteria(&points, filling.as_ref()),
        notes: Vec::new(),
        data: json!({ "points": points, "one_file_in_all_free_room_at_full": filling }),
        seconds: 0.0,
    })
}

/// S4's check of its procedure: one file that takes all free room at Full.
fn fill_up(disk_bytes: u64, settings: &Settings) -> Result<Degrees, FragError> {
    let disk = Disk::new(&settings.scratch, Wanted::ext4(disk_bytes, settings.seed))?;
    age(&disk, State::Full, settings)?;
    let path = disk.root().join("all");
    let left_bytes = Space::of(&disk.root())?.free_bytes;
    // The rest is for the blocks that say where it lies.
    write_file(&path, left_bytes / 100 * 97)?;
    Degrees::of(std::slice::from_ref(&path))
}

/// Fig. 8.
pub(crate) fn run_capacity(settings: &Settings) -> Result<Outcome, FragError> {
    let sizes = match settings.extent {
        Extent::Tiny => [256 * MIB, 512 * MIB],
        Extent::Reduced => [4 * GIB, 8 * GIB],
        Extent::Full => [32 * GIB, 64 * GIB],
    };
    let mut points = Vec::new();
    for app in apps(settings.extent) {
        for disk_bytes in sizes {
            points.push(measure(&app, State::Low, disk_bytes, settings)?);
        }
    }
    Ok(Outcome {
        name: "capacity",
        title: "Degrees by how large the filesystem is (S4 Fig. 8)",
        method: format!(
            "The same apps as for Fig. 7 on ext4 of {} and {} that were just made. Extents are counted; \
             no figure is a time.",
            size(sizes[0]),
            size(sizes[1])
        ),
        tables: vec![table("Mean DoF", &points, |point| size(point.disk_bytes))],
        figures: vec![Figure {
            caption: "Degrees by capacity, as in S4 Fig. 8".to_owned(),
            svg: bars(&points, "capacity", |point| {
                format!("{} {}", point.app, size(point.disk_bytes))
            })?,
        }],
        criteria: capacity_criteria(&points, sizes),
        notes: Vec::new(),
        data: json!({ "points": points }),
        seconds: 0.0,
    })
}

fn table(caption: &str, points: &[Point], place: impl Fn(&Point) -> String) -> Table {
    let mut table = Table::new(
        caption,
        &[
            "app",
            "filesystem",
            "databases",
            "their pieces, KB",
            "other files",
            "their extents",
            "their pieces, KB",
        ],
    );
    for point in points {
        table.rows.push(vec![
            point.app.to_owned(),
            place(point),
            figure(point.databases.mean_dof),
            figure(point.databases.mean_fragment_bytes / 1e3),
            figure(point.others.mean_dof),
            point.others.extents.to_string(),
            figure(point.others.mean_fragment_bytes / 1e3),
        ]);
    }
    table
}

fn bars(
    points: &[Point],
    what: &str,
    name: impl Fn(&Point) -> String,
) -> Result<String, FragError> {
    let series = |of: fn(&Point) -> f64| points.iter().map(|point| Some(of(point))).collect();
    let bars = Bars {
        categories: points.iter().map(name).collect(),
        series: vec![
            (
                "databases".to_owned(),
                series(|point| point.databases.mean_dof),
            ),
            ("others".to_owned(), series(|point| point.others.mean_dof)),
        ],
    };
    let caption = format!("mean DoF by {what}");
    Ok(bar_chart(
        640,
        caption,
        "mean DoF",
        Legend::UpperLeft,
        &bars,
    )?)
}

fn find<'p>(points: &'p [Point], app: &App, state: State) -> Option<&'p Point> {
    let mut points = points.iter();
    points.find(|point| point.app == app.name && point.state == state)
}

fn criteria(points: &[Point], filling: Option<&Degrees>) -> Vec<Criterion> {
    let of =
        |app, state, value: fn(&Point) -> f64| find(points, app, state).map_or(f64::NAN, value);
    let databases: fn(&Point) -> f64 = |point| point.databases.mean_dof;
    let others: fn(&Point) -> f64 = |point| point.others.mean_dof;
    vec![
        // What a transaction adds is not published, so that only the order of magnitude is judged.
        Criterion::new(
            "Low: DoF of Facebook's databases",
            FIGURE_7,
            "3",
            of(&FACEBOOK, State::Low, databases),
        )
        .at_least(1.5)
        .at_most(6.0),
        Criterion::new(
            "Low: DoF of Earth's databases",
            FIGURE_7,
            "7",
            of(&EARTH, State::Low, databases),
        )
        .at_least(3.5)
        .at_most(14.0),
        Criterion::new(
            "Low: DoF of other files",
            FIGURE_7,
            "near 1",
            of(&FACEBOOK, State::Low, others),
        )
        .at_most(1.2),
        Criterion::new(
            "Full ÷ Low: DoF of Earth's databases",
            FIGURE_7,
            "increased noticeably",
            of(&EARTH, State::Full, databases) / of(&EARTH, State::Low, databases),
        )
        .at_least(1.2),
        Criterion::new(
            "Full: DoF of Facebook's dex files",
            FIGURE_7,
            "278 pieces of 21 files: 13.2",
            of(&FACEBOOK, State::Full, others),
        )
        .within_percent(278.0 / 21.0, 75.0),
        Criterion::new(
            "Full: mean size of their pieces",
            FIGURE_7,
            "243 KB",
            of(&FACEBOOK, State::Full, |point| {
                point.others.mean_fragment_bytes / 1e3
            }),
        )
        .in_unit("KB")
        .at_least(243.0 / 2.5)
        .at_most(243.0 * 2.5),
        Criterion::new(
            "Full: mean piece of one file in all free room",
            FOOTNOTE,
            "88 KB (3,098 pieces)",
            filling.map_or(f64::NAN, |found| found.mean_fragment_bytes / 1e3),
        )
        .in_unit("KB")
        .at_least(88.0 / 4.0)
        .at_most(88.0 * 4.0),
    ]
}

fn capacity_criteria(points: &[Point], sizes: [u64; 2]) -> Vec<Criterion> {
    let of = |app: &App, disk_bytes: u64, value: fn(&Point) -> f64| {
        let mut points = points.iter();
        let found = points.find(|point| point.app == app.name && point.disk_bytes == disk_bytes);
        found.map_or(f64::NAN, value)
    };
    let databases: fn(&Point) -> f64 = |point| point.databases.mean_dof;
    let [small, large] = sizes;
    let others = points.iter().map(|point| point.others.mean_dof);
    vec![
        Criterion::new(
            "Facebook, the larger: DoF of databases",
            FIGURE_8,
            "about 3",
            of(&FACEBOOK, large, databases),
        )
        .at_least(1.5)
        .at_most(6.0),
        Criterion::new(
            "Earth, the larger: DoF of databases",
            FIGURE_8,
            "at least 6",
            of(&EARTH, large, databases),
        )
        .at_least(6.0 / 2.0),
        Criterion::new(
            "Facebook: DoF of databases, larger ÷ smaller",
            FIGURE_8,
            "about 1: capacity does not help",
            of(&FACEBOOK, large, databases) / of(&FACEBOOK, small, databases),
        )
        .within_percent(1.0, 33.0),
        Criterion::new(
            "DoF of other files, highest mean",
            FIGURE_8,
            "1.1",
            others.fold(f64::NAN, f64::max),
        )
        .at_most(1.2),
    ]
}
