//! `mobifs mount --record`: what programs do with a mount, as a trace.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use mobifs_numerics::Random;
use rustix::fs::{CWD, FallocateFlags, RenameFlags, XattrFlags};
use serde_json::Value;

use crate::fixture::{
    Fixture, PROGRAM, copy_program, fails, laboratory, message, mobifs, needs_laboratory,
    needs_mounts, snapshot, succeeds,
};
use crate::kills::kill;

fn trace(words: &[&str], file: &Path) -> Output {
    let words: Vec<&str> = ["trace"].iter().chain(words).copied().collect();
    mobifs(&words, file)
}

/// The events of a trace, or of a recording that is not one yet.
fn events(file: &Path) -> Vec<Value> {
    let output = trace(&["cat", "--json"], file);
    succeeds(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// What an event says, without times and processes.
fn said(event: &Value) -> String {
    let mut text = event["operation"].as_str().unwrap().to_owned();
    for key in ["path", "target", "offset", "length", "mode", "detail"] {
        match event.get(key) {
            Some(Value::String(value)) => text += &format!(" {value}"),
            Some(Value::Number(value)) if key == "mode" => {
                text += &format!(" {:o}", value.as_u64().unwrap());
            }
            Some(value) => text += &format!(" {key}={value}"),
            None => {}
        }
    }
    format!("{text} = {}", event["result"])
}

fn said_by<'a>(events: &'a [Value], process: u32) -> impl Iterator<Item = String> + 'a {
    let is_of = move |event: &&Value| event["process"] == process;
    events.iter().filter(is_of).map(said)
}

fn record_to(fixture: &Fixture) -> PathBuf {
    fixture.path("trace.parquet")
}

fn mount_recorded(fixture: &Fixture, words: &[&str]) -> PathBuf {
    let file = record_to(fixture);
    let all = [&["--record", file.to_str().unwrap()], words].concat();
    fixture.mount(&all);
    file
}

/// Everything that can be done to names and content, each with what the recording must say. The
/// kernel's own look-ups are not in it.
fn do_everything(mnt: &Path, expected: &mut Vec<String>) {
    let mut expect = |text: &str| expected.push(text.to_owned());
    let app = mnt.join("app");
    fs::create_dir(&app).unwrap();
    fs::set_permissions(&app, fs::Permissions::from_mode(0o750)).unwrap();
    expect("make_directory app 755 = 0");
    expect("set_attributes app mode = 0");

    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o640);
    let file = options.open(app.join("a")).unwrap();
    // From memory that is there: of other memory the kernel may make two requests.
    file.write_all_at(&vec![1; 5000], 0).unwrap();
    file.write_all_at(&[2; 10], 100_000).unwrap();
    file.set_len(50_000).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 50_000, 8192).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 100).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    expect("create app/a 640 = 0");
    expect("write app/a offset=0 length=5000 = 5000");
    expect("write app/a offset=100000 length=10 = 10");
    expect("truncate app/a length=50000 = 0");
    expect("allocate app/a offset=50000 length=8192 keep_size = 0");
    expect("allocate app/a offset=4096 length=100 punch_hole = 0");
    expect("sync app/a = 0");
    expect("sync app/a data = 0");

    let synchronous = OpenOptions::new()
        .write(true)
        .custom_flags(libc_flag::O_DSYNC)
        .open(app.join("a"));
    synchronous.unwrap().write_all_at(&[3; 7], 9).unwrap();
    expect("write app/a offset=9 length=7 = 7");
    expect("sync app/a data = 0");

    rustix::fs::fsetxattr(&file, "user.x", b"abc", XattrFlags::empty()).unwrap();
    rustix::fs::fremovexattr(&file, "user.x").unwrap();
    let again = rustix::fs::fremovexattr(&file, "user.x").unwrap_err();
    expect("set_xattr app/a length=3 = 0");
    expect("remove_xattr app/a = 0");
    expect(&format!("remove_xattr app/a = -{}", again.raw_os_error()));

    change_names(mnt, &file, expected);
    file.write_all_at(&[5; 2], 1).unwrap();
    drop(file);
    fs::remove_dir(mnt.join("moved")).unwrap();
    for text in [
        "write moved/s\\x00 offset=1 length=2 = 2",
        "close moved/s\\x00 = 0",
        "remove_directory moved = 0",
    ] {
        expected.push(text.to_owned());
    }
}

/// What can be done to the names of `file`, which is `app/a`, and of its directory.
fn change_names(mnt: &Path, file: &File, expected: &mut Vec<String>) {
    let mut expect = |text: &str| expected.push(text.to_owned());
    let app = mnt.join("app");
    fs::hard_link(app.join("a"), mnt.join("b")).unwrap();
    fs::rename(mnt.join("b"), app.join("c")).unwrap();
    std::os::unix::fs::symlink("c", app.join("s")).unwrap();
    let (a, s) = (app.join("a"), app.join("s"));
    rustix::fs::renameat_with(CWD, &a, CWD, &s, RenameFlags::EXCHANGE).unwrap();
    expect("link app/a b = 0");
    expect("rename b app/c = 0");
    expect("symlink app/s c = 0");
    expect("rename app/a app/s exchange = 0");

    let full = fs::remove_dir(&app).unwrap_err().raw_os_error().unwrap();
    expect(&format!("remove_directory app = -{full}"));
    fs::rename(&app, mnt.join("moved")).unwrap();
    file.write_all_at(&[4; 3], 0).unwrap();
    expect("rename app moved = 0");
    // One of its two names: the one that it got last.
    expect("write moved/s offset=0 length=3 = 3");

    let moved = mnt.join("moved");
    for name in ["a", "c", "s"] {
        fs::remove_file(moved.join(name)).unwrap();
        expect(&format!("unlink moved/{name} = 0"));
    }
}

/// Flags of `open(2)` that the standard library does not name.
mod libc_flag {
    pub(super) const O_DSYNC: i32 = 0o10_000;
    pub(super) const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
}

#[test]
fn a_recording_has_every_operation() {
    needs_mounts!();
    needs_laboratory!();
    let fixture = Fixture::new();
    let file = mount_recorded(&fixture, &[]);
    let mnt = &fixture.mountpoint;
    let mut expected = Vec::new();
    do_everything(mnt, &mut expected);
    let status = fixture.status();
    let recording = &status["recording"];
    assert_eq!(recording["file"], file.to_str().unwrap());
    assert!(recording["events"].as_u64().unwrap() > expected.len() as u64);
    assert_eq!(
        (&recording["lost"], &recording["stopped"]),
        (&0.into(), &Value::Null)
    );
    assert!(!file.exists(), "it is a trace when the mount has ended");
    fixture.umount();
    assert!(!fixture.path("trace.parquet.part").exists());

    let events = events(&file);
    let own = said_by(&events, std::process::id());
    let own: Vec<String> = own.filter(|text| !text.starts_with("stat ")).collect();
    // The kernel says that a file is closed when it comes to it.
    let (mut own, mut wanted) = (own, expected);
    let close = |texts: &mut Vec<String>| {
        let at = texts.iter().position(|text| text.starts_with("close "));
        at.map(|at| texts.remove(at))
    };
    assert_eq!(close(&mut own), close(&mut wanted));
    assert_eq!(own, wanted);
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let writes = events.iter().filter(|event| event["operation"] == "write");
    for write in writes {
        assert_eq!(
            (&write["thread"], &write["app"] == "."),
            (&thread.into(), false)
        );
    }
}

#[test]
fn reads_lookups_and_what_goes_on_around_the_mount_are_recorded() {
    needs_mounts!();
    needs_laboratory!();
    let fixture = Fixture::new();
    fs::create_dir(fixture.store.join("old")).unwrap();
    fs::write(fixture.store.join("old/f"), [7; 10_000]).unwrap();
    let file = mount_recorded(&fixture, &["-o", "noatime"]);
    let mnt = &fixture.mountpoint;
    fs::metadata(mnt.join("absent")).unwrap_err();
    let mut direct = OpenOptions::new();
    direct.read(true).custom_flags(libc_flag::O_DIRECT);
    let old = direct.open(mnt.join("old/f")).unwrap();
    let mut buffer = vec![0; 4096 * 3];
    let start = buffer.as_ptr().align_offset(4096);
    let page = &mut buffer[start..start + 4096];
    assert_eq!(old.read_at(page, 8192).unwrap(), 10_000 - 8192);
    drop(old);
    assert_eq!(fs::read_dir(mnt.join("old")).unwrap().count(), 1);
    succeeds(&mobifs(&["touch"], mnt));
    let whole = Command::new("cat").arg(mnt.join("old/f")).output().unwrap();
    assert_eq!(whole.stdout.len(), 10_000);
    if fixture.status()["sync_reaches_mount"] == true {
        rustix::fs::syncfs(File::open(mnt).unwrap().as_fd()).unwrap();
    } else {
        mobifs_skip::skip_part("sync(2) does not reach the mount");
    }
    let synced = fixture.status()["sync_reaches_mount"] == true;
    fixture.umount();

    let events = events(&file);
    let own: Vec<String> = said_by(&events, std::process::id()).collect();
    for wanted in [
        "stat absent = -2",
        "stat old = 0",
        "stat old/f = 0",
        "read old/f offset=8192 length=4096 = 1808",
        "read_directory old = 0",
    ] {
        assert!(
            own.iter().any(|text| text == wanted),
            "no {wanted:?} in {own:#?}"
        );
    }
    assert_eq!(own.iter().any(|text| text == "sync_all = 0"), synced);
    let all: Vec<String> = events.iter().map(said).collect();
    assert!(all.iter().any(|text| text == "user touch = 0"), "{all:#?}");
    // Another process, which reads as the kernel reads ahead.
    let others = events
        .iter()
        .filter(|event| event["operation"] == "read" && event["process"] != std::process::id());
    let read: i64 = others.map(|event| event["result"].as_i64().unwrap()).sum();
    assert_eq!(read, 10_000);
}

/// A tree as it can be compared: kinds, sizes, numbers of names, contents of links.
fn shape(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let about = path.symlink_metadata().unwrap();
            if name == ".mobifs" {
                continue;
            }
            if about.is_dir() {
                found.push(format!("{name}/"));
                waiting.push(path);
            } else if about.is_symlink() {
                found.push(format!(
                    "{name} -> {}",
                    fs::read_link(&path).unwrap().display()
                ));
            } else {
                found.push(format!(
                    "{name} {} bytes, {} names",
                    about.len(),
                    about.nlink()
                ));
            }
        }
    }
    found.sort();
    found
}

/// One operation on a few names, of which many fail.
fn operate(mnt: &Path, random: &mut Random, open: &mut Vec<File>) {
    const NAMES: [&str; 8] = ["a", "b", "c", "d", "x/a", "x/b", "x/y", "x/y/a"];
    let mut name = || mnt.join(NAMES[random.below(NAMES.len() as u64) as usize]);
    let (one, other) = (name(), name());
    let number = random.below(200_000);
    // That some of them fail is part of it.
    let _done: Result<(), std::io::Error> = match random.below(14) {
        0 | 1 => File::create(&one).and_then(|mut file| {
            file.write_all(&vec![1; number as usize / 10])?;
            open.push(file);
            Ok(())
        }),
        2 | 3 => OpenOptions::new()
            .append(true)
            .open(&one)
            .and_then(|mut file| {
                file.write_all(b"appended")?;
                open.push(file);
                Ok(())
            }),
        4..=6 => match open.len() {
            0 => Ok(()),
            some => open[number as usize % some].write_all_at(&[2; 3000], number),
        },
        7 => OpenOptions::new()
            .write(true)
            .open(&one)
            .and_then(|file| file.set_len(number)),
        8 => fs::create_dir(&one),
        9 => fs::remove_file(&one),
        10 => fs::remove_dir(&one),
        11 => fs::rename(&one, &other),
        12 => fs::hard_link(&one, &other),
        _ => std::os::unix::fs::symlink("a", &one),
    };
    if open.len() > 4 {
        open.remove(number as usize % open.len());
    }
}

#[test]
fn a_replay_of_a_recording_leaves_the_same_tree() {
    needs_mounts!();
    needs_laboratory!();
    for seed in 0..4 {
        let fixture = Fixture::new();
        let file = mount_recorded(&fixture, &[]);
        let (mut random, mut open) = (Random::new(seed), Vec::new());
        for _ in 0..400 {
            operate(&fixture.mountpoint, &mut random, &mut open);
        }
        drop(open);
        fixture.umount();
        let again = fixture.directory("again");
        let replayed = Command::new(PROGRAM)
            .args(["trace", "replay", "--full-speed", "--json"])
            .args([&file, &again])
            .output()
            .unwrap();
        succeeds(&replayed);
        let report: Value = serde_json::from_slice(&replayed.stdout).unwrap();
        assert_eq!(
            shape(&again),
            shape(&fixture.store),
            "seed {seed}: {report:#}"
        );
    }
}

#[test]
fn a_simulation_of_a_recording_flushes_what_the_mount_flushed() {
    needs_mounts!();
    needs_laboratory!();
    let fixture = Fixture::new();
    // Long, so that everything is committed at the end, here and there.
    let config = "[defaults]\nage_max_ms = 3600000\ninterval_ms = 3600000\n";
    let config = fixture.config(config);
    let file = mount_recorded(&fixture, &["--config", config.to_str().unwrap()]);
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    let mut random = Random::new(1);
    let data = File::create(app.join("data")).unwrap();
    // Whole pages: of others the mount counts the bytes, the simulation pages.
    for _ in 0..1000 {
        let place = random.below(300) * 4096;
        data.write_all_at(&[1; 4096], place).unwrap();
        data.write_all_at(&[2; 100], place + 50).unwrap();
    }
    for number in 0..50 {
        let path = app.join(format!("file-{number}"));
        fs::write(&path, vec![3; 8192]).unwrap();
        if number % 2 == 0 {
            fs::remove_file(&path).unwrap();
        }
    }
    data.set_len(150 * 4096).unwrap();
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    drop(data);
    let status = fixture.status();
    let apps = status["apps"].as_array().unwrap();
    let of_mount = apps.iter().find(|report| report["name"] == "app").unwrap();
    fixture.umount();

    let policy = "interval:age_max_ms=3600000,interval_ms=3600000";
    let simulated = mobifs(&["sim", "--json", "--policy", policy], &file);
    succeeds(&simulated);
    let report: Value = serde_json::from_slice(&simulated.stdout).unwrap();
    let contenders = report["traces"][0]["contenders"].as_array().unwrap();
    let contender = contenders.iter().find(|one| one["name"] != "ext4").unwrap();
    let apps = contender["apps"].as_array().unwrap();
    let of_sim = apps.iter().find(|report| report["name"] == "app").unwrap();
    assert_eq!(
        of_sim["flushed_bytes"], of_mount["bytes_sent_to_store"],
        "{of_sim:#}"
    );
    // All is flushed at the end, so what was not flushed was written again or dropped. The mount's
    // own e counts entries of directories, too, so it is another number.
    let written_pages = 2 * 1000 + 2 * 50;
    assert_eq!(of_sim["written_pages"], written_pages, "{of_sim:#}");
    let flushed_pages = of_mount["bytes_sent_to_store"].as_u64().unwrap() / 4096;
    let overwritten_pages = written_pages - flushed_pages;
    assert_eq!(of_sim["overwritten_pages"], overwritten_pages, "{of_sim:#}");
    let written: u64 = events(&file)
        .iter()
        .filter(|event| event["operation"] == "write")
        .map(|event| event["result"].as_u64().unwrap())
        .sum();
    assert_eq!(written, of_mount["bytes_written_by_app"]);
}

/// Files that are made and written one after the other, and the events of that.
fn make_files(directory: &Path, numbers: std::ops::Range<u32>) {
    for number in numbers {
        fs::write(directory.join(format!("file-{number}")), [1; 300]).unwrap();
    }
}

/// Which of the files have their creation and their write in the recording, in order.
fn files_of(events: &[Value]) -> Vec<u32> {
    let mut files = Vec::new();
    let mut created = String::new();
    for text in events.iter().map(said) {
        if let Some(rest) = text.strip_prefix("create app/file-") {
            rest.split(' ').next().unwrap().clone_into(&mut created);
        } else if text == format!("write app/file-{created} offset=0 length=300 = 300") {
            files.push(created.parse().unwrap());
        }
    }
    files
}

/// Waits until what was done is in the file, and not only in the daemon.
fn wait_until_written(log: &Path, count: usize) {
    let since = Instant::now();
    while files_of(&events(log)).len() < count {
        assert!(
            since.elapsed() < Duration::from_secs(60),
            "it is not written"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_recording_goes_on_when_the_daemon_is_killed() {
    needs_mounts!();
    needs_laboratory!();
    let fixture = Fixture::new();
    let file = mount_recorded(&fixture, &[]);
    let log = fixture.path("trace.parquet.part");
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    make_files(&app, 0..200);
    // Can be looked at while the mount is there.
    wait_until_written(&log, 200);
    kill(fixture.daemon_pid());
    make_files(&app, 200..400);
    assert_eq!(fixture.status()["restarts"], 1);
    assert_eq!(fixture.status()["recording"]["stopped"], Value::Null);
    fixture.umount();
    let expected: Vec<u32> = (0..400).collect();
    assert_eq!(files_of(&events(&file)), expected);
    let output = trace(&["stat"], &file);
    let output = String::from_utf8(output.stdout).unwrap();
    assert!(output.contains("before the daemon died"), "{output}");
}

#[test]
fn what_was_made_just_before_a_kill_is_known_after_it() {
    needs_mounts!();
    needs_laboratory!();
    let fixture = Fixture::new();
    let file = mount_recorded(&fixture, &[]);
    let pid = fixture.daemon_pid();
    let deep = fixture.mountpoint.join("app/deep");
    fs::create_dir_all(&deep).unwrap();
    let data = File::create(deep.join("data")).unwrap();
    data.write_all_at(&[1; 10], 0).unwrap();
    kill(pid);
    data.write_all_at(&[2; 20], 5000).unwrap();
    drop(data);
    fs::rename(deep.join("data"), fixture.mountpoint.join("app/moved")).unwrap();
    fs::remove_file(fixture.mountpoint.join("app/moved")).unwrap();
    fs::write(deep.join("other"), "x").unwrap();
    fixture.umount();
    let events = events(&file);
    let own: Vec<String> = said_by(&events, std::process::id()).collect();
    for wanted in [
        "write app/deep/data offset=5000 length=20 = 20",
        "rename app/deep/data app/moved = 0",
        "unlink app/moved = 0",
        "create app/deep/other 644 = 0",
        "write app/deep/other offset=0 length=1 = 1",
    ] {
        assert!(own.iter().any(|text| text == wanted), "{wanted} {own:#?}");
    }
}

#[test]
fn a_recording_is_complete_without_a_successor() {
    needs_mounts!();
    needs_laboratory!();
    let fixture = Fixture::new();
    let file = mount_recorded(&fixture, &["-o", "nosupervise"]);
    let log = fixture.path("trace.parquet.part");
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    make_files(&app, 0..100);
    wait_until_written(&log, 100);
    kill(fixture.daemon_pid());
    let gone = Command::new("umount")
        .arg("-l")
        .arg(&fixture.mountpoint)
        .output();
    assert!(gone.unwrap().status.success());
    assert!(!file.exists());
    // As if the last write had been cut short.
    let half = OpenOptions::new().append(true).open(&log);
    half.unwrap().write_all(b"FRAM half of a frame").unwrap();
    let expected: Vec<u32> = (0..100).collect();
    assert_eq!(files_of(&events(&log)), expected);
    // It is in the way of another recording, which says what to do.
    let refused = fixture.try_mount(&["--record", file.to_str().unwrap()]);
    fails(
        &refused,
        1,
        &["trace.parquet.part", "no trace was made", "trace finish"],
    );
    succeeds(&mobifs(&["trace", "finish"], &file));
    assert!(!log.exists());
    assert_eq!(files_of(&events(&file)), expected);
}

/// A mount is packaged without the laboratory: a recording stays as it was written, and a trace is
/// made of it where the laboratory is installed.
#[test]
fn a_recording_without_the_laboratory_is_finished_later() {
    needs_mounts!();
    needs_laboratory!();
    let fixture = Fixture::new();
    let alone = fixture.directory("bin").join("mobifs");
    copy_program(&alone);
    let run = |words: &[&str]| {
        let mut command = Command::new(&alone);
        command
            .args(words)
            .env("PATH", "/usr/bin:/bin")
            .output()
            .unwrap()
    };
    let said = ["`mobifs trace`", "laboratory", "mobifs-lab", "install-lab"];
    fails(&run(&["trace", "cat", "x"]), 1, &said);

    let (file, log) = (record_to(&fixture), fixture.path("trace.parquet.part"));
    let daemon_log = fixture.path("log");
    let [file_text, log_text] = [&file, &daemon_log].map(|path| path.to_str().unwrap());
    let [store, mountpoint] = [&fixture.store, &fixture.mountpoint].map(|p| p.to_str().unwrap());
    let words = [
        "mount", "--log", log_text, "--record", file_text, store, mountpoint,
    ];
    succeeds(&run(&words));
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    make_files(&app, 0..20);
    let early = mobifs(&["trace", "finish"], &file);
    fails(&early, 3, &["trace.parquet.part", "still being written"]);
    fixture.umount_by(Command::new(&alone).arg("umount"));
    assert!(log.exists() && !file.exists());
    assert!(fixture.log().contains("trace finish"), "{}", fixture.log());

    let finished = Command::new(laboratory())
        .args(["trace", "finish"])
        .arg(&log)
        .output();
    succeeds(&finished.unwrap());
    assert!(file.exists() && !log.exists());
    assert_eq!(files_of(&events(&file)), (0..20).collect::<Vec<_>>());
    fails(
        &mobifs(&["trace", "finish"], &file),
        1,
        &["trace.parquet.part"],
    );
}

/// A second mount that would record to the same file is refused with an error that says that the
/// recording is under way; where its log is removed all the same, the status says that the
/// recording has ended.
#[test]
fn a_recording_under_way_is_not_mistaken_for_one_that_is_left() {
    needs_mounts!();
    let (fixture, other) = (Fixture::new(), Fixture::new());
    let file = mount_recorded(&fixture, &[]);
    let refused = other.try_mount(&["--record", file.to_str().unwrap()]);
    fails(&refused, 3, &["trace.parquet.part", "is being written"]);
    fs::remove_file(fixture.path("trace.parquet.part")).unwrap();
    let since = Instant::now();
    while fixture.status()["recording"]["stopped"].is_null() {
        let waited = since.elapsed();
        assert!(
            waited < Duration::from_secs(60),
            "the recording goes on without effect"
        );
        fs::write(fixture.mountpoint.join("file"), "content").unwrap();
    }
    let stopped = fixture.status()["recording"]["stopped"].clone();
    assert!(stopped.as_str().unwrap().contains("removed"), "{stopped}");
    fixture.umount();
    assert!(!file.exists());
}

#[test]
fn a_signal_and_a_power_cut_end_a_recording_properly() {
    needs_mounts!();
    needs_laboratory!();
    let expected: Vec<u32> = (0..50).collect();
    for is_cut in [false, true] {
        let fixture = Fixture::new();
        let file = mount_recorded(&fixture, &[]);
        let app = fixture.mountpoint.join("app");
        fs::create_dir(&app).unwrap();
        make_files(&app, 0..50);
        if is_cut {
            fixture.cut_power();
        } else {
            let pid = rustix::process::Pid::from_raw(fixture.daemon_pid() as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        }
        let since = Instant::now();
        while !file.exists() {
            assert!(
                since.elapsed() < Duration::from_secs(60),
                "there is no trace"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(files_of(&events(&file)), expected, "cut: {is_cut}");
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_mount() {
    needs_mounts!();
    needs_laboratory!();
    let mut fixture = Fixture::new();
    let small = fixture.directory("small");
    fixture.mount_other(&["-t", "tmpfs", "-o", "size=256k", "tmpfs"], &small);
    let file = small.join("trace.parquet");
    fixture.mount(&["--record", file.to_str().unwrap()]);
    let app = fixture.mountpoint.join("app");
    fs::create_dir(&app).unwrap();
    let since = Instant::now();
    let mut made = 0;
    while fixture.status()["recording"]["stopped"].is_null() {
        assert!(
            since.elapsed() < Duration::from_secs(60),
            "the disk is never full"
        );
        make_files(&app, made..made + 1000);
        made += 1000;
    }
    make_files(&app, made..made + 100);
    let stopped = fixture.status()["recording"]["stopped"].clone();
    assert!(
        stopped.as_str().unwrap().contains("No space left"),
        "{stopped}"
    );
    let text = mobifs(&["status"], &fixture.mountpoint);
    assert!(String::from_utf8(text.stdout).unwrap().contains("STOPPED"));
    fixture.umount();
    let written = snapshot(&fixture.store).len();
    assert!(
        written > made as usize + 100,
        "every file is in the store: {written}"
    );
    let warnings = fixture.log();
    let warnings = warnings
        .lines()
        .filter(|line| line.contains("the recording ends here"));
    assert_eq!(warnings.count(), 1, "{}", fixture.log());
    // What there was room for can be read: a trace, or the recording itself.
    let log = small.join("trace.parquet.part");
    let readable = if file.exists() { &file } else { &log };
    let files = files_of(&events(readable));
    assert!(files.len() > 100, "{}", files.len());
    assert_eq!(files, (0..files.len() as u32).collect::<Vec<_>>());
}

#[test]
fn places_where_nothing_can_be_recorded_are_refused() {
    needs_mounts!();
    needs_laboratory!();
    let fixture = Fixture::new();
    fs::create_dir(fixture.store.join("sub")).unwrap();
    let there = fixture.path("there");
    fs::write(&there, "precious").unwrap();
    std::os::unix::fs::symlink(&fixture.store, fixture.path("link")).unwrap();
    for (path, code, needle) in [
        (fixture.mountpoint.join("t"), 2, "lies in the mount"),
        (fixture.store.join("t"), 2, "lies in the store"),
        (fixture.store.join("sub/t"), 2, "lies in the store"),
        (fixture.path("link/t"), 2, "lies in the store"),
        (there.clone(), 1, "replaces nothing"),
        (fixture.path("absent/t"), 1, "No such file"),
        (PathBuf::from("/proc/t"), 1, "cannot record to"),
        (fixture.path(".."), 2, "no file's name"),
    ] {
        let option = format!("record={}", path.display());
        let output = fixture.try_mount(&["-o", &option]);
        fails(&output, code, &[needle]);
        assert!(!fixture.is_mounted());
    }
    assert_eq!(fs::read(&there).unwrap(), b"precious");
    // A mount that cannot be made leaves no recording behind.
    let file = record_to(&fixture);
    let words = [
        "--record",
        file.to_str().unwrap(),
        "-o",
        "syncfs=on,max_read=1",
    ];
    assert!(!fixture.try_mount(&words).status.success());
    let busy = fixture.path("trace.parquet.part");
    assert!(!file.exists() && !busy.exists());
    fixture.mount(&["-o", &format!("record={}", file.display())]);
    fixture.umount();
    assert!(message(&trace(&["cat"], &file)).is_empty());
}
