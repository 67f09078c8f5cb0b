//! NBD clients of other projects.

use std::io::Write as _;
use std::process::{Command, Stdio};

use mobifs_device_server::Keep;

use crate::disk::{Disk, can_run, succeed, wait_until};

fn serve() -> (Disk, String) {
    let disk = Disk::serve(64, 0.0, |options| {
        options.nbd = Some(options.image.with_file_name("nbd.sock"));
    });
    let socket = disk.path("nbd.sock");
    (disk, format!("nbd+unix:///?socket={}", socket.display()))
}

#[test]
fn qemu_reads_what_it_wrote_in_every_way() {
    if !can_run(&["qemu-io", "qemu-img"]) {
        return;
    }
    let (mut disk, uri) = serve();
    let commands = [
        "write -P 1 0 1M",
        "write -f -P 2 4k 8k",
        "write -z 64k 64k",
        "write -z -u 200k 12k",
        "discard 512k 64k",
        "flush",
        "read -P 1 0 4k",
        "read -P 2 4k 8k",
        "read -P 0 64k 64k",
        "read -P 0 200k 12k",
        "read -P 0 512k 64k",
    ];
    let mut qemu_io = Command::new("qemu-io");
    qemu_io.args(["-f", "raw", &uri]);
    for command in commands {
        qemu_io.args(["-c", command]);
    }
    let printed = succeed(&mut qemu_io);
    assert!(!printed.contains("verification failed"), "{printed}");
    for kind in ["reliable_write", "discard", "flush"] {
        assert!(disk.commands(kind) > 0, "{kind}");
    }
    let copy = disk.path("copy");
    succeed(
        Command::new("qemu-img")
            .args(["convert", "-f", "raw", "-O", "raw", &uri])
            .arg(&copy),
    );
    disk.end();
    assert!(std::fs::read(copy).unwrap() == std::fs::read(disk.image()).unwrap());
}

/// What FUA is for: of two writes without a flush, only the one with FUA outlives a cut.
#[test]
fn fua_arrives_as_a_reliable_write() {
    if !can_run(&["qemu-io"]) {
        return;
    }
    let (mut disk, uri) = serve();
    let mut client = Command::new("qemu-io")
        // In its other mode it asks for FUA with every write.
        .args(["-t", "writeback", "-f", "raw", &uri])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = client.stdin.take().unwrap();
    let flushes = disk.commands("flush");
    // One line at a time: it reads a line only when new input arrives.
    for (line, kind) in [
        ("write -P 1 0 4k", "write"),
        ("write -f -P 2 64k 4k", "reliable_write"),
    ] {
        writeln!(input, "{line}").unwrap();
        wait_until(line, || disk.commands(kind) == 1);
    }
    assert_eq!(disk.commands("flush"), flushes);
    disk.cut(Keep::None);
    // It finds that there is no power, and leaves.
    drop(input);
    let _failed = client.wait().unwrap();
    disk.power_on();
    let check = ["read -P 0 0 4k", "read -P 2 64k 4k"];
    let printed =
        succeed(Command::new("qemu-io").args(["-f", "raw", &uri, "-c", check[0], "-c", check[1]]));
    assert!(!printed.contains("verification failed"), "{printed}");
    disk.end();
}

#[test]
fn nbdinfo_and_nbdcopy_agree_with_the_image() {
    if !can_run(&["nbdinfo", "nbdcopy"]) {
        return;
    }
    let (mut disk, uri) = serve();
    let about = succeed(Command::new("nbdinfo").args(["--json", &uri]));
    let about: serde_json::Value = serde_json::from_str(&about).unwrap();
    let export = &about["exports"][0];
    assert_eq!(export["export-size"], 64 << 20);
    for feature in [
        "can_flush",
        "can_fua",
        "can_trim",
        "can_zero",
        "can_multi_conn",
    ] {
        assert_eq!(export[feature], true, "{feature}");
    }
    let source = disk.path("source");
    let content: Vec<u8> = (0..64 << 20)
        .map(|n: u32| (n / 4096 * 31 + n) as u8)
        .collect();
    std::fs::write(&source, &content).unwrap();
    succeed(
        Command::new("nbdcopy")
            .arg("--flush")
            .arg(&source)
            .arg(&uri),
    );
    let copy = disk.path("copy");
    succeed(Command::new("nbdcopy").arg(&uri).arg(&copy));
    assert!(std::fs::read(copy).unwrap() == content);
    disk.end();
    assert!(std::fs::read(disk.image()).unwrap() == content);
}
