//! Every crash state of an ext4 that worked, from the journal.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::Command;

use mobifs_device_server::{CrashState, Journal, Survival, materialise};

use crate::disk::{Disk, can_run, run, succeed, text};

const FILES: usize = 8;

fn name(number: usize) -> String {
    format!("file-{number}")
}

#[test]
fn ext4_recovers_from_every_crash_state() {
    if !can_run(&["mkfs.ext4", "e2fsck", "debugfs"]) {
        return;
    }
    // First a filesystem, then the journal of what happens to it.
    let mut disk = Disk::serve(32, 0.0, |_| {});
    disk.format();
    disk.end();
    let base = disk.path("base");
    fs::copy(disk.image(), &base).unwrap();
    let (image, journal) = (disk.image(), disk.path("journal"));
    let mut disk = Disk::serve(32, 0.0, |options| {
        options.image.clone_from(&image);
        options.journal = Some(journal.clone());
    });
    disk.mount();
    let mut boundaries = Vec::new();
    for number in 0..FILES {
        let mut file = File::create(disk.mountpoint.join(name(number))).unwrap();
        file.write_all(&vec![number as u8 + 1; 9_000]).unwrap();
        file.sync_all().unwrap();
        boundaries.push(disk.commands("flush") as usize);
    }
    disk.umount();
    disk.end();
    let journal = Journal::open(&journal).unwrap();
    assert!(journal.intervals().len() > *boundaries.last().unwrap());
    let output = disk.path("state");
    for interval in 0..journal.intervals().len() {
        let random = (0..2).map(|seed| Survival::Random { seed });
        for survival in [Survival::None, Survival::All].into_iter().chain(random) {
            let state = CrashState { interval, survival };
            materialise(&journal, &base, state, &output).unwrap();
            let checked = run(Command::new("e2fsck").args(["-f", "-p"]).arg(&output));
            let code = checked.status.code();
            assert!(matches!(code, Some(0 | 1)), "{state:?}: {}", text(&checked));
            succeed(Command::new("e2fsck").args(["-f", "-n"]).arg(&output));
            let fsynced = boundaries.iter().take_while(|&&flush| flush <= interval);
            for number in 0..fsynced.count() {
                check_file(&output, number);
            }
            fs::remove_file(&output).unwrap();
        }
    }
    println!(
        "{} intervals, 4 crash states of each",
        journal.intervals().len()
    );
}

fn check_file(image: &std::path::Path, number: usize) {
    let request = format!("cat {}", name(number));
    let found = run(Command::new("debugfs").args(["-R", &request]).arg(image)).stdout;
    assert!(found == vec![number as u8 + 1; 9_000], "{}", name(number));
}
