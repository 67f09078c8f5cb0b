//! Every way in which a program can ask that what it writes be durable, in class durable, each
//! followed by a power cut.

use std::fs::{self, File};
use std::io::{IoSlice, Write as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::ReadWriteFlags;

use crate::fixture::{Fixture, needs_mounts};

const CONTENT_BYTES: usize = 4096;

/// Content for direct I/O, aligned as every device asks.
#[repr(C, align(4096))]
struct Aligned([u8; CONTENT_BYTES]);

fn open(path: &Path, flags: OFlags) -> File {
    let flags = OFlags::RDWR | OFlags::CREATE | flags;
    rustix::fs::open(path, flags, Mode::from(0o600))
        .unwrap()
        .into()
}

fn write_with(file: &File, content: &[u8], flags: ReadWriteFlags) {
    let written = rustix::io::pwritev2(file, &[IoSlice::new(content)], 0, flags).unwrap();
    assert_eq!(written, content.len());
}

fn write_mapped(file: &File, content: &[u8]) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    file.set_len(content.len() as u64).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of its own, as long as the file; nothing else refers to it, and it is
    // not used after it has been given back.
    unsafe {
        let start = std::ptr::null_mut();
        let mapped = mmap(start, content.len(), access, MapFlags::SHARED, file, 0).unwrap();
        std::ptr::copy_nonoverlapping(content.as_ptr(), mapped.cast(), content.len());
        msync(mapped, content.len(), MsyncFlags::SYNC).unwrap();
        munmap(mapped, content.len()).unwrap();
    }
}

#[test]
fn what_was_written_durably_survives_whichever_way_it_was_asked_for() {
    needs_mounts!();
    let content = Box::new(Aligned([7; CONTENT_BYTES]));
    let bytes = &content.0[..];
    let none = ReadWriteFlags::empty();
    // As flags of the file, and of the write.
    let writes = [
        ("sync", OFlags::SYNC, none),
        ("dsync", OFlags::DSYNC, none),
        ("direct-sync", OFlags::DIRECT | OFlags::SYNC, none),
        ("direct-dsync", OFlags::DIRECT | OFlags::DSYNC, none),
        ("rwf-sync", OFlags::empty(), ReadWriteFlags::SYNC),
        ("rwf-dsync", OFlags::empty(), ReadWriteFlags::DSYNC),
        ("direct-rwf-sync", OFlags::DIRECT, ReadWriteFlags::SYNC),
        ("direct-rwf-dsync", OFlags::DIRECT, ReadWriteFlags::DSYNC),
    ];
    let fixture = Fixture::new();
    let config = fixture.config("[[app]]\nmatch = \"bank-*\"\nclass = \"durable\"\n");
    let mount = || fixture.mount(&["--config", config.to_str().unwrap()]);
    mount();
    let mut names = Vec::new();
    for (name, file_flags, write_flags) in writes {
        // In an app of its own: what one call makes durable must not hide what another one does
        // not. Its own directory is there durably; the file is not before the write.
        let app = fixture.mountpoint.join(format!("bank-{name}"));
        fs::create_dir(&app).unwrap();
        File::open(&app).unwrap().sync_all().unwrap();
        let file = open(&app.join("f"), file_flags);
        write_with(&file, bytes, write_flags);
        names.push(app.join("f"));
    }
    let mapped = fixture.mountpoint.join("bank-mapped");
    fs::create_dir(&mapped).unwrap();
    write_mapped(&open(&mapped.join("f"), OFlags::empty()), bytes);
    names.push(mapped.join("f"));
    fixture.cut_power();
    mount();
    for name in names {
        let found = fs::read(&name);
        assert!(
            found.as_deref().ok() == Some(bytes),
            "{}: {:?}",
            name.display(),
            found.map(|found| found.len())
        );
    }
    fixture.umount();
}

/// `syncfs` covers all files of the mount, those of relaxed apps, too, as far as the kernel passes
/// it on.
#[test]
fn what_was_there_at_a_syncfs_survives() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let mnt = &fixture.mountpoint;
    for app in ["a", "b"] {
        fs::create_dir(mnt.join(app)).unwrap();
        let mut file = File::create(mnt.join(app).join("f")).unwrap();
        file.write_all(b"kept").unwrap();
    }
    rustix::fs::syncfs(File::open(mnt).unwrap()).unwrap();
    fs::write(mnt.join("a/late"), "not covered").unwrap();
    if fixture.status()["sync_reaches_mount"] != true {
        mobifs_skip::skip("syncfs does not reach the mount here");
        return;
    }
    fixture.cut_power();
    fixture.mount(&[]);
    for app in ["a", "b"] {
        assert_eq!(fs::read(mnt.join(app).join("f")).unwrap(), b"kept");
    }
    assert!(!mnt.join("a/late").exists());
    fixture.umount();
}
