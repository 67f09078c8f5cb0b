//! Remapping on a served device, beside copying and e4defrag.

use std::process::Command;

use mobifs_defragmenter::{Mode, Options, Report, defragment};
use mobifs_device_server::{Keep, Reply, Request};

use crate::disk::{Disk, succeed};

/// The same aged filesystem, on a device of its own each time.
fn aged() -> Option<Disk> {
    let disk = Disk::served(192)?;
    for number in 0..40 {
        disk.write(&format!("film-{number}"), 1 << 20, number);
    }
    let piece = std::env::var("MOBIFS_DEFRAG_PIECE_KIB").map_or(8, |text| text.parse().unwrap());
    disk.interleave(&["a.db", "b.db", "c.db", "d.db"], 200, piece << 10);
    rustix::fs::sync();
    Some(disk)
}

fn programmed(disk: &Disk) -> u64 {
    let Reply::Stats { stats } = disk.ask(&Request::Stats) else {
        panic!("no statistics");
    };
    stats["device"]["programmed_bytes"].as_u64().unwrap()
}

/// Bytes that are programmed while something is done, with what a sync adds.
fn cost(disk: &Disk, work: impl FnOnce() -> Option<Report>) -> (u64, Option<Report>) {
    succeed(Command::new("sync").arg("-f").arg(disk.path()));
    let before = programmed(disk);
    let report = work();
    succeed(Command::new("sync").arg("-f").arg(disk.path()));
    (programmed(disk) - before, report)
}

#[test]
fn remapping_has_the_same_result_as_copying_and_programs_a_fraction() {
    let Some(mut copied) = aged() else {
        return;
    };
    let content = copied.content();
    let (copy_bytes, copy) = cost(&copied, || Some(copied.defragment(Mode::Copy)));
    assert!(copied.content().values().eq(content.values()));
    copied.check();
    copied.end();
    let mut remapped = aged().unwrap();
    let (remap_bytes, remap) = cost(&remapped, || Some(remapped.defragment(Mode::Remap)));
    assert!(remapped.content().values().eq(content.values()));
    let (copy, remap) = (copy.unwrap(), remap.unwrap());
    let device = remap.device.unwrap();
    println!(
        "DoF {:?} -> copy {:?} ({copy_bytes} bytes programmed), remap {:?} ({remap_bytes}); {device:?}",
        copy.before.mean_dof, copy.after.mean_dof, remap.after.mean_dof
    );
    assert_eq!(copy.after, remap.after);
    assert_eq!(remap.after.fragmented_files, 0, "{remap:?}");
    assert!(
        device.pages_shared * 4096 >= remap.joined_bytes * 99 / 100,
        "{remap:?}"
    );
    assert!(
        remap_bytes * 10 < copy_bytes,
        "{remap_bytes} against {copy_bytes}"
    );
    remapped.check();
    remapped.end();
    // The image has what the device had, in another process's eyes as well.
    remapped.serve(None, None);
    remapped.mount();
    assert!(remapped.content().values().eq(content.values()));
    remapped.end();
}

/// The device loses power while files are being remapped: a sentence, and nothing is lost.
#[test]
fn a_device_that_is_cut_meanwhile_loses_nothing() {
    for seed in 0..2 {
        let Some(mut disk) = aged() else {
            return;
        };
        let content = disk.content();
        let options = Options {
            mode: Mode::Remap,
            takes_all: true,
            // So slow that the cut comes before the end.
            rate_bytes: Some(1 << 20),
            ..Options::default()
        };
        let paths = [disk.path()];
        let ended = std::thread::scope(|scope| {
            let run = scope.spawn(|| defragment(&paths, &options, &|| false));
            while announced(&disk) == 0 && !run.is_finished() {
                std::thread::yield_now();
            }
            if seed % 2 == 1 {
                rustix::fs::sync();
            }
            let cut = disk.ask(&Request::Cut {
                keep: Keep::Random { seed },
            });
            assert!(matches!(cut, Reply::Cut { .. }), "{cut:?}");
            run.join().unwrap()
        });
        let said = ended.unwrap_err().to_string();
        assert!(
            said.contains("nothing is lost") || said.contains("device"),
            "{said}"
        );
        disk.unmount();
        let powered = disk.ask(&Request::PowerOn);
        assert!(matches!(powered, Reply::PoweredOn { .. }), "{powered:?}");
        disk.mount();
        assert!(disk.content() == content, "seed {seed}");
        disk.check();
        disk.mount();
        // And it can go on.
        assert_eq!(disk.defragment(Mode::Remap).after.fragmented_files, 0);
        assert!(disk.content() == content, "seed {seed}");
        disk.check();
        disk.end();
    }
}

fn announced(disk: &Disk) -> u64 {
    let Reply::Stats { stats } = disk.ask(&Request::Stats) else {
        panic!("no statistics");
    };
    let remaps = &stats["remaps"];
    let number = |name: &str| remaps[name].as_u64().unwrap();
    number("pages_announced") + number("pages_shared")
}
