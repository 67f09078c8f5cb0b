//! The machine is about to sleep: supervisors take up no calls until it is awake.
//!
//! To sleep, the kernel has every process stand still. A thread whose call a supervisor has taken up, and not yet
//! answered, cannot: nothing but a deadly signal interrupts it. If the supervisor stands still first, the machine does
//! not get to sleep. A thread whose call was not taken up yet can.
//!
//! The note `sleeping` lies beside the registrations. It is the moment at which it is void, in milliseconds of
//! `CLOCK_MONOTONIC`, which does not go on in sleep.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{Access, Mode, OFlags, access, open};
use rustix::time::ClockId;

use crate::clock;
use crate::directory::Directory;
use crate::registration::create;

const NAME: &str = "sleeping";
/// A daemon removes the note when the machine is awake. One that is killed cannot.
const VALID_MS: u64 = 30_000;
const PAUSE: Duration = Duration::from_millis(20);

impl Directory {
    /// The machine is about to sleep.
    ///
    /// # Errors
    /// The note cannot be written.
    pub fn note_sleep(&self) -> io::Result<()> {
        let path = self.note_of_sleep();
        let new = path.with_extension("new");
        let mut file = create(&new, 0o644)?;
        write!(file, "{}", now_ms() + VALID_MS)?;
        fs::rename(&new, &path)
    }

    /// The machine is awake, or does not sleep after all.
    pub fn end_sleep(&self) {
        let _removed = fs::remove_file(self.note_of_sleep());
    }

    /// Waits while the machine is about to sleep.
    pub fn wait_until_awake(&self) {
        while self.is_about_to_sleep() {
            std::thread::sleep(PAUSE);
        }
    }

    fn is_about_to_sleep(&self) -> bool {
        let path = self.note_of_sleep();
        // Nearly always, this answers.
        if access(&path, Access::EXISTS).is_err() {
            return false;
        }
        let until_ms = self.read_until(path).ok().flatten();
        until_ms.is_some_and(|until_ms| now_ms() < until_ms)
    }

    fn read_until(&self, path: PathBuf) -> io::Result<Option<u64>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mut file = File::from(open(path, flags, Mode::empty())?);
        let about = file.metadata()?;
        let mut text = String::new();
        if about.is_file() && self.is_of_trusted(about.uid(), about.mode()) {
            file.read_to_string(&mut text)?;
        }
        Ok(text.parse().ok())
    }

    fn note_of_sleep(&self) -> PathBuf {
        self.path().join(NAME)
    }
}

fn now_ms() -> u64 {
    clock::now_ms(ClockId::Monotonic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_sleep_holds_until_it_is_removed_or_void() {
        let base = tempfile::tempdir().unwrap();
        let directory = Directory::at(base.path()).unwrap();
        assert!(!directory.is_about_to_sleep());
        directory.note_sleep().unwrap();
        assert!(directory.is_about_to_sleep());
        assert!(
            directory.list().unwrap().is_empty(),
            "a note is no registration"
        );
        let waiting = std::thread::spawn({
            let directory = directory.clone();
            move || directory.wait_until_awake()
        });
        directory.end_sleep();
        waiting.join().unwrap();
        assert!(!directory.is_about_to_sleep());
        for void in [(now_ms() - 1).to_string(), String::new(), "x".to_owned()] {
            fs::write(directory.note_of_sleep(), void).unwrap();
            directory.wait_until_awake();
        }
    }
}
