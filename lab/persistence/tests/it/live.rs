//! A program on a served device: each of its transactions is found.

use std::fs::File;
use std::path::PathBuf;

use mobifs_device_model::Preset;
use mobifs_device_server::Scale;
use mobifs_persistence::live::{LiveOptions, Through, characterise};
use mobifs_persistence::{DiskOptions, Under, page, section, text};

use crate::disk::can_run;

fn options(through: Through, command: &str) -> LiveOptions {
    let scratch =
        std::env::var_os("MOBIFS_SCRATCH").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    LiveOptions {
        disk: DiskOptions {
            under: Under::Model {
                preset: Preset::Emmc51,
                scale: Scale::COUNT_ONLY,
            },
            image: None,
            size_bytes: 256 << 20,
            mkfs: ["-b", "4096", "-J", "size=4"].map(str::to_owned).to_vec(),
            mount: "commit=300".to_owned(),
            scratch,
        },
        through,
        mobifs: None,
        command: ["sh", "-c", command].map(Into::into).to_vec(),
    }
}

#[test]
fn each_fsync_of_a_new_file_is_a_transaction() {
    if !can_run() {
        return;
    }
    let command = "for i in $(seq 160); do echo $i > file-$i; sync file-$i; done";
    let found = characterise(&options(Through::Ext4, command)).unwrap();
    let ext4 = found.ext4.as_ref().unwrap();
    // A ring of 1,000 blocks went around; from the log of commands none is missing.
    assert_eq!(ext4.commits, 160);
    assert_eq!(ext4.incomplete + ext4.damaged_blocks, 0);
    let modification = ext4.modification.as_ref().unwrap();
    assert_eq!(modification.unknown_blocks, 0);
    assert_eq!(modification.blocks, ext4.logged_blocks);
    assert!(modification.below_1_percent > 0.5, "{modification:?}");
    let ratio = ext4.commit_time_ratio.as_ref().unwrap();
    assert_eq!(ratio.count, 160);
    assert!(ratio.max <= 1.0 && ratio.p10 > 0.0, "{ratio:?}");
    // A commit block on a loop device is a flush, a write and a flush; the log was checkpointed at times.
    let device = found.device.as_ref().unwrap();
    assert!((320..400).contains(&device.flushes), "{device:?}");
    if let Some(syncs) = found.calls.as_ref().and_then(|calls| calls.syncs) {
        assert_eq!(syncs, 160);
    }
    let shown = text(&found);
    assert!(
        shown.contains("R_commit (Fig. 7)") && shown.contains("inode table"),
        "{shown}"
    );
    let html = page("about", &[section(&found).unwrap()]);
    assert!(
        html.contains("<svg") && html.contains("Google Map"),
        "no figures"
    );
}

/// A transaction of SQLite is one commit on a mount of MobiFS, and each is found in its journal.
#[test]
fn commits_of_mobifs_are_found_on_the_device() {
    if !can_run() {
        return;
    }
    let mobifs = std::env::var_os("MOBIFS_BIN").map_or_else(built, PathBuf::from);
    if !mobifs_skip::can((!mobifs.is_file()).then_some("mobifs is not built")) {
        return;
    }
    let options = LiveOptions {
        mobifs: Some(mobifs),
        ..options(
            Through::Mobifs,
            "for i in $(seq 30); do echo $i > file-$i; sync file-$i; done",
        )
    };
    let found = characterise(&options).unwrap();
    let mobifs = found.mobifs.as_ref().unwrap();
    assert_eq!(mobifs.commits, 30, "{mobifs:?}");
    let parts =
        mobifs.content_bytes + mobifs.metadata_bytes + mobifs.control_bytes + mobifs.padding_bytes;
    assert_eq!(parts, mobifs.journal_bytes);
    // Two or three bytes of each file.
    assert!((60..=90).contains(&mobifs.content_bytes), "{mobifs:?}");
    assert!(
        mobifs.control_ratio.is_some_and(|ratio| ratio < 0.9),
        "{mobifs:?}"
    );
    assert_eq!(mobifs.commit_ms.as_ref().map(|times| times.count), Some(30));
}

#[test]
fn an_image_that_cannot_be_mounted_is_named() {
    if !can_run() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("other.img");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let mut options = options(Through::Ext4, "true");
    options.disk.image = Some(image.clone());
    let said = characterise(&options).unwrap_err().to_string();
    assert!(
        said.contains("other.img, as ext4") && !said.contains("/dev/"),
        "{said}"
    );
    // A directory has no content, and a FIFO no end.
    options.disk.image = Some(directory.path().to_owned());
    let said = characterise(&options).unwrap_err().to_string();
    assert!(said.contains("neither a regular file"), "{said}");
}

/// Beside the directory of this test: `<target>/debug/deps`.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("mobifs")
}
