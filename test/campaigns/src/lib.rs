//! Power cuts of MobiFS over real filesystems on the modelled flash device.
//!
//! * [`disk`], [`stack`]: a served device, a filesystem on it, a mount over that;
//! * [`history`]: programs whose steps are numbered, and what a cut may leave of them;
//! * [`world`]: random operations over several apps beside the reference model;
//! * [`cuts`]: the campaign;
//! * [`native`]: the campaign of filesystems that are steered;
//! * [`postmark`], [`recovery`]: the experiments of S2.
#![forbid(unsafe_code)]

pub mod cuts;
pub mod disk;
pub mod filesystem;
pub mod history;
pub mod native;
pub mod postmark;
pub mod recovery;
pub mod stack;
pub mod trouble;
pub mod world;

use std::path::{Path, PathBuf};

use filesystem::Filesystem;
use mobifs_testkit::tree::Compare;

/// What of two trees is compared. Times of the root directory belong to no app, and the
/// store's own directory counts as a link of it in the lower filesystem.
pub const fn view(filesystem: Filesystem) -> Compare {
    Compare {
        root: false,
        directory_nlink: filesystem.counts_links_of_directories(),
        ..Compare::ALL
    }
}

/// Why nothing can be cut here on this filesystem, if so.
pub fn obstacle(filesystem: Filesystem) -> Option<String> {
    if let Some(obstacle) = mobifs_testkit::mount::obstacle() {
        return Some(obstacle.to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("no loop devices".to_owned());
    }
    let programs = filesystem.programs().iter().chain(&["python3", "git"]);
    let missing = programs.copied().find(|program| !is_installed(program));
    if let Some(program) = missing {
        return Some(format!("no {program}"));
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known = known
        .split_whitespace()
        .any(|word| word == filesystem.name());
    (!is_known).then(|| format!("the kernel has no {}", filesystem.name()))
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .any(|directory| directory.join(program).exists())
}
