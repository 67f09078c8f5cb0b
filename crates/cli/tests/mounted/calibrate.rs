//! `mobifs calibrate`: what is measured of the device below a store.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::filesystems::put_store_on;
use crate::fixture::{Fixture, fails, message, mobifs, needs_mounts, succeeds};

fn measured(place: &Path) -> Value {
    let output = mobifs(&["calibrate", "--json"], place);
    succeeds(&output);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Medians of the smallest size, which are never 0.
fn times(measured: &Value) -> [f64; 2] {
    let first = &measured["sizes"][0];
    assert_eq!(first["bytes"], 4096);
    ["durable_us", "flushed_us"].map(|key| first[key].as_f64().unwrap())
}

#[test]
fn a_mount_and_a_store_are_measured_on_request() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let status = fixture.status();
    assert!(
        times(&status["store"]["calibration"])
            .iter()
            .all(|&us| us > 0.0)
    );
    fs::write(fixture.mountpoint.join("file"), "content").unwrap();
    let found = measured(&fixture.mountpoint);
    assert!(times(&found).iter().all(|&us| us > 0.0), "{found}");
    assert_eq!(found["sizes"].as_array().unwrap().len(), 7);
    let status = fixture.status();
    let store = &status["store"];
    assert_eq!(store["calibration"]["sizes"], found["sizes"]);
    assert_eq!(store["calibration"]["device"], found["device"]);
    assert_eq!(
        store["journal"]["durable_write_max_bytes"],
        found["durable_write_max_bytes"]
    );
    let shown = mobifs(&["status"], &fixture.mountpoint);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("; measured on "), "{shown}");
    fails(&mobifs(&["calibrate"], &fixture.store), 3, &["in use"]);
    fixture.umount();

    let shown = mobifs(&["check"], &fixture.store);
    succeeds(&shown);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("measured on "), "{shown}");
    assert!(shown.contains("WITH A FLUSH"), "{shown}");
    let again = measured(&fixture.store);
    assert_eq!(again["device"], found["device"]);
    assert_ne!(again["sizes"], found["sizes"], "it is measured anew");
    let text = mobifs(&["calibrate"], &fixture.store);
    succeeds(&text);
    assert!(String::from_utf8(text.stdout).unwrap().contains("µs"));
    let content = fs::read_to_string(fixture.store.join("file"));
    assert_eq!(content.unwrap(), "content");
    let nowhere = fixture.directory("ordinary");
    fails(&mobifs(&["calibrate"], &nowhere), 5, &[]);
    assert_eq!(fs::read_dir(nowhere).unwrap().count(), 0);
}

#[test]
fn nothing_is_measured_where_that_has_no_effect() {
    needs_mounts!();
    let fixture = Fixture::new();
    let config = fixture.config("direct_write_max_bytes = \"16KiB\"\n");
    fixture.mount(&["--config", config.to_str().unwrap()]);
    let refused = mobifs(&["calibrate"], &fixture.mountpoint);
    fails(&refused, 1, &["direct_write_max_bytes", "configuration"]);
    assert_eq!(message(&refused).lines().count(), 1);
    let status = fixture.status();
    assert_eq!(status["store"]["calibration"], Value::Null);
    let bytes = &status["store"]["journal"]["durable_write_max_bytes"];
    assert_eq!(bytes, &Value::from(16 << 10));
    fixture.umount();
    fixture.mount(&["-o", "ro"]);
    let refused = mobifs(&["calibrate"], &fixture.mountpoint);
    fails(&refused, 1, &["read-only"]);
    fixture.umount();
    // The next mount without a configured size measures.
    fixture.mount(&[]);
    let status = fixture.status();
    assert_eq!(times(&status["store"]["calibration"]).len(), 2);
    fixture.umount();
}

/// The same filesystem, copied to another device.
#[test]
fn a_store_that_moves_to_another_device_is_measured_there() {
    needs_mounts!();
    let mut fixture = Fixture::new();
    if !put_store_on(&mut fixture, &["mkfs.ext4", "-q"]) {
        return;
    }
    fixture.mount(&[]);
    let device = |fixture: &Fixture| {
        let status = fixture.status();
        let device = status["store"]["calibration"]["device"].as_str();
        device.unwrap().to_owned()
    };
    let first = device(&fixture);
    assert!(first.contains("/image, "), "{first}");
    fixture.umount();
    fixture.mount(&[]);
    let before = fixture.status()["store"]["calibration"].clone();
    fixture.umount();
    fixture.mount(&[]);
    assert_eq!(fixture.status()["store"]["calibration"], before);
    fixture.umount();

    let disk = fixture.path("disk");
    let run = |command: &mut Command| succeeds(&command.output().unwrap());
    run(Command::new("umount").arg(&disk));
    let moved = fixture.path("moved");
    fs::rename(fixture.path("image"), &moved).unwrap();
    run(Command::new("mount")
        .args(["-o", "loop"])
        .arg(&moved)
        .arg(&disk));
    fixture.mount(&[]);
    let second = device(&fixture);
    assert!(second.contains("/moved, "), "{second}");
    fixture.umount();
}
