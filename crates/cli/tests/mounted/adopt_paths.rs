//! Directories with long names and long paths are adopted only if there is a way back.

use std::fs;
use std::path::{Path, PathBuf};

use crate::adopt::Adoption;
use crate::fixture::{fails, needs_mounts, succeeds};

const FAILED: i32 = 1;
/// `PATH_MAX` without its end, the ending of the store's name, and what MobiFS's own files in it need.
const LONGEST: usize = 4095 - ".mobifs-store".len() - 80;

/// A directory below `base` whose path has this many bytes.
fn directory_of(base: &Path, bytes: usize) -> PathBuf {
    let mut path = base.to_owned();
    loop {
        let rest = bytes - path.as_os_str().len() - 1;
        if rest <= 200 {
            path.push("e".repeat(rest));
            fs::create_dir_all(&path).unwrap();
            return path;
        }
        path.push("d".repeat(100));
    }
}

/// It was adopted, and no command could take it back: the names that were needed for that were too long.
#[test]
fn a_path_that_leaves_no_way_back_is_refused() {
    needs_mounts!();
    let mut adoption = Adoption::new();
    let base = adoption.directory.canonicalize().unwrap();
    for bytes in [LONGEST + 1, 4075, 4090, 4095] {
        let long = directory_of(&base, bytes);
        for flag in [None, Some("--dry-run")] {
            let mut command = adoption.command("adopt", &["--boot", "none"]);
            let output = command.args(flag).arg(&long).output().unwrap();
            let excess = format!("too long by {},", bytes - LONGEST);
            fails(&output, FAILED, &["shorten a name", &excess]);
        }
        assert!(fs::read_dir(&long).unwrap().next().is_none());
        assert!(!adoption.notes().exists());
    }
    adoption.directory = directory_of(&base, LONGEST);
    adoption.fixture.unmount_at_end(&adoption.directory);
    let file = adoption.directory.join("file");
    fs::write(&file, "kept").unwrap();
    adoption.adopt();
    succeeds(&adoption.unadopt());
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    assert_eq!(fs::read_dir(&adoption.directory).unwrap().count(), 1);
}

#[test]
fn the_longest_name_is_adopted_and_comes_back() {
    needs_mounts!();
    let mut adoption = Adoption::new();
    let name_of = |bytes| "n".repeat(bytes);
    for bytes in [243, 255] {
        let long = adoption.fixture.directory(&name_of(bytes));
        let mut command = adoption.command("adopt", &["--boot", "none"]);
        let output = command.arg(&long).output().unwrap();
        fails(&output, FAILED, &["is longer than 255 bytes", "rename it"]);
    }
    adoption.directory = adoption.fixture.directory(&name_of(242));
    adoption.fixture.unmount_at_end(&adoption.directory);
    fs::write(adoption.directory.join("file"), "kept").unwrap();
    adoption.adopt();
    assert_eq!(adoption.list()[0]["state"], "mounted");
    succeeds(&adoption.unadopt());
    assert_eq!(fs::read(adoption.directory.join("file")).unwrap(), b"kept");
}
