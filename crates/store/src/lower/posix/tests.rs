//! Against the filesystem of the temporary directory.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;

use mobifs_base::{DeviceNumber, FileKind, Timestamp, xattr_room_bytes};
use rustix::process::geteuid;
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

use super::*;

const NOBODY: u32 = 65_534;

fn open_store() -> (tempfile::TempDir, PosixLower, PosixHandle) {
    let directory = tempfile::tempdir().unwrap();
    let lower = PosixLower::open(directory.path()).unwrap();
    let root = lower.root().unwrap();
    (directory, lower, root)
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).expect("an error of the system")
}

fn attributes(mode: u16) -> SetAttributes {
    SetAttributes {
        mode,
        uid: geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        atime: Timestamp::new(1, 2),
        mtime: Timestamp::new(-3, 4),
    }
}

/// Runs `body` in a thread that has lost root's powers (if it had them): on Linux
/// user ids belong to threads.
fn unprivileged(body: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        if geteuid().is_root() {
            let (gid, uid) = (fs::Gid::from_raw(NOBODY), fs::Uid::from_raw(NOBODY));
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
        }
        body();
    })
    .join()
    .unwrap();
}

#[test]
fn what_is_no_directory_is_refused_with_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, b"").unwrap();
    for (path, words) in [
        (file.as_path(), "not a directory"),
        (&directory.path().join("no"), "does not exist"),
    ] {
        let error = PosixLower::open(path).unwrap_err();
        assert!(matches!(error, StoreError::Unsuitable(_)));
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn names_that_are_no_single_component_are_refused_everywhere() {
    let (_directory, lower, root) = open_store();
    lower.create(&root, b"good", Create::Regular).unwrap();
    for bad in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b", b"../x"] {
        assert_eq!(errno(lower.open(&root, bad, false)), Errno::INVAL);
        assert_eq!(errno(lower.stat_at(&root, bad)), Errno::INVAL);
        assert_eq!(
            errno(lower.create(&root, bad, Create::Regular)),
            Errno::INVAL
        );
        assert_eq!(errno(lower.link(&root, b"good", &root, bad)), Errno::INVAL);
        assert_eq!(
            errno(lower.rename(&root, b"good", &root, bad)),
            Errno::INVAL
        );
        assert_eq!(errno(lower.rename(&root, bad, &root, b"x")), Errno::INVAL);
        assert_eq!(errno(lower.unlink(&root, bad)), Errno::INVAL);
        assert_eq!(errno(lower.remove_directory(&root, bad)), Errno::INVAL);
        assert_eq!(errno(lower.read_link(&root, bad)), Errno::INVAL);
    }
    assert_eq!(
        errno(lower.create(&root, &[b'x'; 256], Create::Regular)),
        Errno::NAMETOOLONG
    );
    for hostile in [&b"\xff\xfe\n"[..], b"-rf *", b"...", &[b'y'; 255]] {
        lower.create(&root, hostile, Create::Directory).unwrap();
        assert!(
            lower
                .list(&root)
                .unwrap()
                .iter()
                .any(|entry| entry.name == hostile)
        );
        lower.remove_directory(&root, hostile).unwrap();
    }
}

#[test]
fn symlinks_are_not_followed() {
    let (directory, lower, root) = open_store();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), b"secret").unwrap();
    symlink(outside.path(), directory.path().join("dir")).unwrap();
    symlink(outside.path().join("secret"), directory.path().join("file")).unwrap();
    let link = lower.open(&root, b"dir", true).unwrap();
    assert_eq!(lower.stat(&link).unwrap().kind, FileKind::Symlink);
    assert!(lower.list(&link).is_err());
    assert!(lower.open(&link, b"secret", false).is_err());
    assert!(lower.create(&link, b"planted", Create::Regular).is_err());
    let link = lower.open(&root, b"file", true).unwrap();
    assert!(lower.read_at(&link, &mut [0; 6], 0).is_err());
    assert!(lower.write_at(&link, b"x", 0).is_err());
    assert_eq!(
        lower.read_link(&root, b"dir").unwrap(),
        outside.path().as_os_str().as_encoded_bytes()
    );
    lower.set_attributes(&link, &attributes(0o777)).unwrap();
    assert_eq!(lower.stat(&link).unwrap().mtime, Timestamp::new(-3, 4));
    let untouched = std::fs::metadata(outside.path().join("secret")).unwrap();
    assert_ne!(untouched.mtime(), -3);
    assert!(errno(lower.open_journal(&root, b"file").map(|_| ())) == Errno::INVAL);
    assert_eq!(
        std::fs::read(outside.path().join("secret")).unwrap(),
        b"secret"
    );
}

#[test]
fn special_files_are_opened_by_reference_and_never_block() {
    let (directory, lower, root) = open_store();
    lower.create(&root, b"fifo", Create::Fifo).unwrap();
    lower.create(&root, b"socket", Create::Socket).unwrap();
    if geteuid().is_root() {
        // A number that no driver has: opening it for real would fail.
        // qemu-user takes the number that a 32-bit program gives for a signed one.
        let is_signed = cfg!(target_pointer_width = "32");
        let device = DeviceNumber::new(0xfff, if is_signed { 0x7_ffff } else { 0xf_ffff });
        lower
            .create(&root, b"char", Create::CharDevice(device))
            .unwrap();
        lower
            .create(
                &root,
                b"block",
                Create::BlockDevice(DeviceNumber::new(7, 300)),
            )
            .unwrap();
        assert_eq!(lower.stat_at(&root, b"char").unwrap().rdev, device);
        assert_eq!(
            lower.stat_at(&root, b"block").unwrap().rdev,
            DeviceNumber::new(7, 300)
        );
    }
    for entry in lower.list(&root).unwrap() {
        // Without the reference first, the open would wait for a writer for ever.
        let handle = lower.open(&root, &entry.name, true).unwrap();
        let found = lower.stat(&handle).unwrap();
        assert_eq!((Some(found.kind), found.inode), (entry.kind, entry.inode));
        assert!(found.kind != FileKind::Regular);
        lower.set_attributes(&handle, &attributes(0o641)).unwrap();
        let found = lower.stat(&handle).unwrap();
        assert_eq!((found.mode, found.atime), (0o641, Timestamp::new(1, 2)));
        assert_eq!(errno(lower.read_at(&handle, &mut [0; 1], 0)), Errno::BADF);
        lower.sync(&handle).unwrap();
    }
    assert!(
        std::fs::metadata(directory.path().join("fifo"))
            .unwrap()
            .file_type()
            .is_fifo()
    );
}

#[test]
fn creating_linking_and_renaming_never_replace() {
    let (_directory, lower, root) = open_store();
    for name in [b"a", b"b"] {
        lower.create(&root, name, Create::Regular).unwrap();
    }
    lower.create(&root, b"dir", Create::Directory).unwrap();
    let dir = lower.open(&root, b"dir", true).unwrap();
    for what in [
        Create::Regular,
        Create::Directory,
        Create::Symlink(b"t"),
        Create::Fifo,
    ] {
        assert_eq!(errno(lower.create(&root, b"a", what)), Errno::EXIST);
    }
    assert_eq!(errno(lower.link(&root, b"a", &root, b"b")), Errno::EXIST);
    assert_eq!(errno(lower.rename(&root, b"a", &root, b"b")), Errno::EXIST);
    assert_eq!(
        errno(lower.rename(&root, b"dir", &dir, b"inside")),
        Errno::INVAL
    );
    lower.link(&root, b"a", &dir, b"a2").unwrap();
    lower.rename(&root, b"b", &dir, b"b2").unwrap();
    assert_eq!(lower.stat_at(&root, b"a").unwrap().nlink, 2);
    assert_eq!(errno(lower.stat_at(&root, b"b")), Errno::NOENT);
    lower
        .create(&dir, b"link", Create::Symlink(b"nowhere"))
        .unwrap();
    lower.link(&dir, b"link", &root, b"link2").unwrap();
    assert_eq!(lower.read_link(&root, b"link2").unwrap(), b"nowhere");
    assert_eq!(
        errno(lower.remove_directory(&root, b"dir")),
        Errno::NOTEMPTY
    );
    assert_eq!(errno(lower.unlink(&root, b"dir")), Errno::ISDIR);
    lower.sync(&dir).unwrap();
    lower.sync_all().unwrap();
}

#[test]
fn content_is_written_read_zeroed_and_sought() {
    let (_directory, lower, root) = open_store();
    lower.create(&root, b"file", Create::Regular).unwrap();
    let file = lower.open(&root, b"file", true).unwrap();
    lower.write_at(&file, &[7; 300_000], 1 << 33).unwrap();
    let size = (1 << 33) + 300_000;
    assert_eq!(lower.stat(&file).unwrap().size, size);
    let mut out = [1; 100];
    assert_eq!(lower.read_at(&file, &mut out, size - 50).unwrap(), 50);
    assert_eq!(out[..50], [7; 50]);
    assert_eq!(lower.read_at(&file, &mut out, size).unwrap(), 0);
    assert_eq!(lower.read_at(&file, &mut out, 5).unwrap(), 100);
    assert_eq!(out, [0; 100]);
    assert_eq!(lower.seek_data(&file, 0).unwrap(), Some(1 << 33));
    assert_eq!(lower.seek_data(&file, u64::MAX - 1).unwrap(), None);
    assert_eq!(lower.seek_hole(&file, 1 << 33).unwrap(), Some(size));
    assert_eq!(lower.seek_hole(&file, size + 1).unwrap(), None);
    lower
        .zero_range(&file, ByteRange::from((1 << 33) + 10))
        .unwrap();
    assert_eq!(lower.stat(&file).unwrap().size, size);
    assert_eq!(lower.read_at(&file, &mut out, 1 << 33).unwrap(), 100);
    assert_eq!((&out[..10], &out[10..]), (&[7; 10][..], &[0; 90][..]));
    lower
        .zero_range(&file, ByteRange::new(size + 5, size + 9))
        .unwrap();
    lower.truncate(&file, 5).unwrap();
    match lower.preallocate(&file, ByteRange::new(0, 1 << 20)) {
        Ok(()) => assert!(lower.stat(&file).unwrap().allocated_bytes >= 1 << 20),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
    }
    assert_eq!(lower.stat(&file).unwrap().size, 5);
    lower.sync(&file).unwrap();
}

#[test]
fn cached_reads_give_the_content_or_say_that_they_would_block() {
    let (_directory, lower, root) = open_store();
    lower.create(&root, b"file", Create::Regular).unwrap();
    let file = lower.open(&root, b"file", true).unwrap();
    lower.write_at(&file, &[9; 10_000], 0).unwrap();
    let mut out = vec![0; 4096];
    let expected: [(u64, usize); 3] = [(0, 4096), (8192, 1808), (10_000, 0)];
    for (offset, count) in expected {
        match lower.read_cached(&file, &mut out, offset) {
            Ok(found) => {
                assert_eq!(found, count);
                assert!(out[..count].iter().all(|&byte| byte == 9));
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    lower.sync(&file).unwrap();
    fs::fadvise(file.fd(), 0, None, fs::Advice::DontNeed).unwrap();
    if let Err(error) = lower.read_cached(&file, &mut out, 0) {
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
    assert_eq!(lower.read_at(&file, &mut out, 0).unwrap(), 4096);
}

#[test]
fn xattrs_of_every_kind_of_object() {
    let (directory, lower, root) = open_store();
    lower.create(&root, b"file", Create::Regular).unwrap();
    lower.create(&root, b"dir", Create::Directory).unwrap();
    lower
        .create(&root, b"link", Create::Symlink(b"file"))
        .unwrap();
    lower.create(&root, b"fifo", Create::Fifo).unwrap();
    for name in [&b"file"[..], b"dir", b"link", b"fifo"] {
        let object = lower.open(&root, name, true).unwrap();
        let special = matches!(name, b"link" | b"fifo");
        // User attributes are for files and directories only; trusted ones for root.
        let key: &[u8] = if special { b"trusted.k" } else { b"user.k" };
        if special && !geteuid().is_root() {
            continue;
        }
        let value = vec![3; 1000];
        lower.set_xattr(&object, key, Some(&value)).unwrap();
        lower.set_xattr(&object, b"trusted.gone", None).unwrap();
        let expected: Xattr = (Arc::from(key), Arc::from(value));
        assert!(
            lower.xattrs(&object).unwrap().contains(&expected),
            "{}",
            name.escape_ascii()
        );
        if name == b"link" {
            let target = lower.open(&root, b"file", false).unwrap();
            assert!(
                lower
                    .xattrs(&target)
                    .unwrap()
                    .iter()
                    .all(|(key, _)| **key != *b"trusted.k")
            );
        }
        lower.set_xattr(&object, key, None).unwrap();
        assert!(!lower.xattrs(&object).unwrap().contains(&expected));
    }
    drop(directory);
}

#[test]
fn a_change_of_owner_keeps_set_id_bits_and_file_capabilities() {
    if !mobifs_skip::is_root() {
        return;
    }
    let (_directory, lower, root) = open_store();
    lower.create(&root, b"file", Create::Regular).unwrap();
    let file = lower.open(&root, b"file", true).unwrap();
    // cap_net_raw=ep, revision 2.
    let mut capability = vec![1, 0, 0, 2, 0, 0x20, 0, 0];
    capability.resize(20, 0);
    lower
        .set_xattr(&file, b"security.capability", Some(&capability))
        .unwrap();
    let wanted = SetAttributes {
        uid: 7,
        gid: 8,
        ..attributes(0o6755)
    };
    lower.set_attributes(&file, &wanted).unwrap();
    let found = lower.stat(&file).unwrap();
    assert_eq!((found.mode, found.uid, found.gid), (0o6755, 7, 8));
    let kept = lower.xattrs(&file).unwrap();
    assert!(
        kept.iter()
            .any(|(name, value)| **name == *FILE_CAPABILITY && **value == *capability)
    );
    let nobody = SetAttributes {
        uid: u32::MAX,
        ..wanted
    };
    assert_eq!(errno(lower.set_attributes(&file, &nobody)), Errno::INVAL);
}

const FILE_CAPABILITY: &[u8] = b"security.capability";

#[test]
fn an_unprivileged_owner_is_not_stopped_by_own_modes() {
    unprivileged(|| {
        let (directory, lower, root) = open_store();
        for (name, mode) in [(&b"none"[..], 0), (b"read", 0o400), (b"write", 0o200)] {
            lower.create(&root, name, Create::Regular).unwrap();
            let file = lower.open(&root, name, true).unwrap();
            lower.set_attributes(&file, &attributes(mode)).unwrap();
            drop(file);
            let file = lower.open(&root, name, true).unwrap();
            lower.write_at(&file, b"content", 0).unwrap();
            lower.truncate(&file, 6).unwrap();
            lower.set_xattr(&file, b"user.k", Some(b"v")).unwrap();
            drop(file);
            let file = lower.open(&root, name, false).unwrap();
            let mut out = [0; 8];
            assert_eq!(lower.read_at(&file, &mut out, 0).unwrap(), 6);
            assert_eq!(&out[..6], b"conten");
            assert!(
                lower
                    .xattrs(&file)
                    .unwrap()
                    .iter()
                    .any(|(key, _)| **key == *b"user.k")
            );
            assert_eq!(lower.stat(&file).unwrap().mode, mode);
            lower.sync(&file).unwrap();
        }
        lower.create(&root, b"dir", Create::Directory).unwrap();
        let dir = lower.open(&root, b"dir", true).unwrap();
        lower.create(&dir, b"old", Create::Directory).unwrap();
        lower.set_attributes(&dir, &attributes(0)).unwrap();
        let dir = lower.open(&root, b"dir", true).unwrap();
        lower.create(&dir, b"inside", Create::Regular).unwrap();
        lower.rename(&dir, b"inside", &root, b"outside").unwrap();
        lower.link(&root, b"outside", &dir, b"again").unwrap();
        lower.open(&dir, b"again", true).unwrap();
        assert_eq!(lower.stat_at(&dir, b"again").unwrap().nlink, 2);
        assert_eq!(lower.list(&dir).unwrap().len(), 2);
        lower.unlink(&dir, b"again").unwrap();
        lower.remove_directory(&dir, b"old").unwrap();
        lower.sync(&dir).unwrap();
        assert_eq!(lower.stat(&dir).unwrap().mode, 0);
        let path = directory.path().join("dir");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
    });
}

#[test]
fn what_belongs_to_others_stays_closed_to_the_unprivileged() {
    if !mobifs_skip::is_root() {
        return;
    }
    let (directory, lower, root) = open_store();
    lower.create(&root, b"secret", Create::Regular).unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).unwrap();
    unprivileged(move || {
        let file = lower.open(&root, b"secret", true).unwrap();
        assert_eq!(errno(lower.read_at(&file, &mut [0; 1], 0)), Errno::ACCESS);
        assert_eq!(errno(lower.write_at(&file, b"x", 0)), Errno::ACCESS);
        assert_eq!(errno(lower.unlink(&root, b"secret")), Errno::ACCESS);
    });
}

#[test]
fn the_journal_file_is_written_and_read_in_blocks() {
    let (directory, lower, root) = open_store();
    let (journal, direct) = lower.open_journal(&root, b"journal").unwrap();
    let mut blocks = JournalBuffer::zeroed(2 * 4096);
    blocks.as_bytes_mut().fill(0xab);
    lower.journal_write(&journal, &blocks, 4096, true).unwrap();
    lower
        .journal_write(&journal, &JournalBuffer::zeroed(4096), 0, false)
        .unwrap();
    lower.journal_flush(&journal).unwrap();
    assert_eq!(
        errno(lower.journal_write(&journal, &blocks, 100, false)),
        Errno::INVAL
    );
    // Unaligned buffers and ranges too, whether or not the descriptor is direct.
    let mut out = vec![0; 9001];
    assert_eq!(
        lower.read_at(&journal, &mut out[1..], 4000).unwrap(),
        3 * 4096 - 4000
    );
    assert_eq!((out[96], out[97], out[3 * 4096 - 4000]), (0, 0xab, 0xab));
    assert_eq!(lower.read_at(&journal, &mut out, 3 * 4096).unwrap(), 0);
    lower.truncate(&journal, 5000).unwrap();
    assert_eq!(lower.read_at(&journal, &mut out, 4096).unwrap(), 904);
    let (again, direct_again) = lower.open_journal(&root, b"journal").unwrap();
    assert_eq!(direct, direct_again);
    assert_eq!(lower.stat(&again).unwrap().size, 5000);
    if direct {
        let flags = fs::fcntl_getfl(again.fd()).unwrap();
        assert!(flags.contains(OFlags::DIRECT));
    }
    assert!(directory.path().join("journal").exists());
}

#[test]
fn the_probe_finds_limits_and_leaves_nothing() {
    let (directory, lower, root) = open_store();
    std::fs::write(directory.path().join("probe"), b"left by a killed daemon").unwrap();
    let found = lower.capabilities(&root).unwrap();
    assert_eq!(lower.list(&root).unwrap(), []);
    assert!(found.file_bytes_max >= 1 << 30 && found.links_max >= 1 && !found.read_only);
    assert_eq!(found.privileged, geteuid().is_root());
    lower.create(&root, b"file", Create::Regular).unwrap();
    let file = lower.open(&root, b"file", true).unwrap();
    // The promise holds: as many attributes as the count says fit, small ones and large ones.
    for (name_bytes, value_bytes) in [(6, 0), (9, 10), (16, 61), (255, 1), (7, 900)] {
        let each = xattr_room_bytes(name_bytes, value_bytes);
        let names: Vec<String> = (0..(found.xattr_bytes_max / each).min(500))
            .map(|number| format!("user.{number:0>width$x}", width = name_bytes - 5))
            .filter(|name| name.len() == name_bytes)
            .collect();
        let value = vec![1; value_bytes];
        for name in &names {
            let set = lower.set_xattr(&file, name.as_bytes(), Some(&value));
            set.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        for name in &names {
            lower.set_xattr(&file, name.as_bytes(), None).unwrap();
        }
    }
    lower.truncate(&file, found.file_bytes_max).unwrap();
    let name = vec![b'n'; found.name_bytes_max];
    let target = vec![b't'; found.symlink_bytes_max];
    lower
        .create(&root, &name, Create::Symlink(&target))
        .unwrap();
    assert_eq!(lower.read_link(&root, &name).unwrap(), target);
}

/// Another user's directory in which all users may make files, such as `/tmp`.
fn public_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let public = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(directory.path(), public).unwrap();
    directory
}

#[test]
fn the_directory_around_a_file_stays_as_it_is() {
    let directory = public_directory();
    let before = std::fs::metadata(directory.path()).unwrap();
    let path = directory.path().to_owned();
    unprivileged(move || {
        let scope = StoreScope::File("database".into());
        let lower = PosixLower::open_scoped(&path, scope).unwrap();
        let root = lower.root().unwrap();
        // Also where it is the process's own: its owner may have changed the mode since.
        lower.set_attributes(&root, &attributes(0o700)).unwrap();
    });
    let after = std::fs::metadata(directory.path()).unwrap();
    assert_eq!(
        (after.mode(), after.mtime(), after.ctime()),
        (before.mode(), before.mtime(), before.ctime())
    );
}

#[test]
fn a_foreign_directory_in_the_place_of_a_stores_own_is_refused() {
    if !mobifs_skip::is_root() {
        return;
    }
    let directory = public_directory();
    let own = directory.path().join("database-mobifs");
    std::fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(7), Some(7)).unwrap();
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::write(directory.path().join("database"), "").unwrap();
    let path = directory.path().to_owned();
    let open = move || {
        let scope = StoreScope::File("database".into());
        let lower = PosixLower::open_scoped(&path, scope).unwrap();
        let opened =
            crate::JournalStore::open(crate::Gate::new(lower), &crate::JournalOptions::default());
        let error = opened.map(drop).unwrap_err().to_string();
        assert!(error.contains("the user with id 7"), "{error}");
    };
    open();
    unprivileged(open);
    assert_eq!(std::fs::read_dir(&own).unwrap().count(), 0);
}

/// Found by trying: another user's file, which all users may write, could be written through an
/// ordinary user's mount, and then nothing could be applied any more, because only its owner may
/// set its times.
#[test]
fn what_belongs_to_others_is_changed_as_far_as_one_may() {
    if !mobifs_skip::is_root() {
        return;
    }
    let directory = public_directory();
    let file = directory.path().join("file");
    std::fs::write(&file, "before").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let path = directory.path().to_owned();
    unprivileged(move || {
        let lower = PosixLower::open(&path).unwrap();
        let root = lower.root().unwrap();
        let file = lower.open(&root, b"file", true).unwrap();
        lower.write_at(&file, b"after.", 0).unwrap();
        let as_it_is = SetAttributes {
            uid: 0,
            gid: 0,
            ..attributes(0o666)
        };
        lower.set_attributes(&file, &as_it_is).unwrap();
        let closed = SetAttributes {
            uid: 0,
            gid: 0,
            ..attributes(0o600)
        };
        lower.set_attributes(&file, &closed).unwrap_err();
        // A group that we are not in.
        lower.create(&root, b"own", Create::Regular).unwrap();
        let own = lower.open(&root, b"own", true).unwrap();
        let of_group = SetAttributes {
            uid: NOBODY,
            gid: 0,
            ..attributes(0o640)
        };
        lower.set_attributes(&own, &of_group).unwrap();
        let about = lower.stat(&own).unwrap();
        assert_eq!((about.uid, about.gid, about.mode), (NOBODY, NOBODY, 0o640));
        let given_away = SetAttributes { uid: 0, ..of_group };
        lower.set_attributes(&own, &given_away).unwrap_err();
    });
    assert_eq!(std::fs::read(&file).unwrap(), b"after.");
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o666);
}
