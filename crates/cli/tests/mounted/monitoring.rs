//! What people and monitoring systems see of mounts: all of them at once, metrics, totals by day, and
//! names that would command a terminal.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::{
    Fixture, PROGRAM, copy_program, fails, message, mobifs, needs_mounts, succeeds, try_mount_at,
};

fn run(words: &[&str]) -> Output {
    Command::new(PROGRAM).args(words).output().unwrap()
}

fn text(output: &Output) -> String {
    succeeds(output);
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn all_mounts_are_listed_with_a_line_each() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let (store, place) = (fixture.directory("other-store"), fixture.directory("other"));
    succeeds(&try_mount_at(&store, &place, &[]));
    fs::create_dir(place.join("app")).unwrap();
    let listed = text(&run(&["status"]));
    let line = |path: &std::path::Path| {
        let path = path.to_str().unwrap();
        let mut lines = listed.lines();
        lines
            .find(|line| line.starts_with(&format!("{path} ")))
            .unwrap()
            .to_owned()
    };
    assert!(line(&fixture.mountpoint).contains("  mount  "), "{listed}");
    assert!(
        !line(&place).contains(" 0 of "),
        "an app is at risk: {listed}"
    );
    let json: serde_json::Value = serde_json::from_str(&text(&run(&["status", "--json"]))).unwrap();
    let mounts = json["mounts"].as_array().unwrap();
    let other = mounts
        .iter()
        .find(|mount| mount["mountpoint"] == place.to_str().unwrap())
        .unwrap();
    assert_eq!(other["status"]["store"]["path"], store.to_str().unwrap());
    assert_eq!(other["kind"], "mount");
    succeeds(&mobifs(&["umount"], &place));
    let listed = text(&run(&["status"]));
    assert!(!listed.contains(place.to_str().unwrap()), "{listed}");
    fixture.umount();
}

/// Commands said that they were not permitted, or that the daemon did not answer.
#[test]
fn commands_of_another_pid_namespace_reach_the_daemon() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    let inside = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount-proc", PROGRAM])
            .args(words);
        command.arg(&fixture.mountpoint).output().unwrap()
    };
    let output = inside(&["status", "--json"]);
    if message(&output).contains("unshare") {
        mobifs_skip::skip("a PID namespace cannot be made");
    } else {
        let status: serde_json::Value = serde_json::from_str(&text(&output)).unwrap();
        assert_ne!(status["totals"]["at_risk"], 0);
        succeeds(&inside(&["sync"]));
        succeeds(&inside(&["set", "--app", "app", "--class", "durable"]));
        assert_eq!(fixture.status()["totals"]["at_risk"], 0);
    }
    fixture.umount();
}

/// They were written as they are: escape sequences of names reached the terminal.
#[test]
fn hostile_names_do_not_command_the_terminal() {
    needs_mounts!();
    let fixture = Fixture::new();
    let hostile: [&[u8]; 4] = [
        b"\x1b[2J\x1b]0;title\x07",
        "\u{202e}gpj.exe\u{9b}31m".as_bytes(),
        b"line\nend\r",
        b"\x1b\xff",
    ];
    let place = fixture
        .directory("place")
        .join(OsStr::from_bytes(hostile[0]));
    fs::create_dir(&place).unwrap();
    succeeds(&try_mount_at(&fixture.store, &place, &[]));
    for name in hostile {
        fs::create_dir(place.join(OsStr::from_bytes(name))).unwrap();
    }
    let app = OsStr::from_bytes(hostile[0]);
    let mut outputs = vec![run(&["status"])];
    for words in [
        &["status"][..],
        &["status", "--limit", "1"],
        &["status", "--json"],
        &["status", "--history"],
        &["doctor"],
        &["doctor", "--json"],
        &["history"],
        &["sync"],
    ] {
        let output = mobifs(words, &place);
        if words.contains(&"--json") {
            // It was none, by the escapes that are for a terminal.
            serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
        }
        outputs.push(output);
    }
    for words in [
        &["sync", "--app"][..],
        &["status", "--app"],
        &["set", "--class", "durable", "--app"],
        &["set", "--app", "absent", "--class", "durable", "--after"],
    ] {
        let mut command = Command::new(PROGRAM);
        outputs.push(command.args(words).arg(app).arg(&place).output().unwrap());
        let mut absent = Command::new(PROGRAM);
        absent
            .args(words)
            .arg(OsStr::from_bytes(b"absent\x1b[31m"))
            .arg(&place);
        outputs.push(absent.output().unwrap());
    }
    // A user of the mount is named when it cannot be unmounted.
    let open = fs::File::create(place.join(app).join(app)).unwrap();
    outputs.push(mobifs(&["umount"], &place));
    drop(open);
    outputs.push(mobifs(&["umount"], &fixture.store));
    succeeds(&mobifs(&["umount"], &place));
    let named = fixture.path("place").join(app);
    for words in [&["check"][..], &["recover"]] {
        outputs.push(mobifs(words, &named));
    }
    assert!(outputs.len() >= 18);
    for output in outputs {
        for bytes in [&output.stdout, &output.stderr] {
            let said = String::from_utf8(bytes.clone()).unwrap();
            let is_command = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!said.contains(is_command), "{said:?}");
        }
    }
}

#[test]
fn totals_by_day_outlive_mounts_and_crashes() {
    needs_mounts!();
    let fixture = Fixture::new();
    let written = |place: &std::path::Path| {
        let output = mobifs(&["status", "--history", "--json"], place);
        let json: serde_json::Value = serde_json::from_str(&text(&output)).unwrap();
        let number = |key: &str| json[key].as_u64().unwrap();
        assert!(json["days"].as_array().unwrap().len() <= 2, "{json}");
        (number("bytes_written_by_apps"), number("commits"))
    };
    fixture.mount(&[]);
    assert_eq!(written(&fixture.mountpoint).0, 0);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    fs::write(fixture.mountpoint.join("app/f"), [7; 100_000]).unwrap();
    succeeds(&mobifs(&["sync"], &fixture.mountpoint));
    let (bytes, commits) = written(&fixture.mountpoint);
    assert!(bytes == 100_000 && commits >= 1, "{bytes} {commits}");
    fs::write(fixture.mountpoint.join("app/g"), [7; 50_000]).unwrap();
    fixture.umount();
    let closed = written(&fixture.store);
    assert_eq!(closed.0, 150_000);
    fixture.mount(&[]);
    fs::write(fixture.mountpoint.join("app/h"), [7; 1_000]).unwrap();
    let before_cut = written(&fixture.mountpoint).0;
    assert_eq!(before_cut, 151_000, "what was asked for is noted");
    fs::write(fixture.mountpoint.join("app/h"), [7; 2_000]).unwrap();
    fixture.cut_power();
    // What is torn is passed over, and the rest is there.
    let totals = fixture.store.join(".mobifs/totals");
    let mut file = fs::File::options().append(true).open(&totals).unwrap();
    file.write_all(b"\n2026-11-28 12 1").unwrap();
    fixture.mount(&[]);
    assert_eq!(written(&fixture.mountpoint).0, before_cut);
    fixture.umount();
    // A mount that may change nothing changes nothing.
    let before = fs::read(&totals).unwrap();
    fixture.mount(&["-o", "ro"]);
    assert_eq!(written(&fixture.mountpoint).0, before_cut);
    fixture.umount();
    assert_eq!(fs::read(&totals).unwrap(), before);
}

/// They were shown as down.
#[test]
fn mounts_of_others_are_not_in_the_metrics_of_a_user() {
    needs_mounts!();
    const USER: u32 = 65_533;
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let program = fixture.path("mobifs");
    copy_program(&program);
    for above in fixture.mountpoint.ancestors().skip(1).take(1) {
        fs::set_permissions(above, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let as_user = |words: &[&std::ffi::OsStr]| {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new(&program);
        command.args(words).uid(USER).gid(USER);
        command.output()
    };
    let metrics = std::ffi::OsStr::new("metrics");
    match as_user(&[metrics]) {
        Err(_) => mobifs_skip::skip("another user cannot reach the scratch directory"),
        Ok(all) => {
            succeeds(&all);
            let shown = fixture.mountpoint.display().to_string();
            assert!(!text(&all).contains(&shown), "{}", text(&all));
            // One that is asked for is refused, not silent.
            let named = as_user(&[metrics, fixture.mountpoint.as_os_str()]).unwrap();
            fails(&named, 1, &["only root and the user who mounted"]);
        }
    }
    fixture.umount();
}

#[test]
fn a_group_may_read_the_status_and_nothing_else() {
    needs_mounts!();
    let fixture = Fixture::new();
    // Of a group of its own, a user whom nothing else here is for.
    const USER: u32 = 65_533;
    let config = fixture.config(&format!("status_group = \"{USER}\"\n"));
    fixture.mount(&["--config", config.to_str().unwrap(), "-o", "allow_other"]);
    for above in fixture.mountpoint.ancestors().skip(1).take(1) {
        fs::set_permissions(above, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let program = fixture.path("mobifs");
    copy_program(&program);
    let as_user = |group: u32, words: &[&str]| {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new(&program);
        command
            .args(words)
            .arg(&fixture.mountpoint)
            .uid(USER)
            .gid(group);
        command.output().unwrap()
    };
    let status = as_user(USER, &["status"]);
    if message(&status).contains("cannot examine") {
        mobifs_skip::skip("another user cannot reach the scratch directory");
    } else {
        succeeds(&status);
        assert!(text(&as_user(USER, &["metrics"])).contains("mobifs_up{"));
        for words in [
            &["sync"][..],
            &["umount"],
            &["set", "--app", ".", "--class", "durable"],
        ] {
            fails(
                &as_user(USER, words),
                1,
                &["only root and the mount's owner may do this"],
            );
        }
        fails(
            &as_user(USER - 1, &["status"]),
            1,
            &["only root and the user who mounted"],
        );
    }
    fixture.umount();
    let config = fixture.config("status_group = \"no-such-group\"\n");
    let refused = fixture.try_mount(&["--config", config.to_str().unwrap()]);
    fails(
        &refused,
        2,
        &["status_group", "no group \"no-such-group\"", "groupadd"],
    );
    assert!(!fixture.is_mounted());
}

#[test]
fn metrics_are_served_over_a_local_socket() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let socket = fixture.path("metrics.sock");
    // What a killed server leaves does not keep the next one from serving.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let mut server = Command::new(PROGRAM);
    server
        .args(["metrics", "--listen"])
        .arg(&socket)
        .args(["--group", "65533"]);
    let mut server = server.stderr(Stdio::inherit()).spawn().unwrap();
    let start = Instant::now();
    let mut stream = loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(60), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let request = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = BufReader::new(stream);
    let mut first = String::new();
    reply.read_line(&mut first).unwrap();
    let mut rest = String::new();
    reply.read_to_string(&mut rest).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(first, "HTTP/1.1 200 OK\r\n");
    let up = format!(
        "mobifs_up{{mount=\"{}\"}} 1\n",
        fixture.mountpoint.display()
    );
    assert!(rest.contains(&up) && rest.ends_with("# EOF\n"), "{rest}");
    let mode = socket.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    fixture.umount();
}

/// Reads until this is there.
fn wait_for(output: &mut impl Read, wanted: &str) -> String {
    let mut seen = Vec::new();
    let mut part = [0; 1024];
    loop {
        let count = output.read(&mut part).unwrap();
        seen.extend_from_slice(&part[..count]);
        let text = String::from_utf8_lossy(&seen).into_owned();
        if text.contains(wanted) {
            return text;
        }
        assert!(count > 0, "it ended: {text:?}");
    }
}

/// Runs the program on a terminal.
fn on_terminal(words: &[&str]) -> Command {
    let mut command = Command::new("script");
    let line = [&[PROGRAM], words].concat().join(" ");
    command.args(["-q", "-e", "-c", &line, "/dev/null"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

#[test]
fn what_takes_long_says_on_a_terminal_what_it_is_at() {
    needs_mounts!();
    let has_terminal = Command::new("script").arg("--version").output().is_ok();
    if !mobifs_skip::can((!has_terminal).then_some("script(1) is not installed")) {
        return;
    }
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let daemon = fixture.daemon_pid();
    let signal = |signal: rustix::process::Signal| {
        let pid = rustix::process::Pid::from_raw(i32::try_from(daemon).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    let place = fixture.mountpoint.to_str().unwrap().to_owned();
    signal(rustix::process::Signal::STOP);
    let mut sync = on_terminal(&["sync", &place]).spawn().unwrap();
    let mut piped = Command::new(PROGRAM);
    let piped = piped
        .args(["sync", &place])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = sync.stdout.take().unwrap();
    wait_for(&mut output, "committing, ");
    signal(rustix::process::Signal::CONT);
    // The line is cleared at the end.
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("\r\u{1b}[K"), "{rest:?}");
    assert!(sync.wait().unwrap().success());
    let piped = piped.wait_with_output().unwrap();
    let said = String::from_utf8(piped.stderr).unwrap();
    assert!(!said.contains("committing"), "only on a terminal: {said:?}");
    fixture.umount();
}
