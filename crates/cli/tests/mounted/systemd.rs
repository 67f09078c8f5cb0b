//! The daemon under a supervisor that speaks systemd's protocol, with the settings of
//! `dist/mobifs@.service`.

use std::collections::BTreeMap;
use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command};

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::fixture::{Fixture, PROGRAM, mobifs, needs_mounts, succeeds};
use crate::kills::kill;

/// What systemd does with messages, and how it starts a service again.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    kept: BTreeMap<String, OwnedFd>,
}

impl Manager {
    fn new(fixture: &Fixture) -> Self {
        let path = fixture.path("notify");
        Self {
            socket: UnixDatagram::bind(&path).unwrap(),
            path,
            kept: BTreeMap::new(),
        }
    }

    fn start(&self, fixture: &Fixture) -> Child {
        let mut command = Command::new("sh");
        // Only the process itself knows its id before it runs.
        command.args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\"", PROGRAM]);
        command.args(["mount", "--foreground", "--log"]);
        command.arg(fixture.path("log"));
        command.args(["-o", "rw", "--"]);
        command.arg(&fixture.store).arg(&fixture.mountpoint);
        let names: Vec<&str> = self.kept.keys().map(String::as_str).collect();
        command.env("NOTIFY_SOCKET", &self.path);
        command.env("LISTEN_FDS", names.len().to_string());
        command.env("LISTEN_FDNAMES", names.join(":"));
        let mappings = (3..)
            .zip(self.kept.values())
            .map(|(child_fd, kept)| FdMapping {
                parent_fd: kept.try_clone().unwrap(),
                child_fd,
            });
        command.fd_mappings(mappings.collect()).unwrap();
        command.spawn().unwrap()
    }

    /// Takes messages until one has this line.
    fn read_until(&mut self, wanted: &str) {
        while !self.read().lines().any(|line| line == wanted) {}
    }

    fn read(&mut self) -> String {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, &mut parts, &mut ancillary, flags).unwrap();
        let text = String::from_utf8(bytes[..received.bytes].to_vec()).unwrap();
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
        if let (Some(name), Some(descriptor)) = (name, descriptor)
            && text.contains("FDSTORE=1")
        {
            self.kept.insert(name.to_owned(), descriptor);
        }
        if let Some(name) = name
            && text.contains("FDSTOREREMOVE=1")
        {
            self.kept.remove(name);
        }
        // The descriptor of a barrier is closed here.
        text
    }
}

#[test]
fn systemd_can_start_a_new_daemon_that_goes_on() {
    needs_mounts!();
    let fixture = Fixture::new();
    let mut manager = Manager::new(&fixture);
    let mut daemon = manager.start(&fixture);
    manager.read_until("READY=1");
    let names: Vec<&String> = manager.kept.keys().collect();
    let expected = ["arena", "config", "control", "device", "lock", "store"];
    let expected = expected.map(|n| format!("mobifs-{n}"));
    assert_eq!(names, expected.iter().collect::<Vec<_>>());
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    let path = fixture.mountpoint.join("app/f");
    for restarts in 1..=3 {
        fs::write(&path, format!("written before {restarts}")).unwrap();
        kill(daemon.id());
        assert!(!daemon.wait().unwrap().success());
        daemon = manager.start(&fixture);
        manager.read_until("READY=1");
        let content = fs::read_to_string(&path).unwrap();
        assert_eq!(content, format!("written before {restarts}"));
        let status = fixture.status();
        assert_eq!(status["supervised_by"], "systemd");
        assert_eq!(status["restarts"], restarts);
        assert_eq!(fixture.daemon_pid(), daemon.id());
    }
    let unmounting = std::thread::spawn({
        let mountpoint = fixture.mountpoint.clone();
        move || succeeds(&mobifs(&["umount"], &mountpoint))
    });
    manager.read_until("STOPPING=1");
    manager.read_until("BARRIER=1");
    assert!(manager.kept.is_empty(), "nothing is to be kept");
    unmounting.join().unwrap();
    assert!(daemon.wait().unwrap().success(), "no reason to restart");
    assert_eq!(
        fs::read_to_string(fixture.store.join("app/f")).unwrap(),
        "written before 3"
    );
}

/// It died between handing over and being ready, and part of what it handed over is there.
#[test]
fn without_a_connection_there_is_nothing_to_go_on_with() {
    needs_mounts!();
    let fixture = Fixture::new();
    let mut manager = Manager::new(&fixture);
    let mut daemon = manager.start(&fixture);
    manager.read_until("READY=1");
    manager.kept.remove("mobifs-device");
    kill(daemon.id());
    daemon.wait().unwrap();
    // The supervisor still holds the lock, so the new daemon has to release it.
    let mut daemon = manager.start(&fixture);
    manager.read_until("BARRIER=1");
    assert!(manager.kept.is_empty());
    manager.read_until("READY=1");
    assert_eq!(fixture.status()["restarts"], 0);
    assert!(manager.kept.contains_key("mobifs-device"));
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    let cutting = std::thread::spawn({
        let mountpoint = fixture.mountpoint.clone();
        move || succeeds(&mobifs(&["drill", "power-cut", "--yes"], &mountpoint))
    });
    manager.read_until("BARRIER=1");
    assert!(manager.kept.is_empty(), "nothing brings it back");
    cutting.join().unwrap();
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn the_units_keep_enough_and_restart_what_dies() {
    let system = include_str!("../../../../dist/mobifs@.service");
    let user = include_str!("../../../../dist/user/mobifs@.service");
    for unit in [system, user] {
        let has = |line: &str| assert!(unit.lines().any(|found| found == line), "{line}");
        has("Type=notify");
        has("FileDescriptorStoreMax=8");
        has("Restart=on-abnormal");
        has("RestartForceExitStatus=6 101");
        has("KillMode=process");
    }
    assert!(system.contains("\nOOMScoreAdjust=-"));
}
