//! A few power cuts of a mount over a real filesystem.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::PathBuf;

use mobifs_campaigns::cuts::{Campaign, Moment, Options, Tally};
use mobifs_campaigns::filesystem::Filesystem;
use mobifs_campaigns::obstacle;
use mobifs_device_server::Scale;
use mobifs_testkit::mount::Program;

/// Cuts on ext4; `mobifs-campaign` makes thousands, on others too.
const CUTS: u64 = 12;

fn survive(filesystem: Filesystem, cuts: u64) -> Option<Tally> {
    if let Some(reason) = obstacle(filesystem) {
        mobifs_skip::skip(reason);
        return None;
    }
    let scratch = std::env::var_os("MOBIFS_SCRATCH").unwrap_or_else(|| "/var/tmp".into());
    let options = Options {
        program: Program::of_workspace(),
        helper: PathBuf::from(env!("CARGO_BIN_EXE_mobifs-campaign")),
        scratch: PathBuf::from(scratch),
        filesystem,
        cuts,
        seed: 3,
        scale: Scale::new(0.25).unwrap(),
        slowness: 1,
    };
    let tally = Campaign::new(options).unwrap().run(|_| true);
    let tally = tally.unwrap_or_else(|trouble| panic!("{trouble}"));
    println!("{}: {tally}", filesystem.name());
    Some(tally)
}

#[test]
fn ext4_below_survives_power_cuts_and_so_does_the_mount() {
    if let Some(tally) = survive(Filesystem::Ext4, CUTS) {
        assert!(tally.cuts() >= CUTS);
        assert!(tally.cuts.keys().any(|moment| *moment >= Moment::Recovery));
        // Something had happened before the cuts, and something of it was there.
        assert!(
            tally.steps > 0 && tally.found > 0 && tally.operations > 0,
            "{tally}"
        );
    }
}
