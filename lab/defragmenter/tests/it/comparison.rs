//! `e4defrag`, copying and remapping on the same aged filesystem: DoF, bytes programmed, time.
//!
//! Filled as S4 does (4.3), by large and small files in turns; then small ones are deleted at random
//! until so much is used. Five databases grow side by side, and packages are installed.
//! `MOBIFS_DEFRAG_MIB` makes it larger and compares at all levels.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use mobifs_defragmenter::Mode;
use mobifs_device_server::{Reply, Request};
use mobifs_fragmentation::measure;

use crate::disk::{Disk, noise, succeed};

const DATABASES: [&str; 5] = ["app-0.db", "app-1.db", "app-2.db", "app-3.db", "app-4.db"];

/// Name, and used percent.
const LEVELS: [(&str, u64); 3] = [("Low", 50), ("High", 90), ("Full", 96)];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Tool {
    E4defrag,
    Copy,
    Remap,
}

#[derive(Debug)]
struct Outcome {
    before: f64,
    after: f64,
    programmed_bytes: u64,
    device_ms: f64,
    seconds: f64,
}

fn used_percent(disk: &Disk) -> u64 {
    let room = rustix::fs::statvfs(disk.path()).unwrap();
    100 - room.f_bfree * 100 / room.f_blocks
}

fn age(mebibytes: u64, used: u64) -> Option<Disk> {
    let disk = Disk::served_with(mebibytes, &["-m", "0", "-N", "8192"])?;
    // ext4 keeps a fiftieth for metadata, but never more than 16 MiB: of a small filesystem that would be
    // most of what is free when it is full.
    let device = disk.device();
    let name = device.file_name().unwrap().to_str().unwrap();
    fs::write(format!("/sys/fs/ext4/{name}/reserved_clusters"), "64").unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let mut small = Vec::new();
    let large_bytes = (mebibytes << 20) / 100;
    for number in 0.. {
        let name = |kind: &str| disk.path().join(format!("{kind}-{number}"));
        let large = fs::write(name("large"), noise(large_bytes as usize, number));
        let mut bytes = 0;
        let mut is_full = large.is_err();
        while bytes < large_bytes && !is_full {
            let own = random.u64(8..500) << 10;
            let path = disk.path().join(format!("small-{number}-{bytes}"));
            is_full = fs::write(&path, noise(own as usize, number ^ bytes)).is_err();
            small.push(path);
            bytes += own;
        }
        if is_full {
            break;
        }
    }
    random.shuffle(&mut small);
    // Room for what comes, so that the level holds afterwards.
    let coming = (5 * 320 + 8 * 1024) * 100 / (mebibytes << 10) + 1;
    while used_percent(&disk) > used.saturating_sub(coming) {
        let Some(path) = small.pop() else {
            break;
        };
        fs::remove_file(path).unwrap();
        disk.sync();
    }
    disk.interleave(&DATABASES, 40, 8192);
    for number in 0..8 {
        disk.write(&format!("app-{number}.apk"), 1 << 20, number);
    }
    disk.sync();
    Some(disk)
}

fn apps(disk: &Disk) -> Vec<PathBuf> {
    let entries = fs::read_dir(disk.path()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_app = |path: &PathBuf| {
        path.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("app-")
    };
    paths.filter(is_app).collect()
}

fn dof(disk: &Disk) -> f64 {
    let options = mobifs_fragmentation::Options::default();
    let measured = measure(&apps(disk), &options, None, &|_| {}).unwrap();
    measured.report.mean_dof.unwrap()
}

/// Bytes programmed and time of the device until now.
fn figures(disk: &Disk) -> (u64, f64) {
    succeed(Command::new("sync").arg("-f").arg(disk.path()));
    let Reply::Stats { stats } = disk.ask(&Request::Stats) else {
        panic!("no statistics");
    };
    let device = &stats["device"];
    let ms = device["elapsed_ns"].as_u64().unwrap() as f64 / 1e6;
    (device["programmed_bytes"].as_u64().unwrap(), ms)
}

fn run(mebibytes: u64, used: u64, tool: Tool) -> Option<Outcome> {
    let mut disk = age(mebibytes, used)?;
    let content = disk.content();
    let before = dof(&disk);
    let start = figures(&disk);
    let begun = Instant::now();
    match tool {
        Tool::E4defrag => {
            // Its exit code says whether all files were defragmented, which some cannot be.
            let _said = Command::new("e4defrag").arg(disk.path()).output().unwrap();
        }
        Tool::Copy => drop(disk.defragment(Mode::Copy)),
        Tool::Remap => drop(disk.defragment(Mode::Remap)),
    }
    let seconds = begun.elapsed().as_secs_f64();
    let end = figures(&disk);
    let after = dof(&disk);
    assert!(disk.content() == content, "{tool:?} changed content");
    disk.check();
    disk.end();
    Some(Outcome {
        before,
        after,
        programmed_bytes: end.0 - start.0,
        device_ms: end.1 - start.1,
        seconds,
    })
}

#[test]
fn full_filesystems_become_whole_where_e4defrag_cannot() {
    let installed = Command::new("e4defrag").output().is_ok();
    if !mobifs_skip::can((!installed).then_some("no e4defrag")) {
        return;
    }
    let size = std::env::var("MOBIFS_DEFRAG_MIB").ok();
    let levels = if size.is_some() {
        &LEVELS[..]
    } else {
        &LEVELS[2..]
    };
    let mebibytes = size.map_or(128, |text| text.parse().unwrap());
    println!("level  tool       DoF before   after   MiB programmed   ms of the device   s");
    for &(level, used) in levels {
        let mut outcomes = Vec::new();
        for tool in [Tool::E4defrag, Tool::Copy, Tool::Remap] {
            let Some(outcome) = run(mebibytes, used, tool) else {
                return;
            };
            println!(
                "{level:6} {:10} {:>10.2} {:>7.2} {:>16.2} {:>18.0} {:>5.1}",
                format!("{tool:?}"),
                outcome.before,
                outcome.after,
                outcome.programmed_bytes as f64 / f64::from(1 << 20),
                outcome.device_ms,
                outcome.seconds
            );
            outcomes.push(outcome);
        }
        let [theirs, copied, remapped] = &outcomes[..] else {
            panic!("three tools");
        };
        assert!(copied.after <= 1.2 && remapped.after <= 1.2, "{outcomes:?}");
        assert!(remapped.after <= theirs.after, "{outcomes:?}");
        assert!(
            remapped.programmed_bytes < copied.programmed_bytes / 2,
            "{outcomes:?}"
        );
    }
}
