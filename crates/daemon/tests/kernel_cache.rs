//! Objects that only the kernel's caches hold, on a real mount.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mobifs_daemon::VolumeSession;
use mobifs_fuse::MountOptions;
use mobifs_store::MemoryStore;
use mobifs_volume::{Config, Volume, VolumeOptions};

const OBJECTS_MAX: u64 = 200;
const DIRECTORIES: usize = 5;
const FILES: usize = 600;
/// A hanging test says so after this.
const PATIENCE: Duration = Duration::from_secs(120);

/// Walking over many files left a reference to each, and the objects stayed in memory for
/// good, whatever the limit was.
#[test]
fn the_kernel_gives_back_what_no_program_uses() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        mobifs_skip::skip("needs root and /dev/fuse");
        return;
    }
    let text = format!("objects_max = {OBJECTS_MAX}\n");
    let config = Config::parse(&text, Path::new("test.toml")).unwrap();
    let options = VolumeOptions::new(&config);
    let volume = Volume::start(Arc::new(MemoryStore::new()), options).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let session = VolumeSession::mount(
        Arc::clone(&volume),
        directory.path(),
        &MountOptions::default(),
        None,
        None,
    )
    .unwrap();
    let handle = session.handle();
    let served = std::thread::spawn(move || session.run());

    let path = |place: usize| directory.path().join(format!("app/{place}"));
    let mut expected = BTreeSet::new();
    for place in 0..DIRECTORIES {
        fs::create_dir_all(path(place)).unwrap();
        for number in 0..FILES {
            let name = number.to_string();
            fs::write(path(place).join(&name), &name).unwrap();
            expected.insert(name);
        }
    }
    let mut open = File::open(path(0).join("7")).unwrap();
    volume.sync_all().unwrap();
    let start = Instant::now();
    while volume.status().memory.objects > OBJECTS_MAX {
        assert!(start.elapsed() < PATIENCE, "{:?}", volume.status().memory);
        std::thread::sleep(Duration::from_millis(10));
    }

    // Nothing is missing, and what is in use is as it was.
    for place in 0..DIRECTORIES {
        let found = fs::read_dir(path(place)).unwrap().map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            assert_eq!(fs::read_to_string(entry.path()).unwrap(), name);
            name
        });
        assert_eq!(found.collect::<BTreeSet<_>>(), expected);
    }
    let mut content = String::new();
    open.read_to_string(&mut content).unwrap();
    assert_eq!(content, "7");
    let shown = fs::read_link(format!("/proc/self/fd/{}", descriptor(&open))).unwrap();
    assert_eq!(shown, path(0).join("7"));
    drop(open);

    for place in 0..DIRECTORIES {
        fs::remove_dir_all(path(place)).unwrap();
    }
    let start = Instant::now();
    while let Err(error) = handle.unmount(false) {
        assert!(start.elapsed() < PATIENCE, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
    served.join().unwrap().unwrap();
}

fn descriptor(file: &File) -> i32 {
    use std::os::fd::AsRawFd as _;
    file.as_raw_fd()
}
