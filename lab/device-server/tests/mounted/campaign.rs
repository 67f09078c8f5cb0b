//! Many power cuts of an ext4 at work. Of unflushed data a random part survives each cut, torn at
//! sectors.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use mobifs_device_server::Keep;

use crate::disk::{Disk, Recovery, Verdict, can_run, wait_until};
use crate::overwriter::{Overwriter, Possible, path};
use crate::transactions::{MODES, Writers, check};

/// Cuts if the environment does not say how many.
const CUTS: u64 = 6;
/// Rounds after which the filesystem is made anew, so that checks stay short.
const ROUNDS_OF_A_FILESYSTEM: u64 = 20;
/// Real seconds for each of the device: shorter than real, so that more happens.
const SCALE: f64 = 0.25;

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().unwrap())
}

#[derive(Default)]
struct Tally {
    verdicts: BTreeMap<Verdict, u64>,
    transactions: u64,
    /// Transactions under way at a cut that were there afterwards.
    unreturned: u64,
    torn_pages: u64,
}

/// What is known of the filesystem between rounds.
struct Known {
    rows: Vec<u64>,
    file: Option<Possible>,
}

#[test]
fn ext4_and_sqlite_survive_a_campaign_of_power_cuts() {
    if !can_run(&["mkfs.ext4", "e2fsck", "dumpe2fs", "mount"]) {
        return;
    }
    let (cuts, seed) = (
        number("MOBIFS_FLASH_CUTS", CUTS),
        number("MOBIFS_FLASH_SEED", 1),
    );
    let mut disk = Disk::serve(128, SCALE, |_| {});
    let mut tally = Tally::default();
    let fresh = || Known {
        rows: vec![0; MODES.len()],
        file: None,
    };
    let mut known = fresh();
    for round in 0..cuts {
        if round % ROUNDS_OF_A_FILESYSTEM == 0 {
            disk.format();
            known = fresh();
        }
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(round);
        known = one_round(&disk, seed, known, &mut tally);
        if (round + 1) % ROUNDS_OF_A_FILESYSTEM == 0 {
            println!("{} of {cuts} cuts survived", round + 1);
        }
    }
    disk.end();
    println!(
        "{cuts} power cuts: e2fsck {:?}; {} transactions returned, none lost, {} more were there; \
         {} pages torn",
        tally.verdicts, tally.transactions, tally.unreturned, tally.torn_pages
    );
}

fn one_round(disk: &Disk, seed: u64, known: Known, tally: &mut Tally) -> Known {
    let mut random = Rng::with_seed(seed);
    disk.mount();
    let writers = Writers::start(&disk.mountpoint, &known.rows);
    let overwriter = Overwriter::start(&disk.mountpoint, seed, known.file);
    let progress = random.u64(1..40);
    wait_until("transactions return", || {
        let returned = writers.returned();
        let pairs = returned.iter().zip(&known.rows);
        pairs.clone().any(|(now, then)| *now >= then + progress)
            && pairs.clone().all(|(now, then)| now > then)
    });
    std::thread::sleep(Duration::from_micros(random.u64(0..5_000)));
    // All of these had returned before the power cut.
    let promised = writers.returned();
    let report = disk.cut(Keep::Random { seed });
    tally.torn_pages += report["torn_pages"].as_u64().unwrap();
    let returned = writers.join();
    let possible = overwriter.join();
    disk.umount();
    disk.power_on();
    let how = if seed.is_multiple_of(2) {
        Recovery::Check
    } else {
        Recovery::Mount
    };
    *tally.verdicts.entry(disk.recover(how)).or_default() += 1;
    disk.mount();
    let rows = check(&disk.mountpoint);
    for (index, (mode, _)) in MODES.iter().enumerate() {
        let (found, promised, returned) = (rows[index], promised[index], returned[index]);
        assert!(promised <= returned);
        // In this mode SQLite takes a directory that it cannot open for `fsync` for synced: a
        // commit that returned after the power cut was not durable.
        let least = if *mode == "delete" {
            promised
        } else {
            returned
        };
        assert!(
            (least..=returned + 1).contains(&found),
            "seed {seed}, {mode}: {found} rows, but {returned} transactions had returned"
        );
        tally.transactions += returned.min(found) - known.rows[index];
        tally.unreturned += found.saturating_sub(returned);
    }
    let file = possible.check(&path(&disk.mountpoint));
    disk.umount();
    Known {
        rows,
        file: Some(file),
    }
}
