//! A characterisation, as text and as a section of a page.

use std::fmt::Write as _;

use mobifs_charts::{Bars, Curve, Frame, Legend, PlotError, Table, bar_chart, draw, picture};

use super::html::Section;
use crate::distribution::Distribution;
use crate::figures::{Characterisation, CommitTimes, Jbd2Figures, MobifsFigures, Modification};
use crate::published;

/// A row: what, measured, published.
type Row = (String, String, &'static str);

/// As a table with the published values.
#[must_use]
pub fn text(found: &Characterisation) -> String {
    let mut text = format!("{}\n\n", found.source);
    for (title, rows) in groups(found) {
        // Writing to a string cannot fail.
        let _written = writeln!(text, "{title:<50} {:>34}   S3", "here");
        for (what, here, published) in rows {
            let _written = writeln!(text, "  {what:<48} {here:>34}   {published}");
        }
        text.push('\n');
    }
    text
}

fn groups(found: &Characterisation) -> Vec<(&'static str, Vec<Row>)> {
    let mut groups = Vec::new();
    let mut first = calls(found);
    if !first.is_empty() {
        first.extend(device(found));
        groups.push(("Programs and device", first));
    }
    // Of the ext4 below a mount of MobiFS nothing is said where it committed nothing.
    let ext4 = found.ext4.as_ref().filter(|ext4| {
        let has_commits = ext4.commits + ext4.fast_commits + ext4.incomplete > 0;
        has_commits || found.mobifs.is_none()
    });
    if let Some(figures) = ext4 {
        groups.push(("Journal of ext4 (JBD2)", jbd2(figures)));
        if !figures.kinds.is_empty() {
            groups.push(("Its journaled blocks", kinds(figures)));
        }
    }
    if let Some(figures) = &found.mobifs {
        groups.push(("Journal of MobiFS", mobifs(figures)));
    }
    groups
}

fn row(what: &str, here: String, published: &'static str) -> Row {
    (what.to_owned(), here, published)
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn spread(found: Option<&Distribution>, unit: &str) -> String {
    found.map_or_else(
        || "–".to_owned(),
        |found| {
            format!(
                "{:.1}{unit} (10 % {:.0}, 50 % {:.0}, 90 % {:.0})",
                found.mean, found.p10, found.p50, found.p90
            )
        },
    )
}

fn ratios(found: &Distribution) -> String {
    format!(
        "{} (10 % {}, 90 % {})",
        percent(found.mean),
        percent(found.p10),
        percent(found.p90)
    )
}

fn calls(found: &Characterisation) -> Vec<Row> {
    let Some(calls) = &found.calls else {
        return Vec::new();
    };
    let counted =
        |value: Option<String>| value.unwrap_or_else(|| "not counted: no strace".to_owned());
    vec![
        row("seconds", format!("{:.2}", calls.seconds), ""),
        row(
            "fsyncs",
            counted(calls.syncs.map(|syncs| syncs.to_string())),
            "",
        ),
        row(
            "fsyncs in 5 s (Table 3)",
            counted(calls.syncs_in_5_seconds.map(|syncs| format!("{syncs:.1}"))),
            published::SYNCS,
        ),
    ]
}

fn device(found: &Characterisation) -> Vec<Row> {
    let Some(device) = &found.device else {
        return Vec::new();
    };
    let mib = |bytes: u64| format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20));
    vec![
        row(
            "writes, flushes",
            format!("{}, {}", device.writes, device.flushes),
            "",
        ),
        row("written", mib(device.written_bytes), ""),
        row(
            "of these to ext4's journal",
            mib(device.journal_written_bytes),
            "",
        ),
    ]
}

fn jbd2(figures: &Jbd2Figures) -> Vec<Row> {
    let features = &figures.features;
    let mut rows = vec![
        row("transactions", figures.commits.to_string(), ""),
        row(
            "log",
            format!(
                "{} blocks of {} bytes",
                figures.log_blocks, figures.block_bytes
            ),
            "",
        ),
        row(
            "checksums",
            format!("{:?}", features.checksum).to_lowercase(),
            "",
        ),
        row(
            "metadata blocks in a transaction",
            spread(figures.logged_per_commit.as_ref(), ""),
            published::LOGGED_PER_COMMIT,
        ),
        row(
            "R_control (Table 3)",
            figures
                .control_ratio
                .map_or_else(|| "–".to_owned(), percent),
            published::CONTROL,
        ),
        row(
            "descriptor and revoke blocks",
            format!("{}, {}", figures.descriptor_blocks, figures.revoke_blocks),
            "",
        ),
        row(
            "bytes changed by a transaction (Fig. 9)",
            spread(figures.changed_bytes_per_commit.as_ref(), ""),
            "",
        ),
    ];
    if features.fast_commit {
        let fast = format!(
            "{} in {} blocks",
            figures.fast_commits, figures.fast_commit_blocks
        );
        rows.push(row("fast commits, not counted above", fast, ""));
    }
    if let Some(modification) = &figures.modification {
        rows.extend(modified(modification));
    }
    if let Some(ratio) = &figures.commit_time_ratio {
        rows.push(row(
            "R_commit (Fig. 7)",
            ratios(ratio),
            published::COMMIT_TIME,
        ));
    }
    if let Some(times) = &figures.times {
        rows.push(row(
            "ms: data, log, flush, commit block, flush",
            times_text(times),
            "",
        ));
    }
    if figures.incomplete > 0 || figures.damaged_blocks > 0 {
        let left = format!("{}, {}", figures.incomplete, figures.damaged_blocks);
        rows.push(row("not whole, and left out; damaged blocks", left, ""));
    }
    rows
}

fn times_text(times: &CommitTimes) -> String {
    format!(
        "{:.2}, {:.2}, {:.2}, {:.2}, {:.2}",
        times.data_ms,
        times.log_ms,
        times.flush_before_ms,
        times.commit_block_ms,
        times.flush_after_ms
    )
}

fn modified(modification: &Modification) -> Vec<Row> {
    let mut rows = vec![
        row(
            "R_meta: blocks changed by less than 1 % (Fig. 6)",
            percent(modification.below_1_percent),
            published::BELOW_1_PERCENT,
        ),
        row(
            "bytes changed in a block",
            spread(Some(&modification.changed_bytes), ""),
            "less than 40 mostly",
        ),
    ];
    if modification.unknown_blocks > 0 {
        let unknown = format!(
            "{} of {}",
            modification.unknown_blocks,
            modification.unknown_blocks + modification.blocks
        );
        rows.push(row("blocks without a known earlier version", unknown, ""));
    }
    rows
}

fn kinds(figures: &Jbd2Figures) -> Vec<Row> {
    let kinds = figures.kinds.iter().map(|kind| {
        let changed = kind.changed_bytes_mean.map_or_else(
            || "no earlier version".to_owned(),
            |bytes| format!("{bytes:.1} bytes changed"),
        );
        row(kind.kind.name(), format!("{} ({changed})", kind.blocks), "")
    });
    kinds.collect()
}

fn mobifs(figures: &MobifsFigures) -> Vec<Row> {
    if figures.commits == 0 {
        let applied = "empty: everything is applied".to_owned();
        return vec![
            row("transactions", figures.commits.to_string(), ""),
            row("epoch in force", applied, ""),
        ];
    }
    let share = |bytes: u64| {
        let whole = figures.journal_bytes.max(1) as f64;
        format!("{bytes} bytes, {}", percent(bytes as f64 / whole))
    };
    let mut rows = vec![
        row("transactions", figures.commits.to_string(), ""),
        row(
            "blocks of a transaction",
            spread(figures.blocks_per_commit.as_ref(), ""),
            "",
        ),
        row(
            "control bytes of those that are not padding",
            figures
                .control_ratio
                .map_or_else(|| "–".to_owned(), percent),
            published::CONTROL,
        ),
        row("changed content", share(figures.content_bytes), ""),
        row("attributes and names", share(figures.metadata_bytes), ""),
        row("control", share(figures.control_bytes), ""),
        row("padding", share(figures.padding_bytes), ""),
        row(
            "bytes changed by a transaction (Fig. 9)",
            spread(figures.changed_bytes_per_commit.as_ref(), ""),
            "",
        ),
        row(
            "pages journaled, whole",
            format!("{}, {}", figures.pages, figures.whole_pages),
            "",
        ),
        row(
            "content written to its place first",
            format!("{} bytes", figures.direct_bytes),
            "",
        ),
    ];
    if let Some(commit) = &figures.commit_ms {
        rows.push(row(
            "ms of a commit at the device",
            format!("{:.2}, 99 % {:.2}", commit.mean, commit.p99),
            "",
        ));
    }
    if let Some(ratio) = figures.flush_ratio {
        rows.push(row("share of its flush", percent(ratio), ""));
    }
    rows
}

/// As a section of a page, with figures.
///
/// # Errors
/// The drawing library refuses.
pub fn section(found: &Characterisation) -> Result<Section, PlotError> {
    let mut figures = Vec::new();
    if let Some(modification) = found
        .ext4
        .as_ref()
        .and_then(|ext4| ext4.modification.as_ref())
    {
        figures.push(curve(found, modification)?);
    }
    figures.push(control(found)?);
    let mut tables = Vec::new();
    for (title, rows) in groups(found) {
        let mut table = Table::new(title, &["", "here", "S3"]);
        table.rows = rows
            .into_iter()
            .map(|(what, here, published)| vec![what, here, published.to_owned()])
            .collect();
        tables.push(table);
    }
    Ok(Section {
        title: found.source.clone(),
        text: Vec::new(),
        figures,
        tables,
    })
}

fn curve(
    found: &Characterisation,
    modification: &Modification,
) -> Result<(String, String), PlotError> {
    let points = |cdf: &[(f64, f64)]| -> Vec<(f64, f64)> {
        cdf.iter()
            .map(|(percent, share)| (*percent, share * 100.0))
            .collect()
    };
    let mut curves = vec![Curve::new(
        "blocks in ext4's journal",
        points(&modification.cdf).into_iter(),
    )];
    if let Some(mobifs) = found
        .mobifs
        .as_ref()
        .filter(|mobifs| !mobifs.page_cdf.is_empty())
    {
        curves.push(Curve::new(
            "pages in MobiFS's journal",
            points(&mobifs.page_cdf).into_iter(),
        ));
    }
    curves.push(Curve::new("S3: more than 80 % below 1 %", [(1.0, 80.0)].into_iter()).dots());
    let frame = Frame {
        caption: "How much of a block a transaction changes (S3 Fig. 6)".to_owned(),
        x_label: "percent of the block, at most",
        y_label: "percent of blocks",
        x_is_logarithmic: true,
        legend: Legend::LowerRight,
    };
    let svg = picture(760, 360, |canvas| draw(canvas, &frame, &curves))?;
    let caption = format!(
        "{} blocks compared with their earlier version.",
        modification.blocks
    );
    Ok((svg, caption))
}

fn control(found: &Characterisation) -> Result<(String, String), PlotError> {
    let mut categories: Vec<String> = published::APPS
        .iter()
        .map(|app| app.name.to_owned())
        .collect();
    let mut theirs: Vec<Option<f64>> = published::APPS
        .iter()
        .map(|app| Some(app.control_percent))
        .collect();
    let mut here: Vec<Option<f64>> = vec![None; categories.len()];
    let ext4 = found.ext4.as_ref().and_then(|ext4| ext4.control_ratio);
    let mobifs = found
        .mobifs
        .as_ref()
        .and_then(|mobifs| mobifs.control_ratio);
    for (name, ratio) in [("here, ext4", ext4), ("here, MobiFS (bytes)", mobifs)] {
        let Some(ratio) = ratio else { continue };
        categories.push(name.to_owned());
        theirs.push(None);
        here.push(Some(ratio * 100.0));
    }
    let bars = Bars {
        categories,
        series: vec![("S3".to_owned(), theirs), ("here".to_owned(), here)],
    };
    let svg = bar_chart(
        760,
        "Control information of journal writes (S3 Table 3)".to_owned(),
        "percent",
        Legend::UpperRight,
        &bars,
    )?;
    let syncs: Vec<String> = published::APPS
        .iter()
        .filter_map(|app| Some(format!("{} {}", app.name, app.syncs?)))
        .collect();
    Ok((svg, format!("Fsyncs in 5 s in S3: {}.", syncs.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing;

    #[test]
    fn an_ext4_that_committed_nothing_below_mobifs_is_left_out() {
        let (ext4, _) = fuzzing::read(&fuzzing::seeds()[0]).unwrap();
        let empty = Jbd2Figures {
            commits: 0,
            kinds: Vec::new(),
            ..ext4.clone()
        };
        let of = |ext4, mobifs| Characterisation {
            ext4: Some(ext4),
            mobifs,
            ..Characterisation::default()
        };
        let mobifs = || Some(MobifsFigures::default());
        let has_ext4 = |found| text(&found).contains("Journal of ext4");
        assert!(!has_ext4(of(empty.clone(), mobifs())));
        assert!(has_ext4(of(ext4, mobifs())) && has_ext4(of(empty.clone(), None)));
        assert!(!text(&of(empty, None)).contains("Its journaled blocks"));
    }
}
