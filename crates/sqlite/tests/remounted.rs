//! Databases of killed programs on media that are mounted again: under another device's number,
//! in place of another medium, or as a copy.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rusqlite::Connection;

use common::{
    Place, SmallDisk, check, child, count, insert, is_ordinary, make_table, opened, purpose,
};

const DURABLE_ROWS: i64 = 20;
const ROWS: i64 = 50;

/// A connection whose rows so far are durable, and those that come later are not for an hour.
fn opened_with_durable_rows(path: &Path) -> Connection {
    let connection = opened(path, "&age_max_ms=3600000");
    make_table(&connection);
    insert(&connection, DURABLE_ROWS.unsigned_abs() as usize);
    let checkpoint = "PRAGMA mobifs_checkpoint";
    connection.query_row(checkpoint, [], |_| Ok(())).unwrap();
    connection
}

/// Not a test: the program that does not close its database.
#[test]
fn dies_with_its_database_on_a_medium() {
    let Some((rows, path)) = purpose() else {
        return;
    };
    let connection = opened_with_durable_rows(&path);
    let more = rows.parse::<i64>().unwrap() - DURABLE_ROWS;
    insert(&connection, more.unsigned_abs() as usize);
    std::process::abort();
}

/// Not a test: the program that is killed when the test wants it.
#[test]
fn works_on_a_medium_until_it_is_killed() {
    let Some((_, path)) = purpose() else {
        return;
    };
    let connection = opened_with_durable_rows(&path);
    println!("\nfirst");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    insert(&connection, 10);
    connection
        .query_row("PRAGMA mobifs_checkpoint", [], |_| Ok(()))
        .unwrap();
    insert(&connection, 10);
    println!("\nsecond");
    std::io::stdin().read_line(&mut line).unwrap();
}

fn die(path: &Path, rows: i64) {
    let entry = "dies_with_its_database_on_a_medium";
    let died = child(entry, &rows.to_string(), path).output().unwrap();
    assert!(died.status.code().is_none(), "{died:?}");
}

/// Opens it, reads it and closes it: an ordinary database with so many rows.
fn comes_back_with(path: &Path, rows: i64) {
    let connection = opened(path, "");
    check(&connection);
    assert_eq!(count(&connection), rows);
    connection.close().unwrap();
    is_ordinary(path, rows);
}

fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// An image of a filesystem, and where it is mounted.
struct Medium {
    image: PathBuf,
    mounted: Option<(String, PathBuf)>,
}

impl Medium {
    fn new(place: &Place, name: &str, make: &[&str]) -> Option<Self> {
        let image = place.directory.path().join(name);
        fs::File::create(&image)
            .unwrap()
            .set_len(320 << 20)
            .unwrap();
        run(make[0], &[&make[1..], &[image.to_str().unwrap()]].concat())?;
        let mounted = None;
        Some(Self { image, mounted })
    }

    /// What is in the image now.
    fn copied(&self, name: &str) -> Self {
        let image = self.image.with_file_name(name);
        fs::copy(&self.image, &image).unwrap();
        let mounted = None;
        Self { image, mounted }
    }

    /// Mounts it by a loop device, this one if one is named; its database.
    fn mount(&mut self, device: Option<&str>) -> Option<PathBuf> {
        let image = self.image.to_str().unwrap();
        let device = match device {
            Some(device) => run("losetup", &[device, image]).map(|_| device.to_owned()),
            None => run("losetup", &["--find", "--show", image]),
        }?;
        let point = self.image.with_extension("mounted");
        fs::create_dir_all(&point).unwrap();
        if run("mount", &[&device, point.to_str().unwrap()]).is_none() {
            run("losetup", &["--detach", &device]);
            return None;
        }
        self.mounted = Some((device, point.clone()));
        Some(point.join("app.db"))
    }

    fn unmount(&mut self) -> Option<String> {
        let (device, point) = self.mounted.take()?;
        let point = point.to_str().unwrap();
        run("umount", &[point]).or_else(|| run("umount", &["-l", point]));
        run("losetup", &["--detach", &device]);
        Some(device)
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        self.unmount();
    }
}

const MAKERS: [&[&str]; 3] = [
    &["mkfs.ext4", "-q", "-F"],
    &["mkfs.btrfs", "-q", "-f"],
    &["mkfs.xfs", "-q", "-f"],
];

/// Calls it with two mountable media of each kind.
fn with_media(test: impl Fn(&mut Medium, &mut Medium)) {
    for make in MAKERS {
        let place = Place::new();
        let media = ["one.img", "other.img"].map(|name| Medium::new(&place, name, make));
        let [Some(mut one), Some(mut other)] = media else {
            mobifs_skip::skip_part(format!("{} is not here", make[0]));
            continue;
        };
        if one.mount(None).is_none() {
            mobifs_skip::skip_part(format!("what {} makes cannot be mounted", make[0]));
            continue;
        }
        one.unmount();
        test(&mut one, &mut other);
    }
}

/// The arena was found by the number of the device alone: what the program had committed without
/// a sync was lost, without a power cut.
#[test]
fn nothing_is_lost_when_the_device_has_another_number() {
    with_media(|medium, other| {
        die(&medium.mount(None).unwrap(), ROWS);
        let device = medium.unmount();
        // That number is taken now.
        if other.mount(device.as_deref()).is_none() {
            mobifs_skip::skip_part("another program has taken the loop device");
        }
        comes_back_with(&medium.mount(None).unwrap(), ROWS);
    });
}

/// A btrfs is listed as mounted under a number that none of its files has: under the one that they had
/// before, where a tmpfs is mounted meanwhile.
#[test]
fn nothing_is_lost_when_numbers_without_a_device_are_given_anew() {
    with_media(|medium, _| {
        die(&medium.mount(None).unwrap(), ROWS);
        medium.unmount();
        let between = tempfile::tempdir().unwrap();
        let mounted = SmallDisk::mount(between.path());
        comes_back_with(&medium.mount(None).unwrap(), ROWS);
        drop(mounted);
    });
}

/// The second database removed the first one's arena, which has the same name.
#[test]
fn two_media_in_turn_under_one_device_number_lose_nothing() {
    with_media(|one, other| {
        die(&one.mount(None).unwrap(), ROWS);
        let device = one.unmount();
        let Some(path) = other.mount(device.as_deref()) else {
            mobifs_skip::skip_part("another program has taken the loop device");
            return;
        };
        let connection = opened(&path, "");
        make_table(&connection);
        connection.close().unwrap();
        die(&path, ROWS + 7);
        other.unmount();
        let Some(path) = one.mount(device.as_deref()) else {
            mobifs_skip::skip_part("another program has taken the loop device");
            return;
        };
        comes_back_with(&path, ROWS);
        one.unmount();
        comes_back_with(&other.mount(None).unwrap(), ROWS + 7);
    });
}

/// A program that works on a medium, which is copied when a part of it is durable, and which ends
/// with more of it durable and more in memory.
fn copied_while_in_use(medium: &mut Medium) -> (Medium, Child, PathBuf) {
    let path = medium.mount(None).unwrap();
    let mut program = child("works_on_a_medium_until_it_is_killed", "", &path)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "first"));
    let point = path.parent().unwrap().to_str().unwrap().to_owned();
    run("fsfreeze", &["--freeze", &point]).unwrap();
    let copy = medium.copied("copy.img");
    run("fsfreeze", &["--unfreeze", &point]).unwrap();
    writeln!(program.stdin.as_mut().unwrap()).unwrap();
    assert!(said.any(|line| line.unwrap() == "second"));
    (copy, program, path)
}

/// What was not committed belongs to a later state than the copy has.
#[test]
fn a_copy_of_a_medium_has_what_was_durable_and_takes_nothing_from_the_original() {
    for is_original_mounted in [true, false] {
        let place = Place::new();
        let medium = Medium::new(&place, "one.img", MAKERS[0]);
        let Some(mut medium) = medium.filter(|_| rustix::process::geteuid().is_root()) else {
            mobifs_skip::skip("an ext4 cannot be made and mounted here");
            return;
        };
        let (mut copy, mut program, path) = copied_while_in_use(&mut medium);
        if is_original_mounted {
            // The program lives: its arena is its own.
            comes_back_with(&copy.mount(None).unwrap(), DURABLE_ROWS);
        }
        program.kill().unwrap();
        program.wait().unwrap();
        if is_original_mounted {
            comes_back_with(&path, DURABLE_ROWS + 20);
            continue;
        }
        let device = medium.unmount();
        let Some(copied) = copy.mount(device.as_deref()) else {
            mobifs_skip::skip_part("another program has taken the loop device");
            continue;
        };
        comes_back_with(&copied, DURABLE_ROWS);
        copy.unmount();
        comes_back_with(&medium.mount(None).unwrap(), DURABLE_ROWS + 20);
    }
}

/// A copy that was made after the kill is mounted beside the original.
#[test]
fn a_copy_made_after_the_kill_leaves_the_original_its_commits() {
    let place = Place::new();
    let medium = Medium::new(&place, "one.img", MAKERS[0]);
    let Some(mut medium) = medium.filter(|_| rustix::process::geteuid().is_root()) else {
        mobifs_skip::skip("an ext4 cannot be made and mounted here");
        return;
    };
    die(&medium.mount(None).unwrap(), ROWS);
    medium.unmount();
    let mut copy = medium.copied("copy.img");
    let path = medium.mount(None).unwrap();
    comes_back_with(&copy.mount(None).unwrap(), DURABLE_ROWS);
    comes_back_with(&path, ROWS);
}

/// Neither the original, at its path, nor the copy, under its number, got what the killed program had.
#[test]
fn a_copy_under_the_number_of_the_original_leaves_it_its_commits() {
    let place = Place::new();
    let medium = Medium::new(&place, "one.img", MAKERS[0]);
    let Some(mut medium) = medium.filter(|_| rustix::process::geteuid().is_root()) else {
        mobifs_skip::skip("an ext4 cannot be made and mounted here");
        return;
    };
    die(&medium.mount(None).unwrap(), ROWS);
    let device = medium.unmount().unwrap();
    let mut copy = medium.copied("copy.img");
    let Some(other) = copy.mount(Some(&device)) else {
        mobifs_skip::skip_part("another program has taken the loop device");
        return;
    };
    let path = medium.mount(None).unwrap();
    comes_back_with(&other, DURABLE_ROWS);
    comes_back_with(&path, ROWS);
}
