//! Sparse files, preallocation, holes, large files, room.

use crate::harness::{Image, Mount, can_mount, on_both, scratch, succeed};
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek, statvfs};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

const PAGE: u64 = 4096;

fn create(path: &Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .unwrap()
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xAA; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn holes_can_be_found() {
    on_both(|dir| {
        let file = create(&dir.join("sparse"));
        file.write_all_at(&[1; 4096], 1 << 20).unwrap();
        file.write_all_at(&[2; 4096], 3 << 20).unwrap();
        file.set_len(4 << 20).unwrap();
        assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(1 << 20));
        assert_eq!(seek(&file, SeekFrom::Hole(1 << 20)), Ok((1 << 20) + PAGE));
        assert_eq!(seek(&file, SeekFrom::Data((1 << 20) + PAGE)), Ok(3 << 20));
        assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
        assert_eq!(
            seek(&file, SeekFrom::Hole((4 << 20) - 1)),
            Ok((4 << 20) - 1)
        );
        assert_eq!(
            seek(&file, SeekFrom::Data((3 << 20) + PAGE)),
            Err(rustix::io::Errno::NXIO)
        );
        assert_eq!(
            seek(&file, SeekFrom::Data(5 << 20)),
            Err(rustix::io::Errno::NXIO)
        );
        let blocks = file.metadata().unwrap().blocks();
        assert!(
            blocks * 512 < 1 << 20,
            "a sparse file takes {blocks} blocks"
        );
    });
}

#[test]
fn holes_survive_a_sync_and_a_mount() {
    if !can_mount() {
        return;
    }
    let base = scratch();
    let mut mount = Mount::new(base.path());
    fs::create_dir(mount.path().join("app")).unwrap();
    let path = mount.path().join("app/sparse");
    create(&path).write_all_at(&[1; 4096], 1 << 30).unwrap();
    mount.sync();
    assert_eq!(
        seek(File::open(&path).unwrap(), SeekFrom::Data(0)),
        Ok(1 << 30)
    );
    mount.umount();
    mount.mount();
    let file = File::open(&path).unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(1 << 30));
    assert!(file.metadata().unwrap().blocks() * 512 < 1 << 20);
}

#[test]
fn preallocation_punching_and_zeroing() {
    on_both(|dir| {
        let file = create(&dir.join("file"));
        let mut expected = vec![5; 5 * PAGE as usize + 100];
        file.write_all_at(&expected, 0).unwrap();

        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 64 * PAGE).unwrap();
        assert_eq!(content(&file), expected);
        assert!(
            file.metadata().unwrap().blocks() * 512 >= 64 * PAGE,
            "room is allocated"
        );

        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, PAGE + 10, 2 * PAGE).unwrap();
        expected[PAGE as usize + 10..3 * PAGE as usize + 10].fill(0);
        assert_eq!(content(&file), expected);

        fallocate(&file, FallocateFlags::ZERO_RANGE, 4 * PAGE + 1, 3 * PAGE).unwrap();
        expected.resize(7 * PAGE as usize + 1, 0);
        expected[4 * PAGE as usize + 1..].fill(0);
        assert_eq!(content(&file), expected);
        let zero_keep = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, zero_keep, 0, 100 * PAGE).unwrap();
        expected.fill(0);
        assert_eq!(content(&file), expected);

        fallocate(&file, FallocateFlags::empty(), 0, 20 * PAGE + 7).unwrap();
        expected.resize(20 * PAGE as usize + 7, 0);
        assert_eq!(content(&file), expected);
        let nothing = fallocate(&file, FallocateFlags::empty(), 0, 0);
        assert_eq!(nothing, Err(rustix::io::Errno::INVAL));
    });
}

#[test]
fn truncation_leaves_zeros() {
    on_both(|dir| {
        let file = create(&dir.join("file"));
        file.write_all_at(&[9; 10_000], 0).unwrap();
        file.set_len(5_001).unwrap();
        file.set_len(9_000).unwrap();
        let bytes = content(&file);
        assert!(bytes[..5_001].iter().all(|&byte| byte == 9));
        assert!(
            bytes[5_001..].iter().all(|&byte| byte == 0),
            "old bytes come back"
        );
        file.write_all_at(b"end", 20_000).unwrap();
        assert!(content(&file)[5_001..20_000].iter().all(|&byte| byte == 0));
    });
}

#[test]
fn ranges_are_copied_between_files() {
    on_both(|dir| {
        let (from, to) = (create(&dir.join("from")), create(&dir.join("to")));
        let data: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        from.write_all_at(&data, 0).unwrap();
        let (mut source, mut target) = (1_000, 777);
        while source < 90_000 {
            let left = (90_000 - source) as usize;
            let n = copy_file_range(&from, Some(&mut source), &to, Some(&mut target), left);
            assert!(n.unwrap() > 0);
        }
        let copied = content(&to);
        assert_eq!(copied.len(), 777 + 89_000);
        assert!(copied[..777].iter().all(|&byte| byte == 0));
        assert_eq!(&copied[777..], &data[1_000..90_000]);
        // After the end there is nothing to copy.
        let mut behind = 200_000;
        let none = copy_file_range(&from, Some(&mut behind), &to, Some(&mut target), 10);
        assert_eq!(none, Ok(0));
    });
}

#[test]
fn files_larger_than_four_gib() {
    on_both(|dir| {
        let file = create(&dir.join("large"));
        let places = [0, (4 << 30) - 2, (5 << 30) + 12_345, (40 << 30) + 1];
        for (number, &place) in places.iter().enumerate() {
            file.write_all_at(&[number as u8 + 1; 5], place).unwrap();
        }
        assert_eq!(file.metadata().unwrap().len(), (40 << 30) + 6);
        for (number, &place) in places.iter().enumerate() {
            let mut bytes = [0; 5];
            file.read_exact_at(&mut bytes, place).unwrap();
            assert_eq!(bytes, [number as u8 + 1; 5]);
        }
        let mut between = [1; 4096];
        file.read_exact_at(&mut between, 20 << 30).unwrap();
        assert_eq!(between, [0; 4096]);
    });
}

#[test]
fn room_shrinks_as_data_is_written() {
    if !can_mount() {
        return;
    }
    let base = scratch();
    let image = Image::format(base.path(), "lower", "ext4", 512);
    let mount = Mount::over(base.path(), image.path().join("store"), "");
    fs::create_dir(mount.path().join("app")).unwrap();
    let before = statvfs(mount.path()).unwrap();
    assert_eq!(before.f_namemax, 255);
    let lower = statvfs(image.path()).unwrap();
    let room = |stat: &rustix::fs::StatVfs| stat.f_bavail * stat.f_frsize;
    assert!(
        room(&before) <= room(&lower),
        "the mount promises more room than there is"
    );

    let path = mount.path().join("app/data");
    let mut file = File::create(&path).unwrap();
    for _ in 0..64 {
        file.write_all(&[3; 1 << 20]).unwrap();
    }
    let after = statvfs(mount.path()).unwrap();
    let taken = room(&before).saturating_sub(room(&after));
    assert!(
        taken >= 64 << 20,
        "64 MiB written took only {taken} bytes of room"
    );
    drop(file);
    fs::remove_file(&path).unwrap();
    mount.sync();
    let again = statvfs(mount.path()).unwrap();
    let missing = room(&before).saturating_sub(room(&again));
    assert!(
        missing < 8 << 20,
        "{missing} bytes of room did not come back"
    );
}

#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    if !can_mount() {
        return;
    }
    let base = scratch();
    let image = Image::format(base.path(), "lower", "ext4", 256);
    let mut mount = Mount::over(base.path(), image.path().join("store"), "");
    let app = mount.path().join("app");
    fs::create_dir(&app).unwrap();
    let mut acknowledged = Vec::new();
    let mut refused = None;
    for number in 0..1024u32 {
        let path = app.join(format!("file-{number}"));
        match fs::write(&path, vec![number as u8; 1 << 20]) {
            Ok(()) => acknowledged.push(path),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let error = refused.expect("a 256 MiB disk cannot hold 1 GiB");
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::NOSPC.raw_os_error())
    );
    assert!(
        acknowledged.len() > 50,
        "only {} MiB fitted",
        acknowledged.len()
    );
    mount.sync();
    mount.cut_power();
    mount.mount();
    for (number, path) in acknowledged.iter().enumerate() {
        let bytes = fs::read(path).unwrap();
        assert_eq!(bytes.len(), 1 << 20, "{} is short", path.display());
        assert!(bytes.iter().all(|&byte| byte == number as u8));
    }
    // Room comes back, and the store works on.
    for path in &acknowledged {
        fs::remove_file(path).unwrap();
    }
    mount.sync();
    fs::write(app.join("after"), vec![1; 32 << 20]).unwrap();
    mount.umount();
    let checked = crate::harness::binary();
    succeed(
        Command::new(checked)
            .arg("check")
            .arg(image.path().join("store")),
    );
    assert_eq!(
        fs::read(image.path().join("store/app/after"))
            .unwrap()
            .len(),
        32 << 20
    );
}
