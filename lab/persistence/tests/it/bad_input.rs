//! What is no journal, or none that can be read, is refused in one sentence.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use mobifs_persistence::{PersistError, at_rest};
use tempfile::TempDir;

use crate::disk::run;

fn image(directory: &TempDir, name: &str, mkfs: &[&str]) -> std::path::PathBuf {
    let path = directory.path().join(name);
    File::create(&path).unwrap().set_len(16 << 20).unwrap();
    run(Command::new("mkfs.ext4")
        .args(["-q", "-F"])
        .args(mkfs)
        .arg(&path));
    path
}

fn refused(path: &Path) -> PersistError {
    let error = at_rest::characterise(path).unwrap_err();
    let said = error.to_string();
    assert!(!said.contains('\n') && !said.is_empty(), "{said:?}");
    error
}

#[test]
fn filesystems_without_a_journal_that_can_be_read_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    if !mobifs_skip::can(mobifs_skip::why_fails(Command::new("mkfs.ext4").arg("-V"))) {
        return;
    }
    let path = image(&directory, "none", &["-O", "^has_journal"]);
    assert!(matches!(refused(&path), PersistError::NoJournal));
    let path = image(&directory, "device", &["-b", "1024", "-O", "journal_dev"]);
    assert!(matches!(refused(&path), PersistError::JournalDevice));
    // The superblock of one with an external journal: no inode, a UUID.
    let path = image(&directory, "external", &["-b", "1024"]);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 4], 1024 + 0xe0).unwrap();
    assert!(matches!(refused(&path), PersistError::External(_)));
    // A damaged journal superblock, found by its magic.
    let path = image(&directory, "damaged", &["-b", "1024"]);
    let content = fs::read(&path).unwrap();
    let magic = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4];
    let at = content
        .chunks(1024)
        .position(|block| block.starts_with(&magic))
        .unwrap()
        * 1024;
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xff], at as u64 + 7).unwrap();
    assert!(
        refused(&path).to_string().contains("block type 255"),
        "{}",
        refused(&path)
    );
    file.write_all_at(&[0; 4], at as u64).unwrap();
    assert!(matches!(refused(&path), PersistError::Damaged(_)));
}

#[test]
fn what_is_no_filesystem_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for content in [&b""[..], b"text", &[0; 4096]] {
        fs::write(&path, content).unwrap();
        assert!(matches!(refused(&path), PersistError::NotAJournal));
    }
    fs::write(&path, b"LUKS\xba\xbe and so on").unwrap();
    assert!(matches!(refused(&path), PersistError::Encrypted(_)));
    assert!(matches!(
        refused(&directory.path().join("missing")),
        PersistError::Io { .. }
    ));
    assert!(matches!(refused(directory.path()), PersistError::Io { .. }));
}
