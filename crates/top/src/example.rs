//! A status for tests.

use mobifs_volume::{AppReport, Status};

/// The status of docs/STATUS.md with these apps: names and bytes at risk.
pub(crate) fn status(apps: &[(&str, u64)]) -> Status {
    let document = include_str!("../../../docs/STATUS.md");
    let example = document.split("```json\n").nth(1).unwrap();
    let mut status: Status = serde_json::from_str(example.split("```").next().unwrap()).unwrap();
    let app = status.apps.remove(0);
    let apps = apps.iter().map(|&(name, bytes_at_risk)| AppReport {
        name: name.to_owned(),
        bytes_at_risk,
        ..app.clone()
    });
    status.apps = apps.collect();
    status
}
