//! What a mount has written and saved, day by day, kept across reboots: whether it pays.
//!
//! The totals lie in the store's own directory (`.mobifs/totals`), because they are about the flash
//! that the store is on: they go where it goes, need no other writable place, and end with it. They
//! are lines that are only appended, each with a checksum and the changes of one day since the line
//! before: no crash can damage what is there, what is torn is passed over, and nothing waits for the
//! disk. A start whose file has grown makes one line a day of it, of the last [`DAYS_MAX`] days.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use mobifs_base::Timestamp;
use mobifs_volume::{Status, rfc3339};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, statat, unlinkat};
use serde::{Deserialize, Serialize};

/// Where the totals of a store lie in it.
pub const STORE_TOTALS: &str = ".mobifs/totals";
/// The store's own directory, and the names in it.
const OWN_DIRECTORY: &str = ".mobifs";
const NAME: &str = "totals";
const NEW_NAME: &str = "totals.new";
/// Most days that are kept.
const DAYS_MAX: usize = 400;
/// A larger file is made one of a line a day. A day has at most 144 lines, most have a few.
const FILE_BYTES_MAX: u64 = 128 << 10;
/// Nothing is read beyond this: it is no file of ours.
const READ_BYTES_MAX: u64 = 16 << 20;

/// What happened on one day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayTotals {
    /// The day, in UTC: `2026-11-28`.
    pub day: String,
    /// Bytes that write calls brought.
    pub bytes_written_by_apps: u64,
    /// Bytes of content that were committed.
    pub bytes_sent_to_store: u64,
    /// Bytes written to the device by commits.
    pub commit_written_bytes: u64,
    /// Bytes written to the device by applies.
    pub apply_written_bytes: u64,
    /// Commits.
    pub commits: u64,
}

impl DayTotals {
    /// The bytes that the device got.
    pub const fn device_bytes(&self) -> u64 {
        self.commit_written_bytes
            .saturating_add(self.apply_written_bytes)
    }

    fn counters_of(status: &Status) -> Self {
        Self {
            day: String::new(),
            bytes_written_by_apps: status.totals.bytes_written_by_apps,
            bytes_sent_to_store: status.totals.bytes_sent_to_store,
            commit_written_bytes: status.store.commit_written_bytes,
            apply_written_bytes: status.store.apply_written_bytes,
            commits: status.store.commits,
        }
    }

    const fn numbers(&self) -> [u64; 5] {
        [
            self.bytes_written_by_apps,
            self.bytes_sent_to_store,
            self.commit_written_bytes,
            self.apply_written_bytes,
            self.commits,
        ]
    }

    const fn of_numbers(day: String, numbers: [u64; 5]) -> Self {
        let [
            bytes_written_by_apps,
            bytes_sent_to_store,
            commit_written_bytes,
            apply_written_bytes,
            commits,
        ] = numbers;
        Self {
            day,
            bytes_written_by_apps,
            bytes_sent_to_store,
            commit_written_bytes,
            apply_written_bytes,
            commits,
        }
    }

    fn with(&self, other: &Self, combine: fn(u64, u64) -> u64) -> Self {
        let (own, others) = (self.numbers(), other.numbers());
        let numbers = std::array::from_fn(|n| combine(own[n], others[n]));
        Self::of_numbers(self.day.clone(), numbers)
    }

    fn is_nothing(&self) -> bool {
        self.numbers() == [0; 5]
    }

    /// The line without what ends it.
    fn line(&self) -> String {
        let numbers = self.numbers().map(|number| number.to_string()).join(" ");
        let text = format!("{} {numbers}", self.day);
        let sum = checksum(&text);
        format!("{text} {sum:08x}")
    }

    /// None for a line that is torn, damaged, or none of ours.
    fn parse(line: &str) -> Option<Self> {
        let (text, sum) = line.rsplit_once(' ')?;
        if u32::from_str_radix(sum, 16).ok()? != checksum(text) {
            return None;
        }
        let mut words = text.split(' ');
        let day = words.next().filter(|day| is_day(day))?.to_owned();
        let mut numbers = [0; 5];
        for number in &mut numbers {
            *number = words.next()?.parse().ok()?;
        }
        words
            .next()
            .is_none()
            .then(|| Self::of_numbers(day, numbers))
    }
}

fn is_day(text: &str) -> bool {
    let is_right = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    text.len() == 10 && text.bytes().enumerate().all(is_right)
}

/// CRC32 of a line. It finds what is torn; nothing depends on the totals that a forger could want.
fn checksum(text: &str) -> u32 {
    !text.bytes().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
        })
    })
}

/// The totals in a text, one a day, the oldest first. Lines that are none are passed over.
pub fn parse_totals(text: &[u8]) -> Vec<DayTotals> {
    let mut days: BTreeMap<String, DayTotals> = BTreeMap::new();
    let lines = text.split(|&byte| byte == b'\n');
    for line in lines.filter_map(|line| DayTotals::parse(std::str::from_utf8(line).ok()?)) {
        let day = days.entry(line.day.clone()).or_insert_with(|| DayTotals {
            day: line.day.clone(),
            ..DayTotals::default()
        });
        *day = day.with(&line, u64::saturating_add);
    }
    let too_many = days.len().saturating_sub(DAYS_MAX);
    days.into_values().skip(too_many).collect()
}

/// The totals of a store that is not mounted.
///
/// # Errors
/// If there are none, or they cannot be read.
pub fn read_totals(store: &Path) -> io::Result<Vec<DayTotals>> {
    Ok(parse_totals(&OwnDirectory::open(store)?.content()?))
}

/// The store's own directory. It is opened once, and names are looked up in it and no symlink is followed:
/// who may write to the store could put one in the place of anything.
#[derive(Debug)]
struct OwnDirectory(OwnedFd);

impl OwnDirectory {
    fn open(store: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let store = rustix::fs::open(store, flags, Mode::empty())?;
        let flags = flags | OFlags::NOFOLLOW;
        Ok(Self(openat(store, OWN_DIRECTORY, flags, Mode::empty())?))
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(File::from(openat(&self.0, name, flags, mode)?))
    }

    fn content(&self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        let file = self.open_file(NAME, OFlags::RDONLY)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        file.take(READ_BYTES_MAX).read_to_end(&mut text)?;
        Ok(text)
    }

    fn append(&self, text: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        self.open_file(NAME, flags)?.write_all(text.as_bytes())
    }

    /// Makes a file that has grown one with a line a day.
    fn shorten(&self) -> io::Result<()> {
        match statat(&self.0, NAME, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) if u64::try_from(about.st_size).is_ok_and(|size| size > FILE_BYTES_MAX) => {}
            _ => return Ok(()),
        }
        let days = parse_totals(&self.content()?);
        let lines: String = days.iter().map(|day| day.line() + "\n").collect();
        let _old = unlinkat(&self.0, NEW_NAME, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = self.open_file(NEW_NAME, flags)?;
        file.write_all(lines.as_bytes())?;
        // Otherwise the name could be there after a crash, and the content not.
        file.sync_data()?;
        Ok(renameat(&self.0, NEW_NAME, &self.0, NAME)?)
    }
}

/// Keeps the totals of one mount.
#[derive(Debug)]
pub(crate) struct TotalsLog {
    own: OwnDirectory,
    /// The mount's counters when the last line was written.
    counted: Mutex<DayTotals>,
}

impl TotalsLog {
    /// Counts from here on: a successor's mount has counters of before, which its predecessor has
    /// noted but for the last minutes.
    ///
    /// # Errors
    /// If the store's own directory cannot be opened.
    pub(crate) fn start(store: &Path, status: &Status) -> io::Result<Self> {
        let log = Self {
            own: OwnDirectory::open(store)?,
            counted: Mutex::new(DayTotals::counters_of(status)),
        };
        if let Err(error) = log.own.shorten() {
            tracing::debug!(%error, "the totals of the store stay as long as they are");
        }
        Ok(log)
    }

    /// Records what has happened since the last time.
    ///
    /// # Errors
    /// If it cannot be written; then the next call records it.
    pub(crate) fn record(&self, status: &Status) -> io::Result<()> {
        let mut counted = self.counted.lock();
        let now = DayTotals::counters_of(status);
        // Counters that went back are those of a daemon that began anew.
        let mut change = now.with(&counted, u64::saturating_sub);
        if change.is_nothing() {
            return Ok(());
        }
        change.day = today();
        // A line that was torn before ends here.
        self.own.append(&format!("\n{}\n", change.line()))?;
        *counted = now;
        Ok(())
    }

    /// What is known of every day.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn days(&self) -> io::Result<Vec<DayTotals>> {
        match self.own.content() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            text => Ok(parse_totals(&text?)),
        }
    }
}

fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    let time = rfc3339(Timestamp::new(i64::try_from(seconds).unwrap_or(0), 0));
    time.chars().take(10).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(day: &str, numbers: [u64; 5]) -> DayTotals {
        DayTotals::of_numbers(day.to_owned(), numbers)
    }

    #[test]
    fn lines_of_a_day_are_added_up() {
        let lines = [
            day("2026-11-28", [10, 1, 2, 3, 4]),
            day("2026-11-27", [5, 0, 0, 0, 1]),
            day("2026-11-28", [1, 1, 1, 1, 1]),
        ];
        let text: String = lines
            .iter()
            .map(|line| format!("\n{}\n", line.line()))
            .collect();
        let expected = [
            day("2026-11-27", [5, 0, 0, 0, 1]),
            day("2026-11-28", [11, 2, 3, 4, 5]),
        ];
        assert_eq!(parse_totals(text.as_bytes()), expected);
        assert_eq!(expected[1].device_bytes(), 7);
    }

    #[test]
    fn the_form_of_a_line_stays() {
        let line = day("2026-11-28", [4_096_000, 0, 8192, 0, 2]).line();
        assert_eq!(line, "2026-11-28 4096000 0 8192 0 2 e2c3162c");
        assert_eq!(checksum("123456789"), 0xcbf4_3926, "the usual CRC32");
    }

    #[test]
    fn what_is_torn_or_damaged_is_passed_over() {
        let good = day("2026-11-28", [1, 2, 3, 4, 5]);
        let line = good.line();
        for cut in 0..line.len() {
            let text = format!("\n{}\n{line}\n", &line[..cut]);
            assert_eq!(
                parse_totals(text.as_bytes()),
                std::slice::from_ref(&good),
                "{cut}"
            );
        }
        for at in 0..line.len() {
            let mut bytes = line.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(
                parse_totals(&bytes).len() <= 1 && parse_totals(&bytes) != [good.clone()],
                "{at}"
            );
        }
        assert_eq!(parse_totals(b"\0\0\0\xff\n"), []);
    }

    #[test]
    fn a_long_file_becomes_a_short_one() {
        let store = tempfile::tempdir().unwrap();
        std::fs::create_dir(store.path().join(".mobifs")).unwrap();
        let path = store.path().join(STORE_TOTALS);
        let mut text = String::new();
        for n in 0..5_000_u64 {
            let name = format!("{:04}-01-{:02}", 2000 + n / 28, n % 28 + 1);
            text += &format!("\n{}\n", day(&name, [1; 5]).line());
        }
        std::fs::write(&path, &text).unwrap();
        let before = read_totals(store.path()).unwrap();
        assert_eq!(before.len(), DAYS_MAX);
        let log = TotalsLog {
            own: OwnDirectory::open(store.path()).unwrap(),
            counted: Mutex::default(),
        };
        log.own.shorten().unwrap();
        assert!(path.metadata().unwrap().len() < FILE_BYTES_MAX);
        assert_eq!(log.days().unwrap(), before);
    }

    #[test]
    fn what_is_no_file_is_not_written_to() {
        let store = tempfile::tempdir().unwrap();
        std::fs::create_dir(store.path().join(".mobifs")).unwrap();
        let outside = store.path().join("outside");
        std::fs::write(&outside, "precious").unwrap();
        std::os::unix::fs::symlink(&outside, store.path().join(STORE_TOTALS)).unwrap();
        assert!(read_totals(store.path()).is_err());
        assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
    }

    /// The daemon followed a symlink in the place of the store's own directory, and wrote there.
    #[test]
    fn nothing_is_written_where_a_symlink_in_the_place_of_the_own_directory_leads() {
        let store = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::create_dir(store.path().join(OWN_DIRECTORY)).unwrap();
        let log = TotalsLog {
            own: OwnDirectory::open(store.path()).unwrap(),
            counted: Mutex::default(),
        };
        std::fs::rename(store.path().join(OWN_DIRECTORY), store.path().join("away")).unwrap();
        std::os::unix::fs::symlink(outside.path(), store.path().join(OWN_DIRECTORY)).unwrap();
        assert!(OwnDirectory::open(store.path()).is_err());
        log.own.append("a line").unwrap();
        log.own.shorten().unwrap();
        assert_eq!(outside.path().read_dir().unwrap().count(), 0);
        assert!(store.path().join("away").join(NAME).is_file());
    }
}
