//! Mounting, asking, committing, unmounting.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::{
    Fixture, PROGRAM, fails, message, mobifs, needs_mounts, succeeds, try_mount_at, wait_until,
};

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args([name, &pid.to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

fn is_closed_properly(fixture: &Fixture) -> bool {
    let output = mobifs(&["check"], &fixture.store);
    succeeds(&output);
    String::from_utf8(output.stdout)
        .unwrap()
        .contains("properly closed, nothing to recover")
}

#[test]
fn a_directory_with_files_becomes_a_store_and_stays_a_directory() {
    needs_mounts!();
    let fixture = Fixture::new();
    fs::create_dir(fixture.store.join("app")).unwrap();
    fs::write(fixture.store.join("app/before"), "before").unwrap();
    fixture.mount(&[]);
    let app = fixture.mountpoint.join("app");
    assert_eq!(fs::read(app.join("before")).unwrap(), b"before");
    fs::write(app.join("after"), "after").unwrap();
    assert!(!fixture.store.join("app/after").exists(), "in memory");
    fixture.umount();
    assert!(!fixture.is_mounted());
    assert_eq!(fs::read(fixture.store.join("app/after")).unwrap(), b"after");
    assert!(is_closed_properly(&fixture));
}

#[test]
fn status_reports_bytes_at_risk_and_sync_commits_them() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    fs::write(fixture.mountpoint.join("app/f"), vec![1; 100_000]).unwrap();
    let app = |fixture: &Fixture| {
        let status = fixture.status();
        let apps = status["apps"].as_array().unwrap();
        apps.iter()
            .find(|app| app["name"] == "app")
            .unwrap()
            .clone()
    };
    let status = fixture.status();
    assert_eq!(status["schema"], 1);
    assert_eq!(status["mountpoint"], fixture.mountpoint.to_str().unwrap());
    assert_eq!(status["store"]["path"], fixture.store.to_str().unwrap());
    assert!(fs::exists(format!("/proc/{}", status["daemon_pid"])).unwrap());
    assert!(app(&fixture)["bytes_at_risk"].as_u64().unwrap() >= 100_000);
    assert_eq!(app(&fixture)["bytes_written_by_app"], 100_000);
    succeeds(&mobifs(&["sync", "--app", "app"], &fixture.mountpoint));
    assert_eq!(app(&fixture)["bytes_at_risk"], 0);
    assert!(app(&fixture)["last_checkpoint"]["age_seconds"].is_number());
    assert_eq!(
        fs::read(fixture.store.join("app/f")).unwrap().len(),
        100_000
    );
    let text = mobifs(&["status"], &fixture.mountpoint);
    succeeds(&text);
    assert!(String::from_utf8(text.stdout).unwrap().contains("relaxed"));
    fails(
        &mobifs(&["sync", "--app", "nobody"], &fixture.mountpoint),
        2,
        &["\"nobody\""],
    );
    fixture.umount();
}

#[test]
fn watching_prints_again_and_again_until_the_mount_ends() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let watcher = Command::new(PROGRAM)
        .args(["status", "--json", "--watch"])
        .arg(&fixture.mountpoint)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(|| fixture.status()["uptime_ms"].as_u64().unwrap() > 1500);
    fixture.umount();
    let output = watcher.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.is_empty());
    for line in text.lines() {
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(line).unwrap()["schema"],
            1
        );
    }
}

/// The kernel gives back the files of a process that was ended a moment later.
#[test]
fn a_mount_is_unmounted_right_after_its_last_user_was_killed() {
    needs_mounts!();
    let fixture = Fixture::new();
    for round in 0..8 {
        fixture.mount(&[]);
        let file = fixture.mountpoint.join("file");
        fs::write(&file, "content").unwrap();
        let user = || {
            Command::new("sh")
                .args(["-c", "exec 3<file; exec sleep 600"])
                .current_dir(&fixture.mountpoint)
                .spawn()
                .unwrap()
        };
        let mut users: Vec<_> = (0..10).map(|_| user()).collect();
        users.iter_mut().for_each(|user| user.kill().unwrap());
        let unmounted = mobifs(&["umount"], &fixture.mountpoint);
        for mut user in users {
            user.wait().unwrap();
        }
        assert!(unmounted.status.success(), "round {round}: {unmounted:?}");
    }
}

#[test]
fn a_mount_in_use_is_not_unmounted_but_committed() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    let mut open = fs::File::create(fixture.mountpoint.join("app/f")).unwrap();
    open.write_all(b"first ").unwrap();
    fails(
        &mobifs(&["umount"], &fixture.mountpoint),
        3,
        &["in use", "--lazy"],
    );
    assert!(fixture.is_mounted());
    assert_eq!(fs::read(fixture.store.join("app/f")).unwrap(), b"first ");
    open.write_all(b"second").unwrap();
    succeeds(&mobifs(&["umount", "--lazy"], &fixture.mountpoint));
    assert!(!fixture.is_mounted());
    open.write_all(b" third").unwrap();
    drop(open);
    wait_until(|| mobifs(&["check"], &fixture.store).status.success());
    assert_eq!(
        fs::read(fixture.store.join("app/f")).unwrap(),
        b"first second third"
    );
    assert!(is_closed_properly(&fixture));
}

#[test]
fn sigterm_is_a_clean_unmount() {
    needs_mounts!();
    for name in ["-TERM", "-INT"] {
        let fixture = Fixture::new();
        fixture.mount(&[]);
        fs::create_dir(fixture.mountpoint.join("app")).unwrap();
        fs::write(fixture.mountpoint.join("app/f"), "content").unwrap();
        signal(fixture.daemon_pid(), name);
        wait_until(|| mobifs(&["check"], &fixture.store).status.success());
        assert!(!fixture.is_mounted());
        assert!(is_closed_properly(&fixture));
        assert_eq!(fs::read(fixture.store.join("app/f")).unwrap(), b"content");
    }
}

#[test]
fn sigterm_in_use_commits_and_ends_with_the_last_user_a_second_one_at_once() {
    needs_mounts!();
    for twice in [false, true] {
        let fixture = Fixture::new();
        fixture.mount(&[]);
        fs::create_dir(fixture.mountpoint.join("app")).unwrap();
        let mut open = fs::File::create(fixture.mountpoint.join("app/f")).unwrap();
        open.write_all(b"first").unwrap();
        let pid = fixture.daemon_pid();
        signal(pid, "-TERM");
        wait_until(|| !fixture.is_mounted());
        open.write_all(b" second").unwrap();
        if twice {
            signal(pid, "-TERM");
        } else {
            drop(open);
        }
        wait_until(|| mobifs(&["check"], &fixture.store).status.success());
        assert_eq!(
            fs::read(fixture.store.join("app/f")).unwrap(),
            b"first second"
        );
        assert!(is_closed_properly(&fixture));
    }
}

#[test]
fn umount_by_others_commits_too() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    fs::write(fixture.mountpoint.join("app/f"), "content").unwrap();
    // -i: without a helper, as a system does that has none installed.
    fixture.umount_by(Command::new("umount").arg("-i"));
    wait_until(|| mobifs(&["check"], &fixture.store).status.success());
    assert_eq!(fs::read(fixture.store.join("app/f")).unwrap(), b"content");
    assert!(is_closed_properly(&fixture));
}

#[test]
fn in_the_foreground_the_process_lives_as_long_as_the_mount() {
    needs_mounts!();
    let fixture = Fixture::new();
    let mut daemon = Command::new(PROGRAM)
        .args(["mount", "--foreground"])
        .arg(&fixture.store)
        .arg(&fixture.mountpoint)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(|| mobifs(&["status"], &fixture.mountpoint).status.success());
    assert_eq!(fixture.daemon_pid(), daemon.id());
    fixture.umount();
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn a_touch_is_noticed_and_commits_go_on_when_the_user_rests() {
    needs_mounts!();
    let fixture = Fixture::new();
    let config = "[defaults]\npolicy = \"staleness\"\nstaleness_bytes = 4096\n\
                  staleness_min_bytes = 0\nage_max_ms = 1000000\n";
    let config = fixture.config(config);
    fixture.mount(&["--config", config.to_str().unwrap()]);
    let mnt = &fixture.mountpoint;
    assert_eq!(fixture.status()["user"]["state"], "unknown");
    succeeds(&mobifs(&["touch"], mnt));
    let user = &fixture.status()["user"];
    assert_ne!(user["state"], "unknown");
    assert_eq!(user["operations"], 1);
    fs::create_dir(mnt.join("app")).unwrap();
    fs::write(mnt.join("app/f"), "x").unwrap();
    // Without being touched any more, it goes on by itself.
    wait_until(|| fixture.status()["store"]["commits"].as_u64() > Some(0));
    fixture.umount();
}

#[test]
fn classes_and_limits_change_while_mounted() {
    needs_mounts!();
    let fixture = Fixture::new();
    let config = fixture.config("");
    fixture.mount(&["--config", config.to_str().unwrap()]);
    let mnt = &fixture.mountpoint;
    fs::create_dir(mnt.join("app")).unwrap();
    succeeds(&mobifs(&["set", "--app", "app", "--class", "durable"], mnt));
    let file = fs::File::create(mnt.join("app/f")).unwrap();
    file.sync_all().unwrap();
    let class = |fixture: &Fixture| {
        let status = fixture.status();
        let apps = status["apps"].as_array().unwrap();
        apps.iter().find(|app| app["name"] == "app").unwrap()["class"].clone()
    };
    assert_eq!(class(&fixture), "durable");
    fails(
        &mobifs(&["set", "--app", "app", "--class", "quick"], mnt),
        2,
        &["\"quick\""],
    );
    fails(
        &mobifs(&["set", "--app", "a/b", "--class", "durable"], mnt),
        2,
        &["\"a/b\""],
    );
    let words = ["set", "--app", "app", "--policy", "staleness"];
    let staleness = ["--staleness-bytes", "64KiB"];
    succeeds(&mobifs(&[&words[..], &staleness].concat(), mnt));
    let status = fixture.status();
    let apps = status["apps"].as_array().unwrap();
    let policy = &apps.iter().find(|app| app["name"] == "app").unwrap()["policy"];
    assert_eq!(policy["name"], "staleness");
    assert_eq!(policy["staleness_bytes"], 65_536);
    fails(
        &mobifs(&["set", "--app", "app", "--policy", "ideal"], mnt),
        2,
        &["\"ideal\"", "simulations only", "\"tpl\", \"interval\""],
    );
    let reload = || {
        let output = mobifs(&["reload"], mnt);
        succeeds(&output);
        message(&output)
    };
    assert_eq!(reload(), "");
    assert!(reload().contains("nothing has changed"));
    assert_eq!(class(&fixture), "relaxed");
    assert_eq!(fixture.status()["user"]["predictor"], "state-machine");
    let other = "predictor = \"last-min\"\nscheduler = \"fifo\"\n";
    fs::write(&config, format!("{other}[defaults]\nclass = \"durable\"\n")).unwrap();
    signal(fixture.daemon_pid(), "-HUP");
    wait_until(|| class(&fixture) == "durable");
    wait_until(|| fixture.status()["user"]["predictor"] == "last-min");
    assert_eq!(fixture.status()["user"]["scheduler"], "fifo");
    fs::write(&config, "nonsense = 1\n").unwrap();
    fails(&mobifs(&["reload"], mnt), 2, &["line 1", "nonsense"]);
    assert_eq!(
        class(&fixture),
        "durable",
        "a bad configuration changes nothing"
    );
    drop(file);
    fixture.cut_power();
    fixture.mount(&[]);
    assert!(
        mnt.join("app/f").exists(),
        "it was durable when fsync returned"
    );
    fixture.umount();
}

/// It said that nothing had changed, or nothing at all.
#[test]
fn a_reload_names_the_keys_that_wait_for_the_next_mount() {
    needs_mounts!();
    let fixture = Fixture::new();
    let config = fixture.directory("config").join("mobifs.toml");
    fs::write(&config, "objects_max = 5000\n").unwrap();
    fixture.mount(&["--config", config.to_str().unwrap()]);
    let reload = |text: &str| {
        fs::write(&config, text).unwrap();
        let output = mobifs(&["reload"], &fixture.mountpoint);
        succeeds(&output);
        message(&output)
    };
    let waits = "apply_idle_ms = 9000\nobjects_max = 6000\n";
    let said = reload(waits);
    assert!(said.contains("apply_idle_ms, objects_max;"), "{said}");
    assert!(said.contains("nothing else has changed"), "{said}");
    let said = reload(&format!("{waits}[defaults]\nage_max_ms = 70000\n"));
    assert!(said.contains("apply_idle_ms, objects_max;"), "{said}");
    assert!(said.contains("is in force"), "{said}");
    assert!(fixture.log().contains("apply_idle_ms, objects_max"));
    let said = reload("objects_max = 5000\n[defaults]\nage_max_ms = 71000\n");
    assert_eq!(said, "");
    fixture.umount();
}

#[test]
fn a_mount_over_files_hides_them_with_the_option() {
    needs_mounts!();
    let fixture = Fixture::new();
    fs::write(fixture.mountpoint.join("hidden"), "").unwrap();
    fixture.mount(&["-o", "nonempty,noatime,fsname=fancy"]);
    assert!(!fixture.mountpoint.join("hidden").exists());
    fixture.umount();
    assert!(fixture.mountpoint.join("hidden").exists());
    assert!(fixture.log().contains("unmounted"), "{}", fixture.log());
}

#[test]
fn a_daemon_whose_mount_has_left_the_tree_leaves_the_next_one_there_alone() {
    // Regression: a second signal ended whatever was mounted at the place by then.
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&["-o", "nosupervise"]);
    let daemon = fixture.daemon_pid();
    let user = fs::File::create(fixture.mountpoint.join("f")).unwrap();
    signal(daemon, "-TERM");
    wait_until(|| !fixture.is_mounted());
    let other = fixture.directory("other");
    succeeds(&try_mount_at(&other, &fixture.mountpoint, &[]));
    signal(daemon, "-TERM");
    wait_until(|| !Path::new(&format!("/proc/{daemon}")).exists());
    assert!(fixture.is_mounted());
    drop(user);
    fixture.umount();
}

/// A start that failed after the kernel had the mount never ended: the unmount asked the daemon, which did not
/// answer requests yet, to write everything.
#[test]
fn a_start_that_fails_after_the_mount_ends_and_leaves_nothing() {
    needs_mounts!();
    let fixture = Fixture::new();
    // The names of all control sockets are taken.
    let script = "mount -t tmpfs none /run && mkdir -m 700 /run/mobifs && cd /run/mobifs && \
                  for minor in $(seq 0 300); do \
                      mkdir -p 0-$minor.sock/taken 7-$minor.sock/taken; \
                  done; \
                  exec timeout --signal KILL 60 \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", script, "sh"]);
    command.arg(PROGRAM).arg("mount").arg("--foreground");
    let output = command
        .args([&fixture.store, &fixture.mountpoint])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", message(&output));
    assert!(
        message(&output).contains("cannot make the control socket"),
        "{}",
        message(&output)
    );
    // Nothing holds the store any more.
    fixture.mount(&[]);
    fixture.umount();
}

/// The log had the structures of the program.
#[test]
fn a_reload_names_what_it_replaces_by_its_keys() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let mnt = &fixture.mountpoint;
    fs::create_dir(mnt.join("app")).unwrap();
    let words = ["set", "--app", "app", "--policy", "staleness"];
    let staleness = ["--staleness-bytes", "64KiB"];
    succeeds(&mobifs(&[&words[..], &staleness].concat(), mnt));
    succeeds(&mobifs(&["reload"], mnt));
    let log = fixture.log();
    let line = log
        .lines()
        .find(|line| line.contains("the configuration replaces"));
    let line = line.unwrap();
    assert!(line.contains("policy=staleness"), "{line}");
    assert!(line.contains("staleness_bytes=65536"), "{line}");
    assert!(!log.contains("PolicyChange"), "{log}");
    fixture.umount();
}
