//! Screens: whether one of them is on, as the kernel reports it (DRM connectors, backlights).

use std::fs;
use std::path::{Path, PathBuf};

/// What the connectors of built-in screens are called: those that a backlight may belong to.
const BUILT_IN: [&str; 3] = ["eDP", "LVDS", "DSI"];

/// The machine's screens.
#[derive(Debug)]
pub(super) struct Screens {
    connectors: PathBuf,
    backlights: PathBuf,
}

impl Screens {
    pub(super) fn new(connectors: &Path, backlights: &Path) -> Self {
        Self {
            connectors: connectors.to_owned(),
            backlights: backlights.to_owned(),
        }
    }

    /// Whether any screen is on; none where the kernel reports no screen.
    ///
    /// A connector with a screen is on as it says; the light of a built-in one may be off all
    /// the same. Where there are only backlights (framebuffers of small machines), they count.
    pub(super) fn is_one_on(&self) -> Option<bool> {
        let has_light = any(entries(&self.backlights).filter_map(|path| {
            // 0 is on; the others are depths of blanking.
            word(&path, "bl_power").map(|power| power == "0")
        }));
        let connected = entries(&self.connectors).filter_map(|path| {
            if word(&path, "status")? != "connected" {
                return None;
            }
            let is_on = word(&path, "dpms")? == "On";
            let name = path.file_name()?.to_string_lossy();
            let is_built_in = BUILT_IN.iter().any(|kind| name.contains(kind));
            Some(is_on && (!is_built_in || has_light != Some(false)))
        });
        any(connected).or(has_light)
    }
}

/// Whether one of them is; none if there are none.
fn any(all: impl Iterator<Item = bool>) -> Option<bool> {
    all.fold(None, |any, one| Some(any.unwrap_or(false) || one))
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(Result::ok).map(|entry| entry.path())
}

fn word(directory: &Path, file: &str) -> Option<String> {
    let text = fs::read_to_string(directory.join(file)).ok()?;
    Some(text.trim().to_owned())
}

/// Sees when the last screen is switched off, and one on again.
#[derive(Debug)]
pub(super) struct ScreenWatch {
    screens: Screens,
    /// What a mount assumes until the kernel or a user says otherwise.
    is_on: bool,
}

impl ScreenWatch {
    pub(super) const fn new(screens: Screens) -> Self {
        Self {
            screens,
            is_on: true,
        }
    }

    /// What has changed since the last look, if anything. (What is not reported any more is as
    /// it was.)
    pub(super) fn look(&mut self) -> Option<bool> {
        let is_on = self.screens.is_one_on()?;
        let is_news = is_on != self.is_on;
        self.is_on = is_on;
        is_news.then_some(is_on)
    }
}
