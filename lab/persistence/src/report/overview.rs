//! Several characterisations beside each other and beside S3's apps.

use mobifs_charts::{Bars, Curve, Frame, Legend, PlotError, Table, bar_chart, draw, picture};

use super::characterisation::percent;
use super::html::Section;
use crate::figures::Characterisation;
use crate::published;

/// A table with a row for each, with S3's apps, and figures of R_meta, R_control and R_commit.
///
/// # Errors
/// The drawing library refuses.
pub fn overview(title: &str, found: &[Characterisation]) -> Result<Section, PlotError> {
    let mut figures = vec![(
        modification(found)?,
        "R_meta. A point is S3's statement of all its apps.".to_owned(),
    )];
    figures.push((
        control(found)?,
        "R_control; of MobiFS in bytes, since it has no control blocks.".to_owned(),
    ));
    let ratios = found.iter().filter_map(|one| {
        let ratio = one.ext4.as_ref()?.commit_time_ratio?;
        Some((one.source.clone(), ratio.mean * 100.0))
    });
    let (names, means): (Vec<String>, Vec<f64>) = ratios.unzip();
    if !names.is_empty() {
        let bars = Bars {
            categories: names,
            series: vec![("R_commit".to_owned(), means.into_iter().map(Some).collect())],
        };
        let caption =
            "Share of the commit block in the time of a commit (S3 Fig. 7: 30 to 60 %)".to_owned();
        let svg = bar_chart(760, caption, "percent", Legend::UpperRight, &bars)?;
        figures.push((
            svg,
            "R_commit of ext4, by the times of the device's commands.".to_owned(),
        ));
    }
    Ok(Section {
        title: title.to_owned(),
        text: Vec::new(),
        figures,
        tables: vec![table(found)],
    })
}

fn table(found: &[Characterisation]) -> Table {
    let head = [
        "program",
        "commits",
        "R_control",
        "fsyncs in 5 s",
        "metadata blocks a commit",
        "changed below 1 %",
        "bytes changed a commit",
        "R_commit",
    ];
    let mut table = Table::new("S3 Table 3 and III: published, and here", &head);
    let missing = || "–".to_owned();
    for app in published::APPS {
        let syncs = app
            .syncs
            .map_or_else(|| "3 or 4".to_owned(), |syncs| syncs.to_string());
        let control = format!("{:.1} %", app.control_percent);
        let mut row = vec![format!("S3: {}", app.name), missing(), control, syncs];
        row.resize_with(head.len(), missing);
        table.rows.push(row);
    }
    for one in found {
        let syncs = one
            .calls
            .as_ref()
            .and_then(|calls| calls.syncs_in_5_seconds);
        let syncs = syncs.map_or_else(missing, |syncs| format!("{syncs:.1}"));
        if let Some(mobifs) = &one.mobifs {
            let changed = mobifs.changed_bytes_per_commit;
            table.rows.push(vec![
                format!("{}: MobiFS", one.source),
                mobifs.commits.to_string(),
                mobifs
                    .control_ratio
                    .map_or_else(missing, |ratio| format!("{} of bytes", percent(ratio))),
                syncs.clone(),
                mobifs
                    .blocks_per_commit
                    .map_or_else(missing, |blocks| format!("{:.2} in all", blocks.mean)),
                missing(),
                changed.map_or_else(missing, |changed| format!("{:.0}", changed.mean)),
                missing(),
            ]);
        }
        if let Some(ext4) = &one.ext4 {
            let below = ext4
                .modification
                .as_ref()
                .map(|found| found.below_1_percent);
            table.rows.push(vec![
                format!("{}: ext4", one.source),
                ext4.commits.to_string(),
                ext4.control_ratio.map_or_else(missing, percent),
                syncs,
                ext4.logged_per_commit
                    .map_or_else(missing, |blocks| format!("{:.1}", blocks.mean)),
                below.map_or_else(missing, percent),
                ext4.changed_bytes_per_commit
                    .map_or_else(missing, |changed| format!("{:.0}", changed.mean)),
                ext4.commit_time_ratio
                    .map_or_else(missing, |ratio| percent(ratio.mean)),
            ]);
        }
    }
    table
}

fn modification(found: &[Characterisation]) -> Result<String, PlotError> {
    let curves = found.iter().filter_map(|one| {
        let modification = one.ext4.as_ref()?.modification.as_ref()?;
        let points = modification
            .cdf
            .iter()
            .map(|(percent, share)| (*percent, share * 100.0));
        Some(Curve::new(one.source.clone(), points).thin())
    });
    let mut curves: Vec<Curve> = curves.collect();
    curves.push(Curve::new("S3: more than 80 % below 1 %", [(1.0, 80.0)].into_iter()).dots());
    let frame = Frame {
        caption: "How much of a metadata block a transaction changes (S3 Fig. 6)".to_owned(),
        x_label: "percent of the block, at most",
        y_label: "percent of blocks",
        x_is_logarithmic: true,
        legend: Legend::LowerRight,
    };
    picture(760, 420, |canvas| draw(canvas, &frame, &curves))
}

fn control(found: &[Characterisation]) -> Result<String, PlotError> {
    let mut categories: Vec<String> = published::APPS
        .iter()
        .map(|app| format!("S3: {}", app.name))
        .collect();
    let mut series = [
        (
            "S3",
            published::APPS
                .iter()
                .map(|app| Some(app.control_percent))
                .collect::<Vec<_>>(),
        ),
        ("ext4", vec![None; categories.len()]),
        ("MobiFS", vec![None; categories.len()]),
    ];
    for one in found {
        categories.push(one.source.clone());
        let ext4 = one.ext4.as_ref().and_then(|ext4| ext4.control_ratio);
        let mobifs = one.mobifs.as_ref().and_then(|mobifs| mobifs.control_ratio);
        for ((_, values), value) in series.iter_mut().zip([None, ext4, mobifs]) {
            values.push(value.map(|value| value * 100.0));
        }
    }
    let bars = Bars {
        categories,
        series: series
            .map(|(name, values)| (name.to_owned(), values))
            .to_vec(),
    };
    let caption = "Control information of journal writes (S3 Table 3)".to_owned();
    bar_chart(760, caption, "percent", Legend::UpperRight, &bars)
}
