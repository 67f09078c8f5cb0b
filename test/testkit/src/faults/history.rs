//! What a fault search runs: events, and the limits that they run under.

use std::sync::Arc;

use mobifs_store::JournalOptions;
use mobifs_volume::{Clock, VolumeOptions};

use super::ClockKind;
use crate::configuration;
use crate::layout::ROOT_APP;
use crate::operations::{Event, Profile, generate};
use crate::random::Random;
use crate::tree::Compare;

/// With fewer descriptors no store works: its own directories, files that are always open, and one
/// for each thread that looks for an object.
const HANDLES_MIN: usize = 16;

/// Limits and classes of a history.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Apps of class durable.
    pub durable: Vec<String>,
    /// Size of the journal.
    pub journal_bytes: u64,
    /// Largest transaction that is one durable write.
    pub direct_bytes_max: u64,
    /// Memory for what is committed and not applied.
    pub held_bytes_max: u64,
    /// Memory for what is not committed.
    pub memory_budget_bytes: u64,
    /// Objects in memory that nothing uses.
    pub objects_max: usize,
    /// Descriptors that the store may have, those that it always has included.
    pub handles_max: usize,
    /// How time passes.
    pub clock: ClockKind,
}

impl Default for Setting {
    /// Plenty of everything; `gamma` is durable.
    fn default() -> Self {
        Self {
            durable: vec!["gamma".into()],
            journal_bytes: 256 << 10,
            direct_bytes_max: 8 << 10,
            held_bytes_max: 64 << 20,
            memory_budget_bytes: 64 << 20,
            objects_max: 1000,
            handles_max: usize::MAX,
            clock: ClockKind::Steady,
        }
    }
}

/// A history.
#[derive(Clone, Debug)]
pub struct History {
    /// What happens; no cuts. Kills strike between two events.
    pub events: Vec<Event>,
    /// Under which limits.
    pub setting: Setting,
}

impl Setting {
    fn random(random: &mut Random, apps: &[String]) -> Self {
        let durable = match random.below(5) {
            0 => Vec::new(),
            1 => [apps, &[ROOT_APP.to_owned()]].concat(),
            2 => vec![ROOT_APP.to_owned()],
            _ => vec![random.pick(apps).clone()],
        };
        Self {
            durable,
            journal_bytes: *random.pick(&[64 << 10, 64 << 10, 128 << 10, 1 << 20]),
            direct_bytes_max: *random.pick(&[0, 8 << 10, 1 << 20]),
            held_bytes_max: *random.pick(&[64 << 10, 64 << 20, 64 << 20]),
            memory_budget_bytes: *random.pick(&[64 << 10, 256 << 10, 64 << 20, 64 << 20]),
            objects_max: *random.pick(&[0, 1, 5, 20, 1000]),
            handles_max: *random.pick(&[HANDLES_MIN, 2 * HANDLES_MIN, usize::MAX]),
            clock: *random.pick(&[ClockKind::Steady, ClockKind::Steady, ClockKind::Wild]),
        }
    }

    pub(super) fn journal_options(&self) -> JournalOptions {
        JournalOptions {
            journal_bytes: self.journal_bytes,
            direct_bytes_max: Some(self.direct_bytes_max),
            held_bytes_max: self.held_bytes_max,
            uuid_if_new: [7; 16],
            reserve_bytes: 64 << 10,
            ahead_pages_min: 1,
            ..JournalOptions::default()
        }
    }

    pub(super) fn volume_options(&self, clock: Arc<dyn Clock>) -> Result<VolumeOptions, String> {
        let apps = self.durable.iter();
        let text: String = apps
            .map(|app| format!("[[app]]\nmatch = \"{app}\"\nclass = \"durable\"\n"))
            .collect();
        let config = configuration::parsed(&text)?;
        Ok(VolumeOptions {
            memory_budget_bytes: self.memory_budget_bytes,
            objects_max: self.objects_max,
            background: false,
            clock,
            hash_seed: Some(7),
            ..VolumeOptions::new(&config)
        })
    }

    /// What can be compared. The model knows only whether a time is recent.
    pub(super) fn view(&self) -> Compare {
        Compare {
            root: false,
            mtime: self.clock == ClockKind::Steady,
            ..Compare::ALL
        }
    }
}

impl History {
    /// The history that a seed stands for.
    pub fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let profile = Profile {
            length: 20 + random.below(50) as usize,
            cross_percent: *random.pick(&[5, 20, 50]),
            large: false,
            ..Profile::default()
        };
        let setting = Setting::random(&mut random, &profile.apps);
        let kill_weight = *random.pick(&[0, 4]);
        let mut events = Vec::new();
        for event in generate(&profile, random.below(u64::MAX)) {
            events.push(event);
            if random.chance(18) {
                events.push(checkpoint(&mut random, &profile.apps, kill_weight));
            }
        }
        Self { events, setting }
    }

    /// Whether daemons are killed in it.
    pub(super) fn has_kills(&self) -> bool {
        let mut events = self.events.iter();
        events.any(|event| matches!(event, Event::Kill(_)))
    }
}

/// Something that happens to the mount.
fn checkpoint(random: &mut Random, apps: &[String], kill_weight: u32) -> Event {
    let app = random.pick(apps).clone();
    match random.weighted(&[4, 5, 2, 4, 3, 4, kill_weight]) {
        0 => Event::Close(app),
        1 => Event::CommitNext,
        2 => Event::TidyUp,
        3 => Event::SyncApp(app),
        4 => Event::SyncAll,
        5 => Event::Apply,
        _ => Event::Kill(0),
    }
}
