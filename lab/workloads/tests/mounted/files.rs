//! Kinds of files, links, names, times, renames.

use crate::harness::{on_both, succeed};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, linkat, makedev,
    mknodat, open, renameat_with, utimensat,
};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

#[test]
fn hard_links_are_one_file() {
    on_both(|dir| {
        let (one, two) = (dir.join("one"), dir.join("two"));
        fs::write(&one, "first").unwrap();
        fs::create_dir(dir.join("sub")).unwrap();
        fs::hard_link(&one, &two).unwrap();
        fs::hard_link(&one, dir.join("sub/three")).unwrap();
        assert_eq!(fs::metadata(&two).unwrap().nlink(), 3);
        assert_eq!(
            fs::metadata(&one).unwrap().ino(),
            fs::metadata(&two).unwrap().ino()
        );
        fs::write(&two, "second").unwrap();
        assert_eq!(fs::read_to_string(dir.join("sub/three")).unwrap(), "second");
        fs::remove_file(&one).unwrap();
        assert_eq!(fs::metadata(&two).unwrap().nlink(), 2);
        // Directories have no hard links.
        assert!(fs::hard_link(dir.join("sub"), dir.join("sub2")).is_err());
        assert_eq!(fs::metadata(dir).unwrap().nlink(), 3);
    });
}

#[test]
fn fifos_sockets_and_devices_work() {
    on_both(|dir| {
        let fifo = dir.join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from(0o640), 0).unwrap();
        assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
        let path = fifo.clone();
        let writer = std::thread::spawn(move || fs::write(path, "through the fifo").unwrap());
        assert_eq!(fs::read_to_string(&fifo).unwrap(), "through the fifo");
        writer.join().unwrap();

        let socket = dir.join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
        let mut near = UnixStream::connect(&socket).unwrap();
        near.write_all(b"hello").unwrap();
        let mut buffer = [0; 5];
        listener
            .accept()
            .unwrap()
            .0
            .read_exact(&mut buffer)
            .unwrap();
        assert_eq!(&buffer, b"hello");

        let zero = dir.join("zero");
        mknodat(
            CWD,
            &zero,
            FileType::CharacterDevice,
            Mode::from(0o600),
            makedev(1, 5),
        )
        .unwrap();
        let metadata = fs::metadata(&zero).unwrap();
        assert!(metadata.file_type().is_char_device());
        assert_eq!(metadata.rdev(), makedev(1, 5));
        let block = dir.join("block");
        mknodat(
            CWD,
            &block,
            FileType::BlockDevice,
            Mode::from(0o600),
            makedev(7, 300),
        )
        .unwrap();
        assert_eq!(fs::metadata(&block).unwrap().rdev(), makedev(7, 300));
    });
}

#[test]
fn symlinks_keep_any_target() {
    on_both(|dir| {
        let long = "t".repeat(4000);
        for (name, target) in [("short", "x"), ("long", &*long), ("dangling", "../no/such")] {
            symlink(target, dir.join(name)).unwrap();
            assert_eq!(fs::read_link(dir.join(name)).unwrap(), Path::new(target));
            let metadata = fs::symlink_metadata(dir.join(name)).unwrap();
            assert_eq!(metadata.len(), target.len() as u64);
        }
        fs::write(dir.join("x"), "target").unwrap();
        assert_eq!(fs::read_to_string(dir.join("short")).unwrap(), "target");
    });
}

#[test]
fn times_have_nanoseconds() {
    on_both(|dir| {
        let file = dir.join("file");
        fs::write(&file, "x").unwrap();
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 1_234_567_890,
                tv_nsec: 123_456_789,
            },
            last_modification: Timespec {
                tv_sec: 987_654_321,
                tv_nsec: 987_654_321,
            },
        };
        let before = fs::metadata(&file).unwrap();
        utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!(
            (metadata.atime(), metadata.atime_nsec()),
            (1_234_567_890, 123_456_789)
        );
        assert_eq!(
            (metadata.mtime(), metadata.mtime_nsec()),
            (987_654_321, 987_654_321)
        );
        assert!((metadata.ctime(), metadata.ctime_nsec()) >= (before.ctime(), before.ctime_nsec()));
        // Before 1970 and after 2038.
        for seconds in [-1_000_000_000, 4_000_000_000] {
            let moment = Timespec {
                tv_sec: seconds,
                tv_nsec: 5,
            };
            let times = Timestamps {
                last_access: moment,
                last_modification: moment,
            };
            utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
            let metadata = fs::metadata(&file).unwrap();
            assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (seconds, 5));
        }
    });
}

#[test]
fn operations_change_the_right_times() {
    on_both(|dir| {
        let old = Timespec {
            tv_sec: 1000,
            tv_nsec: 0,
        };
        let ancient = Timestamps {
            last_access: old,
            last_modification: old,
        };
        let file = dir.join("file");
        let reset = |path: &Path| utimensat(CWD, path, &ancient, AtFlags::empty()).unwrap();
        fs::write(&file, "x").unwrap();

        reset(dir);
        fs::write(dir.join("new"), "").unwrap();
        assert!(
            fs::metadata(dir).unwrap().mtime() > 1000,
            "create changes the directory"
        );
        reset(dir);
        fs::rename(dir.join("new"), dir.join("newer")).unwrap();
        assert!(
            fs::metadata(dir).unwrap().mtime() > 1000,
            "rename changes the directory"
        );
        reset(dir);
        fs::remove_file(dir.join("newer")).unwrap();
        assert!(
            fs::metadata(dir).unwrap().mtime() > 1000,
            "unlink changes the directory"
        );

        reset(&file);
        File::options()
            .append(true)
            .open(&file)
            .unwrap()
            .write_all(b"y")
            .unwrap();
        assert!(
            fs::metadata(&file).unwrap().mtime() > 1000,
            "write changes the file"
        );
        reset(&file);
        File::options()
            .write(true)
            .open(&file)
            .unwrap()
            .set_len(1)
            .unwrap();
        assert!(
            fs::metadata(&file).unwrap().mtime() > 1000,
            "truncate changes the file"
        );
        reset(&file);
        fs::read(&file).unwrap();
        assert_eq!(
            fs::metadata(&file).unwrap().mtime(),
            1000,
            "read changes no mtime"
        );
    });
}

#[test]
fn names_of_255_bytes_and_no_more() {
    on_both(|dir| {
        let longest = dir.join("n".repeat(255));
        fs::write(&longest, "long").unwrap();
        assert_eq!(fs::read_to_string(&longest).unwrap(), "long");
        let error = fs::write(dir.join("n".repeat(256)), "").unwrap_err();
        assert_eq!(
            error.raw_os_error(),
            Some(rustix::io::Errno::NAMETOOLONG.raw_os_error())
        );
        // Any bytes but NUL and the slash.
        let strange: Vec<u8> = (1..=255u8).filter(|&byte| byte != b'/').collect();
        for part in strange.chunks(100) {
            let path = dir.join(std::ffi::OsStr::from_bytes(part));
            fs::write(&path, part).unwrap();
            assert_eq!(fs::read(&path).unwrap(), part);
        }
        assert_eq!(fs::read_dir(dir).unwrap().count(), 4);
    });
}

#[test]
fn rename_replaces_refuses_and_exchanges() {
    on_both(|dir| {
        let (one, two) = (dir.join("one"), dir.join("two"));
        fs::write(&one, "one").unwrap();
        fs::write(&two, "two").unwrap();
        let refused = renameat_with(CWD, &one, CWD, &two, RenameFlags::NOREPLACE);
        assert_eq!(refused, Err(rustix::io::Errno::EXIST));
        renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read_to_string(&one).unwrap(), "two");
        assert_eq!(fs::read_to_string(&two).unwrap(), "one");
        renameat_with(CWD, &one, CWD, dir.join("three"), RenameFlags::NOREPLACE).unwrap();
        fs::rename(dir.join("three"), &two).unwrap();
        assert_eq!(fs::read_to_string(&two).unwrap(), "two");
        assert!(!one.exists());

        // A file and a directory with content change places.
        fs::create_dir_all(dir.join("tree/deep")).unwrap();
        renameat_with(CWD, dir.join("tree"), CWD, &two, RenameFlags::EXCHANGE).unwrap();
        assert!(two.join("deep").is_dir());
        assert_eq!(fs::read_to_string(dir.join("tree")).unwrap(), "two");

        // Directories: over an empty one, not over a full one, not into themselves.
        fs::create_dir_all(dir.join("empty")).unwrap();
        fs::create_dir_all(dir.join("full/child")).unwrap();
        assert!(fs::rename(dir.join("empty"), dir.join("full")).is_err());
        assert!(fs::rename(dir.join("full"), dir.join("full/child/inside")).is_err());
        fs::rename(dir.join("full"), dir.join("empty")).unwrap();
        assert!(dir.join("empty/child").is_dir());
        assert_eq!(fs::metadata(dir.join("empty")).unwrap().nlink(), 3);
    });
}

#[test]
fn unlinked_files_live_while_open() {
    on_both(|dir| {
        let path = dir.join("file");
        fs::write(&path, "kept").unwrap();
        let mut file = File::options().read(true).write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!path.exists());
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b" on").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut content = String::new();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "kept on");
        // A new file of the same name is another file.
        fs::write(&path, "other").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        content.clear();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "kept on");

        // Replaced by rename while open.
        let mut replaced = File::open(&path).unwrap();
        fs::write(dir.join("next"), "next").unwrap();
        fs::rename(dir.join("next"), &path).unwrap();
        content.clear();
        replaced.read_to_string(&mut content).unwrap();
        assert_eq!(content, "other");

        // A removed directory that is still open has nothing and takes nothing.
        fs::create_dir(dir.join("gone")).unwrap();
        let gone = File::open(dir.join("gone")).unwrap();
        fs::remove_dir(dir.join("gone")).unwrap();
        let made = rustix::fs::openat(&gone, "x", OFlags::CREATE | OFlags::RDWR, Mode::from(0o600));
        assert_eq!(made.unwrap_err(), rustix::io::Errno::NOENT);
    });
}

#[test]
fn unnamed_files_can_get_a_name() {
    on_both(|dir| {
        let unnamed = open(dir, OFlags::TMPFILE | OFlags::RDWR, Mode::from(0o640)).unwrap();
        let mut file = File::from(unnamed);
        file.write_all(b"no name yet").unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        let link = format!("/proc/self/fd/{descriptor}");
        linkat(CWD, &*link, CWD, dir.join("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
        assert_eq!(
            fs::read_to_string(dir.join("named")).unwrap(),
            "no name yet"
        );
        assert_eq!(file.metadata().unwrap().nlink(), 1);

        let never = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL;
        let exclusive = File::from(open(dir, never, Mode::from(0o640)).unwrap());
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&exclusive);
        let link = format!("/proc/self/fd/{descriptor}");
        let refused = linkat(CWD, &*link, CWD, dir.join("never"), AtFlags::SYMLINK_FOLLOW);
        assert_eq!(refused, Err(rustix::io::Errno::NOENT));
    });
}

#[test]
fn appends_of_several_processes_do_not_mix() {
    on_both(|dir| {
        let program = "for i in $(seq 500); do echo \"$0 $i\" >> log; done";
        let mut children: Vec<_> = ["alpha", "beta", "gamma"]
            .into_iter()
            .map(|name| {
                let mut command = Command::new("sh");
                command.args(["-c", program, name]).current_dir(dir);
                command.spawn().unwrap()
            })
            .collect();
        for child in &mut children {
            assert!(child.wait().unwrap().success());
        }
        let log = fs::read_to_string(dir.join("log")).unwrap();
        assert_eq!(log.lines().count(), 1500);
        for name in ["alpha", "beta", "gamma"] {
            let numbers: Vec<usize> = log
                .lines()
                .filter_map(|line| line.strip_prefix(name))
                .map(|rest| rest.trim().parse().unwrap())
                .collect();
            assert_eq!(
                numbers,
                (1..=500).collect::<Vec<_>>(),
                "{name} lost or mixed lines"
            );
        }
    });
}

#[test]
fn ordinary_programs_work() {
    on_both(|dir| {
        let source = dir.join("source");
        fs::create_dir_all(source.join("a/b/c")).unwrap();
        for number in 0..200u32 {
            fs::write(
                source.join(format!("a/b/file-{number}")),
                vec![7; number as usize * 97],
            )
            .unwrap();
        }
        symlink("b/file-3", source.join("a/link")).unwrap();
        succeed(
            Command::new("tar")
                .args(["cf", "all.tar", "source"])
                .current_dir(dir),
        );
        fs::create_dir(dir.join("out")).unwrap();
        succeed(
            Command::new("tar")
                .args(["xf", "all.tar", "-C", "out"])
                .current_dir(dir),
        );
        succeed(
            Command::new("cp")
                .args(["-a", "source", "copy"])
                .current_dir(dir),
        );
        succeed(
            Command::new("diff")
                .args(["-r", "source", "out/source"])
                .current_dir(dir),
        );
        succeed(
            Command::new("diff")
                .args(["-r", "source", "copy"])
                .current_dir(dir),
        );
        succeed(
            Command::new("rm")
                .args(["-r", "source", "copy"])
                .current_dir(dir),
        );
        assert!(!source.exists());
    });
}
