//! A few power cuts of a mount over a real filesystem.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::PathBuf;

use mobifs_campaigns::cuts::{Campaign, CutStatistics, Options};
use mobifs_campaigns::filesystem::Filesystem;
use mobifs_campaigns::obstacle;
use mobifs_device_server::Scale;
use mobifs_testkit::mount::{Program, scratch_parent};

/// Cuts on ext4; `mobifs-campaign` makes thousands, on others too.
const CUTS: u64 = 12;

fn survive(filesystem: Filesystem, cuts: u64) -> Option<CutStatistics> {
    if let Some(reason) = obstacle(filesystem) {
        mobifs_skip::skip(reason);
        return None;
    }
    let options = Options {
        program: Program::of_workspace(),
        helper: PathBuf::from(env!("CARGO_BIN_EXE_mobifs-campaign")),
        scratch: scratch_parent(),
        filesystem,
        cuts,
        seed: 3,
        scale: Scale::new(0.25).unwrap(),
        slowness: 1,
    };
    let statistics = Campaign::new(options).unwrap().run(|_| true);
    let statistics = statistics.unwrap_or_else(|trouble| panic!("{trouble}"));
    println!("{}: {statistics}", filesystem.name());
    Some(statistics)
}

#[test]
fn ext4_below_survives_power_cuts_and_so_does_the_mount() {
    if let Some(statistics) = survive(Filesystem::Ext4, CUTS) {
        assert!(statistics.cuts.all() >= CUTS);
        assert!(statistics.cuts.recovery + statistics.cuts.recovery_of_recovery > 0);
        // Something had happened before the cuts, and something of it was there.
        assert!(
            statistics.steps > 0 && statistics.found > 0 && statistics.operations > 0,
            "{statistics}"
        );
    }
}
