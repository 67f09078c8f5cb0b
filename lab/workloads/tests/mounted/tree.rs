//! Large directories, and stores that were there before MobiFS and stay after it.

use crate::harness::{Mount, can_mount, on_both, scratch};
use std::collections::BTreeSet;
use std::fs;

const MANY: u32 = 100_000;

#[test]
fn a_directory_of_100_000_entries() {
    on_both(|dir| {
        let many = dir.join("many");
        fs::create_dir(&many).unwrap();
        for number in 0..MANY {
            fs::File::create(many.join(format!("entry-{number}"))).unwrap();
        }
        let names: BTreeSet<_> = fs::read_dir(&many)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names.len(), MANY as usize);
        assert!(names.contains(std::ffi::OsStr::new("entry-99999")));
        // Removing while reading: every entry is met, none twice.
        let mut removed = 0;
        for entry in fs::read_dir(&many).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
            removed += 1;
        }
        assert_eq!(removed, MANY);
        fs::remove_dir(&many).unwrap();
    });
}

#[test]
fn a_large_directory_survives_a_power_cut() {
    if !can_mount() {
        return;
    }
    let base = scratch();
    let mut mount = Mount::new(base.path());
    let many = mount.path().join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..20_000 {
        fs::write(many.join(format!("entry-{number}")), format!("{number}")).unwrap();
    }
    mount.sync();
    mount.cut_power();
    mount.mount();
    assert_eq!(fs::read_dir(&many).unwrap().count(), 20_000);
    for number in (0..20_000).step_by(997) {
        let content = fs::read_to_string(many.join(format!("entry-{number}"))).unwrap();
        assert_eq!(content, format!("{number}"));
    }
}

#[test]
fn an_existing_directory_becomes_a_store_and_is_one_no_more() {
    if !can_mount() {
        return;
    }
    let base = scratch();
    let store = base.path().join("store");
    fs::create_dir_all(store.join("old/deep")).unwrap();
    fs::write(store.join("old/deep/file"), "before").unwrap();
    fs::hard_link(store.join("old/deep/file"), store.join("old/link")).unwrap();
    let mut mount = Mount::new(base.path());
    let seen = mount.path();
    assert_eq!(
        fs::read_to_string(seen.join("old/deep/file")).unwrap(),
        "before"
    );
    fs::write(seen.join("old/deep/file"), "after").unwrap();
    assert_eq!(fs::read_to_string(seen.join("old/link")).unwrap(), "after");
    fs::rename(seen.join("old"), seen.join("new")).unwrap();
    assert!(
        !seen.join(".mobifs").exists(),
        "the store's own directory must not be seen"
    );
    let names: Vec<_> = fs::read_dir(seen)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["new"]);
    assert!(fs::create_dir(seen.join(".mobifs")).is_err());
    mount.umount();

    fs::remove_dir_all(store.join(".mobifs")).unwrap();
    let names: Vec<_> = fs::read_dir(&store)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["new"]);
    assert_eq!(
        fs::read_to_string(store.join("new/deep/file")).unwrap(),
        "after"
    );
    assert_eq!(fs::read_to_string(store.join("new/link")).unwrap(), "after");
}

#[test]
fn nothing_synced_is_lost_and_the_cut_is_a_point_in_time() {
    if !can_mount() {
        return;
    }
    let base = scratch();
    let mut mount = Mount::new(base.path());
    // Two apps, each with a counter kept in four files that are written in turn.
    let write = |app: &str, round: u32| {
        for file in 0..4 {
            let path = mount.path().join(app).join(format!("part-{file}"));
            fs::write(path, format!("{round:08}")).unwrap();
        }
    };
    for app in ["one", "two"] {
        fs::create_dir(mount.path().join(app)).unwrap();
    }
    for round in 1..=300 {
        write("one", round);
        write("two", round);
        if round == 100 {
            mount.sync();
        }
    }
    mount.cut_power();
    mount.mount();
    for app in ["one", "two"] {
        let rounds: Vec<u32> = (0..4)
            .map(|file| {
                let path = mount.path().join(app).join(format!("part-{file}"));
                let text = fs::read_to_string(path).unwrap();
                // A file caught between its truncation and its write is empty.
                if text.is_empty() {
                    u32::MAX
                } else {
                    text.parse().unwrap()
                }
            })
            .collect();
        let whole: Vec<u32> = rounds.iter().copied().filter(|&r| r != u32::MAX).collect();
        assert!(
            whole.len() >= 3,
            "{app}: {rounds:?}: two files caught in the middle"
        );
        assert!(
            whole.iter().all(|&r| r >= 100),
            "{app}: {rounds:?} is older than the sync"
        );
        // Written in turn: later parts are never ahead, and at most one round behind.
        assert!(
            whole.windows(2).all(|pair| pair[0] >= pair[1]),
            "{app}: {rounds:?}"
        );
        assert!(
            whole[0] - whole[whole.len() - 1] <= 1,
            "{app}: {rounds:?} never existed"
        );
    }
}
