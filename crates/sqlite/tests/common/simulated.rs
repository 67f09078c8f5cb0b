//! Databases on a simulated disk.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_sqlite::Failure;
use mobifs_sqlite::simulation::{
    Adopted, Beginning, DatabaseFile, HEADER_BYTES, MARK_PLACE, mark, stand_in, unmark,
};
use mobifs_store::lower::{Create, Lower as _};
use mobifs_store::{Gate, JournalOptions, JournalStore};
use mobifs_testkit::crash::{CrashLower, Effect, Fate};
use mobifs_volume::{Config, Volume, VolumeOptions};

use super::plain;
use mobifs_testkit::random::Random;

const NAME: &[u8] = b"app.db";

/// The database's file on the simulated disk.
#[derive(Debug)]
pub struct SimulatedFile(pub CrashLower);

impl SimulatedFile {
    pub fn content(&self) -> io::Result<Vec<u8>> {
        let file = self.0.open(&self.0.root()?, NAME, true)?;
        let mut bytes = vec![0; usize::try_from(self.0.stat(&file)?.size).unwrap()];
        let length = self.0.read_at(&file, &mut bytes, 0)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    fn change(&self, change: fn(&mut [u8], u64)) -> io::Result<()> {
        let file = self.0.open(&self.0.root()?, NAME, true)?;
        let at = MARK_PLACE.start as u64;
        let mut bytes = [0; MARK_PLACE.end - MARK_PLACE.start];
        self.0.read_at(&file, &mut bytes, at)?;
        change(&mut bytes, at);
        self.0.write_at(&file, &bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync(&self.0.open(&self.0.root()?, NAME, true)?)
    }

    pub fn beginning(&self) -> io::Result<Beginning> {
        let content = self.content()?;
        Ok(Beginning::of(
            &content[..content.len().min(HEADER_BYTES + 1)],
        ))
    }

    pub fn write(&self, content: &[u8]) -> io::Result<()> {
        let file = self.0.open(&self.0.root()?, NAME, true)?;
        self.0.truncate(&file, content.len() as u64)?;
        self.0.write_at(&file, content, 0)?;
        self.0.sync(&file)
    }
}

fn system(source: io::Error) -> Failure {
    Failure::System {
        action: "marking".to_owned(),
        source,
    }
}

impl DatabaseFile for SimulatedFile {
    fn mark(&self) -> Result<(), Failure> {
        match self.beginning().map_err(system)? {
            Beginning::Empty => self.write(&stand_in()).map_err(system),
            Beginning::Database { is_marked: false } => self.change(mark).map_err(system),
            _ => Ok(()),
        }
    }

    fn make_mark_durable(&self) -> Result<(), Failure> {
        self.sync().map_err(system)
    }

    fn unmark(&self) -> Result<(), Failure> {
        match self.beginning().map_err(system)? {
            Beginning::StandIn => self.write(&[]).map_err(system),
            Beginning::Database { is_marked: true } => {
                let changed = self.change(unmark).and_then(|()| self.sync());
                changed.map_err(system)
            }
            _ => Ok(()),
        }
    }

    fn has_moved(&self) -> bool {
        false
    }

    fn is_deleted(&self) -> bool {
        false
    }
}

/// A disk with an open database on it.
pub struct Alive {
    pub path: PathBuf,
    pub volume: Arc<Volume>,
    pub adopted: Adopted,
}

/// A path that no database has had before.
pub fn new_path() -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    PathBuf::from(format!("/simulated-{number}/app.db"))
}

/// Opens what is on the disk as the database at `path`, recovery included.
pub fn start(lower: &CrashLower, journal: &JournalOptions, path: PathBuf) -> Result<Alive, String> {
    let file = SimulatedFile(lower.clone());
    if file.beginning().map_err(|error| error.to_string())? == Beginning::Empty {
        // As an opened database does with what a cut has left of a stand-in.
        file.write(&[]).map_err(|error| error.to_string())?;
    }
    let (store, _) =
        JournalStore::open(Gate::new(lower.clone()), journal).map_err(|e| e.to_string())?;
    let config = Config::defaults().unwrap();
    let options = VolumeOptions {
        background: false,
        no_access_time: true,
        ..VolumeOptions::new(&config)
    };
    let volume = Volume::start(Arc::new(store), options).map_err(|e| e.to_string())?;
    let ground = Box::new(SimulatedFile(lower.clone()));
    let adopted = Adopted::new(&path, Arc::clone(&volume), ground).map_err(|e| e.to_string())?;
    Ok(Alive {
        path,
        volume,
        adopted,
    })
}

/// A disk with an empty database.
pub fn disk() -> CrashLower {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    lower.create(&root, NAME, Create::Regular).unwrap();
    lower.sync(&root).unwrap();
    lower
}

/// What a cut right now leaves of the disk.
pub fn cut_image(lower: &CrashLower, dice: &mut Random) -> CrashLower {
    let land_percent = [0, 10, 50, 90, 100][dice.below(5) as usize];
    lower.crash_image(&mut |_: &Effect| {
        if dice.below(100) < land_percent {
            Fate::Land
        } else {
            Fate::Vanish
        }
    })
}

/// What a program without MobiFS finds, by `state`; none if it is refused.
pub fn looked_at_plainly(
    lower: &CrashLower,
    state: impl Fn(&rusqlite::Connection) -> i64,
) -> Option<i64> {
    let file = SimulatedFile(lower.clone());
    match file.beginning().unwrap() {
        Beginning::StandIn | Beginning::Database { is_marked: true } => None,
        Beginning::Empty => Some(0),
        Beginning::Database { is_marked: false } => {
            let directory = tempfile::tempdir_in("/dev/shm").unwrap();
            let path = directory.path().join("plain.db");
            std::fs::write(&path, file.content().unwrap()).unwrap();
            Some(state(&plain(&path).unwrap()))
        }
        Beginning::Foreign => panic!("the file is no database any more"),
    }
}
