//! Remapping on a served device, beside copying and e4defrag.

use std::process::Command;
use std::time::Duration;

use mobifs_defragmenter::{Mode, Options, Report, defragment};
use mobifs_device_server::{Keep, Reply, Request, rest};
use serde_json::Value;

use crate::disk::{Disk, succeed};

/// The same aged filesystem, on a device of its own each time.
fn aged() -> Option<Disk> {
    let disk = Disk::served(192)?;
    for number in 0..40 {
        disk.write(&format!("film-{number}"), 1 << 20, number);
    }
    let piece = std::env::var("MOBIFS_DEFRAG_PIECE_KIB").map_or(16, |text| text.parse().unwrap());
    disk.interleave(&["a.db", "b.db", "c.db", "d.db"], 200, piece << 10);
    disk.sync();
    Some(disk)
}

fn stats(disk: &Disk) -> Value {
    let Reply::Stats { stats } = disk.ask(&Request::Stats) else {
        panic!("no statistics");
    };
    stats
}

const REST_MAX: Duration = Duration::from_secs(60);

/// Bytes that are programmed while something is done, with what a sync adds.
fn cost(disk: &Disk, work: impl FnOnce() -> Report) -> (u64, Report) {
    succeed(Command::new("sync").arg("-f").arg(disk.path()));
    rest(&disk.image(), REST_MAX).unwrap();
    let before = stats(disk);
    let report = work();
    succeed(Command::new("sync").arg("-f").arg(disk.path()));
    let after = stats(disk);
    println!("{}", accounts(&before, &after));
    let programmed = |stats: &Value| stats["device"]["programmed_bytes"].as_u64().unwrap();
    (programmed(&after) - programmed(&before), report)
}

/// What was programmed for which cause, and the commands.
fn accounts(before: &Value, after: &Value) -> String {
    let since = |of: &dyn Fn(&Value) -> u64| of(after) - of(before);
    let causes = [
        "host",
        "mapping",
        "log",
        "collection",
        "folding",
        "levelling",
    ];
    let causes = causes.map(|cause| {
        let flash =
            |stats: &Value, what: &str| stats["device"]["flash"][cause][what].as_u64().unwrap();
        let (slots, pages) = (
            since(&|stats| flash(stats, "slots_programmed")),
            since(&|stats| flash(stats, "pages_programmed")),
        );
        format!("{cause}: {} KiB in {pages} flash pages", slots * 4)
    });
    let commands = |stats: &Value, kind: &str, what: &str| {
        let all = stats["device"]["commands"].as_array().unwrap();
        let of_kind = all.iter().find(|entry| entry["kind"] == kind);
        of_kind.map_or(0, |entry| entry[what].as_u64().unwrap())
    };
    let kinds = ["write", "reliable_write", "share", "flush"];
    let kinds = kinds.map(|kind| {
        let (count, sectors) = (
            since(&|stats| commands(stats, kind, "commands")),
            since(&|stats| commands(stats, kind, "sectors")),
        );
        format!("{count} {kind} with {} KiB", sectors / 2)
    });
    format!("{}\n  {}", causes.join(", "), kinds.join(", "))
}

#[test]
fn remapping_has_the_same_result_as_copying_and_programs_a_fraction() {
    let Some(mut copied) = aged() else {
        return;
    };
    let content = copied.content();
    let (copy_bytes, copy) = cost(&copied, || copied.defragment(Mode::Copy));
    assert!(copied.content().values().eq(content.values()));
    copied.check();
    copied.end();
    let mut remapped = aged().unwrap();
    let (remap_bytes, remap) = cost(&remapped, || remapped.defragment(Mode::Remap));
    assert!(remapped.content().values().eq(content.values()));
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
    // S4 6.2.2: 98 % fewer flash writes. What remains is one commit of ext4, in whole flash pages, and the
    // device's log.
    assert!(
        remap_bytes * 50 <= copy_bytes,
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
                disk.sync();
            }
            let cut = disk.ask(&Request::Cut {
                keep: Keep::Random { seed },
            });
            assert!(matches!(cut, Reply::Cut { .. }), "{cut:?}");
            run.join().unwrap()
        });
        let said = ended.unwrap_err().to_string();
        assert!(
            // A kernel that has seen the error before the run looks refuses writing.
            said.contains("nothing is lost")
                || said.contains("device")
                || said.contains("is mounted read-only"),
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
    let stats = stats(disk);
    let remaps = &stats["remaps"];
    let number = |name: &str| remaps[name].as_u64().unwrap();
    number("pages_announced") + number("pages_shared")
}
