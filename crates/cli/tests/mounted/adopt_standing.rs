//! Adoptions whose directory or store is not where it was left.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::adopt::{Adoption, is_immutable, set_immutable};
use crate::fixture::{IN_USE, copy_program, fails, message, mobifs, needs_mounts, succeeds};

const FAILED: i32 = 1;

fn not_mounted() -> Adoption {
    let adoption = Adoption::new();
    fs::write(adoption.directory.join("file"), "precious").unwrap();
    adoption.adopt();
    succeeds(&mobifs(&["umount"], &adoption.directory));
    adoption
}

/// It was deleted with `.mobifs`, although the salvage says that it is the user's to delete.
#[test]
fn a_damaged_journal_that_a_salvage_has_kept_outlives_the_adoption() {
    needs_mounts!();
    let adoption = not_mounted();
    let kept = adoption.store().join(".mobifs/journal.damaged-1");
    fs::write(&kept, "what it had").unwrap();
    let back = adoption.unadopt();
    succeeds(&back);
    let said = message(&back);
    assert!(said.contains("a salvage has kept"), "{said}");
    let names = fs::read_dir(&adoption.directory).unwrap();
    let lost = names.map(|entry| entry.unwrap().path());
    let mut lost = lost.filter(|path| path.to_str().unwrap().contains("/mobifs-lost"));
    let journal = lost.next().unwrap().join("journal.damaged-1");
    assert_eq!(fs::read(journal).unwrap(), b"what it had");
}

/// A new, empty store was made, and the command succeeded.
#[test]
fn a_store_that_was_moved_away_is_missed_and_can_be_put_back() {
    needs_mounts!();
    let adoption = not_mounted();
    let away = adoption.fixture.path("away");
    let file = adoption.directory.join("file");
    let move_away = || fs::rename(adoption.store(), &away).unwrap();
    let put_back = || fs::rename(&away, adoption.store()).unwrap();
    let needles = ["a dir.mobifs-store", "is missing: put it back", "unadopt '"];
    move_away();
    for flag in [None, Some("--dry-run")] {
        let mut command = adoption.command("adopt", &["--boot", "none"]);
        let refused = command.args(flag).arg(&adoption.directory).output();
        fails(&refused.unwrap(), FAILED, &needles);
    }
    let mut finish = adoption.command("adopt", &["--finish"]);
    fails(
        &finish.arg(&adoption.directory).output().unwrap(),
        255,
        &needles,
    );
    assert!(!adoption.store().exists() && !adoption.is_served());
    assert_eq!(adoption.list()[0]["state"], "store-missing");
    put_back();
    succeeds(&adoption.adopt_again());
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    succeeds(&mobifs(&["umount"], &adoption.directory));
    move_away();
    let forgotten = adoption.unadopt();
    succeeds(&forgotten);
    let said = String::from_utf8_lossy(&forgotten.stdout);
    assert!(said.contains("is missing, so the adoption of"), "{said}");
    assert!(!adoption.notes().exists() && !is_immutable(&adoption.directory));
    put_back();
    succeeds(&adoption.unadopt());
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
}

/// The advice was to run the command again, for ever, and packages were not removed.
#[test]
fn an_adoption_of_which_nothing_is_left_is_forgotten() {
    needs_mounts!();
    for has_parent in [true, false] {
        let mut adoption = Adoption::new();
        let parent = adoption.fixture.directory("parent");
        adoption.directory = parent.join("inner");
        fs::create_dir(&adoption.directory).unwrap();
        adoption.adopt();
        succeeds(&mobifs(&["umount"], &adoption.directory));
        let moved = adoption.fixture.path("moved");
        if has_parent {
            // As the deletion of both: an immutable directory can only be moved with what it lies in.
            fs::rename(&parent, &moved).unwrap();
            fs::create_dir(&parent).unwrap();
        } else {
            fs::rename(&parent, &moved).unwrap();
        }
        assert_eq!(adoption.list()[0]["state"], "gone");
        let mut plan = adoption.command("unadopt", &["--dry-run"]);
        succeeds(&plan.arg(&adoption.directory).output().unwrap());
        assert!(adoption.notes().exists());
        let forgotten = adoption.unadopt();
        succeeds(&forgotten);
        let said = String::from_utf8_lossy(&forgotten.stdout);
        assert!(
            said.contains("are gone, so the adoption is forgotten"),
            "{said}"
        );
        assert!(!adoption.notes().exists());
        // Where it is now, it is known by what lies there.
        adoption.directory = moved.join("inner");
        succeeds(&adoption.unadopt());
        assert_eq!(fs::read_dir(&moved).unwrap().count(), 1);
    }
}

#[test]
fn a_store_without_its_directory_comes_back() {
    needs_mounts!();
    let adoption = not_mounted();
    let parent = adoption.directory.parent().unwrap();
    let other = parent.join("elsewhere");
    set_immutable(&adoption.directory, false);
    fs::rename(&adoption.directory, other).unwrap();
    assert_eq!(adoption.list()[0]["state"], "directory-missing");
    succeeds(&adoption.unadopt());
    let content = fs::read_to_string(adoption.directory.join("file"));
    assert_eq!(content.unwrap(), "precious");
    assert!(!adoption.notes().exists());
}

/// A command that was refused had left a note, which nothing removed and which kept packages from being removed.
#[test]
fn a_note_of_an_ordinary_directory_is_dropped_when_it_is_seen() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let before = adoption.seen();
    adoption.adopt();
    let mut back = adoption.command("unadopt", &[]);
    adoption.killed_at("unadopt-removed", back.arg(&adoption.directory));
    assert!(adoption.notes().exists());
    let listed = adoption.list();
    assert_eq!(listed, json!([]), "{}", message(&adoption.adopt_again()));
    adoption.is_as_before(&before);
}

/// Advice that is pasted to a shell was cut at spaces, and commands in names were run.
#[test]
fn commands_that_are_advised_are_words_of_a_shell() {
    needs_mounts!();
    for (name, word) in [
        ("a b", "a b'"),
        ("$(id)", "$(id)'"),
        ("it's", r"it'\''s'"),
        ("plain", "plain\n"),
    ] {
        let mut adoption = Adoption::new();
        adoption.directory = adoption.fixture.directory(name);
        adoption.fixture.unmount_at_end(&adoption.directory);
        let done = adoption.begin().output().unwrap();
        succeeds(&done);
        let said = String::from_utf8_lossy(&done.stdout);
        for command in [
            "look: mobifs status ",
            "back: mobifs unadopt ",
            "put `mobifs adopt ",
        ] {
            let (_, rest) = said.split_once(command).unwrap();
            let advised = rest.lines().next().unwrap().split('`').next().unwrap();
            let is_quoted = advised.starts_with('\'') && advised.ends_with('\'');
            assert_eq!(is_quoted, name != "plain", "{said}");
            assert!(format!("{advised}\n").contains(word), "{said}");
        }
        let store = adoption
            .directory
            .with_file_name(format!("{name}.mobifs-store"));
        let refused = mobifs(&["mount", store.to_str().unwrap()], &adoption.directory);
        let needle = if name == "plain" {
            "(mobifs umount /"
        } else {
            "(mobifs umount '/"
        };
        assert!(message(&refused).contains(needle), "{}", message(&refused));
        succeeds(&adoption.unadopt());
    }
}

/// By a path through a bind mount it was another adoption, with a note of its own, that could go neither way.
#[test]
fn an_adopted_directory_is_known_by_any_path() {
    needs_mounts!();
    let mut adoption = Adoption::new();
    fs::write(adoption.directory.join("file"), "precious").unwrap();
    let run = |adoption: &Adoption, name: &str, words: &[&str], directory: &Path| {
        let mut command = adoption.command(name, words);
        command.arg(directory).output().unwrap()
    };
    let parent = adoption.directory.parent().unwrap().to_owned();
    let (above, beside) = (
        adoption.fixture.directory("above"),
        adoption.fixture.directory("beside"),
    );
    let words = ["--bind", parent.to_str().unwrap()];
    adoption.fixture.mount_other(&words, &above);
    let other_path = above.join("a dir");
    adoption.adopt();
    let own = adoption.directory.to_str().unwrap().to_owned();
    let words = ["--bind", &own];
    adoption.fixture.mount_other(&words, &beside);
    for path in [&other_path, &beside] {
        let output = run(&adoption, "adopt", &[], path);
        succeeds(&output);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            said.contains(&format!("{own} is adopted already")),
            "{said}"
        );
        assert!(message(&output).contains("by another path"));
        assert_eq!(adoption.list().as_array().unwrap().len(), 1);
        let output = run(&adoption, "unadopt", &["--dry-run"], path);
        succeeds(&output);
    }
    // What lies in the store, by a path that does not say so.
    fs::create_dir(adoption.store().join("inner")).unwrap();
    let inner = above.join("a dir.mobifs-store/inner");
    let output = run(&adoption, "adopt", &["--boot", "none", "--dry-run"], &inner);
    fails(&output, IN_USE, &["one lies in the other"]);
    succeeds(&Command::new("umount").arg(&beside).output().unwrap());
    succeeds(&run(&adoption, "unadopt", &[], &other_path));
    assert_eq!(adoption.list(), json!([]));
    let file = adoption.directory.join("file");
    assert_eq!(fs::read(file).unwrap(), b"precious");
}

/// A damaged note kept every command from every directory.
#[test]
fn a_damaged_note_concerns_its_own_directory_alone() {
    needs_mounts!();
    let mut adoption = Adoption::new();
    let first = adoption.directory.clone();
    let other = adoption.fixture.directory("other");
    adoption.fixture.unmount_at_end(&other);
    fs::create_dir(first.join("inner")).unwrap();
    adoption.adopt();
    succeeds(&mobifs(&["umount"], &first));
    let entries = fs::read_dir(adoption.notes()).unwrap();
    let notes: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    let [note] = &notes[..] else {
        panic!("{notes:?}");
    };
    let good = fs::read(note).unwrap();
    fs::write(note, &good[..good.len() / 2]).unwrap();
    let name = note.file_name().unwrap().to_str().unwrap();
    // Its own directory.
    let needles = [name, "cannot be understood", "move it away"];
    fails(&adoption.adopt_again(), FAILED, &needles);
    fails(&adoption.unadopt(), FAILED, &needles);
    assert_eq!(adoption.list()[0]["state"], "note-damaged");
    assert_eq!(adoption.list()[0]["directory"].as_str(), first.to_str());
    // What lies in it is in an adopted directory all the same.
    let inner = adoption.store().join("inner");
    let mut command = adoption.command("adopt", &["--boot", "none"]);
    let refused = command.arg(&inner).output().unwrap();
    assert_eq!(refused.status.code(), Some(IN_USE));
    let said = message(&refused);
    assert!(said.contains("one lies in the other"), "{said}");
    // Another one.
    adoption.directory = other.clone();
    let done = adoption.begin().output().unwrap();
    succeeds(&done);
    let said = message(&done);
    assert_eq!(said.matches(name).count(), 1, "{said}");
    assert!(said.contains("warning: the note "), "{said}");
    succeeds(&adoption.unadopt());
    fs::write(note, good).unwrap();
    adoption.directory = first;
    succeeds(&adoption.unadopt());
    assert!(!adoption.notes().exists());
}

/// It stayed, and with it the directory of notes.
#[test]
fn a_note_that_a_kill_has_left_unfinished_goes_with_the_next_command() {
    needs_mounts!();
    let adoption = Adoption::with_files();
    let before = adoption.seen();
    fs::create_dir_all(adoption.notes()).unwrap();
    let left = adoption.notes().join(".srv-other.json.new");
    fs::write(&left, "{").unwrap();
    adoption.adopt();
    assert!(!left.exists());
    succeeds(&adoption.unadopt());
    adoption.is_as_before(&before);
    fs::create_dir_all(adoption.notes()).unwrap();
    fs::write(&left, "{").unwrap();
    assert_eq!(adoption.list(), json!([]));
    adoption.is_as_before(&before);
}

/// It said that the directory was an ordinary one, and succeeded, without having looked at the store.
#[test]
fn a_check_of_a_directory_that_is_not_mounted_is_one_of_its_store() {
    needs_mounts!();
    let adoption = not_mounted();
    let checked = mobifs(&["check"], &adoption.directory);
    succeeds(&checked);
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(said.contains("a dir.mobifs-store: store "), "{said}");
    assert!(message(&checked).contains("is adopted and not mounted"));
    let journal = adoption.store().join(".mobifs/journal");
    let whole = fs::read(&journal).unwrap();
    fs::write(&journal, vec![0; whole.len()]).unwrap();
    let damaged = mobifs(&["check"], &adoption.directory);
    assert!(!damaged.status.success());
    assert!(message(&damaged).contains("a dir.mobifs-store is damaged"));
    fs::write(&journal, whole).unwrap();
    succeeds(&adoption.unadopt());
}

/// It was unmounted and called an ordinary directory again, while all its files lay elsewhere.
#[test]
fn a_store_that_is_moved_away_under_its_mount_is_named_before_anything_is_done() {
    needs_mounts!();
    let adoption = Adoption::new();
    let file = adoption.directory.join("file");
    fs::write(&file, "precious").unwrap();
    adoption.adopt();
    let away = adoption.fixture.path("away");
    fs::rename(adoption.store(), &away).unwrap();
    let store = adoption.store();
    let needles = [
        store.to_str().unwrap(),
        "is missing: put it back",
        "unadopt '",
    ];
    fails(&adoption.unadopt(), FAILED, &needles);
    assert!(adoption.is_served() && adoption.notes().exists());
    fs::rename(&away, adoption.store()).unwrap();
    succeeds(&adoption.unadopt());
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
}

/// It was unmounted first, and then refused: programs found an empty directory.
#[test]
fn a_store_that_is_in_use_past_the_mount_keeps_it_mounted() {
    needs_mounts!();
    let adoption = Adoption::new();
    fs::write(adoption.directory.join("file"), "precious").unwrap();
    adoption.adopt();
    let open = fs::File::open(adoption.store().join("file")).unwrap();
    let mut user = Command::new("sleep")
        .arg("1000")
        .current_dir("/")
        .stdin(open)
        .spawn()
        .unwrap();
    let mut plan = adoption.command("unadopt", &["--dry-run"]);
    let plan = plan.arg(&adoption.directory).output().unwrap();
    let refused = adoption.unadopt();
    let is_served = adoption.is_served();
    user.kill().unwrap();
    user.wait().unwrap();
    let planned = String::from_utf8_lossy(&plan.stdout).into_owned();
    let pid = user.id().to_string();
    assert!(
        planned.contains("in use now") && planned.contains(&pid),
        "{planned}"
    );
    fails(&refused, IN_USE, &["stays adopted", &pid, "file is open"]);
    assert!(is_served);
    let mut plan = adoption.command("unadopt", &["--dry-run"]);
    let plan = plan.arg(&adoption.directory).output().unwrap();
    let planned = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(
        !planned.contains("in use"),
        "the daemon is no user: {planned}"
    );
    succeeds(&adoption.unadopt());
}

/// As a program is that was installed under a name with its version.
#[test]
fn a_daemon_whose_program_has_another_name_is_no_user_of_its_store() {
    needs_mounts!();
    let adoption = Adoption::new();
    fs::write(adoption.directory.join("file"), "precious").unwrap();
    let program = adoption.fixture.path("mobi-other");
    copy_program(&program);
    let run = |command: &str, words: &[&str]| {
        let mut run = Command::new(&program);
        run.args([command, "--notes"]).arg(adoption.notes());
        run.args(words).arg(&adoption.directory).output().unwrap()
    };
    succeeds(&run("adopt", &["--boot", "none"]));
    succeeds(&run("unadopt", &[]));
    assert!(!adoption.is_served() && !adoption.notes().exists());
}

/// Both commands said for ever that an operation is not permitted.
#[test]
fn a_store_without_what_is_needed_to_mount_it_gives_its_files_back() {
    needs_mounts!();
    let adoption = not_mounted();
    fs::remove_dir_all(adoption.store().join(".mobifs")).unwrap();
    let needles = ["has lost its .mobifs", "unadopt '"];
    fails(&adoption.adopt_again(), FAILED, &needles);
    assert_eq!(adoption.list()[0]["state"], "store-wrong");
    succeeds(&adoption.unadopt());
    assert!(!adoption.store().exists() && !adoption.notes().exists());
    assert!(!is_immutable(&adoption.directory));
    let content = fs::read_to_string(adoption.directory.join("file"));
    assert_eq!(content.unwrap(), "precious");
}

#[test]
fn another_directory_at_the_place_of_a_store_is_said() {
    needs_mounts!();
    let adoption = not_mounted();
    let away = adoption.fixture.path("away");
    fs::rename(adoption.store(), &away).unwrap();
    fs::create_dir(adoption.store()).unwrap();
    let needles = [
        "is not the directory that has the files",
        "put that one there",
    ];
    for _ in 0..2 {
        fails(&adoption.adopt_again(), FAILED, &needles);
        fails(&adoption.unadopt(), FAILED, &needles);
    }
    assert_eq!(adoption.list()[0]["state"], "store-wrong");
    fs::remove_dir(adoption.store()).unwrap();
    fs::rename(&away, adoption.store()).unwrap();
    succeeds(&adoption.unadopt());
    let content = fs::read_to_string(adoption.directory.join("file"));
    assert_eq!(content.unwrap(), "precious");
}

/// It was unmounted in part, or called not mounted.
#[test]
fn another_mount_over_an_adopted_directory_is_said() {
    needs_mounts!();
    let adoption = not_mounted();
    succeeds(&adoption.adopt_again());
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "none"]);
    succeeds(&mount.arg(&adoption.directory).output().unwrap());
    let needles = ["has another mount (tmpfs) over", "unmount that first"];
    let mut plan = adoption.command("unadopt", &["--dry-run"]);
    let answers = [
        plan.arg(&adoption.directory).output().unwrap(),
        adoption.unadopt(),
        adoption.adopt_again(),
    ];
    let state = adoption.list()[0]["state"].take();
    let mut umount = Command::new("umount");
    succeeds(&umount.arg(&adoption.directory).output().unwrap());
    for answer in answers {
        fails(&answer, IN_USE, &needles);
    }
    assert_eq!(state, "covered");
    succeeds(&adoption.unadopt());
    let content = fs::read_to_string(adoption.directory.join("file"));
    assert_eq!(content.unwrap(), "precious");
}
