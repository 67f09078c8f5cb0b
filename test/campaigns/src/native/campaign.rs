//! Sessions, and the power cuts of each.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mobifs_device_server::{CrashState, CrashStates, Journal, Scale, Survival};
use mobifs_testkit::mount::{Program, is_mounted};
use mobifs_testkit::random::Random;
use tempfile::TempDir;

use super::oracle::{Promise, judge};
use super::recorded::Recorded;
use super::session::{BALLAST, Tools, record};
use super::setting::{DaemonFate, Layout, Only, Setting, Subject};
use super::snapshots;
use super::writers::Writer;
use crate::filesystem::{Filesystem, unmount};
use crate::trouble::{OnPath as _, Trouble};

/// Cuts soon after a commit come so long after it at most.
const AFTER_COMMIT: Duration = Duration::from_millis(30);

/// What a campaign is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `mobifs` program.
    pub program: Program,
    /// A program that calls [`Writer::work`](super::writers::Writer::work).
    pub helper: PathBuf,
    /// Where images and mount points are made.
    pub scratch: PathBuf,
    /// What the writers write to.
    pub subject: Subject,
    /// Power cuts.
    pub cuts: u64,
    /// Power cuts of one session.
    pub cuts_of_a_session: u64,
    /// How long a session lasts.
    pub session: Duration,
    /// Fixes all random choices, but not the machine's timing.
    pub seed: u64,
    /// Real seconds for each of the device.
    pub scale: Scale,
    /// How much older than `age_max_ms` what is missing may be: the kernel's timer is rounded up to a
    /// second, and a commit takes its time.
    pub slack: Duration,
    /// The number of the first session.
    pub first_session: u64,
    /// Writers of every session.
    pub only: Only,
}

/// What a campaign did.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Power cuts.
    pub cuts: u64,
    /// Sessions.
    pub sessions: u64,
    /// … in which the daemon was killed.
    pub killed: u64,
    /// … in which it was not run for a while.
    pub stopped: u64,
    /// Processes of supervisors that were killed.
    pub supervisor_kills: u64,
    /// Sessions on a filesystem that was nearly full.
    pub full: u64,
    /// … with a journal of 8 MiB at most.
    pub small_journal: u64,
    /// … with a writer whose calls were waited for.
    pub durable: u64,
    /// Commits that were asked for.
    pub commits: u64,
    /// Steps that had returned before a cut, of all cuts.
    pub returned: u64,
    /// Steps that were there, of all cuts.
    pub found: u64,
    /// Commands that a cut kept although they were not durable.
    pub kept: u64,
    /// … lost.
    pub lost: u64,
    /// … tore.
    pub torn: u64,
    /// Cuts after which stores into a mapping were there that are newer than everything else, which is not
    /// promised otherwise.
    pub newer_mappings: u64,
    /// Snapshots called exact that were compared after cuts.
    pub snapshots: u64,
    /// Cuts that broke a promise.
    pub broken: u64,
    /// Cuts that showed the kernel's fault with files that are shortened, and nothing else.
    pub kernel_faults: u64,
    /// Cuts after which the superblock was torn, so that a copy of ext4's was needed; one of btrfs is lost then,
    /// and nothing is compared.
    pub superblocks_torn: u64,
    /// The oldest step that was missing after a cut had returned so long before it.
    pub lost_max: Duration,
    /// That age, without `age_max_ms`.
    pub beyond_age_max: Duration,
    /// How widely the moment of a cut was known, on average over the cuts that lost something.
    width: Duration,
    lossy: u32,
    /// What was wrong.
    pub violations: Vec<Violation>,
}

/// What was wrong with one cut.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The session.
    pub session: u64,
    /// The crash state of its device's journal.
    pub state: String,
    /// What is wrong.
    pub problem: String,
    /// What the session was like.
    pub setting: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            session,
            state,
            problem,
            ..
        } = self;
        write!(f, "session {session}, crash state {state}: {problem}")
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mean_width = self.width.checked_div(self.lossy).unwrap_or_default();
        write!(
            f,
            "{} cuts of {} sessions (daemon killed in {}, stopped in {}; {} processes of supervisors killed; {} nearly full, {} with a \
             small journal, {} with a writer that waits), {} commits asked for; {} steps had \
             returned, {} were there; {} commands survived, {} did not, {} were torn, the \
             superblock after {} cuts; the oldest loss was {} ms old, {} ms more than age_max_ms; \
             moments known to {:.1} ms; mappings newer than that after {} cuts; {} exact snapshots; the kernel's \
             known fault after {} cuts; {} violations after {} cuts",
            self.cuts,
            self.sessions,
            self.killed,
            self.stopped,
            self.supervisor_kills,
            self.full,
            self.small_journal,
            self.durable,
            self.commits,
            self.returned,
            self.found,
            self.kept,
            self.lost,
            self.torn,
            self.superblocks_torn,
            self.lost_max.as_millis(),
            self.beyond_age_max.as_millis(),
            mean_width.as_secs_f64() * 1e3,
            self.newer_mappings,
            self.snapshots,
            self.kernel_faults,
            self.violations.len(),
            self.broken
        )
    }
}

/// A campaign.
pub struct Campaign {
    options: Options,
    scratch: TempDir,
    tally: Tally,
    /// What failed is kept here.
    keep: Option<PathBuf>,
}

impl Campaign {
    /// Makes a directory for it.
    ///
    /// # Errors
    /// It cannot be made; the device is not to spend time.
    pub fn new(options: Options) -> Result<Self, Trouble> {
        if options.scale == Scale::COUNT_ONLY {
            return Err(Trouble::Failed(
                "times are compared, so the device must spend time: give a scale above 0".into(),
            ));
        }
        let scratch = tempfile::Builder::new()
            .prefix("mobifs-native-")
            .tempdir_in(&options.scratch)
            .map_err(|error| error.to_string())?;
        let keep = std::env::var_os("MOBIFS_KEEP").map(PathBuf::from);
        Ok(Self {
            options,
            scratch,
            tally: Tally::default(),
            keep,
        })
    }

    /// Cuts as often as requested, or until `goes_on`, called after each cut, returns false.
    ///
    /// # Errors
    /// Something fails that must not; what a cut breaks is in the tally.
    pub fn run(mut self, mut goes_on: impl FnMut(&Tally) -> bool) -> Result<Tally, Trouble> {
        let mut session = self.options.first_session;
        let mut is_over = false;
        while !is_over && self.tally.cuts < self.options.cuts {
            let mut wants_more = |tally: &Tally| {
                is_over |= !goes_on(tally);
                !is_over
            };
            self.session(session, &mut wants_more)
                .map_err(|trouble| trouble.at(&format!("session {session}")))?;
            session += 1;
        }
        Ok(self.tally)
    }

    fn session(
        &mut self,
        number: u64,
        goes_on: &mut impl FnMut(&Tally) -> bool,
    ) -> Result<(), Trouble> {
        let options = &self.options;
        let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(number);
        let mut random = Random::new(seed);
        let setting = Setting::choose(
            number,
            options.subject,
            options.session,
            &options.only,
            &mut random,
        );
        let directory = self.scratch.path().join("session");
        fs::create_dir(&directory).on(&directory)?;
        let tools = Tools {
            mobifs: &options.program,
            helper: &options.helper,
            scale: options.scale,
        };
        let recorded = record(&tools, &setting, &directory, &mut random);
        let recorded = recorded.map_err(|trouble| trouble.at(&setting.to_string()))?;
        self.count_session(&setting, &recorded);
        self.cut(number, &setting, &recorded, &mut random, goes_on)?;
        fs::remove_dir_all(&directory).on(&directory)?;
        Ok(())
    }

    fn count_session(&mut self, setting: &Setting, recorded: &Recorded) {
        let tally = &mut self.tally;
        tally.sessions += 1;
        match setting.fate {
            DaemonFate::Killed { .. } | DaemonFate::Replaced { .. } => tally.killed += 1,
            DaemonFate::Stopped { .. } => tally.stopped += 1,
            DaemonFate::Lives => {}
        }
        tally.supervisor_kills += recorded.supervisor_kills;
        tally.full += u64::from(setting.is_nearly_full);
        tally.small_journal += u64::from(setting.journal_mebibytes <= 8);
        tally.durable += u64::from(setting.durable.is_some());
        tally.commits += recorded.commits.len() as u64;
    }

    /// The power is cut at many moments of a session.
    fn cut(
        &mut self,
        number: u64,
        setting: &Setting,
        recorded: &Recorded,
        random: &mut Random,
        goes_on: &mut impl FnMut(&Tally) -> bool,
    ) -> Result<(), Trouble> {
        let wrong = |error: mobifs_device_server::JournalError| Trouble::from(error.to_string());
        let journal = Journal::open(&recorded.journal).map_err(wrong)?;
        let wanted = self.options.cuts_of_a_session;
        let wanted = wanted.min(self.options.cuts - self.tally.cuts);
        let intervals = choose(&journal, recorded, wanted, random)?;
        let mut states = CrashStates::new(&journal, &recorded.base).map_err(wrong)?;
        let image = self.scratch.path().join("cut");
        for interval in intervals {
            let seed = random.below(1 << 32);
            let survival = Survival::Random { seed };
            let state = CrashState { interval, survival };
            let made = states.make(state, &image).map_err(wrong)?;
            self.tally.kept += made.kept as u64;
            self.tally.lost += made.lost as u64;
            self.tally.torn += made.torn as u64;
            let cut_ns = recorded.clock.boottime_ns(made.crash_at);
            let problems = self.examine(setting, recorded, &image, cut_ns, random)?;
            let is_wrong = !problems.is_empty();
            self.tally.broken += u64::from(is_wrong);
            let state_text = format!("{interval}:{seed}");
            for problem in problems {
                self.tally.violations.push(Violation {
                    session: number,
                    state: state_text.clone(),
                    problem,
                    setting: setting.to_string(),
                });
            }
            if let Some(keep) = self.keep.as_ref().filter(|_| is_wrong) {
                fs::create_dir_all(keep).on(keep)?;
                let kept = keep.join(format!("session-{number}-state-{interval}-{seed}"));
                let _older = fs::remove_file(&kept);
                states.make(state, &kept).map_err(wrong)?;
            }
            self.tally.cuts += 1;
            if !goes_on(&self.tally) {
                break;
            }
        }
        Ok(())
    }

    /// Has the filesystem recover what a cut left; where it does not, what is wrong with that, if it is.
    fn recover(
        &mut self,
        setting: &Setting,
        image: &Path,
        at: &Path,
        random: &mut Random,
    ) -> Result<Option<Option<String>>, Trouble> {
        let filesystem = setting.subject.filesystem();
        let mut recovered = filesystem.recover(image, at, random);
        if setting.meets_kernel_fault() && recovered.is_err() && mends_journal(image) {
            self.tally.kernel_faults += 1;
            recovered = filesystem.check(image);
        }
        if filesystem == Filesystem::Ext4 && recovered.is_err() && has_torn_superblock(image) {
            self.tally.superblocks_torn += 1;
            recovered = recover_by_copy(image, setting.layout);
        }
        match recovered {
            Ok(()) => Ok(None),
            Err(Trouble::LowerLost(_)) => {
                self.tally.superblocks_torn += 1;
                Ok(Some(None))
            }
            Err(Trouble::Violation(problem) | Trouble::Failed(problem)) => {
                if is_mounted(at) {
                    unmount(at)?;
                }
                let name = filesystem.name();
                Ok(Some(Some(format!("{name} does not recover: {problem}"))))
            }
            Err(other) => Err(other),
        }
    }

    /// Recovers what a cut left and looks at everything; returns what is wrong.
    fn examine(
        &mut self,
        setting: &Setting,
        recorded: &Recorded,
        image: &Path,
        cut_ns: u64,
        random: &mut Random,
    ) -> Result<Vec<String>, Trouble> {
        let at = self.scratch.path().join("after");
        if !at.exists() {
            fs::create_dir(&at).on(&at)?;
        }
        let mut problems = Vec::new();
        if let Some(problem) = self.recover(setting, image, &at, random)? {
            fs::remove_file(image).on(image)?;
            problems.extend(problem);
            return Ok(problems);
        }
        setting.subject.filesystem().mount(image, &at)?;
        // SQLite needs some room to open a database.
        let ballast = at.join(BALLAST);
        if ballast.exists() {
            fs::remove_file(&ballast).on(&ballast)?;
        }
        let mut logs = Vec::new();
        for log in &recorded.logs {
            let app = log.app();
            let found = if setting.subject.keeps_order() || log.is_durable {
                log.writer.check(&at.join(&app))
            } else {
                log.writer.check_each_file(&at.join(&app))
            };
            match found {
                Ok(found) => logs.push((log.clone(), found)),
                Err(problem) if log.writer == Writer::Shortened => {
                    println!("the kernel's known fault: {app}: {problem}");
                    self.tally.kernel_faults += 1;
                }
                Err(problem) => problems.push(format!("{app}: {problem}")),
            }
        }
        if setting.subject == Subject::Btrfs {
            let looked = snapshots::examine(&at, recorded, cut_ns, self.scratch.path(), random)?;
            self.tally.snapshots += looked.exact;
            problems.extend(looked.problems);
        }
        unmount(&at)?;
        fs::remove_file(image).on(image)?;
        let age_max = setting.age_limit();
        let age_limit = age_max.saturating_add(self.options.slack);
        let promise = Promise {
            cut_ns,
            age_max_ns: u64::try_from(age_limit.as_nanos()).unwrap_or(u64::MAX),
            keeps_order: setting.subject.keeps_order(),
        };
        let (verdict, wrong) = judge(&logs, &recorded.commits, promise);
        problems.extend(wrong);
        let tally = &mut self.tally;
        tally.newer_mappings += u64::from(verdict.has_newer_mapping);
        tally.returned += verdict.returned;
        tally.found += verdict.found;
        let lost = Duration::from_nanos(verdict.lost_ns);
        tally.lost_max = tally.lost_max.max(lost);
        tally.beyond_age_max = tally.beyond_age_max.max(lost.saturating_sub(age_max));
        if verdict.width_ns > 0 {
            tally.width += Duration::from_nanos(verdict.width_ns);
            tally.lossy += 1;
        }
        Ok(problems)
    }
}

/// The superblock of ext4 has two sectors and one checksum. The modelled device may tear it when it is
/// written to its place, and then ext4 does not mount, although its journal has it.
fn has_torn_superblock(image: &Path) -> bool {
    let about = Command::new("dumpe2fs").arg("-h").arg(image).output();
    about.is_ok_and(|about| {
        let printed = mobifs_testkit::mount::printed(&about);
        printed.contains("Superblock checksum does not match")
    })
}

/// Whether e2fsck replays a journal in which a block does not have its checksum: ext4 wrote to it while it was
/// being committed, and mounts no such filesystem.
fn mends_journal(image: &Path) -> bool {
    let checked = Command::new("e2fsck")
        .args(["-f", "-p"])
        .arg(image)
        .output();
    checked.is_ok_and(|checked| {
        let printed = mobifs_testkit::mount::printed(&checked);
        printed.contains("Journal checksum error") && matches!(checked.status.code(), Some(0 | 1))
    })
}

/// Replays the journal by a copy of the superblock.
fn recover_by_copy(image: &Path, layout: Layout) -> Result<(), Trouble> {
    let mut check = Command::new("e2fsck");
    let copy = layout.superblock_copy().to_string();
    let block_bytes = layout.block_bytes().to_string();
    check.args(["-f", "-y", "-b", &copy, "-B", &block_bytes]);
    let output = check.arg(image).output().on(image)?;
    if !matches!(output.status.code(), Some(0 | 1)) {
        let printed = mobifs_testkit::mount::printed(&output);
        return Err(Trouble::Violation(format!(
            "e2fsck by a copy of the torn superblock: {printed}"
        )));
    }
    Filesystem::Ext4.check(image)
}

/// The intervals in which the power is cut, in order. A third of them is taken from all, so that many
/// fall into commits, which have many flushes; a third by time; and a third soon after a commit that was
/// asked for had returned.
fn choose(
    journal: &Journal,
    recorded: &Recorded,
    wanted: u64,
    random: &mut Random,
) -> Result<Vec<usize>, Trouble> {
    let intervals = journal.intervals();
    let during = &recorded.during;
    let first = intervals.partition_point(|interval| interval.begins_at < during.start);
    let end = intervals.partition_point(|interval| interval.begins_at < during.end);
    if first >= end {
        return Err(Trouble::Failed("nothing was flushed in a session".into()));
    }
    let interval_at = |at: u64| {
        let after = intervals.partition_point(|interval| interval.begins_at.0 <= at);
        after.saturating_sub(1).clamp(first, end - 1)
    };
    let mut chosen: Vec<usize> = (0..wanted)
        .map(|number| {
            if number % 3 == 0 {
                return first + random.below((end - first) as u64) as usize;
            }
            if number % 3 == 1 && !recorded.commits.is_empty() {
                let commit = random.pick(&recorded.commits);
                let later = random.below(AFTER_COMMIT.as_nanos() as u64);
                return interval_at(recorded.clock.device(commit.returned_ns + later).0);
            }
            interval_at(during.start.0 + random.below(during.end.0 - during.start.0))
        })
        .collect();
    chosen.sort_unstable();
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn a_torn_superblock_is_known_and_its_copy_is_taken() {
        if !mobifs_skip::can(crate::obstacle(Filesystem::Ext4)) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        for layout in [Layout::Usual, Layout::SmallBlocks] {
            let image = directory.path().join("image");
            let file = fs::File::create(&image).unwrap();
            file.set_len(64 << 20).unwrap();
            let options = layout.options();
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            Filesystem::Ext4.make(&image, &options).unwrap();
            assert!(!has_torn_superblock(&image));
            // The second of its two sectors, with its checksum.
            file.write_all_at(&[0; 512], 1024 + 512).unwrap();
            assert!(has_torn_superblock(&image));
            assert!(Filesystem::Ext4.check(&image).is_err());
            recover_by_copy(&image, layout).unwrap();
            assert!(!has_torn_superblock(&image));
        }
    }
}
