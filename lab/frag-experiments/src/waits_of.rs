//! What a user waits for on an image that `mobifs frag age` has aged: the launch of its apps, the scan of their
//! databases, and the installation of one more (S4 §5.2, on the phone of §4.1).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mobifs_ageing::{AgeError, Aged, Space, TREE, Through, mobifs};
use mobifs_charts::Table;
use mobifs_device_server::DeviceCounts;
use mobifs_experiments::figure;
use mobifs_fragmentation::{Kind, MeasureError, open_image};
use rusqlite::{Connection, OpenFlags};
use serde::Serialize;

use crate::apps::write_file;
use crate::degrees::Degrees;
use crate::disk::{Disk, Filesystem, run};
use crate::error::FragError;
use crate::pieces::read_through;
use crate::settings::Settings;

/// The app that is installed, at scale 1: the package of Facebook by the profile of ageing.
const PACKAGE_BYTES: u64 = 70_000_000;
const DEX_FILES: u64 = 21;
const DEX_BYTES: u64 = 3_200_000;
/// How long another program may use an image.
const IN_USE_MAX: Duration = Duration::from_secs(5);
/// What of a database is read at a launch.
const NEWEST: &str =
    "SELECT sum(instr(body, x'00')) FROM (SELECT body FROM item ORDER BY id DESC LIMIT 50)";
const SCAN: &str = "SELECT sum(instr(body, x'00')) FROM item";

/// One measurement, of a copy of its own.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    /// All apps, one after the other: their executables are read, and the newest rows of their databases.
    pub launch: DeviceCounts,
    /// A table scan of each database.
    pub scan: DeviceCounts,
    /// The installation, until its last call has returned.
    pub install: DeviceCounts,
    /// The same until everything is durable and at its place.
    pub install_durable: DeviceCounts,
    installed: Degrees,
}

/// What was measured of an image.
#[derive(Clone, Debug, Serialize)]
pub struct WaitsOf {
    /// The image.
    pub image: PathBuf,
    /// Its filesystem.
    pub filesystem: Filesystem,
    /// Through what it was aged.
    pub through: Through,
    /// Its last day.
    pub day: u32,
    /// The checksum of that day: images with the same one have the same files.
    pub checksum: String,
    /// Used parts of 1000.
    pub used_permille: u32,
    executables: Degrees,
    databases: Degrees,
    /// The measurements, in the order of the device's time for everything.
    pub rounds: Vec<Round>,
}

/// Has an aged image read and written as by its user, on a copy that the flash device serves in virtual time. What was
/// aged through a mount of MobiFS is used through one.
///
/// # Errors
/// [`FragError`]; nothing stays mounted, and the image as it was.
pub fn waits_of(image: &Path, rounds: u32, settings: &Settings) -> Result<WaitsOf, FragError> {
    let aged = Aged::open(image)?;
    let unused = unused(image, settings)?;
    if !rustix::process::geteuid().is_root() {
        return Err(FragError::NotRoot);
    }
    let mut degrees = None;
    let mut measured = Vec::new();
    for _ in 0..rounds.max(1) {
        settings.check()?;
        let mut home = Home::of(&aged, settings)?;
        let files = Files::of(&home.tree())?;
        if degrees.is_none() {
            let lower = home.lower_tree();
            let of = |paths: &[PathBuf]| Degrees::of(&moved(paths, &home.tree(), &lower));
            degrees = Some((of(&files.executables)?, of(&files.databases)?));
        }
        measured.push(home.round(&files, aged.settings.scale, settings)?);
    }
    drop(unused);
    let Some((executables, databases)) = degrees else {
        return Err(FragError::NoResult("no measurement"));
    };
    let sum = |round: &Round| round.launch.busy_ms + round.scan.busy_ms;
    measured.sort_by(|one, other| sum(one).total_cmp(&sum(other)));
    Ok(WaitsOf {
        image: aged.image.clone(),
        filesystem: filesystem(aged.filesystem),
        through: aged.through,
        day: aged.day.day,
        checksum: aged.day.checksum.clone(),
        used_permille: aged.day.space.used_permille(),
        executables,
        databases,
        rounds: measured,
    })
}

/// The image, which nothing else may use. The loop device of a run that has just ended goes a moment after it.
fn unused(image: &Path, settings: &Settings) -> Result<File, FragError> {
    const PAUSE: Duration = Duration::from_millis(50);
    let begun = Instant::now();
    loop {
        settings.check()?;
        match open_image(image) {
            Err(MeasureError::InUse { .. }) if begun.elapsed() < IN_USE_MAX => {
                std::thread::sleep(PAUSE);
            }
            Err(MeasureError::InUse { by, .. }) => {
                let image = image.to_owned();
                return Err(FragError::InUse { image, by });
            }
            opened => return Ok(opened?),
        }
    }
}

const fn filesystem(aged: mobifs_ageing::Filesystem) -> Filesystem {
    match aged {
        mobifs_ageing::Filesystem::Ext4 => Filesystem::Ext4,
        mobifs_ageing::Filesystem::Btrfs => Filesystem::Btrfs,
        mobifs_ageing::Filesystem::Xfs => Filesystem::Xfs,
    }
}

/// The same files below another directory.
fn moved(paths: &[PathBuf], from: &Path, to: &Path) -> Vec<PathBuf> {
    let below = |path: &PathBuf| to.join(path.strip_prefix(from).unwrap_or(path));
    paths.iter().map(below).collect()
}

/// What a launch and a scan read.
struct Files {
    executables: Vec<PathBuf>,
    databases: Vec<PathBuf>,
}

impl Files {
    fn of(tree: &Path) -> Result<Self, FragError> {
        let mut all = Vec::new();
        for part in ["app", "data"] {
            below(&tree.join(part), &mut all)?;
        }
        all.sort();
        let of_kind = |kind: Kind| {
            let is_kind = |path: &&PathBuf| {
                use std::os::unix::ffi::OsStrExt as _;
                let name = path.file_name().unwrap_or_default();
                Kind::of_name(name.as_bytes()) == Some(kind)
            };
            all.iter().filter(is_kind).cloned().collect::<Vec<_>>()
        };
        let databases = of_kind(Kind::Sqlite).into_iter();
        let is_database = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "db");
        Ok(Self {
            executables: of_kind(Kind::Executable),
            databases: databases.filter(is_database).collect(),
        })
    }
}

fn below(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), FragError> {
    let at = |error| FragError::io(directory, error);
    for entry in fs::read_dir(directory).map_err(at)? {
        let entry = entry.map_err(at)?;
        let kind = entry.file_type().map_err(at)?;
        if kind.is_dir() {
            below(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// A copy of the image, mounted, with MobiFS over it where that was so when it was aged.
struct Home {
    disk: Disk,
    /// The program, and whether it has a mount.
    mobifs: Option<(PathBuf, bool)>,
}

impl Home {
    fn of(aged: &Aged, settings: &Settings) -> Result<Self, FragError> {
        let mobifs = match aged.through {
            Through::Mount => Some((mobifs()?, false)),
            _ => None,
        };
        let kind = filesystem(aged.filesystem);
        let disk = Disk::of_copy(&settings.scratch, &aged.image, kind, settings.seed)?;
        let mut home = Self { disk, mobifs };
        let mountpoint = home.mountpoint();
        fs::create_dir(&mountpoint).map_err(|error| FragError::io(&mountpoint, error))?;
        home.mount()?;
        Ok(home)
    }

    fn mountpoint(&self) -> PathBuf {
        self.disk.beside("mount")
    }

    fn store(&self) -> PathBuf {
        self.disk.root().join("store")
    }

    /// The tree as apps see it.
    fn tree(&self) -> PathBuf {
        match self.mobifs {
            Some(_) => self.mountpoint().join(TREE),
            None => self.disk.root().join(TREE),
        }
    }

    /// The tree as it lies on the disk.
    fn lower_tree(&self) -> PathBuf {
        match self.mobifs {
            Some(_) => self.store().join(TREE),
            None => self.tree(),
        }
    }

    fn mount(&mut self) -> Result<(), FragError> {
        let (store, mountpoint) = (self.store(), self.mountpoint());
        if let Some((program, is_mounted)) = &mut self.mobifs {
            run(Command::new(&*program)
                .arg("mount")
                .args([store, mountpoint]))?;
            *is_mounted = true;
        }
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), FragError> {
        let mountpoint = self.mountpoint();
        if let Some((program, is_mounted)) = &mut self.mobifs
            && *is_mounted
        {
            run(Command::new(&*program).arg("umount").arg(mountpoint))?;
            *is_mounted = false;
        }
        Ok(())
    }

    /// Nothing of any file is in memory then, and the device at rest.
    fn remount(&mut self, settings: &Settings) -> Result<(), FragError> {
        self.unmount()?;
        self.disk.remount()?;
        self.mount()?;
        self.disk.sync()?;
        self.disk.rest(settings)
    }

    /// Everything is durable and at its place then.
    fn apply(&self) -> Result<(), FragError> {
        if let Some((program, _)) = &self.mobifs {
            run(Command::new(program).arg("sync").arg(self.mountpoint()))?;
        }
        self.disk.sync()
    }

    fn round(
        &mut self,
        files: &Files,
        scale: f64,
        settings: &Settings,
    ) -> Result<Round, FragError> {
        self.remount(settings)?;
        let before = self.disk.counts()?;
        for path in &files.executables {
            settings.check()?;
            read_through(path)?;
        }
        for path in &files.databases {
            settings.check()?;
            query(path, NEWEST)?;
        }
        let launch = self.disk.counts()?.since(&before);
        self.remount(settings)?;
        let before = self.disk.counts()?;
        for path in &files.databases {
            settings.check()?;
            query(path, SCAN)?;
        }
        let scan = self.disk.counts()?.since(&before);
        self.remount(settings)?;
        let before = self.disk.counts()?;
        let installed = self.install(scale, settings)?;
        let install = self.disk.counts()?.since(&before);
        self.apply()?;
        let install_durable = self.disk.counts()?.since(&before);
        let lower = moved(&installed, &self.tree(), &self.lower_tree());
        Ok(Round {
            launch,
            scan,
            install,
            install_durable,
            installed: Degrees::of(&lower)?,
        })
    }

    /// The files of one more app: a package is written and read, and its files are written, each durable.
    fn install(&self, scale: f64, settings: &Settings) -> Result<Vec<PathBuf>, FragError> {
        let scaled = |bytes: u64| ((bytes as f64 * scale) as u64).max(512);
        let needed_bytes = (scaled(PACKAGE_BYTES) + DEX_FILES * scaled(DEX_BYTES)) / 4 * 5;
        let free_bytes = Space::of(&self.disk.root())?.free_bytes;
        if free_bytes < needed_bytes {
            return Err(FragError::Age(AgeError::NoRoom {
                path: self.disk.root(),
                free_bytes,
                needed_bytes,
                advice: "the image is too full for one more app; age one with a lower --full",
            }));
        }
        let directory = self.tree().join("app").join("one-more-1");
        fs::create_dir(&directory).map_err(|error| FragError::io(&directory, error))?;
        let package = directory.join("base.apk");
        write_file(&package, scaled(PACKAGE_BYTES))?;
        read_through(&package)?;
        let mut files = vec![package];
        for number in 1..=DEX_FILES {
            settings.check()?;
            let path = directory.join(format!("classes{number}.dex"));
            write_file(&path, scaled(DEX_BYTES))?;
            files.push(path);
        }
        Ok(files)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // The disk goes next; it detaches what is still in use.
        let _unmounted = self.unmount();
    }
}

fn query(database: &Path, query: &str) -> Result<(), FragError> {
    let connection = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let _sum: Option<i64> = connection.query_row(query, [], |row| row.get(0))?;
    Ok(())
}

/// What was measured of some images beside each other, of each the round in the middle.
#[must_use]
pub fn waits_table(images: &[WaitsOf]) -> Table {
    let mut head = vec!["ms of the device (requests)".to_owned()];
    head.extend(images.iter().map(|image| shown(&image.image)));
    let mut table = Table::new(caption(images), &[]);
    table.head = head;
    let mut row = |name: &str, cell: &dyn Fn(&WaitsOf) -> String| {
        let cells = images.iter().map(cell);
        let row = std::iter::once(name.to_owned()).chain(cells).collect();
        table.rows.push(row);
    };
    row("aged through", &|image| {
        format!("{:?}", image.through).to_lowercase()
    });
    row("days", &|image| image.day.to_string());
    row("used, %", &|image| {
        figure(f64::from(image.used_permille) / 10.0)
    });
    row("checksum", &|image| image.checksum.clone());
    row("executables: DoF", &|image| dof(&image.executables));
    row("databases: DoF", &|image| dof(&image.databases));
    for (name, of) in MEASURED {
        row(name, &|image| time(middle(image).map(of)));
    }
    row("installed files: DoF", &|image| {
        middle(image).map_or_else(String::new, |round| dof(&round.installed))
    });
    row("installed: bytes programmed, MB", &|image| {
        let round = middle(image);
        round.map_or_else(String::new, |round| {
            figure(round.install_durable.programmed_bytes as f64 / 1e6)
        })
    });
    table
}

type Of = fn(&Round) -> DeviceCounts;

const MEASURED: [(&str, Of); 4] = [
    ("launch of all apps", |round| round.launch),
    ("table scan of all databases", |round| round.scan),
    ("install, until it returns", |round| round.install),
    ("install, until it is durable", |round| {
        round.install_durable
    }),
];

fn caption(images: &[WaitsOf]) -> String {
    let rounds = images.first().map_or(0, |image| image.rounds.len());
    format!(
        "What a user waits for, on copies that an eMMC 5.1 serves in virtual time (rounds: {rounds})"
    )
}

fn shown(image: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let name = image.file_name().unwrap_or_default();
    mobifs_fragmentation::shown(name.as_bytes())
}

fn dof(degrees: &Degrees) -> String {
    format!("{:.2}", degrees.mean_dof)
}

fn time(counts: Option<DeviceCounts>) -> String {
    counts.map_or_else(String::new, |counts| {
        format!("{:.1} ({})", counts.busy_ms, counts.reads + counts.writes)
    })
}

fn middle(image: &WaitsOf) -> Option<&Round> {
    image.rounds.get(image.rounds.len() / 2)
}
