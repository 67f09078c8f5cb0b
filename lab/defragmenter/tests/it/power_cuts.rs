//! Power cuts while content is remapped: at every flush and between them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mobifs_defragmenter::Mode;
use mobifs_device_server::{CrashState, Journal, Survival, materialise};

use crate::disk::{Disk, noise, succeed};

/// Cuts if the environment does not say how many.
const CUTS: u64 = 60;

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().unwrap())
}

/// A cut may tear the superblock, which ext4 writes in place: with a checksum it is refused then, and
/// an image this small has no second one.
const WITHOUT_CHECKSUMS: &[&str] = &["-O", "^metadata_csum"];

/// What files had before the device was served with a journal, by name.
type Contents = BTreeMap<String, Vec<u8>>;

/// A small, aged ext4 is remapped under a journal of everything; returns the image from before.
fn remapped(journal: &Path, round: u64) -> Option<(Disk, PathBuf, Contents)> {
    let mut disk = Disk::served_with(32, WITHOUT_CHECKSUMS)?;
    for number in 0..12 {
        disk.write(&format!("small-{number}"), 60_000, number + round * 100);
    }
    disk.interleave(&["a.db", "b.db", "c.db"], 24 + round as usize % 9, 8192);
    let files = disk.content();
    let named = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let contents = files
        .iter()
        .map(|(path, bytes)| (named(path), bytes.clone()));
    let contents: Contents = contents.collect();
    disk.end();
    let base = disk.base.path().join("base");
    fs::copy(disk.image(), &base).unwrap();
    disk.serve(None, Some(journal.to_owned()));
    disk.mount();
    let report = disk.defragment(Mode::Remap);
    assert!(report.device.unwrap().pages_shared > 50, "{report:?}");
    // What was left is used again at once: another program's writes.
    fs::write(disk.path().join("later"), noise(1 << 20, 7)).unwrap();
    disk.sync();
    disk.end();
    Some((disk, base, contents))
}

/// Checks one crash state: a clean filesystem in which every file has its bytes.
fn check(image: &Path, contents: &Contents, state: CrashState, mountpoint: &Path) {
    let output = Command::new("e2fsck")
        .args(["-f", "-p"])
        .arg(image)
        .output()
        .unwrap();
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "{state:?}: {output:?}");
    succeed(Command::new("e2fsck").args(["-f", "-n"]).arg(image));
    let mut dump = String::new();
    let directory = mountpoint.join("found");
    fs::create_dir_all(&directory).unwrap();
    for name in contents.keys() {
        dump += &format!("dump {name} {}\n", directory.join(name).display());
    }
    let script = mountpoint.join("script");
    fs::write(&script, dump).unwrap();
    succeed(Command::new("debugfs").arg("-f").arg(&script).arg(image));
    for (name, expected) in contents {
        let found = fs::read(directory.join(name)).unwrap();
        assert!(found == *expected, "{state:?}: {name} has other content");
    }
}

#[test]
fn a_power_cut_at_any_command_leaves_each_file_with_its_bytes() {
    let (cuts, seed) = (
        number("MOBIFS_DEFRAG_CUTS", CUTS),
        number("MOBIFS_DEFRAG_SEED", 1),
    );
    let parent = std::env::var_os("MOBIFS_SCRATCH").unwrap_or_else(|| "/var/tmp".into());
    let scratch = tempfile::tempdir_in(parent).unwrap();
    let (mut done, mut round) = (0, 0);
    while done < cuts {
        let path = scratch.path().join(format!("journal-{round}"));
        let Some((_disk, base, contents)) = remapped(&path, seed + round) else {
            return;
        };
        let journal = Journal::open(&path).unwrap();
        let intervals = journal.intervals().len();
        // Of the rounds of a campaign each has some hundred states: all intervals, in many ways.
        let of_round = (cuts - done).min(1_000);
        for state in 0..of_round {
            let interval = state as usize % intervals;
            let survival = match state / intervals as u64 {
                0 => Survival::None,
                1 => Survival::All,
                way => Survival::Random {
                    seed: seed * 1_000_003 + round * 1_009 + way,
                },
            };
            let state = CrashState { interval, survival };
            let image = scratch.path().join("state");
            materialise(&journal, &base, state, &image).unwrap();
            check(&image, &contents, state, scratch.path());
            fs::remove_file(&image).unwrap();
            done += 1;
        }
        round += 1;
        println!("{done} of {cuts} cuts survived ({intervals} intervals)");
        fs::remove_file(&path).unwrap();
    }
}
