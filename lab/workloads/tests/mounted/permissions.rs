//! Owners, modes, several users, access lists, extended attributes.

use crate::harness::{on_both, succeed};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Two ordinary users that need no entry in the password file.
const ALICE: u32 = 40_001;
const BOB: u32 = 40_002;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Whether a shell command of `user` in `dir` succeeds.
fn can(user: u32, dir: &Path, program: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", program]).current_dir("/").env("D", dir);
    command
        .uid(user)
        .gid(user)
        .output()
        .unwrap()
        .status
        .success()
}

/// A directory where everybody may make files.
fn open_directory(dir: &Path) {
    set_mode(dir, 0o777);
}

#[test]
fn modes_are_enforced_for_several_users() {
    on_both(|dir| {
        open_directory(dir);
        assert!(can(
            ALICE,
            dir,
            "echo secret > $D/mine && chmod 600 $D/mine"
        ));
        assert_eq!(fs::metadata(dir.join("mine")).unwrap().uid(), ALICE);
        assert!(can(ALICE, dir, "cat $D/mine"));
        assert!(!can(BOB, dir, "cat $D/mine"));
        assert!(!can(BOB, dir, "echo x >> $D/mine"));
        assert!(!can(BOB, dir, "chmod 666 $D/mine"));
        assert!(!can(BOB, dir, "chown 40002 $D/mine"));
        assert!(
            !can(ALICE, dir, "chown 40002 $D/mine"),
            "giving files away is for root"
        );
        assert!(can(ALICE, dir, "chmod 644 $D/mine"));
        assert!(can(BOB, dir, "cat $D/mine"));
        // A directory without x cannot be entered, without r not listed.
        assert!(can(
            ALICE,
            dir,
            "mkdir $D/closed && echo x > $D/closed/f && chmod 700 $D/closed"
        ));
        assert!(!can(BOB, dir, "cat $D/closed/f"));
        assert!(can(ALICE, dir, "chmod 711 $D/closed"));
        assert!(can(BOB, dir, "cat $D/closed/f"));
        assert!(!can(BOB, dir, "ls $D/closed"));
        // Times: the owner sets any, a user that may write sets the current time.
        assert!(can(ALICE, dir, "touch -d 2001-01-01 $D/mine"));
        assert!(!can(BOB, dir, "touch -d 2002-01-01 $D/mine"));
    });
}

#[test]
fn sticky_directories_protect_the_files_of_others() {
    on_both(|dir| {
        set_mode(dir, 0o1777);
        assert!(can(ALICE, dir, "echo x > $D/mine"));
        assert!(!can(BOB, dir, "rm -f $D/mine"));
        assert!(!can(BOB, dir, "mv $D/mine $D/yours"));
        assert!(can(BOB, dir, "echo y > $D/other"));
        assert!(!can(BOB, dir, "mv -f $D/other $D/mine"));
        assert!(can(ALICE, dir, "rm -f $D/mine"));
    });
}

#[test]
fn group_bit_of_a_directory_is_inherited() {
    on_both(|dir| {
        chown(dir, None, Some(50_000)).unwrap();
        set_mode(dir, 0o2777);
        assert!(can(ALICE, dir, "mkdir $D/sub && echo x > $D/file"));
        let sub = fs::metadata(dir.join("sub")).unwrap();
        assert_eq!(
            (sub.uid(), sub.gid(), sub.mode() & 0o2000),
            (ALICE, 50_000, 0o2000)
        );
        let file = fs::metadata(dir.join("file")).unwrap();
        assert_eq!(
            (file.uid(), file.gid(), file.mode() & 0o2000),
            (ALICE, 50_000, 0)
        );
    });
}

#[test]
fn writing_clears_the_set_id_bits() {
    on_both(|dir| {
        open_directory(dir);
        let file = dir.join("program");
        let fresh = |mode| {
            fs::write(&file, "0123456789").unwrap();
            chown(&file, Some(ALICE), Some(ALICE)).unwrap();
            set_mode(&file, mode);
        };
        for change in [
            "echo x >> $D/program",
            "truncate -s 3 $D/program",
            ": > $D/program",
        ] {
            fresh(0o6777);
            assert!(can(BOB, dir, change));
            assert_eq!(mode(&file), 0o777, "after `{change}` by another user");
            // Without group execution the bit means mandatory locking and stays.
            fresh(0o2767);
            assert!(can(BOB, dir, change));
            assert_eq!(
                mode(&file) & 0o767,
                0o767,
                "after `{change}` by another user"
            );
        }
        // The superuser keeps them when writing, as on every Linux filesystem.
        fresh(0o6755);
        fs::OpenOptions::new().append(true).open(&file).unwrap();
        assert_eq!(mode(&file), 0o6755);
        // Changing the owner clears them, even for the superuser.
        fresh(0o6755);
        chown(&file, Some(BOB), None).unwrap();
        assert_eq!(mode(&file), 0o755);
        // The owner keeps what the mode says; a foreign group drops the group bit.
        fresh(0o755);
        chown(&file, None, Some(50_000)).unwrap();
        assert!(can(ALICE, dir, "chmod 2755 $D/program"));
        assert_eq!(mode(&file), 0o755, "chmod by an owner outside the group");
    });
}

#[test]
fn extended_attributes_in_all_namespaces() {
    on_both(|dir| {
        let file = dir.join("file");
        fs::write(&file, "x").unwrap();
        let large = vec![7; 2000];
        for (name, value) in [
            ("user.small", &b"value"[..]),
            ("user.large", &large),
            ("user.empty", b""),
            ("trusted.root", b"only"),
            ("security.test", b"label"),
        ] {
            xattr::set(&file, name, value).unwrap();
            assert_eq!(
                xattr::get(&file, name).unwrap().as_deref(),
                Some(value),
                "{name}"
            );
        }
        let mut names: Vec<_> = xattr::list(&file)
            .unwrap()
            .map(|n| n.into_string().unwrap())
            .collect();
        names.sort();
        let expected = [
            "security.test",
            "trusted.root",
            "user.empty",
            "user.large",
            "user.small",
        ];
        assert_eq!(names, expected);
        xattr::set(&file, "user.small", b"other").unwrap();
        assert_eq!(
            xattr::get(&file, "user.small").unwrap().as_deref(),
            Some(&b"other"[..])
        );
        xattr::remove(&file, "user.small").unwrap();
        assert_eq!(xattr::get(&file, "user.small").unwrap(), None);
        assert!(xattr::remove(&file, "user.small").is_err());
        xattr::set(dir, "user.directory", b"too").unwrap();
        assert_eq!(
            xattr::get(dir, "user.directory").unwrap().as_deref(),
            Some(&b"too"[..])
        );
        // Users see no trusted attributes and write none of files that are not theirs.
        open_directory(dir);
        set_mode(&file, 0o644);
        assert!(can(BOB, dir, "getfattr -n user.large $D/file"));
        assert!(!can(BOB, dir, "getfattr -n trusted.root $D/file"));
        assert!(!can(BOB, dir, "setfattr -n user.bob -v 1 $D/file"));
    });
}

fn setfacl(arguments: &[&str], path: &Path) {
    succeed(Command::new("setfacl").args(arguments).arg(path));
}

fn getfacl(path: &Path) -> Vec<String> {
    let printed = succeed(Command::new("getfacl").args(["-cnpE"]).arg(path));
    printed
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn access_lists_are_enforced() {
    on_both(|dir| {
        open_directory(dir);
        let file = dir.join("file");
        fs::write(&file, "x").unwrap();
        set_mode(&file, 0o600);
        assert!(!can(BOB, dir, "cat $D/file"));
        setfacl(&["-m", "u:40002:r"], &file);
        assert!(can(BOB, dir, "cat $D/file"));
        assert!(!can(BOB, dir, "echo y >> $D/file"));
        assert!(!can(ALICE, dir, "cat $D/file"));
        // The group bits of the mode are now the mask.
        assert_eq!(mode(&file), 0o640);
        set_mode(&file, 0o600);
        assert!(
            !can(BOB, dir, "cat $D/file"),
            "the mask takes the right away"
        );
        assert!(getfacl(&file).contains(&"user:40002:r--".to_owned()));
        set_mode(&file, 0o640);
        assert!(can(BOB, dir, "cat $D/file"));
        setfacl(&["-m", "g:40001:rw"], &file);
        assert!(can(ALICE, dir, "echo z >> $D/file"));
        setfacl(&["-b"], &file);
        assert!(!can(BOB, dir, "cat $D/file"));
        assert_eq!(getfacl(&file).len(), 3);
    });
}

#[test]
fn default_access_lists_are_inherited() {
    on_both(|dir| {
        open_directory(dir);
        setfacl(&["-d", "-m", "u:40002:rwx,g::rx,o::-"], dir);
        assert!(can(
            ALICE,
            dir,
            "mkdir $D/sub && echo x > $D/file && mkfifo $D/fifo"
        ));
        let file = getfacl(&dir.join("file"));
        assert!(file.contains(&"user:40002:rwx".to_owned()), "{file:?}");
        assert!(file.contains(&"mask::rw-".to_owned()), "{file:?}");
        assert_eq!(
            mode(&dir.join("file")),
            0o660,
            "the umask does not count here"
        );
        let sub = getfacl(&dir.join("sub"));
        assert!(
            sub.contains(&"default:user:40002:rwx".to_owned()),
            "{sub:?}"
        );
        assert!(sub.contains(&"user:40002:rwx".to_owned()), "{sub:?}");
        assert!(can(BOB, dir, "echo y > $D/sub/deep && echo z >> $D/file"));
        assert!(getfacl(&dir.join("sub/deep")).contains(&"user:40002:rwx".to_owned()));
        assert!(!can(50_001, dir, "cat $D/file"));
    });
}
