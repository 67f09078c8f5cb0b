//! What an app installs and what it does, as a TOML file. `profiles/` has the built-in ones, and
//! `docs/AGEING.md` says what the keys mean.

use std::fmt;
use std::fs;
use std::path::Path;

use mobifs_numerics::Random;
use serde::Deserialize;

use crate::error::{AgeError, OnPath as _};

/// The format of profiles.
const SCHEMA: u32 = 1;
/// A profile is a page of text.
const FILE_BYTES_MAX: u64 = 1 << 20;
const COUNT_MAX: u64 = 10_000;
const BYTES_MAX: u64 = 4 << 30;
const ROW_BYTES_MAX: u64 = 1 << 20;

/// The built-in profiles, in the order of S4's Table 3.
const BUILT_IN: [(&str, &str); 11] = [
    ("facebook", include_str!("../profiles/facebook.toml")),
    ("twitter", include_str!("../profiles/twitter.toml")),
    ("instagram", include_str!("../profiles/instagram.toml")),
    ("chrome", include_str!("../profiles/chrome.toml")),
    ("messenger", include_str!("../profiles/messenger.toml")),
    ("wechat", include_str!("../profiles/wechat.toml")),
    ("earth", include_str!("../profiles/earth.toml")),
    ("gmail", include_str!("../profiles/gmail.toml")),
    ("gallery", include_str!("../profiles/gallery.toml")),
    ("camera", include_str!("../profiles/camera.toml")),
    ("youtube", include_str!("../profiles/youtube.toml")),
];

/// From the least to the most, each as likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "RangeText")]
pub(crate) struct Range {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RangeText {
    One(u64),
    Two([u64; 2]),
}

impl From<RangeText> for Range {
    fn from(text: RangeText) -> Self {
        let [least, most] = match text {
            RangeText::One(number) => [number; 2],
            RangeText::Two(numbers) => numbers,
        };
        Self { least, most }
    }
}

impl Range {
    pub(crate) const fn draw(self, random: &mut Random) -> u64 {
        self.least + random.below(self.most - self.least + 1)
    }

    pub(crate) const fn mean(self) -> u64 {
        self.least.midpoint(self.most)
    }
}

/// Files of a package.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PackageFiles {
    /// `{n}` is the number of the file.
    pub(crate) name: String,
    #[serde(default = "one")]
    pub(crate) count: u64,
    pub(crate) bytes: Range,
    #[serde(default)]
    pub(crate) durable: bool,
}

const fn one() -> u64 {
    1
}

/// The package, as it is installed and updated.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Package {
    pub(crate) threads: u64,
    pub(crate) files: Vec<PackageFiles>,
}

/// Journal modes of SQLite that survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Journal {
    Delete,
    Truncate,
    Persist,
    Wal,
}

impl Journal {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Truncate => "truncate",
            Self::Persist => "persist",
            Self::Wal => "wal",
        }
    }
}

/// Databases that are alike.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Databases {
    pub(crate) name: String,
    pub(crate) count: u64,
    pub(crate) journal: Journal,
    /// Transactions of each in a session.
    pub(crate) transactions: Range,
    /// Those of the first session.
    pub(crate) first_transactions: Option<Range>,
    /// Rows of the first transaction; as all others without.
    pub(crate) rows_first: Option<u64>,
    pub(crate) rows_inserted: u64,
    #[serde(default)]
    pub(crate) rows_updated: u64,
    pub(crate) row_bytes: Range,
    /// The oldest rows go when there are more.
    pub(crate) rows_max: u64,
}

impl Databases {
    pub(crate) fn rows_first(&self) -> u64 {
        self.rows_first.unwrap_or(self.rows_inserted)
    }
}

/// Files that an app keeps as long as there is room in its cache.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cache {
    pub(crate) name: String,
    pub(crate) extension: String,
    /// Files in a session.
    pub(crate) files: Range,
    pub(crate) bytes: Range,
    /// The oldest files go when there are more.
    pub(crate) bytes_max: u64,
}

/// Pictures of the user: what goes when the filesystem is full.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pictures {
    pub(crate) extension: String,
    /// Files in a session.
    pub(crate) files: Range,
    pub(crate) bytes: Range,
}

/// An app.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    schema: u32,
    pub(crate) name: String,
    /// How long a session takes.
    pub(crate) minutes: f64,
    /// Threads that write in a session.
    pub(crate) threads: u64,
    #[serde(default)]
    pub(crate) pictures_deleted: Option<Range>,
    pub(crate) package: Package,
    #[serde(default)]
    pub(crate) databases: Vec<Databases>,
    #[serde(default)]
    pub(crate) caches: Vec<Cache>,
    #[serde(default)]
    pub(crate) pictures: Vec<Pictures>,
}

/// The text of a profile, and where it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file, or which built-in one.
    pub name: String,
    /// TOML.
    pub text: String,
}

impl Source {
    /// The eleven apps of S4.
    #[must_use]
    pub fn built_in() -> Vec<Self> {
        let sources = BUILT_IN.into_iter().map(|(name, text)| Self {
            name: format!("built-in {name}"),
            text: text.to_owned(),
        });
        sources.collect()
    }

    /// A profile of the user.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn file(path: &Path) -> Result<Self, AgeError> {
        let name = path.display().to_string();
        let bytes = fs::metadata(path).at("look at", path)?.len();
        if bytes > FILE_BYTES_MAX {
            let message = format!("it has {bytes} bytes; a profile has {FILE_BYTES_MAX} at most");
            return Err(AgeError::Profile {
                source_name: name,
                message,
            });
        }
        match String::from_utf8(fs::read(path).at("read", path)?) {
            Ok(text) => Ok(Self { name, text }),
            Err(_) => Err(AgeError::Profile {
                source_name: name,
                message: "it is no text (UTF-8)".to_owned(),
            }),
        }
    }
}

/// The profiles of several sources; of two with the same name the later one counts, so that a
/// user can change a built-in one.
///
/// # Errors
/// One of them is wrong.
pub fn profiles(sources: &[Source]) -> Result<Vec<Profile>, AgeError> {
    let mut found: Vec<Profile> = Vec::new();
    for source in sources {
        let profile = Profile::parse(source)?;
        match found.iter_mut().find(|other| other.name == profile.name) {
            Some(other) => *other = profile,
            None => found.push(profile),
        }
    }
    Ok(found)
}

impl Profile {
    fn parse(source: &Source) -> Result<Self, AgeError> {
        let wrong = |message: String| AgeError::Profile {
            source_name: source.name.clone(),
            message,
        };
        let profile: Self = toml::from_str(&source.text).map_err(|error| {
            let line = error.span().map(|span| {
                let before = source.text.get(..span.start).unwrap_or_default();
                format!(" in line {}", before.lines().count().max(1))
            });
            let said = error.message().trim().replace('\n', " ");
            wrong(format!("{said}{}", line.unwrap_or_default()))
        })?;
        if profile.schema != SCHEMA {
            let found = profile.schema;
            return Err(wrong(format!(
                "it has schema {found}, and this program knows {SCHEMA}"
            )));
        }
        profile.check().map_err(wrong)?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), String> {
        name("name", &self.name)?;
        if !(self.minutes.is_finite() && (0.1..=1440.0).contains(&self.minutes)) {
            return Err(format!(
                "minutes is {}, and must be 0.1 to 1440",
                self.minutes
            ));
        }
        within("threads", self.threads, 1, 64)?;
        within("package.threads", self.package.threads, 1, 64)?;
        if self.package.files.is_empty() {
            return Err("package.files is empty, and an app has a package".to_owned());
        }
        let mut names = Vec::new();
        for files in &self.package.files {
            name("package.files.name", &files.name.replace("{n}", "1"))?;
            within("package.files.count", files.count, 1, COUNT_MAX)?;
            if files.count > 1 && !files.name.contains("{n}") {
                return Err(format!(
                    "package.files.name {:?} needs {{n}}, as there are several",
                    files.name
                ));
            }
            range("package.files.bytes", files.bytes, 1, BYTES_MAX)?;
            names.push(&files.name);
        }
        unique("package.files", names)?;
        self.check_databases()?;
        for cache in &self.caches {
            name("caches.name", &cache.name)?;
            name("caches.extension", &cache.extension)?;
            range("caches.files", cache.files, 0, COUNT_MAX)?;
            range("caches.bytes", cache.bytes, 1, BYTES_MAX)?;
            within(
                "caches.bytes_max",
                cache.bytes_max,
                cache.bytes.most,
                u64::MAX >> 16,
            )?;
        }
        unique("caches", self.caches.iter().map(|cache| &cache.name))?;
        for pictures in &self.pictures {
            name("pictures.extension", &pictures.extension)?;
            range("pictures.files", pictures.files, 0, COUNT_MAX)?;
            range("pictures.bytes", pictures.bytes, 1, BYTES_MAX)?;
        }
        match self.pictures_deleted {
            Some(deleted) => range("pictures_deleted", deleted, 0, COUNT_MAX),
            None => Ok(()),
        }
    }

    fn check_databases(&self) -> Result<(), String> {
        for databases in &self.databases {
            name("databases.name", &databases.name)?;
            within("databases.count", databases.count, 1, 1000)?;
            range(
                "databases.transactions",
                databases.transactions,
                0,
                COUNT_MAX,
            )?;
            if let Some(first) = databases.first_transactions {
                range("databases.first_transactions", first, 0, COUNT_MAX)?;
            }
            within(
                "databases.rows_inserted",
                databases.rows_inserted,
                1,
                COUNT_MAX,
            )?;
            within(
                "databases.rows_updated",
                databases.rows_updated,
                0,
                COUNT_MAX,
            )?;
            range("databases.row_bytes", databases.row_bytes, 1, ROW_BYTES_MAX)?;
            let (rows_max, first) = (databases.rows_max, databases.rows_first());
            within(
                "databases.rows_max",
                rows_max,
                databases.rows_inserted,
                100_000_000,
            )?;
            within("databases.rows_first", first, 1, rows_max)?;
        }
        unique("databases", self.databases.iter().map(|one| &one.name))
    }
}

fn within(key: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!("{key} is {value}, and must be {least} to {most}"))
}

fn range(key: &str, value: Range, least: u64, most: u64) -> Result<(), String> {
    if value.least > value.most {
        let (first, last) = (value.least, value.most);
        return Err(format!("{key} is [{first}, {last}]; the least comes first"));
    }
    within(key, value.least, least, most)?;
    within(key, value.most, least, most)
}

/// Names become names of files.
fn name(key: &str, value: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = (1..=64).contains(&value.len()) && value.bytes().all(is_plain);
    if is_name && !value.starts_with('.') {
        return Ok(());
    }
    Err(format!(
        "{key} is {value:?}, and must be a name of 1 to 64 letters, digits, dots, - and _"
    ))
}

fn unique<N: AsRef<str> + Ord + fmt::Debug>(
    key: &str,
    names: impl IntoIterator<Item = N>,
) -> Result<(), String> {
    let mut names: Vec<N> = names.into_iter().collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("{key} has the name {:?} twice", pair[0].as_ref())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = include_str!("../profiles/facebook.toml");

    fn parse(text: &str) -> Result<Profile, AgeError> {
        Profile::parse(&Source {
            name: "x.toml".to_owned(),
            text: text.to_owned(),
        })
    }

    #[test]
    fn the_built_in_profiles_are_the_eleven_apps() {
        let profiles = profiles(&Source::built_in()).unwrap();
        let names: Vec<_> = profiles.iter().map(|profile| &profile.name).collect();
        let expected: Vec<_> = BUILT_IN.iter().map(|(name, _)| name).collect();
        assert_eq!(names, expected);
        let of = |name: &str| profiles.iter().find(|one| one.name == name).unwrap();
        // What S4 says of them.
        let facebook = of("facebook");
        assert_eq!(facebook.threads, 18);
        let dex = facebook
            .package
            .files
            .iter()
            .filter(|files| files.name.ends_with(".dex"));
        assert_eq!(dex.map(|files| files.count).sum::<u64>(), 21);
        assert_eq!(of("camera").pictures[0].files.least, 30);
        let cache = &of("earth").databases[0];
        let megabytes = cache.rows_max * cache.row_bytes.mean() / 1_000_000;
        assert!((150..=201).contains(&megabytes), "{megabytes}");
    }

    #[test]
    fn a_profile_of_the_same_name_takes_the_place_of_the_first() {
        let mut sources = Source::built_in();
        sources.push(Source {
            name: "mine".to_owned(),
            text: GOOD.replace("threads = 18", "threads = 2"),
        });
        let profiles = profiles(&sources).unwrap();
        assert_eq!((profiles.len(), profiles[0].threads), (11, 2));
    }

    #[test]
    fn a_profile_that_is_no_text_is_a_damaged_one() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("x.toml");
        fs::write(&path, b"name = \"\xff\"").unwrap();
        let error = Source::file(&path).unwrap_err();
        assert!(matches!(error, AgeError::Profile { .. }), "{error}");
        assert!(error.to_string().contains("no text"), "{error}");
    }

    #[test]
    fn damaged_profiles_are_refused_in_one_sentence() {
        for (from, to, words) in [
            ("schema = 1", "schema = 2", "schema 2"),
            ("schema = 1", "schema = ", "in line"),
            ("name = \"facebook\"", "name = \"../etc\"", "must be a name"),
            ("name = \"facebook\"", "name = \".x\"", "must be a name"),
            ("threads = 18", "threads = 0", "threads is 0"),
            ("threads = 18", "threads = -1", "in line"),
            ("threads = 18", "threads = 65", "threads is 65"),
            ("threads = 18", "thread = 18", "unknown field"),
            ("minutes = 5", "minutes = nan", "minutes is NaN"),
            ("minutes = 5", "minutes = 0.0", "minutes is 0"),
            ("classes{n}.dex", "classes.dex", "needs {n}"),
            (
                "journal = \"delete\"",
                "journal = \"off\"",
                "unknown variant",
            ),
            (
                "rows_inserted = 1",
                "rows_inserted = 0",
                "rows_inserted is 0",
            ),
            ("rows_first = ", "rows_first = 9", "rows_first is 9"),
            ("row_bytes = [", "row_bytes = [9999999, ", "in line"),
        ] {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD, "{from}");
            let said = parse(&text).unwrap_err().to_string();
            assert!(
                said.contains(words) && said.contains("x.toml"),
                "{to}: {said}"
            );
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        assert!(parse("").is_err());
        assert!(parse(&GOOD[..GOOD.len() / 2]).is_err());
        assert!(parse(&format!("{GOOD}\n[[caches]]\nname = \"image_cache\"\nextension = \"x\"\nfiles = [2, 1]\nbytes = 1\nbytes_max = 1")).is_err());
    }
}
