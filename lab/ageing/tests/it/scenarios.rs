//! Days of a phone, on real filesystems.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use mobifs_ageing::run::{self, Event};
use mobifs_ageing::{
    AgeError, Filesystem, Location, OpenedLocation, Settings, Source, State, Through, Where, Work,
};
use tempfile::TempDir;

use crate::disk::{Disk, scratch};

/// Two days of some minutes, with small files: seconds of work.
fn settings(seed: u64) -> Settings {
    Settings {
        seed,
        days: 2,
        minutes_per_day: 6.0,
        scale: 0.004,
        start_full_permille: 500,
        full_permille: 800,
        clean_bytes: 300_000,
        update_days: 1,
    }
}

/// Apps that have all journal modes and all kinds of files.
fn apps() -> Vec<Source> {
    let mut sources = Source::built_in();
    let names = ["facebook", "chrome", "wechat", "gmail", "camera", "gallery"];
    sources.retain(|source| names.iter().any(|name| source.name.ends_with(name)));
    assert_eq!(sources.len(), names.len());
    sources
}

fn image(base: &TempDir, filesystem: Filesystem, through: Through) -> Location {
    Location {
        place: Where::Image {
            path: base.path().join("phone.img"),
            filesystem,
            capacity_bytes: 384 << 20,
        },
        through,
    }
}

/// Ages it to the end; the checksum of each day.
fn aged(location: &Location, settings: &Settings) -> Vec<String> {
    let (place, mut state) = run::scenarios(location, settings, &apps()).unwrap();
    let stop = AtomicBool::new(false);
    run::go_on(&place, &mut state, &stop, &mut |_| {}).unwrap();
    place.close().unwrap();
    let loaded = State::load(&location.state_path()).unwrap();
    assert_eq!(checksums(&loaded), checksums(&state));
    checksums(&state)
}

fn checksums(state: &State) -> Vec<String> {
    let Work::Scenarios(work) = &state.work else {
        panic!("no scenarios");
    };
    work.days.iter().map(|day| day.checksum.clone()).collect()
}

/// Whether images of this filesystem can be made here.
fn can(filesystem: &str) -> bool {
    Disk::new(filesystem, 384 << 20).is_some()
}

#[test]
fn the_same_seed_makes_the_same_tree_on_ext4_btrfs_and_xfs() {
    let mut all = Vec::new();
    for filesystem in [Filesystem::Ext4, Filesystem::Btrfs, Filesystem::Xfs] {
        if !can(filesystem.name()) {
            continue;
        }
        let of = |seed| {
            let base = scratch();
            aged(&image(&base, filesystem, Through::Plain), &settings(seed))
        };
        let (one, same) = (of(5), of(5));
        assert_eq!(one.len(), 3);
        assert_eq!(one, same, "{filesystem:?}");
        all.push(one);
    }
    if let Some(first) = all.first() {
        let base = scratch();
        let other = aged(
            &image(&base, Filesystem::Ext4, Through::Plain),
            &settings(6),
        );
        assert!(first.iter().zip(&other).all(|(one, other)| one != other));
    }
}

#[test]
fn a_stopped_run_is_resumed_to_the_same_tree() {
    if !can("ext4") {
        return;
    }
    let base = scratch();
    let whole = aged(
        &image(&base, Filesystem::Ext4, Through::Plain),
        &settings(7),
    );
    for stop_at in [1, 7, 9] {
        let base = scratch();
        let location = image(&base, Filesystem::Ext4, Through::Plain);
        let (place, mut state) = run::scenarios(&location, &settings(7), &apps()).unwrap();
        let stop = AtomicBool::new(false);
        let mut sessions = 0;
        let stopped = run::go_on(&place, &mut state, &stop, &mut |event| {
            if matches!(event, Event::Session { .. }) {
                sessions += 1;
                stop.store(sessions == stop_at, Ordering::Relaxed);
            }
        });
        assert!(matches!(stopped, Err(AgeError::Cancelled)), "{stopped:?}");
        drop(place);
        let mut state = State::load(&location.state_path()).unwrap();
        let place = OpenedLocation::open(&state.location).unwrap();
        let on = AtomicBool::new(false);
        run::go_on(&place, &mut state, &on, &mut |_| {}).unwrap();
        assert_eq!(checksums(&state), whole, "stopped at {stop_at}");
    }
}

#[test]
fn what_is_measured_and_counted_is_in_the_report() {
    if !can("ext4") {
        return;
    }
    let base = scratch();
    let location = image(&base, Filesystem::Ext4, Through::Plain);
    aged(&location, &settings(1));
    let state = State::load(&location.state_path()).unwrap();
    let Work::Scenarios(work) = &state.work else {
        panic!("no scenarios");
    };
    assert_eq!(work.written_by, "block device");
    let last = &work.days[2];
    assert!(last.files > 100, "{last:?}");
    assert!(work.days[1].written_bytes > 1 << 20);
    assert!(last.mean_dof_by_kind["sqlite"].unwrap() > 1.0, "{last:?}");
    let text = mobifs_ageing::table(&state);
    assert!(text.contains(&last.checksum), "{text}");
    assert!(work.days[2].sessions > 6, "updates on the second day");
}

fn refused(result: Result<(OpenedLocation, State), AgeError>, words: &str) {
    let said = result.unwrap_err().to_string();
    assert!(said.contains(words), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

fn directory(path: PathBuf) -> Location {
    Location {
        place: Where::Directory(path),
        through: Through::Plain,
    }
}

#[test]
fn settings_out_of_range_and_damaged_profiles_are_refused() {
    type Change = fn(&mut Settings);
    let base = scratch();
    let here = directory(base.path().to_owned());
    let wrongs: [(Change, &str); 7] = [
        (|wrong| wrong.seed = u64::MAX, "--seed"),
        (|wrong| wrong.days = 0, "--days"),
        (|wrong| wrong.scale = f64::NAN, "--scale"),
        (|wrong| wrong.scale = 0.0, "--scale"),
        (|wrong| wrong.minutes_per_day = 1e9, "--minutes-per-day"),
        (
            |wrong| wrong.start_full_permille = 900,
            "--start-full is 90 %, and must be less than --full",
        ),
        (|wrong| wrong.update_days = 0, "--update-days"),
    ];
    for (change, words) in wrongs {
        let mut wrong = settings(1);
        change(&mut wrong);
        refused(run::scenarios(&here, &wrong, &apps()), words);
    }
    let damaged = Source {
        name: "mine.toml".to_owned(),
        text: "schema = 1\nname = 7".to_owned(),
    };
    refused(run::scenarios(&here, &settings(1), &[damaged]), "mine.toml");
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
}

#[test]
fn places_that_cannot_age_are_refused_and_nothing_is_lost() {
    let base = scratch();
    let of = |location: &Location, settings: &Settings| run::scenarios(location, settings, &apps());
    let usual = settings(1);
    let here = directory(base.path().to_owned());
    let file = base.path().join("file");
    fs::write(&file, "mine").unwrap();
    refused(of(&here, &usual), "is not empty (it has file)");
    refused(of(&directory(file.clone()), &usual), "no directory");
    let gone = directory(base.path().join("gone"));
    refused(of(&gone, &usual), "No such file");
    let on_image = |path: &Path, capacity_bytes| Location {
        place: Where::Image {
            path: path.to_owned(),
            filesystem: Filesystem::Ext4,
            capacity_bytes,
        },
        through: Through::Plain,
    };
    refused(of(&on_image(&file, 1 << 30), &usual), "is there already");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    let image = base.path().join("new.img");
    refused(of(&on_image(&image, 1 << 20), &usual), "--capacity");
    let through = Location {
        through: Through::Mount,
        ..here
    };
    refused(of(&through, &usual), "--image");
    if can("ext4") {
        let large = Settings {
            scale: 1.0,
            ..usual
        };
        refused(of(&on_image(&image, 256 << 20), &large), "smaller --scale");
    }
    assert_eq!(
        fs::read_dir(base.path()).unwrap().count(),
        1,
        "the file only"
    );
}

/// A run of 30 days ended without its report because another program looked at the disk just then.
#[test]
fn a_disk_that_is_busy_for_a_moment_is_unmounted_all_the_same() {
    if !can("ext4") {
        return;
    }
    let base = scratch();
    let site = image(&base, Filesystem::Ext4, Through::Plain);
    let (place, _) = run::scenarios(&site, &settings(1), &apps()).unwrap();
    let disk = place.lower().to_owned();
    let used = fs::File::open(&disk).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            drop(used);
        });
        place.close().unwrap();
    });
    assert_eq!(names(&disk).len(), 0);
}

/// Nothing is installed first, which on a large one takes minutes.
#[test]
fn a_filesystem_whose_files_have_no_places_is_refused_before_anything_is_done() {
    let is_there = Path::new("/dev/shm").is_dir();
    if !mobifs_skip::can((!is_there).then_some("no /dev/shm")) {
        return;
    }
    let base = tempfile::tempdir_in("/dev/shm").unwrap();
    let small = Settings {
        start_full_permille: 0,
        ..settings(1)
    };
    let here = directory(base.path().to_owned());
    refused(run::scenarios(&here, &small, &apps()), "lies on tmpfs");
    assert_eq!(names(base.path()).len(), 0);
}

/// The lack of room is found by the plan, before a directory is touched.
#[test]
fn a_filesystem_that_is_too_small_is_left_as_it_was() {
    let Some(disk) = Disk::new("ext4", 256 << 20) else {
        return;
    };
    let large = Settings {
        scale: 1.0,
        ..settings(1)
    };
    let before: Vec<_> = names(&disk.path());
    refused(
        run::scenarios(&directory(disk.path()), &large, &apps()),
        "smaller --scale",
    );
    assert_eq!(names(&disk.path()), before);
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// What a run leaves that is killed before it has a state, from its first directory on to the mounted filesystem:
/// it could be neither started again, as something was there, nor resumed, as there was no state.
#[test]
fn a_run_that_was_killed_before_it_had_a_state_is_started_again() {
    if !can("ext4") {
        return;
    }
    for step in 0..4 {
        let base = scratch();
        let location = image(&base, Filesystem::Ext4, Through::Plain);
        let beside = base.path().join("phone.img.age");
        let (new, disk) = (beside.join("image"), beside.join("disk"));
        fs::create_dir(&beside).unwrap();
        if step > 0 {
            let file = fs::File::create(&new).unwrap();
            file.set_len(128 << 20).unwrap();
        }
        if step > 1 {
            succeed(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&new));
            fs::create_dir(&disk).unwrap();
            fs::write(beside.join("state.json.new"), "{").unwrap();
        }
        if step > 2 {
            let mut mount = Command::new("mount");
            succeed(mount.args(["-o", "loop"]).arg(&new).arg(&disk));
        }
        let said = State::load(&Location::state_of(&base.path().join("phone.img")));
        let said = said.unwrap_err().to_string();
        assert!(said.contains("start one without --resume"), "{said}");
        let (place, state) = run::scenarios(&location, &settings(1), &apps()).unwrap();
        place.close().unwrap();
        assert!(
            !new.exists() && base.path().join("phone.img").is_file(),
            "step {step}"
        );
        assert_eq!(names(&disk).len(), 0, "step {step}: nothing stays mounted");
        // Killed between its state and the name of its image.
        fs::rename(base.path().join("phone.img"), &new).unwrap();
        OpenedLocation::open(&state.location)
            .unwrap()
            .close()
            .unwrap();
        assert!(base.path().join("phone.img").is_file(), "step {step}");
    }
    let base = scratch();
    let location = image(&base, Filesystem::Ext4, Through::Plain);
    let beside = base.path().join("phone.img.age");
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("mine"), "mine").unwrap();
    fs::write(beside.join("image"), "mine, too").unwrap();
    let result = run::scenarios(&location, &settings(1), &apps());
    refused(result, "is there already");
    assert_eq!(names(&beside).len(), 2, "nothing of another's goes");
}

/// The same of a directory, in which a probe and the beginning of a state can be left.
#[test]
fn a_directory_whose_run_was_killed_before_it_had_a_state_is_aged() {
    let Some(disk) = Disk::new("ext4", 384 << 20) else {
        return;
    };
    let here = directory(disk.path());
    fs::write(disk.path().join(".mobifs-age-probe"), [1; 4096]).unwrap();
    fs::write(disk.path().join("mobifs-age.json.new"), "{").unwrap();
    let (place, _state) = run::scenarios(&here, &settings(1), &apps()).unwrap();
    place.close().unwrap();
    let mut left = names(&disk.path());
    left.sort();
    assert_eq!(left, ["lost+found", "mobifs-age.json"]);
}

fn names(directory: &Path) -> Vec<std::ffi::OsString> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn a_damaged_or_missing_state_is_refused() {
    let base = scratch();
    let path = base.path().join("state.json");
    let said = |path: &Path| State::load(path).unwrap_err().to_string();
    assert!(said(&path).contains("without --resume"), "{}", said(&path));
    for text in ["", "{", "{}", "{\"schema\": 1}", "\u{0}\u{0}"] {
        fs::write(&path, text).unwrap();
        assert!(said(&path).contains("is damaged"), "{}", said(&path));
        assert_eq!(said(&path).lines().count(), 1);
    }
}

#[test]
fn only_one_run_ages_a_directory() {
    let base = scratch();
    let location = Location {
        place: Where::Directory(base.path().to_owned()),
        through: Through::Plain,
    };
    let first = OpenedLocation::create(&location).unwrap();
    let second = OpenedLocation::open(&location).unwrap_err();
    assert!(matches!(second, AgeError::InUse(_)), "{second}");
    drop(first);
    OpenedLocation::open(&location).unwrap();
}
