//! What a volume's committed state may lie on, and what a power cut does to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mobifs_store::lower::Lower;
use mobifs_store::{Gate, JournalOptions, JournalStore, MemoryStore, PosixLower, Store};
use mobifs_volume::{Arena, Resumption};

use crate::crash::{CrashLower, Effect, Fate, OWN_DIRECTORIES, leftovers};
use crate::random::Random;
use crate::target::{DirectoryTarget, Target as _};
use crate::tree::Tree;

/// What a volume's committed state lies on.
pub trait Medium {
    /// Opens the store as mounting does, recovery included.
    ///
    /// # Errors
    /// Why it cannot be opened.
    ///
    /// With an arena, the store keeps there what it must know again after a kill.
    fn open(&mut self, arena: Option<&Arena>) -> Result<Arc<dyn Store>, String>;

    /// Opens the store of a killed process: nothing that was written is lost.
    ///
    /// # Errors
    /// Why it cannot be opened.
    fn resume(&mut self, arena: &Arena) -> Result<(Arc<dyn Store>, Resumption), String>;

    /// The power is cut, or was cut by itself. The store that [`Medium::open`]
    /// returned is gone already.
    fn cut(&mut self);

    /// Whether a store of this medium does nothing any more once its arena is killed. Each of
    /// its calls is an instant in which that may happen, then.
    fn dies_with_arena(&self) -> bool {
        false
    }

    /// Whether the power was cut by itself.
    fn is_dead(&self) -> bool {
        false
    }

    /// From now on the power is not cut by itself.
    fn secure(&mut self) {}

    /// The tree as the lower filesystem shows it when no store is open, if there is a
    /// lower filesystem to look at.
    fn plain_tree(&self) -> Option<Result<Tree, String>> {
        None
    }

    /// What lies in the store's directories for objects under way, which are empty when
    /// nothing is open.
    ///
    /// # Errors
    /// They cannot be read.
    fn leftovers(&self) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }
}

fn open_store<L: Lower + 'static>(
    lower: L,
    options: &JournalOptions,
    arena: Option<&Arena>,
) -> Result<Arc<dyn Store>, String> {
    let opened = match arena {
        Some(arena) => {
            JournalStore::open_with_sink(Gate::new(lower), options, Arc::new(arena.clone()))
        }
        None => JournalStore::open(Gate::new(lower), options),
    };
    let (store, _report) = opened.map_err(|error| error.to_string())?;
    Ok(Arc::new(store))
}

fn resume_store<L: Lower + 'static>(
    lower: L,
    options: &JournalOptions,
    arena: &Arena,
) -> Result<(Arc<dyn Store>, Resumption), String> {
    let mut resumption = Resumption::of(arena).map_err(|error| error.to_string())?;
    let sink = Arc::new(arena.clone());
    let saved = resumption.store().clone();
    let (store, resumed) = JournalStore::resume(Gate::new(lower), options, sink, saved)
        .map_err(|error| error.to_string())?;
    resumption.set_committed(resumed.committed);
    Ok((Arc::new(store), resumption))
}

/// A store in memory: what is committed survives, nothing else does.
#[derive(Debug)]
pub struct MemoryMedium(Arc<MemoryStore>);

impl Default for MemoryMedium {
    fn default() -> Self {
        Self(Arc::new(MemoryStore::new()))
    }
}

impl Medium for MemoryMedium {
    fn open(&mut self, _arena: Option<&Arena>) -> Result<Arc<dyn Store>, String> {
        Ok(Arc::<MemoryStore>::clone(&self.0))
    }

    fn resume(&mut self, arena: &Arena) -> Result<(Arc<dyn Store>, Resumption), String> {
        // It was never gone.
        let resumption = Resumption::of(arena).map_err(|error| error.to_string())?;
        Ok((Arc::<MemoryStore>::clone(&self.0), resumption))
    }

    fn cut(&mut self) {
        self.0 = Arc::new(self.0.reopen());
    }
}

/// A journal store on the crash double. The power is cut at random calls to the lower
/// filesystem, in commits, applies and recoveries, and any subset of the unsynced
/// effects lands.
#[derive(Debug)]
pub struct CrashMedium {
    lower: CrashLower,
    random: Random,
    options: JournalOptions,
    cut_after: Option<u64>,
    /// Chooses the fates instead of chance; the power is then cut only where the script says so.
    chooser: Option<fn(&Effect) -> Fate>,
}

impl CrashMedium {
    /// An empty filesystem whose cuts and choices come from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let journal_bytes = *random.pick(&[64 << 10, 256 << 10, 1 << 20]);
        let direct_bytes_max = *random.pick(&[0, 4096, 65_536, u64::MAX]);
        let held_bytes_max = *random.pick(&[64 << 10, 256 << 20]);
        let options = JournalOptions {
            journal_bytes,
            direct_bytes_max: Some(direct_bytes_max),
            held_bytes_max,
            ahead_pages_min: 1,
            ..JournalOptions::default()
        };
        Self {
            lower: CrashLower::new(),
            random,
            options,
            cut_after: None,
            chooser: None,
        }
    }

    /// An empty filesystem of which a cut leaves exactly what `chooser` says, and what
    /// that implies.
    pub fn with_chooser(chooser: fn(&Effect) -> Fate) -> Self {
        Self {
            chooser: Some(chooser),
            ..Self::new(0)
        }
    }

    /// The process that uses the filesystem does nothing with it after its death.
    fn die_with(&self, arena: &Arena) {
        let arena = arena.clone();
        self.lower
            .set_owner_lives(Box::new(move || arena.passes_instant()));
    }

    /// The power is cut after so many calls, or not by itself.
    fn plan_cut(&mut self, calls: Option<u64>) {
        let calls = calls.filter(|_| self.chooser.is_none());
        self.cut_after = calls.map(|calls| self.lower.operations() + calls);
        self.lower.cut_after(self.cut_after.unwrap_or(u64::MAX));
    }
}

impl Medium for CrashMedium {
    fn open(&mut self, arena: Option<&Arena>) -> Result<Arc<dyn Store>, String> {
        loop {
            if let Some(arena) = arena {
                self.die_with(arena);
            }
            let calls = self.random.chance(25).then(|| 1 + self.random.below(60));
            self.plan_cut(calls);
            let opened = open_store(self.lower.clone(), &self.options, arena);
            if self.is_dead() {
                drop(opened);
                self.cut();
                continue;
            }
            let store = opened?;
            let within = *self.random.pick(&[10, 60, 300, 1500]);
            let calls = self
                .random
                .chance(70)
                .then(|| 1 + self.random.below(within));
            self.plan_cut(calls);
            return Ok(store);
        }
    }

    fn resume(&mut self, arena: &Arena) -> Result<(Arc<dyn Store>, Resumption), String> {
        self.lower = self.lower.kill_image();
        self.die_with(arena);
        resume_store(self.lower.clone(), &self.options, arena)
    }

    fn dies_with_arena(&self) -> bool {
        true
    }

    fn cut(&mut self) {
        let land_percent = *self.random.pick(&[0, 10, 50, 50, 90, 100]);
        let (random, chosen) = (&mut self.random, self.chooser);
        let mut chooser = |effect: &Effect| match chosen {
            Some(chosen) => chosen(effect),
            None if random.chance(land_percent) => Fate::Land,
            None => Fate::Vanish,
        };
        self.lower = self.lower.crash_image(&mut chooser);
        self.cut_after = None;
    }

    fn is_dead(&self) -> bool {
        self.cut_after
            .is_some_and(|cut_after| self.lower.operations() >= cut_after)
    }

    fn secure(&mut self) {
        self.plan_cut(None);
    }

    fn leftovers(&self) -> Result<Vec<String>, String> {
        leftovers(&self.lower).map_err(|error| error.to_string())
    }
}

/// A journal store in a real directory. A cut is the end of the process only: what
/// was written lands.
#[derive(Debug)]
pub struct DirectoryMedium {
    root: PathBuf,
    options: JournalOptions,
}

impl DirectoryMedium {
    /// The store is the directory at `root`.
    pub fn new(root: &Path) -> Self {
        let options = JournalOptions {
            journal_bytes: 256 << 10,
            direct_bytes_max: Some(65_536),
            ahead_pages_min: 1,
            ..JournalOptions::default()
        };
        Self {
            root: root.to_owned(),
            options,
        }
    }
}

impl Medium for DirectoryMedium {
    fn open(&mut self, arena: Option<&Arena>) -> Result<Arc<dyn Store>, String> {
        let lower = PosixLower::open(&self.root).map_err(|error| error.to_string())?;
        open_store(lower, &self.options, arena)
    }

    fn resume(&mut self, arena: &Arena) -> Result<(Arc<dyn Store>, Resumption), String> {
        let lower = PosixLower::open(&self.root).map_err(|error| error.to_string())?;
        resume_store(lower, &self.options, arena)
    }

    fn cut(&mut self) {}

    fn plain_tree(&self) -> Option<Result<Tree, String>> {
        let tree = DirectoryTarget::new(&self.root).and_then(|mut target| target.tree());
        Some(tree.map_err(|error| format!("the lower tree cannot be read: {error:?}")))
    }

    fn leftovers(&self) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        for name in OWN_DIRECTORIES {
            let directory = self.root.join(".mobifs").join(name);
            let entries = std::fs::read_dir(&directory).map_err(|error| error.to_string())?;
            for entry in entries {
                let entry = entry.map_err(|error| error.to_string())?;
                found.push(format!("{name}/{}", entry.file_name().to_string_lossy()));
            }
        }
        Ok(found)
    }
}
