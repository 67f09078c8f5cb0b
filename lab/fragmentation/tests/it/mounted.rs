//! Mounted filesystems, held against `filefrag`.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, symlink};
use std::process::Command;

use mobifs_fragmentation::{FS_LEVELS, Options, level, page, table};

use crate::disk::{
    Disk, fragments_by_filefrag, interleave, measured, measured_with, perforate, succeed,
};

/// More extents than are asked for at a time.
const MANY: u64 = 600;

fn agrees_with_filefrag(filesystem: &str) {
    let Some(disk) = Disk::new(filesystem, &[], "") else {
        return;
    };
    let path = |name: &str| disk.path().join(name);
    fs::write(path("whole"), vec![1; 3 << 20]).unwrap();
    interleave(&[path("a.db"), path("b.jpg"), path("c.so")], 20, 40 << 10);
    if filesystem == "btrfs" {
        // It cannot take out blocks, and does not keep room for files that grow.
        interleave(&[path("many"), path("many.db")], MANY as usize, 4096);
    } else {
        perforate(&path("many"), MANY);
        perforate(&path("many.db"), MANY);
    }
    let (report, rows) = measured(&disk.path());
    assert_eq!(report.files, 6, "{report:?}");
    let mut levels = [0; FS_LEVELS];
    for (name, row) in &rows {
        let fragments = fragments_by_filefrag(&path(name));
        assert_eq!(row.extents, fragments.len() as u64, "{filesystem}: {name}");
        assert_eq!(
            row.dof, row.extents as f64,
            "{name} is small: one extent would do"
        );
        let mut own = [0; FS_LEVELS];
        for bytes in fragments {
            own[level(bytes)] += 1;
        }
        assert_eq!(row.levels, own, "{filesystem}: {name}");
        if row.dof > 1.0 {
            levels = std::array::from_fn(|level| levels[level] + own[level]);
        }
    }
    assert_eq!(report.fs_levels, levels);
    // The fixture fragments, or the comparison would say little.
    assert!(
        rows["many"].extents > 512,
        "{filesystem}: {}",
        rows["many"].extents
    );
    assert_eq!(rows["many"].kind, "other");
    assert_eq!(report.kinds["sqlite"].files, 2);
    assert_eq!(report.kinds["executable"].files, 1);
    assert_eq!(report.kinds["multimedia"].files, 1);
    let mean = rows.values().map(|row| row.dof).sum::<f64>() / 6.0;
    assert!((report.mean_dof.unwrap() - mean).abs() < 1e-3);
    assert_eq!(
        report.mean_dof_by_kind["sqlite"],
        report.kinds["sqlite"].mean_dof
    );
    let last = report.dof_cdf.last().unwrap();
    assert_eq!(last.share, 1.0);
    assert!(
        report.worth.files >= 2 && report.worth.saved_ms > 0.0,
        "{:?}",
        report.worth
    );
    let is_reported = report.filesystems[0].free.is_some();
    assert_eq!(
        is_reported,
        filesystem != "btrfs",
        "{:?}",
        report.filesystems
    );
    assert_eq!(report.filesystems[0].name, filesystem);
}

#[test]
fn ext4_is_measured_as_filefrag_tells() {
    agrees_with_filefrag("ext4");
}

#[test]
fn xfs_is_measured_as_filefrag_tells() {
    agrees_with_filefrag("xfs");
}

#[test]
fn btrfs_is_measured_as_filefrag_tells() {
    agrees_with_filefrag("btrfs");
}

#[test]
fn peculiar_files_of_ext4_are_no_fragments() {
    let Some(disk) = Disk::new("ext4", &["-O", "inline_data", "-b", "4096"], "") else {
        return;
    };
    let path = |name: &str| disk.path().join(name);
    fs::create_dir(path("inner")).unwrap();
    fs::write(path("inline"), b"hi").unwrap();
    fs::write(path("empty"), b"").unwrap();
    File::create(path("holes"))
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    let sparse = File::create(path("sparse")).unwrap();
    for megabyte in 0..5 {
        sparse.write_all_at(&[1; 4096], megabyte << 20).unwrap();
    }
    sparse.sync_all().unwrap();
    interleave(&[path("grown")], 1, 10_000);
    File::create(path("other")).unwrap();
    // Behind its end, and twice so that it is in two places.
    for (name, at) in [("grown", "12288"), ("other", "0"), ("grown", "8392704")] {
        succeed(
            Command::new("fallocate")
                .args(["-n", "-l", "8M", "-o", at])
                .arg(path(name)),
        );
    }
    fs::hard_link(path("grown"), path("inner/again")).unwrap();
    symlink("grown", path("link")).unwrap();
    symlink("/", path("inner/root")).unwrap();
    // Content that has no place yet.
    fs::write(path("delayed"), vec![7; 1 << 20]).unwrap();
    let (report, rows) = measured(&disk.path());
    let names: Vec<_> = rows.keys().map(String::as_str).collect();
    let grown = if rows.contains_key("grown") {
        "grown"
    } else {
        "again"
    };
    assert_eq!(names.len(), 4, "{names:?}");
    for name in ["inline", "sparse", grown, "delayed"] {
        assert_eq!(rows[name].dof, 1.0, "{name}: {rows:?}");
    }
    assert_eq!((rows["inline"].extents, rows["sparse"].least), (0, 5));
    assert_eq!((rows[grown].extents, rows[grown].fragments), (1, 1));
    assert_eq!(rows[grown].levels[0], 1, "12 KiB of it are before its end");
    let left = &report.left_out;
    assert_eq!(
        (left.empty, left.without_blocks, left.further_links),
        (2, 1, 1),
        "{left:?}"
    );
    assert_eq!((left.no_files, left.unplaced), (2, 0));
    assert_eq!(report.inline_files, 1);
}

#[test]
fn content_without_a_place_is_left_alone_on_request() {
    let Some(disk) = Disk::new("ext4", &[], "") else {
        return;
    };
    fs::write(disk.path().join("delayed"), vec![7; 1 << 20]).unwrap();
    let options = Options {
        may_sync: false,
        ..Options::default()
    };
    // Any other program may sync meanwhile.
    let (outcome, _) = measured_with(&[disk.path()], &options);
    let report = outcome.report;
    assert_eq!(
        report.files + report.left_out.unplaced,
        1,
        "{:?}",
        report.left_out
    );
    assert_eq!(measured(&disk.path()).0.files, 1);
}

#[test]
fn shared_extents_count_once() {
    for filesystem in ["xfs", "btrfs"] {
        let Some(disk) = Disk::new(filesystem, &[], "") else {
            return;
        };
        let path = |name: &str| disk.path().join(name);
        interleave(&[path("first"), path("beside")], 30, 16 << 10);
        succeed(
            Command::new("cp")
                .arg("--reflink=always")
                .args([path("first"), path("second")]),
        );
        succeed(Command::new("sync").arg("-f").arg(disk.path()));
        let (report, rows) = measured(&disk.path());
        assert_eq!(report.files, 3);
        assert_eq!(rows["first"].dof, rows["second"].dof, "{filesystem}");
        assert!(rows["first"].extents > 5, "{filesystem}: {rows:?}");
        assert_eq!(report.all.bytes, 2 * 30 * (16 << 10), "{filesystem}");
        let fragments: u64 = report.fs_levels.iter().sum();
        let expected = rows["first"].fragments + rows["beside"].fragments;
        assert_eq!(fragments, expected, "{filesystem}");
    }
}

#[test]
fn compressed_files_of_btrfs_are_not_taken_for_fragmented() {
    let Some(disk) = Disk::new("btrfs", &[], "compress-force=zstd") else {
        return;
    };
    let path = disk.path().join("log");
    let line = b"the same line again and again, which is compressed very well\n";
    fs::write(&path, line.repeat((4 << 20) / line.len())).unwrap();
    succeed(Command::new("sync").arg("-f").arg(disk.path()));
    assert!(
        fragments_by_filefrag(&path).len() >= 32,
        "it is not compressed"
    );
    let (report, rows) = measured(&disk.path());
    assert_eq!(report.encoded_files, 1);
    assert_eq!(rows["log"].dof, 1.0, "{rows:?}");
}

#[test]
fn nested_subvolumes_and_other_filesystems_are_not_entered() {
    let Some(disk) = Disk::new("btrfs", &[], "") else {
        return;
    };
    let path = |name: &str| disk.path().join(name);
    succeed(
        Command::new("btrfs")
            .args(["subvolume", "create"])
            .arg(path("inner")),
    );
    fs::create_dir(path("other")).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "none"]).arg(path("other"));
    succeed(&mut mount);
    fs::write(path("inner/file"), b"x").unwrap();
    fs::write(path("other/file"), b"x").unwrap();
    fs::write(path("file"), b"x").unwrap();
    let outcome = std::panic::catch_unwind(|| measured(&disk.path()));
    succeed(Command::new("umount").arg(path("other")));
    let (report, _) = outcome.unwrap();
    assert_eq!(report.files, 1);
    assert_eq!(
        (
            report.left_out.subvolumes,
            report.left_out.other_filesystems
        ),
        (1, 1)
    );
    let text = table(&report);
    assert!(text.contains("nested subvolume was not entered"), "{text}");
    assert!(
        text.contains("another filesystem is mounted there"),
        "{text}"
    );
    // Given as a path of its own, it is measured.
    let (outcome, rows) = measured_with(&[disk.path(), path("inner")], &Options::default());
    assert_eq!((outcome.report.files, rows.len()), (2, 1));
    assert_eq!(outcome.report.left_out.subvolumes, 0);
}

#[test]
fn a_page_shows_names_as_they_are() {
    use std::os::unix::ffi::OsStrExt as _;
    let Some(disk) = Disk::new("ext4", &[], "") else {
        return;
    };
    let names: [&[u8]; 3] = [
        b"<script>alert(1)<b>.db",
        b"\xff\xfe\n\x1b[2J",
        b"&quot;\"'",
    ];
    let paths = names.map(|name| disk.path().join(std::ffi::OsStr::from_bytes(name)));
    interleave(&paths, 20, 4096);
    let (outcome, _) = measured_with(&[disk.path()], &Options::default());
    assert_eq!(outcome.report.files, 3);
    let page = page(&outcome).unwrap();
    assert!(!page.contains("<script>alert") && !page.contains('\x1b'));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;b&gt;.db"));
    assert!(page.contains("\\xff\\xfe\\x0a\\x1b[2J"));
    assert!(
        page.contains("data-f=\"0-2\""),
        "each file has pieces in the picture"
    );
    let text = table(&outcome.report);
    assert!(
        text.contains("\\xff\\xfe\\x0a\\x1b[2J") && !text.contains('\x1b'),
        "{text}"
    );
}

#[test]
fn free_room_is_that_of_dumpe2fs() {
    let Some(mut disk) = Disk::new("ext4", &[], "") else {
        return;
    };
    let path = |name: String| disk.path().join(name);
    // More free extents than are asked for at a time.
    perforate(&path("holes".to_owned()), MANY);
    for number in 0..40 {
        fs::write(path(format!("f{number}")), vec![1; 1 << 20]).unwrap();
    }
    succeed(Command::new("sync").arg("-f").arg(disk.path()));
    for number in (0..40).step_by(2) {
        fs::remove_file(path(format!("f{number}"))).unwrap();
    }
    succeed(Command::new("sync").arg("-f").arg(disk.path()));
    let (mounted, of_mount) = measured(&disk.path());
    disk.unmount();
    let (image, of_image) = measured(&disk.image());
    let (mounted, image) = (&mounted.filesystems[0].free, &image.filesystems[0].free);
    let (mounted, image) = (mounted.as_ref().unwrap(), image.as_ref().unwrap());
    assert_eq!(mounted, image);
    assert!(image.extents > 512, "{image:?}");
    assert_eq!(of_mount.len(), 21);
    assert_eq!(of_mount, of_image);
}

/// The free room was looked at first, with the room of these files in it.
#[test]
fn files_that_are_written_out_for_their_places_are_not_free_room() {
    let Some(disk) = Disk::new("ext4", &[], "") else {
        return;
    };
    for number in 0..20 {
        let path = disk.path().join(format!("f{number}"));
        fs::write(path, vec![1; 1 << 20]).unwrap();
    }
    let (first, _) = measured(&disk.path());
    let (second, _) = measured(&disk.path());
    let [first, second] = [first, second].map(|report| report.filesystems[0].free.clone());
    assert!(first.is_some());
    assert_eq!(first, second);
}
