//! `mobifs adopt` and `unadopt` of one directory at the same time.

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use crate::adopt::Adoption;
use crate::fixture::{needs_mounts, succeeds};

const ROUNDS: u64 = 12;

/// While one of them mounted, the other one took the store's directory away: both succeeded, the mount had a journal
/// that was deleted, and what programs wrote through it was lost.
#[test]
fn an_adoption_that_is_undone_meanwhile_loses_nothing() {
    needs_mounts!();
    let adoption = Adoption::new();
    fs::write(adoption.directory.join("before"), "content").unwrap();
    for round in 0..ROUNDS {
        adoption.adopt();
        let mut back = adoption.command("unadopt", &[]);
        let back = back.arg(&adoption.directory);
        let back = back.stdout(Stdio::null()).stderr(Stdio::null());
        let mut back = back.spawn().unwrap();
        sleep(Duration::from_millis(round * 7));
        // Either may find that the other one has done it.
        let _either = adoption.begin().output().unwrap();
        back.wait().unwrap();
        let file = adoption.directory.join(format!("file-{round}"));
        fs::write(file, "content").unwrap();
        if adoption.is_served() {
            succeeds(&adoption.unadopt());
        }
        assert!(!adoption.store().exists(), "round {round}");
        assert!(!adoption.is_served(), "round {round}");
        let names = fs::read_dir(&adoption.directory).unwrap().count();
        assert_eq!(names as u64, 2 + round, "round {round}");
    }
}

/// The directory of notes went with the last note while another command was about to write the first one.
#[test]
fn unrelated_directories_are_adopted_at_the_same_time() {
    needs_mounts!();
    let adoption = Adoption::new();
    let places: Vec<_> = ["one", "two"]
        .into_iter()
        .map(|name| {
            let mut fixture = crate::fixture::Fixture::new();
            let directory = fixture.directory(name);
            fixture.unmount_at_end(&directory);
            (fixture, directory)
        })
        .collect();
    let config = adoption.fixture.config("journal_bytes = \"1MiB\"\n");
    std::thread::scope(|scope| {
        for (_, directory) in &places {
            let (adoption, config) = (&adoption, &config);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let mut command = adoption.command("adopt", &["--boot", "none", "--config"]);
                    succeeds(&command.arg(config).arg(directory).output().unwrap());
                    let mut command = adoption.command("unadopt", &[]);
                    succeeds(&command.arg(directory).output().unwrap());
                }
            });
        }
    });
    assert!(!adoption.notes().exists());
}
