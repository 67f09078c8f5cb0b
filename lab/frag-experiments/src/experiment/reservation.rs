//! S4 §6.1.1, Fig. 16: what steps of reserved room do to the databases of apps, and what they waste.

use std::os::unix::fs::MetadataExt as _;

use mobifs_charts::{Curve, Frame, Legend, Table, draw, picture};
use mobifs_experiments::{Criterion, figure};
use mobifs_numerics::Line;
use serde::Serialize;
use serde_json::json;

use super::{GIB, KIB};
use crate::apps::{App, FACEBOOK, use_app};
use crate::degrees::Degrees;
use crate::disk::{Disk, Wanted};
use crate::error::FragError;
use crate::outcome::{Figure, Outcome};
use crate::settings::{Extent, Settings};

const STEPS_KIB: [u64; 6] = [16, 32, 64, 128, 256, 512];
/// S4's recommendation.
const CHOSEN_KIB: u64 = 128;
const FIGURE_16: &str = "S4 §6.1.1, Fig. 16";

/// S4's apps. Of three of them it says only that most databases have tens or hundreds of kilobytes.
const APPS: [App; 4] = [
    App {
        executables: 0,
        ..FACEBOOK
    },
    App {
        name: "Twitter",
        threads: 12,
        executables: 0,
        ..FACEBOOK
    },
    App {
        name: "Chrome",
        threads: 8,
        executables: 0,
        ..FACEBOOK
    },
    App {
        name: "Messenger",
        threads: 10,
        executables: 0,
        ..FACEBOOK
    },
];

/// One app with one step.
#[derive(Clone, Debug, Serialize)]
struct Point {
    app: &'static str,
    step_kib: u64,
    databases: Degrees,
    wasted_bytes: u64,
}

/// The experiment.
pub(crate) fn run(settings: &Settings) -> Result<Outcome, FragError> {
    let (apps, steps): (&[App], &[u64]) = match settings.extent {
        Extent::Tiny => (&APPS[3..], &[16, 128]),
        _ => (&APPS, &STEPS_KIB),
    };
    // Several users of an app have more databases than one.
    let rounds = settings.extent.of(1, 2, 6);
    let mut points = Vec::new();
    for app in apps {
        for &step_kib in steps {
            points.push(measure(app, step_kib, rounds, settings)?);
        }
    }
    Ok(Outcome {
        name: "reservation",
        title: "Which step of reserved room databases need (S4 Fig. 16)",
        method: format!(
            "The databases of four apps grow beside each other by transactions of {} KB, to sizes that \
             are distributed exponentially around {} KB (S4's mean of Facebook; it gives none of the \
             others), on a pristine ext4, {rounds} times. Before a transaction that would not fit, room is reserved \
             in steps (fallocate, KEEP_SIZE). Wasted is what is reserved and not used at the end. \
             No figure is a time.",
            FACEBOOK.transaction_bytes / 1000,
            FACEBOOK.database_bytes / 1000
        ),
        tables: vec![table(&points, apps, steps)],
        figures: figures(&points, apps)?,
        criteria: criteria(&points, apps),
        notes: Vec::new(),
        data: json!({ "points": points }),
        seconds: 0.0,
    })
}

fn measure(app: &App, step_kib: u64, rounds: u64, settings: &Settings) -> Result<Point, FragError> {
    let mut databases = Vec::new();
    let disk = Disk::new(&settings.scratch, Wanted::ext4(GIB, settings.seed))?;
    for round in 0..rounds {
        let settings = Settings {
            seed: settings.seed + round,
            ..settings.clone()
        };
        let files = use_app(&disk, app, step_kib * KIB, &settings)?;
        // Each round has files of its own.
        let kept = disk.root().join(format!("round{round}"));
        std::fs::rename(disk.root().join(app.name), &kept)
            .map_err(|error| FragError::io(&kept, error))?;
        let names = files.databases.iter().filter_map(|path| path.file_name());
        databases.extend(names.map(|name| kept.join(name)));
    }
    let mut wasted_bytes = 0;
    for path in &databases {
        let about = std::fs::metadata(path).map_err(|error| FragError::io(path, error))?;
        let allocated = about.blocks() * 512;
        wasted_bytes += allocated.saturating_sub(about.len().next_multiple_of(4096));
    }
    Ok(Point {
        app: app.name,
        step_kib,
        databases: Degrees::of(&databases)?,
        wasted_bytes,
    })
}

fn of_app<'p>(points: &'p [Point], app: &App) -> Vec<&'p Point> {
    let points = points.iter();
    points.filter(|point| point.app == app.name).collect()
}

fn table(points: &[Point], apps: &[App], steps: &[u64]) -> Table {
    let mut table = Table::new(
        "Databases in one piece, and MB wasted, by step",
        &["app", "databases"],
    );
    table
        .head
        .extend(steps.iter().map(|step| format!("{step} KiB")));
    for app in apps {
        let points = of_app(points, app);
        let files = points.first().map_or(0, |point| point.databases.files);
        let mut row = vec![app.name.to_owned(), files.to_string()];
        row.extend(points.iter().map(|point| {
            format!(
                "{:.0} % · {}",
                point.databases.whole_share * 100.0,
                figure(point.wasted_bytes as f64 / 1e6)
            )
        }));
        table.rows.push(row);
    }
    table
}

fn figures(points: &[Point], apps: &[App]) -> Result<Vec<Figure>, FragError> {
    type Of = fn(&Point) -> f64;
    let drawn: [(&str, &'static str, Of); 2] = [
        ("databases in one piece", "%", |point| {
            point.databases.whole_share * 100.0
        }),
        ("room that is wasted", "MB", |point| {
            point.wasted_bytes as f64 / 1e6
        }),
    ];
    let one = |(name, unit, of): (&str, &'static str, Of)| {
        let frame = Frame {
            caption: format!("{name} (S4 Fig. 16)"),
            x_label: "step, KiB",
            y_label: unit,
            x_is_logarithmic: false,
            legend: Legend::LowerRight,
        };
        let curves: Vec<_> = apps
            .iter()
            .map(|app| {
                let points = of_app(points, app).into_iter();
                Curve::new(
                    app.name,
                    points.map(|point| (point.step_kib as f64, of(point))),
                )
            })
            .collect();
        Ok(Figure {
            caption: format!("By step of reserved room: {name}"),
            svg: picture(480, 330, |canvas| draw(canvas, &frame, &curves))?,
        })
    };
    drawn.into_iter().map(one).collect()
}

fn criteria(points: &[Point], apps: &[App]) -> Vec<Criterion> {
    let share = |step_kib: u64| {
        let points = points.iter().filter(|point| point.step_kib == step_kib);
        points
            .map(|point| point.databases.whole_share * 100.0)
            .fold(f64::NAN, f64::min)
    };
    let lines: Vec<_> = apps
        .iter()
        .filter_map(|app| {
            let points = of_app(points, app).into_iter();
            let curve: Vec<_> = points
                .map(|point| (point.step_kib as f64, point.wasted_bytes as f64))
                .collect();
            Line::through(&curve)
        })
        .collect();
    let straightest = lines.iter().map(|line| line.r_squared);
    vec![
        Criterion::new(
            "128 KiB: databases in one piece, least of the apps",
            FIGURE_16,
            "at least 83 %",
            share(CHOSEN_KIB),
        )
        .in_unit("%")
        .at_least(75.0),
        Criterion::new(
            "16 KiB: the same",
            FIGURE_16,
            "less (figure only)",
            share(16),
        )
        .in_unit("%")
        .at_most(share(CHOSEN_KIB)),
        Criterion::new(
            "512 KiB ÷ 128 KiB: databases in one piece",
            FIGURE_16,
            "the marginal gain became very small",
            share(512) / share(CHOSEN_KIB),
        )
        .at_least(1.0)
        .at_most(1.35),
        Criterion::new(
            "waste is a line in the step: R², least of the apps",
            FIGURE_16,
            "“proportional to the preallocation size”",
            straightest.fold(f64::NAN, f64::min),
        )
        .at_least(0.95),
    ]
}
