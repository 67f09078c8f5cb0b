//! S4 §6.2.1, Fig. 17: the files of Fig. 14, with nothing reserved, before and after e4defrag.

use std::process::Command;

use mobifs_charts::{Bars, Legend, bar_chart};
use mobifs_experiments::{Criterion, figure};
use serde::Serialize;
use serde_json::json;

use super::MIB;
use super::preallocation::append_one;
use crate::aged::{Free, State, age};
use crate::degrees::{Degrees, files_with_ending};
use crate::disk::{Counts, Disk, Wanted, run as run_program};
use crate::error::FragError;
use crate::outcome::{Figure, Outcome, Table};
use crate::settings::{Extent, Settings};
use crate::together::together;

const ENDING: &str = ".appended";
const STATES: [State; 3] = [State::Low, State::High, State::Holes8];
const FIGURE_17: &str = "S4 §6.2.1, Fig. 17a";
const FIGURE_17B: &str = "S4 §6.2.2, Fig. 17b";

/// One run.
#[derive(Clone, Debug, Serialize)]
struct Point {
    state: State,
    threads: usize,
    free: Free,
    before: Degrees,
    after: Degrees,
    /// What the device did meanwhile.
    counts: Counts,
}

/// The experiment.
pub(crate) fn run(settings: &Settings) -> Result<Outcome, FragError> {
    let threads: &[usize] = match settings.extent {
        Extent::Tiny => &[2],
        Extent::Reduced => &[1, 5, 10],
        Extent::Full => &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    };
    let disk_bytes = settings.extent.of(128 * MIB, 1024 * MIB, 4096 * MIB);
    let mut points = Vec::new();
    for state in STATES {
        for &threads in threads {
            settings.check()?;
            points.push(measure(state, threads, disk_bytes, settings)?);
        }
    }
    Ok(Outcome {
        name: "defragmentation",
        title: "Defragmentation by copying (S4 Fig. 17)",
        method: format!(
            "Threads append 4 KiB at a time, durable, to files of their own up to 512 KiB, as for Fig. 14 \
             with nothing reserved, on ext4 of {} MiB; then e4defrag of e2fsprogs defragments them. \
             Extents and bytes at the device are counted; no figure is a time.",
            disk_bytes / MIB
        ),
        tables: vec![table(&points)],
        figures: vec![Figure {
            caption: "Degrees before and after e4defrag, as in S4 Fig. 17a".to_owned(),
            svg: picture_of(&points)?,
        }],
        criteria: criteria(&points),
        notes: vec![
            "S4 has janusd in Fig. 17 as well, which remaps instead of copying; this experiment copies only."
                .to_owned(),
        ],
        data: json!({ "points": points }),
        seconds: 0.0,
    })
}

fn measure(
    state: State,
    threads: usize,
    disk_bytes: u64,
    settings: &Settings,
) -> Result<Point, FragError> {
    let disk = Disk::new(&settings.scratch, Wanted::ext4(disk_bytes, settings.seed))?;
    let free = age(&disk, state, settings)?;
    let root = disk.root();
    together(threads, |number| {
        let path = root.join(format!("{number}{ENDING}"));
        append_one(&path, 0).map_err(|error| FragError::io(&path, error))
    })?;
    let paths = files_with_ending(&root, ENDING)?;
    let before = Degrees::of(&paths)?;
    disk.sync()?;
    let counts = disk.counts()?;
    for path in &paths {
        settings.check()?;
        run_program(Command::new("e4defrag").arg(path))?;
    }
    disk.sync()?;
    Ok(Point {
        state,
        threads,
        free,
        before,
        after: Degrees::of(&paths)?,
        counts: disk.counts()?.since(&counts),
    })
}

fn table(points: &[Point]) -> Table {
    let mut table = Table::new(
        "Mean DoF, and what reached the device",
        &[
            "state",
            "threads",
            "before",
            "after e4defrag",
            "files, KB",
            "written, KB",
        ],
    );
    for point in points {
        table.rows.push(vec![
            point.state.name().to_owned(),
            point.threads.to_string(),
            figure(point.before.mean_dof),
            figure(point.after.mean_dof),
            figure(point.before.bytes as f64 / 1e3),
            figure(point.counts.bytes_written as f64 / 1e3),
        ]);
    }
    table
}

fn picture_of(points: &[Point]) -> Result<String, FragError> {
    let series = |of: fn(&Point) -> f64| points.iter().map(|point| Some(of(point))).collect();
    let bars = Bars {
        categories: points
            .iter()
            .map(|point| format!("{}, {} threads", point.state.name(), point.threads))
            .collect(),
        series: vec![
            ("before".to_owned(), series(|point| point.before.mean_dof)),
            ("e4defrag".to_owned(), series(|point| point.after.mean_dof)),
        ],
    };
    let caption = "mean DoF (S4 Fig. 17a)".to_owned();
    Ok(bar_chart(
        640,
        caption,
        "mean DoF",
        Legend::UpperRight,
        &bars,
    )?)
}

fn criteria(points: &[Point]) -> Vec<Criterion> {
    let find = |state| {
        let mut points = points.iter();
        points.find(|point| point.state == state && point.threads == 10)
    };
    let after = |state| find(state).map_or(f64::NAN, |point| point.after.mean_dof);
    let share = find(State::High).map_or(f64::NAN, |point| {
        point.after.mean_dof / point.before.mean_dof
    });
    let low = points.iter().filter(|point| point.state == State::Low);
    let written = points
        .iter()
        .map(|point| point.counts.bytes_written as f64 / point.before.bytes as f64);
    let large = find(State::High).map_or(f64::NAN, |point| point.free.large_extents as f64);
    let evidence = [Criterion::new(
        "High: free extents above 512 KiB",
        FIGURE_17,
        "not measured in S4",
        large,
    )
    // One for each file.
    .at_least(10.0)];
    let mut criteria = vec![
        Criterion::new(
            "Low: DoF after e4defrag, highest mean",
            FIGURE_17,
            "1",
            low.map(|point| point.after.mean_dof).fold(f64::NAN, f64::max),
        )
        .at_most(1.0),
        Criterion::new(
            "High, 10 threads: DoF after ÷ before",
            FIGURE_17,
            "about one half",
            share,
        )
        .within_percent(0.5, 50.0)
        .explained_by(
            "this High has free extents for whole files, which S4's had not, so that e4defrag finds them",
            &evidence,
        ),
        Criterion::new(
            "Severe, 10 threads: mean DoF after e4defrag",
            FIGURE_17,
            "not measured in S4",
            after(State::Holes8),
        )
        .judged_if(false),
        Criterion::new(
            "bytes written to the device ÷ bytes of the files, least",
            FIGURE_17B,
            "copying writes all of them (figure only)",
            written.fold(f64::NAN, f64::min),
        )
        .at_least(1.0),
    ];
    criteria.extend(evidence);
    criteria
}
