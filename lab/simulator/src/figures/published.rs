//! What S0 measured, to be drawn beside ours (§7, Figures 6, 8, 9 and 13).

/// One app of S0's evaluation.
pub(super) struct PublishedApp {
    /// S0's abbreviation.
    pub(super) name: &'static str,
    /// KB a second that ext4 flushed.
    pub(super) ext4_kb_per_second: f64,
    /// KB a second that MobiFS flushed.
    pub(super) mobifs_kb_per_second: f64,
    /// Mean time between checkpoints, in seconds.
    pub(super) interval_seconds: f64,
}

const fn app(name: &'static str, ext4: f64, mobifs: f64, interval_seconds: f64) -> PublishedApp {
    PublishedApp {
        name,
        ext4_kb_per_second: ext4,
        mobifs_kb_per_second: mobifs,
        interval_seconds,
    }
}

/// The ten apps, five users each for five minutes.
pub(super) const APPS: [PublishedApp; 10] = [
    app("FB", 23.7, 15.0, 18.4),
    app("PA", 3.24, 1.27, 119.4),
    app("AB", 7.83, 5.18, 38.0),
    app("NF", 39.0, 37.6, 5.5),
    app("TT", 462.9, 22.8, 10.5),
    app("GM", 52.0, 23.8, 14.9),
    app("FL", 35.7, 27.7, 9.2),
    app("WB", 10.9, 10.3, 31.8),
    app("CR", 6.67, 6.03, 6.7),
    app("WC", 7.29, 1.63, 34.2),
];

/// Growth of memory without a flush, in KB a second: ext4's page cache, MobiFS (Fig. 5).
pub(super) const FOOTPRINT_KB_PER_SECOND: (f64, f64) = (25.6, 35.8);
/// In the worst of its apps with versions (§7.2).
pub(super) const FOOTPRINT_WORST_KB_PER_SECOND: f64 = 100.5;
