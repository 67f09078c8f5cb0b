//! A few power cuts of filesystems that are steered.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::PathBuf;
use std::time::Duration;

use mobifs_campaigns::native::writers::Writer;
use mobifs_campaigns::native::{Campaign, Only, Options, Subject, Tally};
use mobifs_campaigns::obstacle;
use mobifs_device_server::Scale;
use mobifs_testkit::mount::{Program, scratch_parent};

/// Cuts of each session; `mobifs-campaign native` makes thousands, with all writers.
const CUTS_OF_A_SESSION: u64 = 5;

fn cut(subject: Subject, sessions: u64, writers: &[Writer]) -> Option<Tally> {
    cut_from(subject, 0, sessions, writers)
}

fn cut_from(subject: Subject, first: u64, sessions: u64, writers: &[Writer]) -> Option<Tally> {
    if let Some(reason) = obstacle(subject.filesystem()) {
        mobifs_skip::skip(reason);
        return None;
    }
    let options = Options {
        program: Program::of_workspace(),
        helper: PathBuf::from(env!("CARGO_BIN_EXE_mobifs-campaign")),
        scratch: scratch_parent(),
        subject,
        cuts: sessions * CUTS_OF_A_SESSION,
        cuts_of_a_session: CUTS_OF_A_SESSION,
        session: Duration::from_secs(3),
        seed: 5,
        scale: Scale::new(0.25).unwrap(),
        // On a machine that is busy a commit comes late.
        slack: Duration::from_secs(3600),
        first_session: first,
        only: Only {
            relaxed: writers.to_vec(),
            durable: None,
            shortened: false,
        },
    };
    let tally = Campaign::new(options).unwrap().run(|_| true);
    let tally = tally.unwrap_or_else(|trouble| panic!("{trouble}"));
    println!("{tally}");
    Some(tally)
}

/// The daemon lives through the first session and is killed in the second.
#[test]
fn a_steered_ext4_is_one_point_in_time_after_power_cuts() {
    let writers = [
        Writer::Records,
        Writer::Names,
        Writer::Pairs,
        Writer::RowsWal,
    ];
    if let Some(tally) = cut(Subject::Steered, 2, &writers) {
        for violation in &tally.violations {
            println!("{violation} ({})", violation.setting);
        }
        assert_eq!(tally.violations.len(), 0);
        assert_eq!((tally.cuts, tally.sessions, tally.killed), (10, 2, 1));
        assert!(tally.returned > 0 && tally.found > 0, "{tally}");
    }
}

/// Not one point in time, but all that was asked for is there, and snapshots called exact are.
#[test]
fn a_steered_btrfs_keeps_what_was_committed_after_power_cuts() {
    let writers = [Writer::Records, Writer::Names, Writer::Pairs];
    if let Some(tally) = cut(Subject::Btrfs, 2, &writers) {
        for violation in &tally.violations {
            println!("{violation} ({})", violation.setting);
        }
        assert_eq!(tally.violations.len(), 0);
        assert_eq!((tally.cuts, tally.sessions, tally.killed), (10, 2, 1));
        assert!(tally.returned > 0 && tally.found > 0, "{tally}");
    }
}

/// The control: the oracle sees that ext4 with data=ordered promises no such thing. On a busy machine the
/// writers get so little done in a session that the cut may fall between two commits of the kernel.
#[test]
fn an_ext4_that_is_not_steered_is_found_out() {
    const SESSIONS_MAX: u64 = 10;
    let writers = [Writer::Records, Writer::Names];
    for session in 0..SESSIONS_MAX {
        let Some(tally) = cut_from(Subject::Ordered, session, 1, &writers) else {
            return;
        };
        let mut problems = tally.violations.iter().map(|violation| &violation.problem);
        if problems.any(|problem| problem.contains("not one point in time")) {
            return;
        }
        for violation in &tally.violations {
            println!("{violation} ({})", violation.setting);
        }
    }
    panic!("{SESSIONS_MAX} sessions without a state that is not one point in time");
}
