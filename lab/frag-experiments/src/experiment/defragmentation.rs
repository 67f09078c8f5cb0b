//! S4 §6.2.1 and 6.2.2, Fig. 17: the files of Fig. 14, with nothing reserved, before and after e4defrag, which
//! copies, and after `mobifs frag defrag --remap`, as janusd.

use std::path::PathBuf;
use std::process::Command;

use mobifs_charts::{Bars, Legend, Table, bar_chart};
use mobifs_device_server::DeviceCounts;
use mobifs_experiments::{Criterion, figure};
use serde::Serialize;
use serde_json::json;

use super::MIB;
use super::preallocation::append_one;
use crate::aged::{Free, State, age};
use crate::degrees::{Degrees, files_with_ending};
use crate::disk::{Disk, Wanted, run as run_program};
use crate::error::FragError;
use crate::outcome::{Figure, Outcome};
use crate::settings::{Extent, Settings};
use crate::together::together;

const ENDING: &str = ".appended";
const STATES: [State; 3] = [State::Low, State::High, State::Holes8];
const FIGURE_17: &str = "S4 §6.2.1, Fig. 17a";
const FIGURE_17B: &str = "S4 §6.2.2, Fig. 17b";

/// What defragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Tool {
    E4defrag,
    Remap,
}

impl Tool {
    const ALL: [Self; 2] = [Self::E4defrag, Self::Remap];

    const fn name(self) -> &'static str {
        match self {
            Self::E4defrag => "e4defrag",
            Self::Remap => "remapping",
        }
    }

    fn run(self, paths: &[PathBuf], settings: &Settings) -> Result<(), FragError> {
        match self {
            Self::E4defrag => {
                for path in paths {
                    settings.check()?;
                    run_program(Command::new("e4defrag").arg(path))?;
                }
            }
            Self::Remap => {
                let options = mobifs_defragmenter::Options {
                    mode: mobifs_defragmenter::Mode::Remap,
                    takes_all: true,
                    ..mobifs_defragmenter::Options::default()
                };
                let is_cancelled = || settings.check().is_err();
                mobifs_defragmenter::defragment(paths, &options, &is_cancelled)?;
                settings.check()?;
            }
        }
        Ok(())
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
struct Point {
    tool: Tool,
    state: State,
    threads: usize,
    free: Free,
    before: Degrees,
    after: Degrees,
    /// What the device did meanwhile.
    counts: DeviceCounts,
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
        for (&threads, tool) in threads.iter().flat_map(|n| Tool::ALL.map(|tool| (n, tool))) {
            settings.check()?;
            points.push(measure((tool, state, threads), disk_bytes, settings)?);
        }
    }
    Ok(Outcome {
        name: "defragmentation",
        title: "Defragmentation by copying and by remapping (S4 Fig. 17)",
        method: format!(
            "Threads append 4 KiB at a time, durable, to files of their own up to 512 KiB, as for Fig. 14 \
             with nothing reserved, on ext4 of {} MiB; then e4defrag of e2fsprogs defragments them, or, on another \
             device of the same state, mobifs frag defrag --remap --all. Extents, and bytes that are programmed until \
             everything is durable, are counted; no figure is a time.",
            disk_bytes / MIB
        ),
        tables: vec![table(&points)],
        figures: vec![Figure {
            caption: "Degrees before, after e4defrag, and after remapping, as in S4 Fig. 17a".to_owned(),
            svg: picture_of(&points)?,
        }],
        criteria: criteria(&points),
        notes: vec![
            "e4defrag may only put a file into one place; remapping also brings free room together.".to_owned(),
        ],
        data: json!({ "points": points }),
        seconds: 0.0,
    })
}

fn measure(
    (tool, state, threads): (Tool, State, usize),
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
    // What was written before is still being folded, which is no cost of the tool.
    disk.rest(settings)?;
    let counts = disk.counts()?;
    tool.run(&paths, settings)?;
    disk.sync()?;
    Ok(Point {
        tool,
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
            "by",
            "before",
            "after",
            "files, KB",
            "programmed, KB",
        ],
    );
    for point in points {
        table.rows.push(vec![
            point.state.name().to_owned(),
            point.threads.to_string(),
            point.tool.name().to_owned(),
            figure(point.before.mean_dof),
            figure(point.after.mean_dof),
            figure(point.before.bytes as f64 / 1e3),
            figure(point.counts.programmed_bytes as f64 / 1e3),
        ]);
    }
    table
}

fn picture_of(points: &[Point]) -> Result<String, FragError> {
    let of_tool = |tool| points.iter().filter(move |point| point.tool == tool);
    let series = |tool, of: fn(&Point) -> f64| of_tool(tool).map(|point| Some(of(point))).collect();
    let bars = Bars {
        categories: of_tool(Tool::E4defrag)
            .map(|point| format!("{}, {} threads", point.state.name(), point.threads))
            .collect(),
        series: vec![
            (
                "before".to_owned(),
                series(Tool::E4defrag, |point| point.before.mean_dof),
            ),
            (
                "e4defrag".to_owned(),
                series(Tool::E4defrag, |point| point.after.mean_dof),
            ),
            (
                "remapping".to_owned(),
                series(Tool::Remap, |point| point.after.mean_dof),
            ),
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

/// What is found at a state with ten threads.
fn find(points: &[Point], tool: Tool, state: State) -> Option<&Point> {
    let mut points = points.iter();
    points.find(|point| (point.tool, point.state, point.threads) == (tool, state, 10))
}

fn criteria(points: &[Point]) -> Vec<Criterion> {
    let mut criteria = of_copying(points);
    criteria.extend(of_remapping(points));
    criteria
}

fn of_copying(points: &[Point]) -> Vec<Criterion> {
    let after =
        |state| find(points, Tool::E4defrag, state).map_or(f64::NAN, |point| point.after.mean_dof);
    let high = find(points, Tool::E4defrag, State::High);
    let share = high.map_or(f64::NAN, |point| {
        point.after.mean_dof / point.before.mean_dof
    });
    let copied = || {
        let points = points.iter();
        points.filter(|point| point.tool == Tool::E4defrag)
    };
    let low = copied().filter(|point| point.state == State::Low);
    // Where there is no room for whole files, some are not copied.
    let whole = copied().filter(|point| point.after.mean_dof <= 1.0);
    let written = whole.map(|point| point.counts.bytes_written as f64 / point.before.bytes as f64);
    let large = high.map_or(f64::NAN, |point| point.free.large_extents as f64);
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
            "bytes written to the device ÷ bytes of the files, where all are whole then, least",
            FIGURE_17B,
            "copying writes all of them (figure only)",
            written.fold(f64::NAN, f64::min),
        )
        .at_least(1.0),
    ];
    criteria.extend(evidence);
    criteria
}

/// S4 6.2.2: janusd reaches what copying does with 98 % fewer flash writes.
fn of_remapping(points: &[Point]) -> Vec<Criterion> {
    let share = |state, of: fn(&Point) -> f64| {
        let both = Tool::ALL.map(|tool| find(points, tool, state).map(of));
        match both {
            [Some(copied), Some(remapped)] => remapped / copied,
            _ => f64::NAN,
        }
    };
    let programmed = |threads| {
        let mut points = points.iter();
        let wanted = (Tool::Remap, State::Low, threads);
        let point = points.find(|point| (point.tool, point.state, point.threads) == wanted);
        point.map_or(f64::NAN, |point| point.counts.programmed_bytes as f64)
    };
    let evidence = [Criterion::new(
        "Low: bytes programmed by remapping, 10 threads ÷ 5",
        FIGURE_17B,
        "not measured in S4",
        programmed(10) / programmed(5),
    )
    // In proportion to the files it would be 2.
    .at_most(1.25)];
    let mut criteria = vec![
        Criterion::new(
            "10 threads: DoF by remapping ÷ by copying, Low, High, Severe, highest",
            FIGURE_17,
            "1",
            STATES
                .map(|state| share(state, |point| point.after.mean_dof))
                .into_iter()
                .fold(f64::NAN, f64::max),
        )
        .at_most(1.0),
        Criterion::new(
            "Low, 10 threads: bytes programmed by remapping ÷ by copying",
            FIGURE_17B,
            "0.02",
            share(State::Low, |point| point.counts.programmed_bytes as f64),
        )
        .at_most(0.02)
        .explained_by(
            "the files are so small (512 KB each) that what a run costs besides, ext4's metadata and the device's \
             mapping, is more than that, and does not grow with them",
            &evidence,
        ),
    ];
    criteria.extend(evidence);
    criteria
}
