//! Databases that grow, and move to where there is room, on a real ext4 over a device that fails writes, and loses
//! power then: what was durable stays, and a sync that says so is right.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use crate::failing_device::{Failing, FailingDevice, put_store_on_failing_device};
use crate::fixture::{Fixture, mobifs, needs_mounts, succeeds};

const NAMES: [&str; 4] = ["a.db", "b.db", "c.db", "d.db"];
const DEVICE_BYTES: u64 = 96 << 20;
const CONFIG: &str = "journal_bytes = \"4MiB\"\napply_idle_ms = 3600000\n";
/// Turns with a device that fails.
const FAILING_TURNS: u64 = 6;
/// Power cuts of one run.
const CUTS: usize = 5;

/// What programs have written: of each file its versions, with the operation that made each.
#[derive(Default)]
struct History {
    operations: u64,
    versions: [Vec<(u64, Vec<u8>)>; NAMES.len()],
    random: u64,
}

impl History {
    fn random(&mut self, below: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(11);
        (self.random >> 33) % below
    }

    /// Each database grows by some pages; some are changed in the middle, too. Another file takes what follows it.
    fn turn(&mut self, app: &Path) -> std::io::Result<()> {
        for (index, name) in NAMES.iter().enumerate() {
            let mut content = self.versions[index]
                .last()
                .map_or(Vec::new(), |it| it.1.clone());
            let mut options = OpenOptions::new();
            let file = options
                .write(true)
                .create(true)
                .truncate(false)
                .open(app.join(name))?;
            let more: Vec<u8> = (0..1 + self.random(10))
                .flat_map(|_| vec![self.random(256) as u8; 4096])
                .collect();
            file.write_all_at(&more, content.len() as u64)?;
            content.extend(&more);
            self.add(index, content.clone());
            let offset = self.random(content.len() as u64 - 3000);
            let changed = [self.random(256) as u8; 3000];
            file.write_all_at(&changed, offset)?;
            content[offset as usize..][..changed.len()].copy_from_slice(&changed);
            self.add(index, content);
            fs::write(app.join(format!("{}.jpg", self.operations)), [9; 40 << 10])?;
        }
        Ok(())
    }

    fn add(&mut self, index: usize, content: Vec<u8>) {
        self.operations += 1;
        self.versions[index].push((self.operations, content));
    }

    /// Whether the files are as they all were at one moment since this operation.
    fn check(&self, app: &Path, since: u64, what: &str) {
        let mut moments: Vec<u64> = (since..=self.operations).collect();
        for (name, versions) in NAMES.iter().zip(&self.versions) {
            let found =
                fs::read(app.join(name)).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
            let ends = versions.iter().skip(1).map(|it| it.0).chain([u64::MAX]);
            let lives: Vec<_> = versions
                .iter()
                .zip(ends)
                .filter(|(it, _)| it.1 == found)
                .collect();
            moments.retain(|&moment| {
                lives
                    .iter()
                    .any(|&(it, end)| it.0 <= moment && moment < end)
            });
            assert!(
                !moments.is_empty(),
                "{what}: {name} is of no moment since {since}: {} bytes",
                found.len()
            );
        }
    }
}

/// What became of a run.
#[derive(Debug, Default)]
struct Outcome {
    failed_writes: u64,
    moved_bytes: u64,
    failed_syncs: usize,
}

struct Run {
    fixture: Fixture,
    history: History,
    /// How many writes the device had done since the failures began when this operation was durable.
    durable: Vec<(usize, u64)>,
}

impl Run {
    fn moved_bytes(&self) -> u64 {
        self.fixture.status()["store"]["moved_bytes"]
            .as_u64()
            .unwrap()
    }

    /// A device that works, and databases on it.
    fn begin(seed: u64) -> Option<(Self, std::sync::Arc<FailingDevice>)> {
        let mut fixture = Fixture::new();
        let device = put_store_on_failing_device(&mut fixture, DEVICE_BYTES)?;
        let config = fixture.config(CONFIG);
        fixture.mount(&["--config", config.to_str().unwrap()]);
        let app = fixture.mountpoint.join("app");
        fs::create_dir(&app).unwrap();
        let mut history = History {
            random: seed,
            ..History::default()
        };
        for _ in 0..4 + history.random(24) {
            history.turn(&app).unwrap();
            succeeds(&mobifs(&["sync"], &fixture.mountpoint));
        }
        let disk = fixture.store.parent().unwrap();
        for command in ["sync -f", "fstrim"] {
            let mut words = command.split(' ');
            let mut command = Command::new(words.next().unwrap());
            assert!(command.args(words).arg(disk).status().unwrap().success());
        }
        let durable = vec![(0, history.operations)];
        Some((
            Self {
                fixture,
                history,
                durable,
            },
            device,
        ))
    }

    /// Turns, with a sync after each, until none is possible any more.
    fn fail(&mut self, device: &FailingDevice, outcome: &mut Outcome) {
        let app = self.fixture.mountpoint.join("app");
        for _ in 0..FAILING_TURNS {
            if self.history.turn(&app).is_err() {
                break;
            }
            if mobifs(&["sync"], &self.fixture.mountpoint).status.success() {
                self.durable
                    .push((device.written().len(), self.history.operations));
            } else {
                outcome.failed_syncs += 1;
            }
        }
    }

    /// The device works again: all is as it was, if the lower filesystem has not become read-only meanwhile.
    fn mend(&self, device: &FailingDevice) {
        device.fail(Failing::None, 0);
        let said = mobifs(&["sync"], &self.fixture.mountpoint);
        if said.status.success() {
            let app = self.fixture.mountpoint.join("app");
            self.history
                .check(&app, self.history.operations, "on the mount");
            self.fixture.umount();
            self.history.check(
                &self.fixture.store.join("app"),
                self.history.operations,
                "in the store",
            );
        } else {
            let disk = self.fixture.store.parent().unwrap();
            assert!(fs::write(disk.join("new"), "new").is_err(), "{said:?}");
            self.fixture.cut_power();
        }
    }

    /// What the device had after so many writes is what a power cut leaves then.
    fn check_cut(&self, image: &[u8], writes: usize) {
        let since = self
            .durable
            .iter()
            .rev()
            .find(|it| it.0 <= writes)
            .unwrap()
            .1;
        let mut fixture = Fixture::new();
        let path = fixture.path("image");
        fs::write(&path, image).unwrap();
        let disk = fixture.directory("disk");
        fixture.mount_other(&["-o", "loop", path.to_str().unwrap()], &disk);
        fixture.store = disk.join("store");
        let config = fixture.config(CONFIG);
        fixture.mount(&["--config", config.to_str().unwrap()]);
        let what = format!("cut after {writes} writes");
        self.history
            .check(&fixture.mountpoint.join("app"), since, &what);
        fixture.umount();
    }
}

/// One run, and power cuts at some of the device's writes.
fn run(seed: u64, failing: Failing, cuts: usize) -> Option<Outcome> {
    let (mut run, device) = Run::begin(seed)?;
    let moved_bytes = run.moved_bytes();
    device.fail(failing, seed);
    let mut image = device.image();
    let mut outcome = Outcome::default();
    run.fail(&device, &mut outcome);
    let written = device.written();
    outcome.failed_writes = device.failed();
    outcome.moved_bytes = run.moved_bytes() - moved_bytes;
    run.mend(&device);
    let mut done = 0;
    for cut in 1..=cuts {
        let writes = written.len() * cut / cuts;
        for (offset, data) in &written[done..writes] {
            image[*offset as usize..][..data.len()].copy_from_slice(data);
        }
        done = writes;
        run.check_cut(&image, writes);
    }
    Some(outcome)
}

/// Runs with these seeds; what became of all of them together.
fn runs(seeds: std::ops::Range<u64>, failing: impl Fn(u64) -> Failing) -> Option<Outcome> {
    let mut all = Outcome::default();
    for seed in seeds {
        let outcome = run(seed, failing(seed), CUTS)?;
        println!("seed {seed}: {outcome:?}");
        all.failed_writes += outcome.failed_writes;
        all.failed_syncs += outcome.failed_syncs;
        all.moved_bytes += outcome.moved_bytes;
    }
    assert!(all.failed_writes > 0, "{all:?}");
    Some(all)
}

/// When the blocks were exchanged before the new ones had the content, a cut between a write that failed there and the
/// sync that brought it back found neither.
#[test]
fn what_was_durable_survives_a_device_that_fails_writes_to_new_places() {
    needs_mounts!();
    let failing = |seed: u64| Failing::OfFreeBlocks {
        one_in: if seed.is_multiple_of(2) { 2 } else { 8 },
    };
    if let Some(all) = runs(1..7, failing) {
        assert!(all.moved_bytes > 0, "{all:?}");
    }
}

#[test]
fn what_was_durable_survives_a_device_that_fails_all_writes_before_it_loses_power() {
    needs_mounts!();
    runs(1..5, |seed| Failing::AllAfter { writes: seed * 37 });
}
