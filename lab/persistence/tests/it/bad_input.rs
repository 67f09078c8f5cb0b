//! What is no journal, or none that can be read, is refused in one sentence.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use mobifs_base::{Entry, ObjectId, ObjectState, Transaction};
use mobifs_persistence::{PersistError, at_rest, section, text};
use mobifs_store::{Gate, JournalOptions, JournalStore, PosixLower, Store as _};
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
    let external = ["-b", "1024", "-O", "^metadata_csum"];
    let path = image(&directory, "external", &external);
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

/// Regression: both were read as if nothing were wrong with them.
#[test]
fn an_ext4_with_an_unknown_feature_or_a_damaged_superblock_is_refused() {
    const SUPERBLOCK: u64 = 1024;
    const INCOMPAT: u64 = SUPERBLOCK + 0x60;
    let directory = tempfile::tempdir().unwrap();
    if !mobifs_skip::can(mobifs_skip::why_fails(Command::new("mkfs.ext4").arg("-V"))) {
        return;
    }
    let path = image(&directory, "unknown", &["-O", "^metadata_csum"]);
    at_rest::characterise(&path).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0x80], INCOMPAT + 3).unwrap();
    let said = refused(&path);
    assert!(
        matches!(said, PersistError::NewerFilesystem(0x8000_0000)),
        "{said}"
    );
    let path = image(&directory, "checksum", &["-O", "metadata_csum"]);
    at_rest::characterise(&path).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    // Part of the volume's name, which matters to nothing else.
    file.write_all_at(b"x", SUPERBLOCK + 0x78).unwrap();
    let said = refused(&path).to_string();
    assert!(said.contains("its checksum is wrong"), "{said}");
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
    let said = refused(directory.path());
    assert!(matches!(said, PersistError::NoStore), "{said}");
}

/// Opening a FIFO waits for its writer, for ever; here there is one, which has written.
#[test]
fn what_is_no_file_is_refused_and_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    run(Command::new("mkfifo").arg(&path));
    let mut writer = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    writer.write_all(&[0; 1024]).unwrap();
    for path in [&path, Path::new("/dev/null")] {
        let said = refused(path);
        assert!(matches!(said, PersistError::NotAFile), "{said}");
    }
}

/// Regression: what came before the damage was shown as if it were everything.
#[test]
fn a_journal_of_mobifs_with_a_damaged_transaction_before_others_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let lower = Gate::new(PosixLower::open(directory.path()).unwrap());
    let (store, _) = JournalStore::open(lower, &JournalOptions::default()).unwrap();
    for number in 0..3 {
        let root = Entry::Object(ObjectState {
            id: ObjectId::ROOT,
            created: false,
            attributes: store.object(ObjectId::ROOT).unwrap().attributes,
            symlink_target: None,
            zeroed: Vec::new(),
            allocated: Vec::new(),
            xattrs: Vec::new(),
        });
        store.commit(Transaction::tagged(number, [root])).unwrap();
    }
    drop(store);
    let journal = directory.path().join(".mobifs/journal");
    let commits = |path: &Path| at_rest::characterise(path).unwrap().mobifs.unwrap().commits;
    assert_eq!(commits(&journal), 3);
    let file = OpenOptions::new().write(true).open(&journal).unwrap();
    // After two superblocks, each transaction is a block. The last one may be torn, and no other.
    file.write_all_at(b"damaged", 4 * 4096 + 40).unwrap();
    assert_eq!(commits(&journal), 2);
    file.write_all_at(b"damaged", 2 * 4096 + 40).unwrap();
    let said = refused(&journal).to_string();
    assert!(said.contains("transaction 1 at byte 8192"), "{said}");
}

/// A store without an app, closed: its journal has no transaction.
fn store(directory: &Path) -> PathBuf {
    let lower = Gate::new(PosixLower::open(directory).unwrap());
    drop(JournalStore::open(lower, &JournalOptions::default()).unwrap());
    directory.join(".mobifs/journal")
}

#[test]
fn an_empty_journal_of_mobifs_says_that_everything_is_applied() {
    let directory = tempfile::tempdir().unwrap();
    let journal = store(directory.path());
    for path in [directory.path(), &journal] {
        let found = at_rest::characterise(path).unwrap();
        assert_eq!(found.mobifs.as_ref().map(|mobifs| mobifs.commits), Some(0));
        let shown = text(&found);
        assert!(shown.contains("everything is applied"), "{shown}");
        assert!(section(&found).is_ok());
    }
}

#[test]
fn a_damaged_journal_of_mobifs_is_called_that() {
    let directory = tempfile::tempdir().unwrap();
    let journal = store(directory.path());
    let file = OpenOptions::new().write(true).open(&journal).unwrap();
    // One copy of the superblock is enough, whichever.
    file.write_all_at(&[0; 4096], 0).unwrap();
    for path in [directory.path(), &journal] {
        assert!(at_rest::characterise(path).is_ok());
    }
    let damaged = |path: &Path| {
        let said = refused(path);
        assert!(matches!(said, PersistError::DamagedStore(_)), "{said}");
        assert!(said.to_string().contains("`mobifs check`"), "{said}");
    };
    file.write_all_at(&[1; 8], 4096 + 16).unwrap();
    damaged(directory.path());
    damaged(&journal);
    file.write_all_at(&[0; 8], 4096).unwrap();
    damaged(directory.path());
    file.set_len(0).unwrap();
    damaged(directory.path());
}
