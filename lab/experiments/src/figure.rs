//! Validations as a picture: one row a device, one column an experiment.

use mobifs_charts::{Canvas, Curve, Frame, Legend, PlotError, draw, picture};

use crate::experiment::dispersion::{Access, Dispersion, Series};
use crate::experiment::fragmentation::Fragmentation;
use crate::experiment::persistence::{Persistence, Point};
use crate::validation::Validation;

const PANEL_WIDTH: u32 = 440;
const PANEL_HEIGHT: u32 = 330;
const PANELS: u32 = 3;
const MIB: f64 = 1048576.0;
const KIB: f64 = 1024.0;

/// The picture of several devices, as SVG.
///
/// # Errors
/// The drawing library refuses.
pub fn svg(validations: &[Validation]) -> Result<String, PlotError> {
    let rows = validations.len().max(1);
    picture(PANEL_WIDTH * PANELS, PANEL_HEIGHT * rows as u32, |root| {
        let panels = root.split_evenly((rows, PANELS as usize));
        for (validation, panels) in validations.iter().zip(panels.chunks(PANELS as usize)) {
            if let [left, middle, right] = panels {
                let device = &validation.device;
                draw_fragmentation(left, device, &validation.fragmentation)?;
                draw_dispersion(middle, device, &validation.dispersion)?;
                draw_persistence(right, device, &validation.persistence)?;
            }
        }
        Ok(())
    })
}

fn draw_fragmentation(
    canvas: &Canvas<'_>,
    device: &str,
    result: &Fragmentation,
) -> Result<(), PlotError> {
    let last = result.points.last().map_or(1.0, |point| point.dof);
    let frame = Frame {
        caption: format!("{device}: reading a file (S4 Fig. 9), {:.2}×", result.ratio),
        x_label: "degree of fragmentation",
        y_label: "ms",
        x_is_logarithmic: false,
        legend: Legend::UpperLeft,
    };
    let points = || result.points.iter();
    let curves = [
        Curve::new(
            "one command at a time",
            points().map(|p| (p.dof, p.time_ms)),
        ),
        Curve::new(
            format!("line, R² = {:.3}", result.line.r_squared),
            [1.0, last]
                .map(|dof| (dof, result.line.at(dof)))
                .into_iter(),
        )
        .thin(),
        Curve::new(
            format!("{} queued", result.queue_depth),
            points().map(|p| (p.dof, p.queued_time_ms)),
        ),
    ];
    draw(canvas, &frame, &curves)
}

fn draw_dispersion(
    canvas: &Canvas<'_>,
    device: &str,
    result: &Dispersion,
) -> Result<(), PlotError> {
    let frame = Frame {
        caption: format!("{device}: random 4 KiB in a region (S4 Fig. 13)"),
        x_label: "region, MiB",
        y_label: "slowdown",
        x_is_logarithmic: true,
        legend: Legend::LowerRight,
    };
    let curve = |series: &Series| {
        let points = series.points.iter();
        let points = points.map(|point| (point.region_bytes as f64 / MIB, point.slowdown));
        let curve = Curve::new(series.name.clone(), points);
        if series.access == Access::Read {
            curve.thin()
        } else {
            curve
        }
    };
    let curves: Vec<_> = result.series.iter().map(curve).collect();
    draw(canvas, &frame, &curves)
}

fn draw_persistence(
    canvas: &Canvas<'_>,
    device: &str,
    result: &Persistence,
) -> Result<(), PlotError> {
    let frame = Frame {
        caption: format!("{device}: persisting a commit (S3 Fig. 8)"),
        x_label: "data, KiB",
        y_label: "µs",
        x_is_logarithmic: true,
        legend: Legend::MiddleLeft,
    };
    let curve = |name: &str, time: fn(&Point) -> f64| {
        let points = result.points.iter();
        Curve::new(
            name,
            points.map(|point| (point.bytes as f64 / KIB, time(point))),
        )
    };
    let curves = [
        curve("write, then flush", |point| {
            point.flush_at_end.write_us + point.flush_at_end.flush_us
        }),
        curve("direct (FUA)", |point| point.direct.write_us),
        curve("the flush alone", |point| point.flush_at_end.flush_us).thin(),
    ];
    draw(canvas, &frame, &curves)
}

#[cfg(test)]
mod tests {
    use mobifs_device_model::Preset;

    use super::*;
    use crate::validation::{DeviceUnderTest, Extent, validate};

    #[test]
    fn a_row_for_each_device() {
        let preset = Some(Preset::Emmc51);
        let config = Preset::Emmc51.config().unwrap();
        let device = DeviceUnderTest { config, preset };
        let validation = validate(&device, 1, Extent::Quick).unwrap();
        let picture = svg(&[validation.clone(), validation]).unwrap();
        let size = format!(
            "width=\"{}\" height=\"{}\"",
            PANEL_WIDTH * PANELS,
            PANEL_HEIGHT * 2
        );
        assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
        assert!(picture.contains(&size));
        assert_eq!(picture.matches("emmc51: reading a file").count(), 2);
        assert_eq!(picture.matches("W-128-GC").count(), 2);
    }

    #[test]
    fn no_devices_are_an_empty_picture() {
        assert!(svg(&[]).unwrap().contains("<svg "));
    }
}
