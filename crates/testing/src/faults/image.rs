//! Power cuts after a fault, and faults in the recovery from them.

use std::sync::Arc;

use mobifs_store::Store as _;
use mobifs_store::lower::Lower as _;
use parking_lot::Mutex;

use super::run::mount;
use super::{Cuts, Setting, random_fault};
use crate::crash::{CrashLower, Fate};
use crate::random::Random;
use crate::target::Target as _;
use crate::timeline::Timeline;
use crate::tree::Tree;

/// What a power cut left.
pub(super) struct Image {
    lower: CrashLower,
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
    /// A collector that looks at every change of `lower`.
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
        let percent = *self.random.pick(&[0, 20, 50, 80, 100]);
        let random = &mut self.random;
        let lower = lower.crash_image(&mut |_| {
            if random.chance(percent) {
                Fate::Land
            } else {
                Fate::Vanish
            }
        });
        self.left -= 1;
        self.images.push(Image {
            lower,
            what: format!("{when}, {percent} % landed"),
        });
    }
}

/// Recovers an image and compares what is there with the history; then recovers it anew
/// with a fault. Says whether that one fired.
pub(super) fn check_image(
    image: &Image,
    setting: &Setting,
    timeline: &Timeline,
    random: &mut Random,
) -> Result<bool, String> {
    let copies = [(); 2].map(|()| copy(&image.lower));
    let (found, calls) = recover(&copies[0], setting)?;
    timeline.explain(&found, setting.view())?;
    let fault = random_fault(1 + random.below(calls), random);
    recover_with_fault(&copies[1], setting, (&found, fault), random)
        .map_err(|what| format!("recovered with {fault:?}: {what}"))
}

/// A filesystem at rest, once more.
fn copy(lower: &CrashLower) -> CrashLower {
    lower.crash_image(&mut |_| Fate::Land)
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
    let calls_before = lower.calls();
    let applied = mounted.store.apply();
    applied.map_err(|error| format!("applying what was recovered: {error}"))?;
    let calls = calls_of_mount + lower.calls() - calls_before;
    let applied = mounted.target.tree().map_err(unread)?;
    if let Some(difference) = tree.difference(&applied, setting.view()) {
        return Err(format!("applying changed what is shown: {difference}"));
    }
    leftovers(lower)?;
    Ok((tree, calls))
}

/// A fault during a recovery, or when it is applied, loses nothing: the next one finds the
/// same.
fn recover_with_fault(
    lower: &CrashLower,
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
    // The power may go as well.
    let percent = *random.pick(&[0, 50, 100]);
    let again = lower.crash_image(&mut |_| {
        if random.chance(percent) {
            Fate::Land
        } else {
            Fate::Vanish
        }
    });
    for medium in [lower.clone(), again] {
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
pub(super) fn leftovers(lower: &CrashLower) -> Result<(), String> {
    let look = || {
        let own = lower.open(&lower.root()?, b".mobifs", false)?;
        let mut found = Vec::new();
        for name in ["stage", "limbo", "lost"] {
            let directory = lower.open(&own, name.as_bytes(), false)?;
            let entries = lower.list(&directory)?.into_iter();
            found.extend(entries.map(|entry| format!("{name}/{}", entry.name.escape_ascii())));
        }
        Ok(found)
    };
    let found = look().map_err(|error: std::io::Error| error.to_string())?;
    if found.is_empty() {
        Ok(())
    } else {
        Err(format!("left behind: {}", found.join(", ")))
    }
}
