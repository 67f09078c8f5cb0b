//! `mobifs recover --salvage`: what a user of a damaged store sees, and gets.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::bad_input::with_full_journal;
use crate::fixture::{Fixture, PROGRAM, fails, message, mobifs, needs_mounts, snapshot, succeeds};

const BLOCK: u64 = 4096;

/// Flips a bit of the first transaction of which the fourth file is a part; returns its place.
fn damage_in_the_middle(store: &Path) {
    let path = store.join(".mobifs/journal");
    let journal = fs::read(&path).unwrap();
    let at = journal
        .windows(9)
        .position(|window| window == b"content 3")
        .unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[journal[at] ^ 1], at as u64).unwrap();
}

fn present(fixture: &Fixture) -> Vec<String> {
    let names = (0..5).map(|n| n.to_string());
    let app = fixture.mountpoint.join("app");
    names
        .filter(|name| {
            fs::read(app.join(name))
                .is_ok_and(|content| content == format!("content {name}").as_bytes())
        })
        .collect()
}

#[test]
fn a_salvage_shows_asks_and_brings_back_what_is_certain() {
    needs_mounts!();
    let fixture = with_full_journal();
    damage_in_the_middle(&fixture.store);
    fails(&fixture.try_mount(&[]), 4, &["damaged", "--salvage"]);
    let without_lock = |tree: Vec<(std::path::PathBuf, String, Vec<u8>)>| -> Vec<_> {
        tree.into_iter()
            .filter(|(path, ..)| !path.ends_with("lock"))
            .collect()
    };
    let before = without_lock(snapshot(&fixture.store));
    let shown = mobifs(&["recover", "--salvage", "--dry-run"], &fixture.store);
    succeeds(&shown);
    let text = String::from_utf8(shown.stdout).unwrap();
    for needle in [
        "damaged: journal transaction",
        "certain:",
        "app/3",
        "app/4",
        "nothing was changed",
    ] {
        assert!(text.contains(needle), "{needle}: {text}");
    }
    assert!(!text.contains("app/2 "), "it is certain: {text}");
    // Without a terminal to ask on it is refused.
    let refused = mobifs(&["recover", "--salvage"], &fixture.store);
    fails(&refused, 2, &["nothing was changed", "--yes"]);
    assert!(before == without_lock(snapshot(&fixture.store)));
    let done = mobifs(&["recover", "--salvage", "--yes"], &fixture.store);
    succeeds(&done);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains(".mobifs/journal.damaged-1"), "{text}");
    let check = mobifs(&["check"], &fixture.store);
    succeeds(&check);
    let text = String::from_utf8(check.stdout).unwrap();
    assert!(
        text.contains("kept by a salvage: .mobifs/journal.damaged-1"),
        "{text}"
    );
    assert!(text.contains("properly closed"), "{text}");
    fixture.mount(&[]);
    assert_eq!(present(&fixture), ["0", "1", "2"]);
    assert!(!fixture.mountpoint.join("app/4").exists());
    fixture.umount();
}

/// The one named the last transaction after the damage, the other one the next.
#[test]
fn a_check_and_a_salvage_say_the_same_of_a_damaged_journal() {
    needs_mounts!();
    let fixture = with_full_journal();
    damage_in_the_middle(&fixture.store);
    let shown = mobifs(&["recover", "--salvage", "--dry-run"], &fixture.store);
    succeeds(&shown);
    let text = String::from_utf8(shown.stdout).unwrap();
    let damage = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("damaged: "));
    let damage = damage.unwrap();
    assert!(damage.contains("the later transaction"), "{damage}");
    fails(&mobifs(&["check"], &fixture.store), 4, &[damage]);
}

/// One damaged byte of a name: the directory `photos` was renamed to `qhotos`, and what had that name
/// went to `.mobifs/lost`. The root directory was listed without a name.
#[test]
fn a_damaged_name_renames_nothing() {
    needs_mounts!();
    let fixture = Fixture::new();
    for directory in ["photos", "qhotos"] {
        let directory = fixture.store.join(directory);
        fs::create_dir(&directory).unwrap();
        for file in ["fileA", "fileC"] {
            fs::write(
                directory.join(file),
                format!("{} {file}", directory.display()),
            )
            .unwrap();
        }
    }
    let config = "apply_idle_ms = 100000\n[defaults]\nclass = \"durable\"\n";
    let config = fixture.config(config);
    fixture.mount(&["--config", config.to_str().unwrap()]);
    for n in 0..3 {
        let path = fixture.mountpoint.join("photos/fileA");
        let file = fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(format!("new {n}").as_bytes(), 0).unwrap();
        file.sync_all().unwrap();
    }
    fixture.cut_power();
    let path = fixture.store.join(".mobifs/journal");
    let journal = fs::read(&path).unwrap();
    let found = journal[2 * BLOCK as usize..]
        .windows(6)
        .position(|window| window == b"photos");
    let at = 2 * BLOCK + found.unwrap() as u64;
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"q", at).unwrap();
    let files = || -> Vec<_> {
        let all = snapshot(&fixture.store).into_iter();
        all.filter(|(path, ..)| !path.components().any(|part| part.as_os_str() == ".mobifs"))
            .collect()
    };
    let before = files();
    let done = mobifs(&["recover", "--salvage", "--yes"], &fixture.store);
    succeeds(&done);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(files() == before, "{text}");
    let lost = fs::read_dir(fixture.store.join(".mobifs/lost")).unwrap();
    assert_eq!(lost.count(), 0, "{text}");
    assert!(text.contains("    photos/fileA was changed"), "{text}");
    assert!(!text.contains("     was changed"), "{text}");
}

#[test]
fn a_second_salvage_keeps_the_journal_of_the_first() {
    needs_mounts!();
    let fixture = with_full_journal();
    let journal = fixture.store.join(".mobifs/journal");
    damage_in_the_middle(&fixture.store);
    let kept = fs::read(&journal).unwrap();
    succeeds(&mobifs(&["recover", "--salvage", "--yes"], &fixture.store));
    fs::remove_file(&journal).unwrap();
    let done = mobifs(&["recover", "--salvage", "--yes", "--json"], &fixture.store);
    succeeds(&done);
    let found: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(found["is_salvaged"], true, "{found}");
    assert_eq!(
        found["kept"],
        serde_json::Value::Null,
        "there was none: {found}"
    );
    let first = fixture.store.join(".mobifs/journal.damaged-1");
    assert!(fs::read(&first).unwrap() == kept);
    fs::write(&journal, "no journal").unwrap();
    succeeds(&mobifs(&["recover", "--salvage", "--yes"], &fixture.store));
    assert!(fs::read(&first).unwrap() == kept);
    let second = fixture.store.join(".mobifs/journal.damaged-2");
    assert_eq!(fs::read(second).unwrap(), b"no journal");
    fixture.mount(&[]);
    assert_eq!(present(&fixture), ["0", "1", "2"]);
    fixture.umount();
}

#[test]
fn tools_get_all_of_it_as_json() {
    needs_mounts!();
    let fixture = with_full_journal();
    damage_in_the_middle(&fixture.store);
    let words = ["recover", "--salvage", "--dry-run", "--json"];
    let shown = mobifs(&words, &fixture.store);
    succeeds(&shown);
    let found: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(found["promise"], "nothing-shows", "{found}");
    assert_eq!(found["is_salvaged"], false);
    let files = found["lost"]["files"].as_array().unwrap();
    let paths: Vec<&str> = files
        .iter()
        .filter_map(|file| file["path"].as_str())
        .collect();
    assert!(
        paths.contains(&"app/3") && paths.contains(&"app/4"),
        "{found}"
    );
    assert!(found["sound"]["until"].is_string(), "{found}");
    // A store that is not damaged is recovered as usual.
    let undamaged = with_full_journal();
    let done = mobifs(&["recover", "--salvage", "--json"], &undamaged.store);
    succeeds(&done);
    let found: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(found["damage"], serde_json::json!([]));
    undamaged.mount(&[]);
    assert_eq!(present(&undamaged), ["0", "1", "2", "3", "4"]);
    undamaged.umount();
}

#[test]
fn superblocks_and_identity_that_are_lost_cost_nothing() {
    needs_mounts!();
    for harm in ["superblocks", "identity"] {
        let fixture = with_full_journal();
        let own = fixture.store.join(".mobifs");
        match harm {
            "superblocks" => {
                let file = fs::File::options().write(true).open(own.join("journal"));
                file.unwrap()
                    .write_all_at(&[0; 2 * BLOCK as usize], 0)
                    .unwrap();
            }
            _ => fs::remove_file(own.join("id")).unwrap(),
        }
        fails(&fixture.try_mount(&[]), 4, &["damaged", "--salvage"]);
        succeeds(&mobifs(&["recover", "--salvage", "--yes"], &fixture.store));
        fixture.mount(&[]);
        assert_eq!(present(&fixture), ["0", "1", "2", "3", "4"], "{harm}");
        fixture.umount();
    }
}

/// On a terminal it asks, and takes anything but a yes for a no.
#[test]
fn on_a_terminal_it_asks() {
    needs_mounts!();
    let has_script = Command::new("script").arg("--version").output().is_ok();
    if !mobifs_skip::can((!has_script).then_some("no script(1)")) {
        return;
    }
    let fixture = with_full_journal();
    damage_in_the_middle(&fixture.store);
    let answer = |text: &str| {
        let command = format!("{PROGRAM} recover --salvage {}", fixture.store.display());
        let mut child = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let no = answer("n\n");
    assert!(!no.status.success());
    assert!(
        String::from_utf8_lossy(&no.stdout).contains("[y/N]"),
        "{no:?}"
    );
    fails(&fixture.try_mount(&[]), 4, &["damaged"]);
    let yes = answer("y\n");
    assert!(yes.status.success(), "{yes:?} {}", message(&yes));
    fixture.mount(&[]);
    assert_eq!(present(&fixture), ["0", "1", "2"]);
    fixture.umount();
}
