//! One ext4, one power cut.

use std::fs::{self, File};
use std::io::Write as _;

use mobifs_device_server::{ErrorKind, ImageError, Keep, Reply, Request, ServeError, Served, ask};

use crate::disk::{Disk, Recovery, can_run};

const PROGRAMS: [&str; 3] = ["mkfs.ext4", "e2fsck", "mount"];

#[test]
fn what_was_fsynced_survives_and_the_device_refuses_until_power_on() {
    if !can_run(&PROGRAMS) {
        return;
    }
    for (keep, how) in [
        (Keep::None, Recovery::Check),
        (Keep::Random { seed: 3 }, Recovery::Mount),
        (Keep::All, Recovery::Check),
    ] {
        let mut disk = Disk::serve(64, 0.0, |_| {});
        disk.format();
        disk.mount();
        let content = vec![7; 300_000];
        let mut file = File::create(disk.mountpoint.join("fsynced")).unwrap();
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
        assert!(disk.commands("flush") > 0);
        fs::write(disk.mountpoint.join("not fsynced"), &content).unwrap();
        disk.cut(keep);
        let refused = file.write_all(&content).and_then(|()| file.sync_all());
        assert!(refused.is_err(), "it has no power");
        drop(file);
        disk.umount();
        assert!(fs::read(disk.loop_device()).is_err(), "it has no power");
        disk.power_on();
        assert_eq!(disk.stats()["is_powered"], true);
        disk.recover(how);
        disk.mount();
        assert!(fs::read(disk.mountpoint.join("fsynced")).unwrap() == content);
        disk.umount();
        disk.end();
    }
}

#[test]
fn a_device_is_found_by_everything_that_leads_to_it() {
    if !can_run(&PROGRAMS) {
        return;
    }
    let mut disk = Disk::serve(64, 0.0, |_| {});
    disk.format();
    disk.mount();
    let file = disk.stats()["served"]["file"].as_str().unwrap().to_owned();
    let file = std::path::PathBuf::from(file);
    let places = [
        disk.image(),
        disk.loop_device(),
        disk.mountpoint.clone(),
        file.parent().unwrap().to_owned(),
        file,
    ];
    for place in places {
        let reply = ask(&place, &Request::Stats).unwrap();
        assert!(matches!(reply, Reply::Stats { .. }), "{}", place.display());
    }
    let elsewhere = ask(disk.directory.path(), &Request::Stats).unwrap_err();
    assert!(elsewhere.to_string().contains("nor lies on a flash device"));
    let reply = disk.ask(&Request::PowerOn);
    assert!(
        matches!(
            reply,
            Reply::Error {
                kind: ErrorKind::Usage,
                ..
            }
        ),
        "{reply:?}"
    );
    disk.umount();
    disk.end();
    assert!(ask(&disk.image(), &Request::Stats).is_err());
}

#[test]
fn a_device_goes_on_where_it_ended() {
    if !can_run(&PROGRAMS) {
        return;
    }
    let mut disk = Disk::serve(64, 0.0, |_| {});
    disk.format();
    disk.mount();
    fs::write(disk.mountpoint.join("file"), "content").unwrap();
    disk.umount();
    let options = mobifs_device_server::ServeOptions {
        image: disk.image(),
        size_bytes: None,
        config: None,
        seed: None,
        scale: mobifs_device_server::Scale::COUNT_ONLY,
        journal: None,
        nbd: None,
        loop_device: true,
        mountpoint: None,
    };
    let in_use = Served::start(&options).err().unwrap();
    assert!(
        matches!(in_use, ServeError::Image(ImageError::InUse(_))),
        "{in_use}"
    );
    disk.end();
    let other = mobifs_device_server::ServeOptions {
        config: Some(mobifs_device_model::Preset::Ufs31.config().unwrap()),
        ..options.clone()
    };
    let refused = Served::start(&other).err().unwrap().to_string();
    assert!(refused.contains("another device (emmc51)"), "{refused}");
    let served = Served::start(&options).unwrap();
    let device = served.ready().loop_device.unwrap();
    crate::disk::succeed(
        std::process::Command::new("mount")
            .arg(device)
            .arg(&disk.mountpoint),
    );
    assert_eq!(fs::read(disk.mountpoint.join("file")).unwrap(), b"content");
    let end = served.end_handle();
    // In use: it goes on until the filesystem is unmounted.
    end.end().unwrap();
    assert!(!end.wait_for_users(std::time::Duration::from_millis(50)));
    assert_eq!(fs::read(disk.mountpoint.join("file")).unwrap(), b"content");
    disk.umount();
    served.wait().unwrap();
}
