//! f2fs, in the guest that `make frag-f2fs` boots: kernels that are built for servers have none.

use std::fs;
use std::process::Command;

use mobifs_defragmenter::Mode;
use mobifs_fragmentation::{Options, measure};

use crate::disk::{Disk, succeed};

fn disk() -> Disk {
    Disk::plain("f2fs", 128, &["-f"]).expect("an f2fs can be made and mounted")
}

#[test]
#[ignore = "takes a kernel with f2fs: make frag-f2fs"]
fn an_f2fs_is_measured_as_filefrag_does() {
    let disk = disk();
    disk.interleave(&["a.db", "b.db", "c.db"], 40, 8192);
    rustix::fs::sync();
    for name in ["a.db", "b.db", "c.db"] {
        let path = disk.path().join(name);
        let said = succeed(Command::new("filefrag").arg(&path));
        let theirs: u64 = said
            .rsplit(": ")
            .next()
            .and_then(|rest| rest.split(' ').next())
            .and_then(|number| number.parse().ok())
            .unwrap();
        let measured = measure(&[path], &Options::default(), None, &|_| {}).unwrap();
        assert_eq!(measured.report.all.extents, theirs, "{said}");
        assert!(theirs > 5, "{said}");
        assert_eq!(measured.report.filesystems[0].name, "f2fs");
        assert!(measured.report.filesystems[0].free.is_none());
    }
}

#[test]
#[ignore = "takes a kernel with f2fs: make frag-f2fs"]
fn an_f2fs_is_defragmented_by_its_own_request() {
    let mut disk = disk();
    disk.interleave(&["a.db", "b.db", "b.db-journal", "c.db"], 60, 8192);
    rustix::fs::sync();
    let content = disk.content();
    let report = disk.defragment(Mode::Copy);
    println!("{report:?}");
    assert!(disk.content() == content);
    assert!(report.before.mean_dof > Some(5.0), "{report:?}");
    assert!(report.moves >= 3, "{report:?}");
    let pieces = |name: &str| {
        let path = disk.path().join(name);
        let measured = measure(&[path], &Options::default(), None, &|_| {}).unwrap();
        measured.report.all.extents
    };
    assert!(pieces("b.db-journal") > 5, "journals stay");
    for name in ["a.db", "b.db", "c.db"] {
        assert!(pieces(name) <= 2, "{name}: {} {report:?}", pieces(name));
    }
    // What is there is durable.
    disk.unmount();
    succeed(Command::new("fsck.f2fs").arg("--dry-run").arg(disk.image()));
    assert!(disk.mount_loop());
    assert!(disk.content() == content);
    assert_eq!(
        fs::metadata(disk.path().join("a.db")).unwrap().len(),
        60 * 8192
    );
}
