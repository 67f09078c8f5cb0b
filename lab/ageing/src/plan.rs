//! What happens on which day: all of it follows from the seed, the profiles and the size of the
//! filesystem, and nothing from what the filesystem or the clock does. So an interrupted day can be
//! done again, and two runs make the same tree.

use std::collections::VecDeque;
use std::sync::Arc;

use mobifs_numerics::Random;

use crate::content::{mix, mix_name};
use crate::error::AgeError;
use crate::profile::{Journal, Profile, Range};
use crate::settings::Settings;
use crate::space::Space;

/// What a file takes of metadata, by the plan.
const METADATA_BYTES: u64 = 512;
/// What SQLite adds to a row, of 1000 bytes, and to a database.
const ROW_PERMILLE: u64 = 1_250;
const ROW_BYTES: u64 = 24;
const DATABASE_BYTES: u64 = 40 << 10;

/// A database, and all that its transactions follow from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Database {
    /// Below the root of the tree.
    pub(crate) path: String,
    pub(crate) journal: Journal,
    pub(crate) seed: u64,
    pub(crate) rows_first: u64,
    pub(crate) rows_inserted: u64,
    pub(crate) rows_updated: u64,
    pub(crate) row_bytes: Range,
    pub(crate) rows_max: u64,
}

impl Database {
    /// Rows that were ever inserted by so many transactions, of which that of number 0 inserts none.
    pub(crate) const fn rows_inserted_by(&self, transactions: u64) -> u64 {
        match transactions {
            0 | 1 => 0,
            more => self.rows_first + (more - 2) * self.rows_inserted,
        }
    }

    /// What a transaction writes about, journal and database.
    const fn written_by(&self, transaction: u64) -> u64 {
        let inserted = self.rows_inserted_by(transaction + 1) - self.rows_inserted_by(transaction);
        let rows = inserted + self.rows_updated;
        2 * (rows * (self.row_bytes.mean() + ROW_BYTES) * ROW_PERMILLE / 1000 + DATABASE_BYTES)
    }

    /// What it takes after so many transactions, by the plan.
    fn bytes(&self, transactions: u64) -> u64 {
        let rows = self.rows_inserted_by(transactions).min(self.rows_max);
        rows * (self.row_bytes.mean() + ROW_BYTES) * ROW_PERMILLE / 1000 + DATABASE_BYTES
    }
}

/// A step of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A directory, and those above it.
    Directory(String),
    /// A file as a whole.
    Write(FileToWrite),
    /// A file goes.
    Remove(String),
    /// A directory goes, with all that is in it.
    RemoveTree(String),
    /// The transaction of this number; that of number 0 makes the tables.
    Transaction(Arc<Database>, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileToWrite {
    pub(crate) path: String,
    pub(crate) seed: u64,
    pub(crate) bytes: u64,
    /// The write is synced.
    pub(crate) durable: bool,
    /// The file is written under another name first.
    pub(crate) renamed: bool,
}

/// An app that is installed, updated or used: what goes before, what its threads do at a time, and
/// what goes afterwards. No two threads of a session touch the same file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) title: String,
    pub(crate) before: Vec<Step>,
    pub(crate) threads: Vec<Vec<Step>>,
    pub(crate) after: Vec<Step>,
    /// Pictures that went because the filesystem was full.
    pub(crate) pictures_cleaned: u64,
    pub(crate) cleanings: u64,
}

impl Session {
    pub(crate) fn steps(&self) -> u64 {
        let threads = self.threads.iter().map(Vec::len).sum::<usize>();
        (self.before.len() + threads + self.after.len()) as u64
    }

    /// What it writes about.
    pub(crate) fn bytes(&self) -> u64 {
        let steps = self.threads.iter().flatten();
        let steps = steps.chain(&self.before).chain(&self.after);
        let bytes = steps.map(|step| match step {
            Step::Write(file) => file.bytes,
            Step::Transaction(database, number) => database.written_by(*number),
            Step::Directory(_) | Step::Remove(_) | Step::RemoveTree(_) => 0,
        });
        bytes.sum()
    }
}

struct LiveFile {
    path: String,
    bytes: u64,
}

struct App {
    version: u64,
    sessions: u64,
    package_bytes: u64,
    databases: Vec<(Arc<Database>, u64)>,
    caches: Vec<VecDeque<LiveFile>>,
}

/// Makes the sessions of one day after the other.
pub(crate) struct Planner<'p> {
    settings: &'p Settings,
    profiles: &'p [Profile],
    block_bytes: u64,
    mark_bytes: u64,
    used_bytes: u64,
    apps: Vec<App>,
    pictures: Vec<LiveFile>,
}

impl<'p> Planner<'p> {
    /// `used_bytes` are taken before the first app is installed.
    pub(crate) fn new(
        settings: &'p Settings,
        profiles: &'p [Profile],
        space: Space,
        used_bytes: u64,
    ) -> Self {
        let app = |profile: &Profile| App {
            version: 0,
            sessions: 0,
            package_bytes: 0,
            databases: databases(settings, profile),
            caches: profile.caches.iter().map(|_| VecDeque::new()).collect(),
        };
        Self {
            settings,
            profiles,
            block_bytes: space.block_bytes,
            mark_bytes: space.share(settings.full_permille),
            used_bytes,
            apps: profiles.iter().map(app).collect(),
            pictures: Vec::new(),
        }
    }

    /// The sessions of a day; on day 0 the apps are installed.
    pub(crate) fn day(&mut self, day: u32) -> Result<Vec<Session>, AgeError> {
        let mut random = Random::new(mix(self.settings.seed, u64::from(day)));
        let mut sessions = Vec::new();
        let is_update = day > 1 && (day - 1).is_multiple_of(self.settings.update_days);
        if day == 0 || is_update {
            for index in 0..self.profiles.len() {
                let session = self.install(index, &mut random);
                sessions.push(self.with_room(session, &mut random)?);
            }
        }
        let mut minutes = if day == 0 {
            0.0
        } else {
            self.settings.minutes_per_day
        };
        while minutes > 0.0 {
            let mut order: Vec<usize> = (0..self.profiles.len()).collect();
            shuffle(&mut order, &mut random);
            for index in order {
                if minutes <= 0.0 {
                    break;
                }
                minutes -= self.profiles[index].minutes;
                let session = self.scenario(index, day, sessions.len(), &mut random);
                sessions.push(self.with_room(session, &mut random)?);
            }
        }
        Ok(sessions)
    }

    fn taken(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.block_bytes) + METADATA_BYTES
    }

    fn scaled(&self, bytes: u64) -> u64 {
        self.settings.scaled(bytes).max(512)
    }

    /// Writes the next version of the package, and takes the last one away.
    fn install(&mut self, index: usize, random: &mut Random) -> (Session, u64, u64) {
        let profile: &'p Profile = &self.profiles[index];
        let name = &profile.name;
        let version = self.apps[index].version + 1;
        let directory = format!("app/{name}-{version}");
        let mut threads = vec![Vec::new(); profile.package.threads as usize];
        let mut bytes = 0;
        let mut count = 0;
        for files in &profile.package.files {
            for number in 1..=files.count {
                let path = format!(
                    "{directory}/{}",
                    files.name.replace("{n}", &number.to_string())
                );
                let size = self.scaled(files.bytes.draw(random));
                bytes += self.taken(size);
                let thread = count % threads.len();
                count += 1;
                threads[thread].push(Step::Write(FileToWrite {
                    seed: mix_name(self.settings.seed, &path),
                    path,
                    bytes: size,
                    durable: files.durable,
                    renamed: files.durable,
                }));
            }
        }
        let mut session = Session {
            title: format!("install {name}"),
            before: vec![Step::Directory(directory)],
            threads,
            ..Session::default()
        };
        if version == 1 {
            session.before.push(Step::Directory("media".to_owned()));
            session
                .before
                .push(Step::Directory(format!("data/{name}/databases")));
            for cache in &profile.caches {
                let path = format!("data/{name}/cache/{}", cache.name);
                session.before.push(Step::Directory(path));
            }
        } else {
            session.title = format!("update {name}");
            let last = format!("app/{name}-{}", version - 1);
            session.after.push(Step::RemoveTree(last));
        }
        let app = &mut self.apps[index];
        app.version = version;
        let freed = std::mem::replace(&mut app.package_bytes, bytes);
        (session, bytes, freed)
    }

    /// An app is used.
    fn scenario(
        &mut self,
        index: usize,
        day: u32,
        number: usize,
        random: &mut Random,
    ) -> (Session, u64, u64) {
        let profile: &'p Profile = &self.profiles[index];
        let mut threads = vec![Vec::new(); profile.threads as usize];
        let mut freed = self.delete_pictures(profile, &mut threads, random);
        let mut grown = self.transactions(index, &mut threads, random);
        let stem = format!("d{day:02}-s{number:03}");
        let (written, evicted) = self.caches(index, &stem, &mut threads, random);
        grown += written;
        freed += evicted;
        grown += self.new_pictures(profile, &stem, &mut threads, random);
        for steps in &mut threads {
            shuffle_steps(steps, random);
        }
        self.apps[index].sessions += 1;
        let session = Session {
            title: format!("use {}", profile.name),
            threads,
            ..Session::default()
        };
        (session, grown, freed)
    }

    fn delete_pictures(
        &mut self,
        profile: &Profile,
        threads: &mut [Vec<Step>],
        random: &mut Random,
    ) -> u64 {
        let count = profile
            .pictures_deleted
            .map_or(0, |range| range.draw(random));
        let mut freed = 0;
        for _ in 0..count {
            let Some(picture) = self.any_picture(random) else {
                break;
            };
            freed += picture.bytes;
            threads[0].push(Step::Remove(picture.path));
        }
        freed
    }

    fn any_picture(&mut self, random: &mut Random) -> Option<LiveFile> {
        if self.pictures.is_empty() {
            return None;
        }
        let at = random.below(self.pictures.len() as u64) as usize;
        Some(self.pictures.swap_remove(at))
    }

    fn transactions(
        &mut self,
        index: usize,
        threads: &mut [Vec<Step>],
        random: &mut Random,
    ) -> u64 {
        let profile: &'p Profile = &self.profiles[index];
        let app = &mut self.apps[index];
        let mut grown = 0;
        let groups = profile
            .databases
            .iter()
            .flat_map(|group| (0..group.count).map(move |_| group));
        for (at, (group, (database, next))) in groups.zip(&mut app.databases).enumerate() {
            let first = group.first_transactions.filter(|_| app.sessions == 0);
            let count = match first {
                Some(range) => self.settings.scaled(range.draw(random)).max(1),
                None => group.transactions.draw(random),
            };
            let steps = &mut threads[at % profile.threads as usize];
            let is_new = *next == 0;
            let last = *next + count + u64::from(is_new);
            for number in *next..last {
                steps.push(Step::Transaction(Arc::clone(database), number));
            }
            let before = if is_new { 0 } else { database.bytes(*next) };
            grown += database.bytes(last) - before;
            *next = last;
        }
        grown
    }

    fn caches(
        &mut self,
        index: usize,
        stem: &str,
        threads: &mut [Vec<Step>],
        random: &mut Random,
    ) -> (u64, u64) {
        let profile: &'p Profile = &self.profiles[index];
        let (mut grown, mut freed) = (0, 0);
        for (at, cache) in profile.caches.iter().enumerate() {
            let mut written = Vec::new();
            for number in 0..cache.files.draw(random) {
                let path = format!(
                    "data/{}/cache/{}/{stem}-{number:04}.{}",
                    profile.name, cache.name, cache.extension
                );
                let thread = random.below(threads.len() as u64) as usize;
                let bytes = self.scaled(cache.bytes.draw(random));
                threads[thread].push(self.write(path.clone(), bytes));
                let bytes = self.taken(bytes);
                grown += bytes;
                written.push(LiveFile { path, bytes });
            }
            let bytes_max = self.scaled(cache.bytes_max);
            let kept = &mut self.apps[index].caches[at];
            let mut held: u64 = kept.iter().chain(&written).map(|file| file.bytes).sum();
            // Files of this session stay: another thread may still be writing them.
            while held > bytes_max {
                let Some(oldest) = kept.pop_front() else {
                    break;
                };
                held -= oldest.bytes;
                freed += oldest.bytes;
                let thread = random.below(threads.len() as u64) as usize;
                threads[thread].push(Step::Remove(oldest.path));
            }
            kept.extend(written);
        }
        (grown, freed)
    }

    fn new_pictures(
        &mut self,
        profile: &Profile,
        stem: &str,
        threads: &mut [Vec<Step>],
        random: &mut Random,
    ) -> u64 {
        let mut grown = 0;
        for (kind, pictures) in profile.pictures.iter().enumerate() {
            for number in 0..pictures.files.draw(random) {
                let path = format!(
                    "media/{}-{stem}-{kind}{number:04}.{}",
                    profile.name, pictures.extension
                );
                let thread = random.below(threads.len() as u64) as usize;
                let bytes = self.scaled(pictures.bytes.draw(random));
                threads[thread].push(self.write(path.clone(), bytes));
                let bytes = self.taken(bytes);
                grown += bytes;
                self.pictures.push(LiveFile { path, bytes });
            }
        }
        grown
    }

    fn write(&self, path: String, bytes: u64) -> Step {
        Step::Write(FileToWrite {
            seed: mix_name(self.settings.seed, &path),
            path,
            bytes,
            durable: false,
            renamed: false,
        })
    }

    /// Deletes pictures before a session that would make the filesystem fuller than the mark.
    fn with_room(
        &mut self,
        (mut session, grown, freed): (Session, u64, u64),
        random: &mut Random,
    ) -> Result<Session, AgeError> {
        let own: Vec<LiveFile> = self.take_pictures_of(&session);
        while self.used_bytes + grown > self.mark_bytes {
            let mut cleaned = 0;
            while cleaned < self.settings.clean_bytes {
                let Some(picture) = self.any_picture(random) else {
                    break;
                };
                cleaned += picture.bytes;
                session.before.push(Step::Remove(picture.path));
                session.pictures_cleaned += 1;
            }
            if cleaned == 0 {
                return Err(AgeError::TooSmall {
                    what: session.title,
                    free_bytes: self.mark_bytes.saturating_sub(self.used_bytes),
                    needed_bytes: grown,
                });
            }
            session.cleanings += 1;
            self.used_bytes = self.used_bytes.saturating_sub(cleaned);
        }
        self.pictures.extend(own);
        self.used_bytes = (self.used_bytes + grown).saturating_sub(freed);
        Ok(session)
    }

    /// The pictures that the session makes, which cannot be deleted before it.
    fn take_pictures_of(&mut self, session: &Session) -> Vec<LiveFile> {
        let steps = session.threads.iter().flatten();
        let made = steps.filter(|step| match step {
            Step::Write(file) => file.path.starts_with("media/"),
            _ => false,
        });
        let kept = self.pictures.len() - made.count();
        self.pictures.split_off(kept)
    }
}

fn databases(settings: &Settings, profile: &Profile) -> Vec<(Arc<Database>, u64)> {
    let mut found = Vec::new();
    for group in &profile.databases {
        for number in 0..group.count {
            let path = format!("data/{}/databases/{}{number}.db", profile.name, group.name);
            // The small ones of S4's phones stay as they are.
            let rows_max = settings.scaled(group.rows_max).max(group.rows_max.min(200));
            let rows_first = group.rows_first() * rows_max / group.rows_max;
            let database = Database {
                seed: mix_name(settings.seed, &path),
                path,
                journal: group.journal,
                rows_inserted: group.rows_inserted,
                rows_updated: group.rows_updated,
                row_bytes: group.row_bytes,
                rows_first: rows_first.max(1),
                rows_max,
            };
            found.push((Arc::new(database), 0));
        }
    }
    found
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at as u64 + 1) as usize);
    }
}

/// Mixes the steps of a thread; the transactions of a database stay in their order.
fn shuffle_steps(steps: &mut [Step], random: &mut Random) {
    shuffle(steps, random);
    let places: Vec<usize> = (0..steps.len())
        .filter(|&at| matches!(steps[at], Step::Transaction(..)))
        .collect();
    // Which database comes at which place stays mixed; which of its transactions does not.
    let mut sorted: Vec<Step> = places.iter().map(|&at| steps[at].clone()).collect();
    sorted.sort_by(|one, other| key(one).cmp(&key(other)));
    for &at in &places {
        let Step::Transaction(database, _) = &steps[at] else {
            continue;
        };
        let path = database.path.clone();
        let next = sorted.iter().position(|step| key(step).0 == path);
        if let Some(next) = next {
            steps[at] = sorted.remove(next);
        }
    }
}

fn key(step: &Step) -> (&str, u64) {
    match step {
        Step::Transaction(database, number) => (&database.path, *number),
        _ => ("", 0),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::profile::{Source, profiles};

    const SPACE: Space = Space {
        used_bytes: 0,
        free_bytes: 32 << 30,
        free_files: None,
        block_bytes: 4096,
    };

    fn days(settings: &Settings, count: u32) -> Vec<Vec<Session>> {
        let profiles = profiles(&Source::built_in()).unwrap();
        let used = SPACE.share(settings.start_full_permille);
        let mut planner = Planner::new(settings, &profiles, SPACE, used);
        (0..=count).map(|day| planner.day(day).unwrap()).collect()
    }

    #[test]
    fn the_same_seed_plans_the_same_days() {
        let settings = |seed| Settings {
            seed,
            ..Settings::default()
        };
        let one = days(&settings(1), 2);
        assert_eq!(one, days(&settings(1), 2));
        assert_ne!(one, days(&settings(2), 2));
        assert_eq!(one[0].len(), 11);
        assert!(one[1].len() > 40, "{}", one[1].len());
    }

    /// S4: 70 % at the beginning, nearly full on the eleventh day, pictures deleted from then on.
    #[test]
    fn a_phone_of_32_gb_is_full_about_when_that_of_s4_was() {
        let days = days(&Settings::default(), 30);
        let first = days
            .iter()
            .position(|day| day.iter().any(|session| session.cleanings > 0));
        assert!(matches!(first, Some(9..=13)), "{first:?}");
        let updates = |day: usize| {
            days[day]
                .iter()
                .filter(|one| one.title.starts_with("update"))
        };
        assert_eq!(updates(11).count(), 11);
        assert_eq!(updates(21).count(), 11);
        assert_eq!((1..=10).map(|day| updates(day).count()).sum::<usize>(), 0);
    }

    #[test]
    fn no_two_threads_of_a_session_touch_the_same_file() {
        for session in days(&Settings::default(), 12).iter().flatten() {
            let mut of: HashMap<&str, usize> = HashMap::new();
            for (thread, steps) in session.threads.iter().enumerate() {
                for step in steps {
                    let path = match step {
                        Step::Write(file) => &file.path,
                        Step::Remove(path) => path,
                        Step::Transaction(database, _) => &database.path,
                        _ => continue,
                    };
                    let other = of.insert(path, thread);
                    assert!(other.is_none_or(|other| other == thread), "{path}");
                }
            }
        }
    }

    #[test]
    fn files_are_removed_once_and_after_they_were_written() {
        let mut live = HashSet::new();
        let mut next: HashMap<String, u64> = HashMap::new();
        for session in days(&Settings::default(), 30).iter().flatten() {
            let steps = session.threads.iter().flatten();
            let own = steps.clone().filter_map(|step| match step {
                Step::Write(file) => Some(file.path.clone()),
                _ => None,
            });
            let own: HashSet<_> = own.collect();
            for step in session.before.iter().chain(steps) {
                match step {
                    Step::Remove(path) => {
                        assert!(live.remove(path) && !own.contains(path), "{path}");
                    }
                    Step::Transaction(database, number) => {
                        let next = next.entry(database.path.clone()).or_default();
                        assert_eq!(number, next, "{}", database.path);
                        *next += 1;
                    }
                    _ => {}
                }
            }
            live.extend(own);
        }
        assert!(live.len() > 1000);
    }

    #[test]
    fn a_filesystem_that_is_too_small_is_refused() {
        let profiles = profiles(&Source::built_in()).unwrap();
        let settings = Settings::default();
        let space = Space {
            free_bytes: 1 << 30,
            ..SPACE
        };
        let mut planner = Planner::new(&settings, &profiles, space, 0);
        let said = planner.day(0).unwrap_err().to_string();
        assert!(said.contains("--scale"), "{said}");
    }
}
