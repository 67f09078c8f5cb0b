//! Power cuts after a fault, daemons without a successor, and faults in the recovery from them.

use std::sync::Arc;

use mobifs_store::Store as _;
use parking_lot::Mutex;

use super::run::mount;
use super::{Cuts, Setting, random_fault};
use crate::crash::{CrashLower, Fate, leftovers};
use crate::harness::demand_none_externally_modified;
use crate::random::Random;
use crate::target::Target as _;
use crate::timeline::Timeline;
use crate::tree::Tree;

/// What a power cut left, or the end of the process.
pub(super) struct Image {
    lower: CrashLower,
    /// Only the process ended: written data is visible, whether or not it is durable or ever will
    /// be.
    has_power: bool,
    pub(super) what: String,
}

/// Takes crash images from the moment when the first call has failed.
pub(super) struct Collector(Arc<Mutex<Collected>>);

struct Collected {
    random: Random,
    left: u64,
    images: Vec<Image>,
}

impl Collector {
    /// A collector that observes every change of `lower`.
    pub(super) fn install(lower: &CrashLower, seed: u64, cuts: Cuts) -> Self {
        let collected = Arc::new(Mutex::new(Collected {
            random: Random::new(seed),
            left: cuts.images_max,
            images: Vec::new(),
        }));
        let shared = Arc::clone(&collected);
        lower.set_hook(Box::new(move |operation, lower| {
            let mut collected = shared.lock();
            let may = collected.left > 0 && lower.failed_calls() > 0;
            if may && collected.random.below(1000) < cuts.permille {
                let when = format!("cut at change {operation}");
                collected.image(lower, &when);
            }
        }));
        Self(collected)
    }

    /// Takes one more image, if there is one left.
    pub(super) fn add(&self, lower: &CrashLower, when: &str) {
        let mut collected = self.0.lock();
        if collected.left > 0 && lower.failed_calls() > 0 {
            collected.image(lower, when);
        }
    }

    pub(super) fn take(&self) -> Vec<Image> {
        std::mem::take(&mut self.0.lock().images)
    }
}

impl Collected {
    fn image(&mut self, lower: &CrashLower, when: &str) {
        let percent = self
            .random
            .pick(&[Some(0), Some(20), Some(50), Some(80), Some(100), None]);
        let image = match *percent {
            Some(percent) => Image {
                lower: cut(lower, percent, &mut self.random),
                has_power: false,
                what: format!("{when}, {percent} % landed"),
            },
            None => Image {
                lower: lower.kill_image(),
                has_power: true,
                what: format!("{when}, only the process ended"),
            },
        };
        self.left -= 1;
        self.images.push(image);
    }
}

/// A power cut after which this share of what was not durable lands.
fn cut(lower: &CrashLower, percent: u64, random: &mut Random) -> CrashLower {
    lower.crash_image(&mut |_| {
        if random.chance(percent) {
            Fate::Land
        } else {
            Fate::Vanish
        }
    })
}

/// Recovers an image and compares what is there with the history; then recovers it anew with a
/// fault. Returns whether that one fired.
pub(super) fn check_image(
    image: &Image,
    setting: &Setting,
    timeline: &Timeline,
    random: &mut Random,
) -> Result<bool, String> {
    let copies = [(); 2].map(|()| image.copy());
    let (found, calls) = recover(&copies[0], setting)?;
    timeline.explain(&found, setting.view())?;
    let fault = random_fault(1 + random.below(calls), random);
    recover_with_fault(&copies[1], image, setting, (&found, fault), random)
        .map_err(|what| format!("recovered with {fault:?}: {what}"))
}

impl Image {
    /// A copy of the image.
    fn copy(&self) -> CrashLower {
        if self.has_power {
            self.lower.kill_image()
        } else {
            self.lower.crash_image(&mut |_| Fate::Land)
        }
    }
}

/// Mounts what a cut left, and has it applied; returns its tree, and the calls that
/// mounting and applying took.
fn recover(lower: &CrashLower, setting: &Setting) -> Result<(Tree, u64), String> {
    let clock = setting.clock.clock(0);
    let mut mounted =
        mount(lower, setting, &clock).map_err(|what| format!("the recovery failed: {what}"))?;
    let calls_of_mount = lower.calls();
    let unread = |error| format!("the tree cannot be read: {error:?}");
    let tree = mounted.target.tree().map_err(unread)?;
    demand_durable(lower, setting, &tree)?;
    let calls_before = lower.calls();
    let applied = mounted.store.apply();
    applied.map_err(|error| format!("applying what was recovered: {error}"))?;
    let calls = calls_of_mount + lower.calls() - calls_before;
    let applied = mounted.target.tree().map_err(unread)?;
    if let Some(difference) = tree.difference(&applied, setting.view()) {
        return Err(format!("applying changed what is shown: {difference}"));
    }
    demand_no_leftovers(lower)?;
    demand_none_externally_modified(mounted.store.as_ref())?;
    Ok((tree, calls))
}

/// What a mount shows when it begins is what a power cut leaves.
fn demand_durable(lower: &CrashLower, setting: &Setting, shown: &Tree) -> Result<(), String> {
    let cut = lower.crash_image(&mut |_| Fate::Vanish);
    let mut mounted = mount(&cut, setting, &setting.clock.clock(0))
        .map_err(|what| format!("cut after the recovery: {what}"))?;
    let found = mounted.target.tree();
    let found = found.map_err(|error| format!("the tree cannot be read: {error:?}"))?;
    shown
        .difference(&found, setting.view())
        .map_or(Ok(()), |difference| {
            Err(format!("what was recovered is not durable: {difference}"))
        })
}

/// A fault during a recovery, or when it is applied, loses nothing: the next one finds the
/// same.
fn recover_with_fault(
    lower: &CrashLower,
    image: &Image,
    setting: &Setting,
    (expected, fault): (&Tree, crate::crash::Fault),
    random: &mut Random,
) -> Result<bool, String> {
    let clock = setting.clock.clock(0);
    lower.set_fault(Some(fault));
    let outcome = mount(lower, setting, &clock);
    if let Ok(mounted) = &outcome
        && let Err(error) = mounted.store.apply()
        && lower.failed_calls() == 0
    {
        return Err(format!("applying failed although no call did: {error}"));
    }
    let fired = lower.failed_calls() > 0;
    lower.set_fault(None);
    let shown = match outcome {
        Ok(mut mounted) => Some(
            mounted
                .target
                .tree()
                .map_err(|error| format!("{error:?}"))?,
        ),
        Err(_) if fired => None,
        Err(what) => return Err(format!("failed although no call did: {what}")),
    };
    // A power cut may follow; state that was never shown may be lost with it.
    let percent = *random.pick(&[0, 50, 100]);
    let again = Some(cut(lower, percent, random)).filter(|_| !image.has_power || shown.is_some());
    for medium in [lower.clone()].into_iter().chain(again) {
        let (found, _) = recover(&medium, setting)?;
        for found in shown.iter().chain([&found]) {
            if let Some(difference) = expected.difference(found, setting.view()) {
                return Err(format!("found something else than without: {difference}"));
            }
        }
    }
    Ok(fired)
}

/// Nothing may be left in the store's own directories when everything is applied.
pub(super) fn demand_no_leftovers(lower: &CrashLower) -> Result<(), String> {
    let found = leftovers(lower).map_err(|error| error.to_string())?;
    if found.is_empty() {
        Ok(())
    } else {
        Err(format!("left behind: {}", found.join(", ")))
    }
}
