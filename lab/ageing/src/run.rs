//! A run: day after day, or on from the last one that was over.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::checksum::Checksum;
use crate::content::{mix, mix_name, write_content};
use crate::error::{AgeError, OnPath as _};
use crate::execute::Executor;
use crate::fill::{self, Procedure};
use crate::place::{Location, OpenedLocation, Through, forget};
use crate::plan::{Planner, Session};
use crate::profile::{Profile, Source, profiles};
use crate::settings::{SEED_MAX, Settings};
use crate::space::Space;
use crate::state::{Day, Kept, LargeAndSmall, SCHEMA, Scenarios, State, Work};

/// What the first file takes is whole block groups of ext4, on filesystems of some size.
const GROUP_BYTES: u64 = 128 << 20;
const SMALL_GROUP_BYTES: u64 = 1 << 20;
const SMALL_BYTES: u64 = 8 << 30;
const FILLER: &str = "filler.bin";
/// What the VFS of MobiFS keeps beside a database.
const VFS_BYTES: u64 = 1_200_000;

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub enum Event<'e> {
    /// A session begins.
    Session {
        /// Its day, and the last day.
        day: (u32, u32),
        /// Its number on this day, and how many there are.
        number: (usize, usize),
        /// What is done.
        title: &'e str,
    },
    /// A day is over.
    Day(&'e Day),
    /// The progress with large and small files.
    Fill(fill::Progress),
}

/// Gets the progress of a run.
pub type Watch<'w> = dyn FnMut(Event<'_>) + 'w;

/// The share that counts as full, of 1000: what the metadata of a filesystem leaves.
#[must_use]
pub fn full_permille(filesystem: &str) -> u32 {
    match filesystem {
        "btrfs" => 900,
        "xfs" => 960,
        _ => 980,
    }
}

/// Prepares a run of scenarios: makes the place, plans all days, and keeps that as the state.
///
/// # Errors
/// Something is out of range, or there, or too small; nothing is changed then but that a new image is gone
/// again.
pub fn scenarios(
    location: &Location,
    settings: &Settings,
    sources: &[Source],
) -> Result<(OpenedLocation, State), AgeError> {
    settings.check()?;
    let profiles = profiles(sources)?;
    let place = OpenedLocation::create(location)?;
    place.check_map()?;
    let before = Space::of(place.lower())?;
    let filler_bytes = filler_bytes(settings, before);
    let kept = sources.iter().map(|source| Kept {
        name: source.name.clone(),
        text: source.text.clone(),
    });
    let checksum = sources
        .iter()
        .fold(0, |sum, source| mix_name(mix(sum, 1), &source.text));
    let (_, written_by) = place.written_bytes()?;
    let work = Scenarios {
        settings: settings.clone(),
        profiles: kept.collect(),
        profiles_checksum: format!("{checksum:016x}"),
        before,
        filler_bytes,
        is_prepared: false,
        written_by: written_by.to_owned(),
        days: Vec::new(),
        is_within_day: false,
    };
    let planned = plan(&work, location.through, &profiles, |_, _| Ok(()));
    let state = State {
        schema: SCHEMA,
        location: location.clone(),
        work: Work::Scenarios(work),
    };
    begun(place, state, planned)
}

/// A run begins with its state; without one, nothing of it stays.
fn begun(
    place: OpenedLocation,
    state: State,
    may_begin: Result<(), AgeError>,
) -> Result<(OpenedLocation, State), AgeError> {
    if let Err(error) = may_begin.and_then(|()| state.save()) {
        drop(place);
        forget(&state.location);
        return Err(error);
    }
    place.keep_image()?;
    Ok((place, state))
}

/// Prepares a run of large and small files.
///
/// # Errors
/// As those of [`scenarios`].
pub fn large_and_small(
    location: &Location,
    choose: impl FnOnce(Space) -> Procedure,
) -> Result<(OpenedLocation, State), AgeError> {
    if location.through == Through::Vfs {
        return Err(AgeError::OutOfRange {
            name: "--through",
            value: "vfs with --fill".to_owned(),
            range: "plain, as no databases are filled",
        });
    }
    let place = OpenedLocation::create(location)?;
    let before = Space::of(place.upper())?;
    let procedure = choose(before);
    let checked = procedure.check().and_then(|()| check_seed(procedure.seed));
    let state = State {
        schema: SCHEMA,
        location: location.clone(),
        work: Work::LargeAndSmall(LargeAndSmall {
            procedure,
            before,
            filled: None,
        }),
    };
    begun(place, state, checked)
}

fn check_seed(seed: u64) -> Result<(), AgeError> {
    if seed <= SEED_MAX {
        return Ok(());
    }
    Err(AgeError::OutOfRange {
        name: "--seed",
        value: seed.to_string(),
        range: "0 to 9007199254740991",
    })
}

/// Does the rest of a run.
///
/// # Errors
/// It was stopped, or something failed; the state says how far it came.
pub fn go_on(
    place: &OpenedLocation,
    state: &mut State,
    stop: &AtomicBool,
    watch: &mut Watch<'_>,
) -> Result<(), AgeError> {
    let done = work(place, state, stop, watch);
    done.map_err(|error| place.explained(error))
}

fn work(
    place: &OpenedLocation,
    state: &mut State,
    stop: &AtomicBool,
    watch: &mut Watch<'_>,
) -> Result<(), AgeError> {
    match &state.work {
        Work::Scenarios(_) => days(place, state, stop, watch),
        Work::LargeAndSmall(work) => {
            let (procedure, before) = (work.procedure, work.before);
            let mut watch = |progress| {
                watch(Event::Fill(progress));
                if stop.load(Ordering::Relaxed) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let apply = || place.apply();
            let filled =
                fill::resume_and_apply(place.upper(), &procedure, before, &mut watch, &apply)?;
            state.work = Work::LargeAndSmall(LargeAndSmall {
                procedure,
                before,
                filled: Some(filled),
            });
            state.save()
        }
    }
}

/// Gives all days to `each`, which stops them by an error.
fn plan(
    work: &Scenarios,
    through: Through,
    profiles: &[Profile],
    mut each: impl FnMut(u32, Vec<Session>) -> Result<(), AgeError>,
) -> Result<(), AgeError> {
    let databases = profiles.iter().flat_map(|profile| &profile.databases);
    let beside = match through {
        Through::Vfs => databases.map(|group| group.count).sum::<u64>() * VFS_BYTES,
        _ => 0,
    };
    let used = work.before.used_bytes + work.filler_bytes + beside;
    let mut planner = Planner::new(&work.settings, profiles, work.before, used);
    for day in 0..=work.settings.days {
        let sessions = planner.day(day)?;
        each(day, sessions)?;
    }
    Ok(())
}

fn days(
    place: &OpenedLocation,
    state: &mut State,
    stop: &AtomicBool,
    watch: &mut Watch<'_>,
) -> Result<(), AgeError> {
    let Work::Scenarios(work) = &mut state.work else {
        return Ok(());
    };
    let sources: Vec<Source> = work.profiles.iter().map(Kept::source).collect();
    let profiles = profiles(&sources)?;
    let through = state.location.through;
    if through == Through::Vfs {
        mobifs_sqlite::register().map_err(|error| AgeError::Tool {
            program: "the VFS of MobiFS".to_owned(),
            said: error.to_string(),
        })?;
    }
    if !work.is_prepared {
        prepare(place, work)?;
        work.is_prepared = true;
        state.save()?;
    }
    let Work::Scenarios(work) = state.work.clone() else {
        return Ok(());
    };
    let mut checksum = Checksum::new();
    let last = work.settings.days;
    let mut resumed = work.is_within_day;
    plan(&work, through, &profiles, |day, sessions| {
        if (day as usize) < work.days.len() {
            return Ok(());
        }
        within_day(state, true)?;
        let started = Instant::now();
        let (written_before, _) = place.written_bytes()?;
        let tree = place.tree();
        let executor = Executor {
            root: &tree,
            vfs: through.vfs(),
            stop,
            steps_done: AtomicU64::new(0),
        };
        for (number, session) in sessions.iter().enumerate() {
            watch(Event::Session {
                day: (day, last),
                number: (number + 1, sessions.len()),
                title: &session.title,
            });
            place.check_host(session.bytes())?;
            executor.session(session)?;
        }
        let mut over = end_of_day(place, day, &sessions, &mut checksum)?;
        over.written_bytes = place.written_bytes()?.0.saturating_sub(written_before);
        over.seconds = started.elapsed().as_secs_f64();
        over.resumed = std::mem::take(&mut resumed);
        watch(Event::Day(&over));
        if let Work::Scenarios(work) = &mut state.work {
            work.days.push(over);
            work.is_within_day = false;
        }
        state.save()
    })
}

fn within_day(state: &mut State, is_within: bool) -> Result<(), AgeError> {
    if let Work::Scenarios(work) = &mut state.work {
        work.is_within_day = is_within;
    }
    state.save()
}

fn end_of_day(
    place: &OpenedLocation,
    day: u32,
    sessions: &[Session],
    checksum: &mut Checksum,
) -> Result<Day, AgeError> {
    let tree = place.tree();
    let directory = File::open(&tree).at("open", &tree)?;
    rustix::fs::syncfs(&directory).at("write out", &tree)?;
    let report = place.measure()?;
    let sum = |of: fn(&Session) -> u64| sessions.iter().map(of).sum();
    let kinds = report.kinds.iter();
    let mean_bytes = kinds
        .filter(|(_, counts)| counts.files > 0)
        .map(|(kind, counts)| ((*kind).to_owned(), counts.bytes / counts.files));
    let by_kind = report.mean_dof_by_kind.iter();
    Ok(Day {
        day,
        sessions: sessions.len() as u64,
        steps: sum(Session::steps),
        cleanings: sum(|session| session.cleanings),
        pictures_cleaned: sum(|session| session.pictures_cleaned),
        space: Space::of(place.lower())?,
        checksum: format!("{:016x}", checksum.of(&tree)?),
        files: report.files,
        fragmented_files: report.fragmented_files,
        mean_dof: report.mean_dof,
        mean_dof_by_kind: by_kind
            .map(|(kind, dof)| ((*kind).to_owned(), *dof))
            .collect(),
        mean_bytes_by_kind: mean_bytes.collect(),
        fs_levels: report.fs_levels.to_vec(),
        written_bytes: 0,
        seconds: 0.0,
        resumed: false,
    })
}

/// The size of the first file.
fn filler_bytes(settings: &Settings, before: Space) -> u64 {
    let small = before.total_bytes() < SMALL_BYTES;
    let group = if small {
        SMALL_GROUP_BYTES
    } else {
        GROUP_BYTES
    };
    let wanted = before
        .share(settings.start_full_permille)
        .saturating_sub(before.used_bytes);
    wanted - wanted % group
}

/// Makes the directory of the tree, and the first file: one that takes whole block groups. Its room is
/// allocated where the filesystem can do that, and else it is written.
fn prepare(place: &OpenedLocation, work: &Scenarios) -> Result<(), AgeError> {
    let tree = place.tree();
    fs::create_dir_all(&tree).at("make", &tree)?;
    let path = place.lower().join(FILLER);
    if work.filler_bytes == 0 {
        return Ok(());
    }
    let file = File::create(&path).at("make", &path)?;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, work.filler_bytes) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => written_filler(&file, &path, work)?,
        Err(error) => return Err(error).at("allocate", &path),
    }
    file.sync_all().at("sync", &path)
}

fn written_filler(file: &File, path: &Path, work: &Scenarios) -> Result<(), AgeError> {
    let seed = mix_name(work.settings.seed, FILLER);
    write_content(file, seed, 0, work.filler_bytes).at("write", path)
}
