//! Which calls return at once where.

use crate::fixture::{By, Fixture, PROGRAM, PROMISE_S, mechanisms, needs_root};

/// Steps that go through the C library, and that the library sees.
const BY_LIBRARY: &[&str] = &["fsync", "fdatasync", "syncfs", "range", "directory", "rwf"];
/// Steps that only a filter sees.
const DIRECT: &[&str] = &[
    "o-sync",
    "o-dsync",
    "raw-fsync",
    "raw-fdatasync",
    "raw-syncfs",
    "raw-range",
    "raw-o-sync",
    "raw-new-o-sync",
    "raw-rwf",
    "child-fsync",
];
/// Steps that keep their meaning everywhere: libaio's requests lie in the program's memory, which is
/// the program's; and stores into mappings are not committed in order.
const AS_EVER: &[&str] = &["aio", "aio-write", "msync", "raw-msync"];

fn steps_of(by: By) -> Vec<&'static str> {
    let direct = if by == By::Preload { &[][..] } else { DIRECT };
    [BY_LIBRARY, direct].concat()
}

fn at(place: &std::path::Path, steps: &[&str]) -> String {
    let steps = steps
        .iter()
        .map(|step| format!("{step} {}", place.display()));
    steps.collect::<Vec<_>>().join(";")
}

fn all(steps: &[&str], how: &str) -> String {
    let steps = steps.iter().map(|step| format!("{step} {how}"));
    steps.collect::<Vec<_>>().join(", ")
}

#[test]
fn calls_for_durability_return_at_once_where_it_is_promised() {
    needs_root!();
    let fixture = Fixture::new();
    for by in mechanisms() {
        let steps = steps_of(by);
        let done = fixture.outcomes(by, &at(&fixture.steered(), &steps));
        assert_eq!(done, all(&steps, "skipped"), "{by:?}");
    }
}

/// Requests of libaio were rewritten in the program's memory. Programs share it and use it again, so
/// that flushes of other filesystems were skipped. And after `msync` had returned at once, a power cut
/// left stores into a mapping without those before.
#[test]
fn what_cannot_be_skipped_keeps_its_meaning_everywhere() {
    needs_root!();
    let fixture = Fixture::new();
    for by in mechanisms() {
        for place in [fixture.steered(), fixture.other()] {
            let done = fixture.outcomes(by, &at(&place, AS_EVER));
            assert_eq!(done, all(AS_EVER, "flushed"), "{by:?}");
        }
    }
}

/// What a program stores into a mapping may be committed before what it has written, so its calls have
/// to wait as long as it has one; but not for the index of a log of SQLite, which is made anew.
#[test]
fn who_stores_into_a_mapping_waits() {
    needs_root!();
    let fixture = Fixture::new();
    for by in mechanisms() {
        let mut steps = vec![
            ("mapped-fsync", "flushed"),
            ("mapped-rwf", "flushed"),
            // Between stores it may be protected.
            ("read-mapped-fsync", "flushed"),
            ("upgraded-fsync", "flushed"),
            ("shm-mapped-fsync", "skipped"),
            ("unmapped-fsync", "skipped"),
            ("fsync", "skipped"),
        ];
        // In the child a direct call.
        if by == By::Seccomp || by == By::Both {
            steps.push(("forked-fsync", "flushed"));
        }
        if by != By::Preload {
            steps.push(("raw-mapped-fsync", "flushed"));
            // Mapped by a direct system call, which the library does not see.
            steps.push(("direct-mapped-fsync", "flushed"));
            steps.push(("raw-fsync", "skipped"));
        }
        for (step, how) in steps {
            let done = fixture.outcomes(by, &at(&fixture.steered(), &[step]));
            assert_eq!(done, format!("{step} {how}"), "{by:?}");
        }
        // A mapping elsewhere is nothing that is committed with the rest.
        let elsewhere = format!(
            "hold-mapped {};fsync {}",
            fixture.other().display(),
            fixture.steered().display()
        );
        assert_eq!(
            fixture.outcomes(by, &elsewhere),
            "hold-mapped flushed, fsync skipped",
            "{by:?}"
        );
    }
}

/// The supervisor opened the file, and then the process had no descriptor left for it.
#[test]
fn opening_without_a_free_descriptor_changes_nothing() {
    needs_root!();
    let fixture = Fixture::new();
    for by in mechanisms() {
        let steps = at(&fixture.steered(), &["full-table", "raw-o-sync"]);
        let expected = if by == By::Preload {
            "full-table skipped, raw-o-sync flushed"
        } else {
            "full-table skipped, raw-o-sync skipped"
        };
        assert_eq!(fixture.outcomes(by, &steps), expected, "{by:?}");
    }
}

/// The supervisor opened files by paths that the kernel refuses.
#[test]
fn paths_that_are_too_long_are_refused() {
    needs_root!();
    let fixture = Fixture::new();
    for by in mechanisms() {
        let done = fixture.outcomes(by, &at(&fixture.steered(), &["long-path"]));
        assert_eq!(done, format!("long-path errno {}", libc::ENAMETOOLONG));
    }
}

/// The supervisor opened files with modes that `openat2` refuses.
#[test]
fn modes_that_the_kernel_refuses_are_refused() {
    needs_root!();
    let fixture = Fixture::new();
    for by in mechanisms() {
        let done = fixture.outcomes(by, &at(&fixture.steered(), &["open-how"]));
        assert_eq!(done, format!("open-how errno {}", libc::EINVAL), "{by:?}");
    }
}

/// On the way to the supervisor, signals ended calls with `EINTR` that they do not end otherwise.
#[test]
fn signals_do_not_end_calls_of_the_c_library() {
    needs_root!();
    let fixture = Fixture::new();
    for by in mechanisms() {
        // Without the library it happens still, as docs/RUN.md says.
        if by != By::Seccomp {
            let here = fixture.outcomes(by, &at(&fixture.steered(), &["storm"]));
            assert_eq!(here, "storm skipped", "{by:?}");
            let elsewhere = fixture.outcomes(by, &at(&fixture.other(), &["storm"]));
            assert_eq!(elsewhere, "storm flushed", "{by:?}");
            // Mapping has nothing to do with durability.
            let mapped = fixture.outcomes(by, &at(&fixture.other(), &["storm-map"]));
            assert_eq!(mapped, "storm-map skipped", "{by:?}");
        }
    }
}

/// The preloaded library opened the file a second time and closed the first descriptor: with that the
/// kernel releases all locks of the process on the file.
#[test]
fn locks_stay_when_a_file_is_opened_to_be_durable() {
    needs_root!();
    let fixture = Fixture::new();
    for by in mechanisms() {
        let done = fixture.outcomes(by, &at(&fixture.steered(), &["locks"]));
        assert_eq!(done, "locks skipped", "{by:?}");
    }
}

#[test]
fn they_keep_their_meaning_on_other_filesystems() {
    needs_root!();
    let fixture = Fixture::new();
    // This one writes pages back only.
    let flushes = |step: &&str| !step.ends_with("range");
    for by in mechanisms() {
        let steps: Vec<&str> = steps_of(by).into_iter().filter(flushes).collect();
        let done = fixture.outcomes(by, &at(&fixture.other(), &steps));
        assert_eq!(done, all(&steps, "flushed"), "{by:?}");
    }
}

#[test]
fn they_keep_their_meaning_from_when_a_promise_is_withdrawn() {
    needs_root!();
    for by in mechanisms() {
        let fixture = Fixture::new();
        // Another one is in force, so that the program is run.
        let other = std::fs::File::open(fixture.other()).unwrap();
        let device = mobifs_steered::Device::of(&other).unwrap();
        let _other = fixture.promise(device);
        fixture.registration().withdraw().unwrap();
        let done = fixture.outcomes(by, &at(&fixture.steered(), &["fsync", "rwf"]));
        assert_eq!(done, all(&["fsync", "rwf"], "flushed"), "{by:?}");
    }
}

#[test]
fn what_is_wrong_fails_as_the_kernel_says() {
    needs_root!();
    let fixture = Fixture::new();
    for by in mechanisms() {
        let place = fixture.steered();
        for (step, error) in [
            ("bad", libc::EBADF),
            ("raw-bad", libc::EBADF),
            ("path-only", libc::EBADF),
            ("raw-path-only", libc::EBADF),
            ("pipe", libc::EINVAL),
            ("raw-pipe", libc::EINVAL),
            ("bad-range", libc::EINVAL),
            ("msync-hole", libc::ENOMEM),
        ] {
            let done = fixture.outcomes(by, &at(&place, &[step]));
            assert_eq!(done, format!("{step} errno {error}"), "{by:?}");
        }
    }
}

#[test]
fn sync_reaches_the_filesystems_that_are_not_steered() {
    needs_root!();
    let fixture = Fixture::new();
    let other = mobifs_steered::Device::of(std::fs::File::open(fixture.other()).unwrap()).unwrap();
    // Syncing what the machine has takes long: all but one filesystem count as steered.
    let mounts = mobifs_host::mounts().unwrap();
    let devices = mounts.iter().map(|mount| mobifs_steered::Device {
        major: mount.device_major,
        minor: mount.device_minor,
    });
    let devices = devices.filter(|device| *device != other);
    let promise = |device| {
        let claimed = mobifs_steered::Registration::claim_in(&fixture.directory(), device);
        // Of a filesystem with several mounts there is a promise already.
        claimed.inspect(|claimed| claimed.promise(PROMISE_S).unwrap())
    };
    let _promises: Vec<_> = devices.map(promise).collect();
    if has_hidden_filesystem(&mounts) {
        mobifs_skip::can(Some(
            "the kernel has filesystems that are mounted elsewhere only".to_owned(),
        ));
        return;
    }
    // Other programs on this machine may sync everything, too.
    let there = || fixture.outcomes(By::Seccomp, &at(&fixture.steered(), &["sync"]));
    assert!((0..20).any(|_| there() == "sync skipped"));
    let elsewhere = fixture.outcomes(By::Seccomp, &at(&fixture.other(), &["sync"]));
    assert_eq!(elsewhere, "sync flushed");
}

/// As in a container, where the filesystems of the host are.
fn has_hidden_filesystem(mounts: &[mobifs_host::MountEntry]) -> bool {
    let listed = ["ext4", "xfs", "f2fs"].map(|kind| std::fs::read_dir(format!("/sys/fs/{kind}")));
    let mut names = listed.into_iter().flatten().flatten().flatten();
    names.any(|entry| {
        let about = std::path::Path::new("/sys/class/block").join(entry.file_name());
        let number = std::fs::read_to_string(about.join("dev")).unwrap_or_default();
        let is_it = |mount: &mobifs_host::MountEntry| {
            format!("{}:{}", mount.device_major, mount.device_minor) == number.trim()
        };
        !number.is_empty() && !mounts.iter().any(is_it)
    })
}

/// `dd of=/dev/…; sync` left the device unwritten.
#[test]
fn sync_reaches_block_devices_without_a_mount() {
    needs_root!();
    let fixture = Fixture::new();
    let image = fixture.path("raw-image");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(8 << 20)
        .unwrap();
    let made = std::process::Command::new("losetup")
        .args(["-f", "--show"])
        .arg(&image)
        .output();
    let device = String::from_utf8(made.unwrap().stdout)
        .unwrap()
        .trim()
        .to_owned();
    // As long as it is open its pages stay in memory.
    let held = std::fs::OpenOptions::new()
        .write(true)
        .open(&device)
        .unwrap();
    for by in mechanisms() {
        let content = format!("written before {by:?}");
        std::os::unix::fs::FileExt::write_all_at(&held, content.as_bytes(), 4096).unwrap();
        fixture.outcomes(by, &at(&fixture.steered(), &["sync"]));
        let found = std::fs::read(&image).unwrap();
        assert!(found[4096..].starts_with(content.as_bytes()), "{by:?}");
    }
    drop(held);
    let ended = std::process::Command::new("losetup")
        .args(["-d", &device])
        .output();
    assert!(ended.unwrap().status.success());
}

/// POSIX has them as points where a thread can be cancelled: it was not, and who waited for its end hung.
#[test]
fn threads_can_be_cancelled_in_calls_that_return_at_once() {
    needs_root!();
    let fixture = Fixture::new();
    let steps = ["cancel-fsync", "cancel-fdatasync", "cancel-range"];
    for by in mechanisms() {
        let done = fixture.outcomes(by, &at(&fixture.steered(), &steps));
        assert_eq!(done, all(&steps, "skipped"), "{by:?}");
    }
}

#[test]
fn io_uring_is_refused_unless_it_is_allowed() {
    needs_root!();
    let fixture = Fixture::new();
    let refused = fixture.outcomes(By::Seccomp, "rings /");
    assert_eq!(refused, format!("rings errno {}", libc::ENOSYS));
    let mut allowed = fixture.command(&["--io-uring", "allow", "--"]);
    crate::program::add_to(&mut allowed, "rings /");
    let allowed = crate::program::outcomes(&mut allowed);
    assert_ne!(allowed, refused);
}

#[test]
fn a_durable_command_is_left_alone() {
    needs_root!();
    let fixture = Fixture::new();
    let mut durable = fixture.command(&["--class", "durable", "--"]);
    crate::program::add_to(
        &mut durable,
        &at(&fixture.steered(), &["fsync", "raw-fsync"]),
    );
    let done = crate::program::outcomes(&mut durable);
    assert_eq!(done, all(&["fsync", "raw-fsync"], "flushed"));
}

/// Within a relaxed command it said that calls keep their meaning, and they were skipped.
#[test]
fn a_durable_command_within_a_relaxed_one_is_durable_or_refused() {
    needs_root!();
    let fixture = Fixture::new();
    let inner = [PROGRAM, "run", "--class", "durable", "--"];
    for by in mechanisms() {
        let mut command = fixture.command(&[by.word(), "--"]);
        command.args(inner);
        crate::program::add_to(
            &mut command,
            &at(&fixture.steered(), &["fsync", "raw-fsync"]),
        );
        if by == By::Preload {
            let done = crate::program::outcomes(&mut command);
            assert_eq!(done, all(&["fsync", "raw-fsync"], "flushed"));
            continue;
        }
        let ended = command.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success(), "{by:?}: {said}");
        assert!(said.contains("cannot keep their meaning"), "{by:?}: {said}");
    }
}

#[test]
fn without_safety_every_filesystem_is_skipped_and_the_user_is_warned() {
    needs_root!();
    let mut fixture = Fixture::new();
    fixture.unregister();
    for by in mechanisms() {
        let mut steps = steps_of(by);
        steps.push("sync");
        let mut command = fixture.command(&["--unsafe", by.word(), "--"]);
        crate::program::add_to(&mut command, &at(&fixture.other(), &steps));
        let done = crate::program::outcomes(&mut command);
        assert_eq!(done, all(&steps, "skipped"), "{by:?}");
        let mut bad = fixture.command(&["--unsafe", by.word(), "--"]);
        crate::program::add_to(&mut bad, "bad /");
        let ended = bad.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.contains("no order is kept"), "{said}");
        let output = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(
            output.contains(&format!("bad errno {}", libc::EBADF)),
            "{output}"
        );
    }
}

/// A subvolume has a device number of its own, which no registration has.
#[test]
fn subvolumes_of_a_steered_btrfs_are_steered() {
    needs_root!();
    let mut fixture = Fixture::new();
    let found = std::process::Command::new("mkfs.btrfs")
        .arg("--version")
        .output();
    if !mobifs_skip::can(found.err().map(|error| format!("mkfs.btrfs: {error}"))) {
        return;
    }
    let place = fixture.mount_btrfs();
    let flushes = || {
        let mount = mobifs_host::mount_at(&place).unwrap().unwrap();
        let name = mount
            .source
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        stat.split_whitespace()
            .nth(15)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let subvolume = place.join("subvolume");
    let words = ["subvolume", "create", subvolume.to_str().unwrap()];
    crate::fixture::does("btrfs", &words);
    let device = mobifs_steered::Device::of(std::fs::File::open(&place).unwrap()).unwrap();
    let inside = mobifs_steered::Device::of(std::fs::File::open(&subvolume).unwrap()).unwrap();
    assert_eq!(device, inside);
    for by in mechanisms() {
        let step = if by == By::Preload {
            "fsync"
        } else {
            "raw-fsync"
        };
        let count = |steps: &str| {
            let before = flushes();
            fixture.outcomes(by, steps);
            flushes() - before
        };
        let steps = at(&subvolume, &[step]);
        assert!(count(&steps) >= 8, "{by:?}");
        let promise = fixture.promise(device);
        assert!(count(&steps) <= 2, "{by:?}");
        drop(promise);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn programs_of_32_bits_are_reached() {
    needs_root!();
    let fixture = Fixture::new();
    let elsewhere = fixture.outcomes(By::Seccomp, &at(&fixture.other(), &["compat"]));
    let is_missing = elsewhere == format!("compat errno {}", libc::ENOSYS);
    if mobifs_skip::can(is_missing.then_some("the kernel runs no programs of 32 bits")) {
        assert_eq!(elsewhere, "compat flushed");
        let here = fixture.outcomes(By::Seccomp, &at(&fixture.steered(), &["compat"]));
        assert_eq!(here, "compat skipped");
    }
}

/// What the daemon's commit meets, each open file reports once, as after a commit of its own.
#[test]
fn errors_of_the_filesystem_are_reported() {
    needs_root!();
    for by in mechanisms() {
        let mut fixture = Fixture::new();
        let place = fixture.mount_on_too_small_a_disk();
        let opened = std::fs::File::open(&place).unwrap();
        let device = mobifs_steered::Device::of(&opened).unwrap();
        let _promise = fixture.promise(device);
        let step = if by == By::Seccomp {
            "raw-broken"
        } else {
            "broken"
        };
        let mut command = fixture.command(&[by.word(), "--"]);
        crate::program::add_to(&mut command, &at(&place, &[step]));
        let child = command
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        while !fixture.path("written").exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        rustix::fs::syncfs(&opened).unwrap_err();
        std::fs::write(fixture.path("committed"), "").unwrap();
        let ended = child.wait_with_output().unwrap();
        let output = String::from_utf8(ended.stdout).unwrap();
        assert!(output.contains("Err(Os { code: 28"), "{by:?}: {output}");
        assert!(output.contains("Ok(())"), "{by:?}: {output}");
    }
}

/// What each mechanism costs a call; for docs/BENCHMARKS.md.
#[test]
#[ignore = "a measurement: cargo test -p mobifs-cli --test run -- --ignored --nocapture costs"]
fn costs_of_the_mechanisms() {
    needs_root!();
    let fixture = Fixture::new();
    let steps = [
        "cost-getppid",
        "cost-openat",
        "cost-fsync",
        "cost-raw-fsync",
    ];
    let shared = std::path::Path::new("/dev/shm");
    let mut alone = std::process::Command::new("env");
    crate::program::add_to(&mut alone, &at(shared, &steps));
    println!("without, tmpfs: {}", crate::program::outcomes(&mut alone));
    for by in mechanisms() {
        let steps = if by == By::Preload {
            &steps[..3]
        } else {
            &steps[..]
        };
        let here = fixture.outcomes(by, &at(&fixture.steered(), steps));
        println!("{by:?}, steered: {here}");
        let elsewhere = fixture.outcomes(by, &at(shared, steps));
        println!("{by:?}, tmpfs: {elsewhere}");
    }
}
