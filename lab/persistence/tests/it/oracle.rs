//! Transactions are those that `debugfs` shows, and kinds of blocks those of `dumpe2fs`.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use mobifs_persistence::jbd2::{ChecksumVersion, Transaction};
use mobifs_persistence::{Jbd2Figures, Kind, at_rest};

use crate::disk::{Image, can_run, logdump, run};

fn read(image: &Path) -> (Jbd2Figures, Vec<Transaction>) {
    at_rest::read(&File::open(image).unwrap()).unwrap()
}

/// Every transaction that `debugfs` shows is read, with the same blocks.
fn same_as_debugfs(
    image: &Path,
    is_mounted: bool,
    least: usize,
) -> (Jbd2Figures, Vec<Transaction>) {
    let (figures, transactions) = read(image);
    let shown = logdump(image, is_mounted);
    assert!(shown.len() >= least, "debugfs shows {}", shown.len());
    for (sequence, shown) in &shown {
        let found = transactions
            .iter()
            .find(|found| found.sequence == *sequence);
        let found = found.unwrap_or_else(|| panic!("transaction {sequence} is missing"));
        assert_eq!(found.commit, shown.commit, "of {sequence}");
        let places = found
            .logged
            .iter()
            .map(|logged| (logged.block, logged.place))
            .collect();
        assert_eq!(shown.places, places, "of {sequence}");
    }
    (figures, transactions)
}

/// Feature sets of the journal, each mounted and unmounted.
#[test]
fn transactions_are_those_that_debugfs_shows() {
    if !can_run() {
        return;
    }
    let sets: [(&[&str], &str, ChecksumVersion); 6] = [
        (&["-b", "4096"], "", ChecksumVersion::V3),
        (&["-O", "^metadata_csum,^64bit"], "", ChecksumVersion::None),
        (&["-O", "^metadata_csum"], "", ChecksumVersion::None),
        (
            &["-b", "1024"],
            "journal_async_commit,data=writeback",
            ChecksumVersion::V3,
        ),
        (&["-b", "4096"], "data=journal", ChecksumVersion::V3),
        (
            &["-O", "^extent,^64bit,^metadata_csum", "-b", "2048"],
            "",
            ChecksumVersion::None,
        ),
    ];
    for (mkfs, mount, checksum) in sets {
        let mkfs = [&["-J", "size=8"], mkfs].concat();
        let mut image = Image::new(64, &mkfs, mount);
        image.work(15);
        let (figures, mounted) = same_as_debugfs(&image.copy(), true, 15);
        assert_eq!(figures.features.checksum, checksum, "{mkfs:?} {mount}");
        image.unmount();
        let (_, unmounted) = same_as_debugfs(&image.path(), false, 15);
        assert!(
            mounted.iter().all(|one| unmounted.contains(one)),
            "{mkfs:?} {mount}"
        );
        // What follows a mount is not lost: its first commit was, whose sequence does not follow.
        image.mount(mount);
        image.work(3);
        image.unmount();
        let (figures, again) = read(&image.path());
        let newest = unmounted.last().unwrap().sequence;
        let after: Vec<u32> = again
            .iter()
            .map(|one| one.sequence)
            .filter(|&one| one > newest)
            .collect();
        assert!(
            after.len() >= 4,
            "{after:?} after {newest}, {mkfs:?} {mount}"
        );
        assert!(
            after[0] <= newest + 4 && after.windows(2).all(|two| two[1] == two[0] + 1),
            "{after:?}"
        );
        assert_eq!(figures.damaged_blocks, 0);
    }
}

#[test]
fn a_ring_that_went_around_is_read_whole() {
    if !can_run() {
        return;
    }
    let mut image = Image::new(64, &["-b", "1024", "-J", "size=1"], "");
    image.work(120);
    let mut copy = image.copy();
    let (mut figures, mut transactions) = same_as_debugfs(&copy, true, 1);
    // When the kernel commits decides whether one lies there; on a busy machine none may.
    for _ in 0..8 {
        if transactions.iter().any(|one| one.commit < one.start) {
            break;
        }
        image.work(20);
        copy = image.copy();
        (figures, transactions) = same_as_debugfs(&copy, true, 1);
    }
    let first = transactions.first().unwrap().sequence;
    assert!(first > 5, "it went around: {first}");
    // One after the other, and no block between them but where the oldest was overwritten.
    assert!(
        transactions
            .windows(2)
            .all(|two| two[1].sequence == two[0].sequence + 1)
    );
    let taken: u64 = transactions.iter().map(Transaction::blocks).sum();
    assert!(
        taken + 60 > u64::from(figures.log_blocks),
        "{taken} of {}",
        figures.log_blocks
    );
    assert!(
        transactions.iter().any(|one| one.commit < one.start),
        "one goes over the end"
    );
    image.unmount();
}

/// What lies where, as `dumpe2fs` says.
#[test]
fn kinds_of_blocks_are_those_of_dumpe2fs() {
    if !can_run() {
        return;
    }
    kinds_are_those_of_dumpe2fs(64, &["-b", "1024", "-J", "size=8"]);
}

/// The descriptors follow the superblock, which is in block 1 although the first group begins with block 0.
#[test]
fn bigalloc_with_blocks_of_1_kib_is_read() {
    if !can_run() {
        return;
    }
    kinds_are_those_of_dumpe2fs(128, &["-b", "1024", "-O", "bigalloc", "-C", "16384"]);
}

/// Each block of descriptors is in the groups that it describes, of which there are 16 here.
#[test]
fn descriptors_in_their_own_groups_are_told_by_the_layout() {
    if !can_run() {
        return;
    }
    for feature in ["meta_bg,^resize_inode", "meta_bg,^resize_inode,^64bit"] {
        kinds_are_those_of_dumpe2fs(300, &["-b", "1024", "-J", "size=8", "-O", feature]);
    }
}

fn kinds_are_those_of_dumpe2fs(mebibytes: u64, mkfs: &[&str]) {
    let image = Image::new(mebibytes, mkfs, "");
    // Directories are spread over the groups.
    for number in 0..40 {
        std::fs::create_dir(image.root().join(format!("directory-{number}"))).unwrap();
    }
    image.work(60);
    let copy = image.copy();
    let text = run(Command::new("dumpe2fs").arg(&copy));
    let mut expected = std::collections::BTreeMap::new();
    let (_, transactions) = read(&copy);
    for transaction in &transactions {
        for logged in &transaction.logged {
            if let Some(kind) = kind_by_dumpe2fs(&text, logged.place) {
                *expected.entry(kind).or_insert(0) += 1;
            }
        }
    }
    let (figures, _) = read(&copy);
    let found = figures
        .kinds
        .iter()
        .filter(|kind| expected.contains_key(&kind.kind));
    let found: std::collections::BTreeMap<_, _> =
        found.map(|kind| (kind.kind, kind.blocks)).collect();
    assert_eq!(found, expected, "{mkfs:?}");
    for kind in [
        Kind::Superblock,
        Kind::GroupDescriptors,
        Kind::BlockBitmap,
        Kind::InodeBitmap,
        Kind::InodeTable,
    ] {
        let is_there = expected.contains_key(&kind) || kind == Kind::Superblock;
        assert!(is_there, "{kind:?} is among {expected:?}, {mkfs:?}");
    }
    let directories = figures
        .kinds
        .iter()
        .find(|kind| kind.kind == Kind::Directory);
    assert!(
        directories.is_some_and(|kind| kind.blocks >= 60),
        "{:?}, {mkfs:?}",
        figures.kinds
    );
}

fn kind_by_dumpe2fs(text: &str, place: u64) -> Option<Kind> {
    let has = |range: &str| {
        let range = range.split([' ', ',', '(']).next().unwrap_or_default();
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let range = first.parse::<u64>().ok().zip(last.parse::<u64>().ok());
        range.is_some_and(|(first, last)| (first..=last).contains(&place))
    };
    let names = [
        ("superblock at ", Kind::Superblock),
        ("Group descriptors at ", Kind::GroupDescriptors),
        ("Group descriptor at ", Kind::GroupDescriptors),
        ("Block bitmap at ", Kind::BlockBitmap),
        ("Inode bitmap at ", Kind::InodeBitmap),
        ("Inode table at ", Kind::InodeTable),
    ];
    text.lines().find_map(|line| {
        let found = names.iter().find(|(name, _)| {
            line.match_indices(name)
                .any(|(at, _)| has(&line[at + name.len()..]))
        });
        found.map(|(_, kind)| *kind)
    })
}

#[test]
fn the_fast_commit_area_is_no_part_of_the_log() {
    if !can_run() {
        return;
    }
    let mut image = Image::new(
        64,
        &["-b", "4096", "-J", "size=16", "-O", "fast_commit"],
        "",
    );
    image.work(60);
    let (figures, _) = same_as_debugfs(&image.copy(), true, 1);
    assert!(figures.features.fast_commit);
    assert!(figures.fast_commit_blocks > 0, "{figures:?}");
    let text = run(Command::new("dumpe2fs").arg("-h").arg(image.path()));
    let number = |name: &str| -> u32 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().last().unwrap().parse().unwrap()
    };
    // Without the superblock.
    assert_eq!(
        figures.log_blocks,
        number("Total journal blocks:") - number("Fast commit length:") - 1
    );
    image.unmount();
}
