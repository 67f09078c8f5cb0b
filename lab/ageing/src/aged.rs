//! An image that a run of scenarios has aged, for what looks at it afterwards.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::AgeError;
use crate::place::{Filesystem, Location, Through, Where, beside, lock};
use crate::settings::Settings;
use crate::state::{Day, State, Work};

/// An image that is aged; no run goes on with it while the value is there.
#[derive(Debug)]
pub struct Aged {
    /// The file.
    pub image: PathBuf,
    /// What is in it.
    pub filesystem: Filesystem,
    /// Through what it was aged.
    pub through: Through,
    /// How.
    pub settings: Settings,
    /// The last day that is over.
    pub day: Day,
    _lock: File,
}

impl Aged {
    /// Opens the aged image at a path.
    ///
    /// # Errors
    /// It was not aged as an image and by scenarios, or not to the end of a day, or is being aged.
    pub fn open(image: &Path) -> Result<Self, AgeError> {
        let wrong = |message: &str| AgeError::State {
            path: image.to_owned(),
            message: message.to_owned(),
        };
        let no_run = "it was not aged by mobifs frag age --image FILE (or what that keeps beside it, in FILE.age, is \
                      gone); age an image first";
        let state = Location::state_of(image);
        if !image.is_file() || !state.is_file() {
            return Err(wrong(no_run));
        }
        let lock = lock(&beside(image))?;
        let state = State::load(&state)?;
        let Where::Image { filesystem, .. } = state.location.place else {
            return Err(wrong(no_run));
        };
        let Work::Scenarios(scenarios) = state.work else {
            return Err(wrong(
                "it was aged by large and small files (--fill), which are no apps; age one without --fill",
            ));
        };
        let unfinished = "a day of its ageing is not over; end that first: mobifs frag age --resume --image FILE";
        if scenarios.is_within_day {
            return Err(wrong(unfinished));
        }
        let Some(day) = scenarios.days.into_iter().next_back() else {
            return Err(wrong(unfinished));
        };
        Ok(Self {
            image: image.to_owned(),
            filesystem,
            through: state.location.through,
            settings: scenarios.settings,
            day,
            _lock: lock,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(image: &Path) -> String {
        Aged::open(image).unwrap_err().to_string()
    }

    #[test]
    fn what_no_run_has_aged_is_refused_in_one_sentence() {
        let base = tempfile::tempdir().unwrap();
        let image = base.path().join("phone.img");
        assert!(said(&image).contains("was not aged"));
        std::fs::write(&image, []).unwrap();
        assert!(said(&image).contains("was not aged"));
        let kept = beside(&image);
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("state.json"), "{").unwrap();
        assert!(said(&image).contains("is damaged"));
        let _held = lock(&kept).unwrap();
        assert!(matches!(Aged::open(&image), Err(AgeError::InUse(_))));
    }
}
