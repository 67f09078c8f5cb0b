//! What S3 and S2 publish, to stand beside what is measured.

/// R_control in percent and fsyncs in 5 s of an app: Table 3 of S3.
#[derive(Clone, Copy, Debug)]
pub(crate) struct App {
    pub(crate) name: &'static str,
    pub(crate) control_percent: f64,
    /// None where the excerpt has lost which of 3, 3 and 4 belongs to which.
    pub(crate) syncs: Option<u32>,
}

const fn app(name: &'static str, control_percent: f64, syncs: Option<u32>) -> App {
    App {
        name,
        control_percent,
        syncs,
    }
}

/// Table 3 of S3.
pub(crate) const APPS: [App; 8] = [
    app("Facebook", 32.8, Some(42)),
    app("Chrome", 26.5, Some(41)),
    app("Google Map", 37.1, Some(25)),
    app("Twitter", 19.9, Some(9)),
    app("Angry Birds", 23.3, Some(1)),
    app("Gmail", 22.8, None),
    app("Netflix", 19.0, None),
    app("Amazon", 17.2, None),
];

/// S3 III: values of all apps, as sentences of a table.
pub(crate) const BELOW_1_PERCENT: &str = "more than 80 %";
pub(crate) const LOGGED_PER_COMMIT: &str = "3.3";
pub(crate) const CONTROL: &str = "17.2 to 37.1 %";
pub(crate) const SYNCS: &str = "1 to 42";
pub(crate) const COMMIT_TIME: &str = "30 to 60 %";
