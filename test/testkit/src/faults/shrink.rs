//! Finds a short history that still shows a violation.

use super::{Cuts, FaultViolation, History, run};
use crate::crash::Fault;
use crate::operations::{Event, Script};
use crate::shrink::shrink as leave_out;

/// Runs at most.
const RUNS_MAX: u32 = 30_000;

/// How runs are cut: leaving an event out moves all cuts.
const CUTS: Cuts = Cuts {
    permille: 100,
    images_max: 4,
};

/// The shortest history found that a fault of the same kind breaks, in words.
pub(super) fn shrink(history: &History, violation: &FaultViolation) -> Option<String> {
    let mut runs = RUNS_MAX;
    let mut breaks = |events: &[Event]| {
        let history = History {
            events: events.to_vec(),
            setting: history.setting.clone(),
        };
        breaking_fault(&history, violation.fault, &mut runs)
    };
    let mut found = breaks(&history.events)?;
    let mut best = Script {
        seed: violation.seed,
        events: history.events.clone(),
    };
    leave_out(&mut best.events, |events| match breaks(events) {
        Some(breaking) => {
            found = breaking;
            true
        }
        None => false,
    });
    let (fault, what) = found;
    Some(format!(
        "{what}\n{fault:?}\n{:?}\n{best:?}",
        history.setting
    ))
}

/// The first place at which such a fault breaks the history.
fn breaking_fault(
    history: &History,
    fault: Option<Fault>,
    runs: &mut u32,
) -> Option<(Option<Fault>, String)> {
    let Some(fault) = fault else {
        return run(history, None, 0, Cuts::NONE)
            .err()
            .map(|what| (None, what));
    };
    // Leaving events out moves all calls.
    let calls = run(history, None, 0, Cuts::NONE).ok()?.calls;
    (1..=calls).rev().find_map(|first| {
        *runs = runs.checked_sub(1)?;
        let fault = Fault { first, ..fault };
        let outcome = (0..2).map(|seed| run(history, Some(fault), seed, CUTS));
        let broken = outcome.into_iter().find_map(Result::err)?;
        Some((Some(fault), broken))
    })
}
