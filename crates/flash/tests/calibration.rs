//! The presets come to the figures of the design document's table, within ten percent, in
//! virtual time. Nothing here depends on the speed of the machine.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

#[path = "support/measure.rs"]
mod measure;

use measure::{Figures, figures};
use mobifs_flash::Preset;

#[track_caller]
fn near(what: &str, found: f64, published: f64) {
    let off = found / published - 1.0;
    assert!(
        off.abs() <= 0.1,
        "{what}: {found:.2} instead of {published} ({:+.1} %)",
        off * 100.0
    );
}

fn measured(preset: Preset) -> Figures {
    figures(&preset.config().unwrap())
}

#[test]
fn microsd() {
    let figures = measured(Preset::MicroSd);
    near("sequential read", figures.sequential_read_mb_per_s, 20.0);
    near("sequential write", figures.sequential_write_mb_per_s, 10.0);
    near("random read", figures.random_read_us, 1080.0);
    near("durable write", figures.reliable_write_us, 10_000.0);
    near(
        "durable write without FUA",
        figures.write_and_flush_us,
        10_000.0,
    );
    near("energy of a write", figures.write_mj_per_mb, 8.0);
    near("energy of a read", figures.read_mj_per_mb, 1.3);
}

#[test]
fn emmc51() {
    let figures = measured(Preset::Emmc51);
    near("sequential read", figures.sequential_read_mb_per_s, 250.0);
    near("sequential write", figures.sequential_write_mb_per_s, 125.0);
    near("random read", figures.random_read_us, 90.0);
    near("cached write", figures.cached_write_us, 65.0);
    near("FUA", figures.reliable_write_us, 310.0);
    near("flush of one page", figures.flush_of_little_us, 500.0);
    near(
        "flush of the full cache",
        figures.flush_of_full_cache_us,
        3000.0,
    );
    near("energy of a write", figures.write_mj_per_mb, 6.0);
    near("energy of a read", figures.read_mj_per_mb, 1.0);
}

#[test]
fn ufs31() {
    let figures = measured(Preset::Ufs31);
    near("sequential read", figures.sequential_read_mb_per_s, 2000.0);
    near(
        "sequential write",
        figures.sequential_write_mb_per_s,
        1200.0,
    );
    near("write in TLC", figures.sustained_write_mb_per_s, 500.0);
    near("random read", figures.random_read_us, 80.0);
    near("cached write", figures.cached_write_us, 40.0);
    near("FUA", figures.reliable_write_us, 870.0);
    near("write and flush", figures.write_and_flush_us, 830.0);
    near("energy of a write", figures.write_mj_per_mb, 1.5);
    near("energy of a read", figures.read_mj_per_mb, 0.25);
}
