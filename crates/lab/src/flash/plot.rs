//! Validations as a picture: one row a device, one column an experiment.

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use thiserror::Error;

use super::experiment::dispersion::{Access, Dispersion, Series};
use super::experiment::fragmentation::Fragmentation;
use super::experiment::persistence::{Persistence, Point};
use super::validation::Validation;

const PANEL_WIDTH: u32 = 440;
const PANEL_HEIGHT: u32 = 330;
const PANELS: u32 = 3;
const FONT: &str = "sans-serif";
const CAPTION_POINTS: i32 = 15;
const LABEL_POINTS: i32 = 12;
/// Room above the highest value.
const HEADROOM: f64 = 1.1;
/// Told apart by people who do not see all colours (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];
const MIB: f64 = 1048576.0;
const KIB: f64 = 1024.0;

/// A picture that could not be drawn.
#[derive(Debug, Error)]
#[error("the plot cannot be drawn: {0}")]
pub struct PlotError(String);

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A curve with its name and how it is drawn.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
    is_thin: bool,
}

impl Curve {
    fn new(name: impl Into<String>, points: impl Iterator<Item = (f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points: points.collect(),
            is_thin: false,
        }
    }

    const fn thin(mut self) -> Self {
        self.is_thin = true;
        self
    }
}

/// What stands around the curves.
struct Frame {
    caption: String,
    x_label: &'static str,
    y_label: &'static str,
    x_is_logarithmic: bool,
    legend: SeriesLabelPosition,
}

/// The picture of several devices, as SVG.
///
/// # Errors
/// The drawing library refuses.
pub fn svg(validations: &[Validation]) -> Result<String, PlotError> {
    let rows = validations.len().max(1);
    let mut text = String::new();
    {
        let size = (PANEL_WIDTH * PANELS, PANEL_HEIGHT * rows as u32);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        drawn(root.fill(&WHITE))?;
        let panels = root.split_evenly((rows, PANELS as usize));
        for (validation, panels) in validations.iter().zip(panels.chunks(PANELS as usize)) {
            if let [left, middle, right] = panels {
                let device = &validation.device;
                draw_fragmentation(left, device, &validation.fragmentation)?;
                draw_dispersion(middle, device, &validation.dispersion)?;
                draw_persistence(right, device, &validation.persistence)?;
            }
        }
        drawn(root.present())?;
    }
    Ok(text)
}

fn drawn<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, PlotError> {
    result.map_err(|error| PlotError(error.to_string()))
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
        legend: SeriesLabelPosition::UpperLeft,
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
        legend: SeriesLabelPosition::LowerRight,
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
        legend: SeriesLabelPosition::MiddleLeft,
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

/// Least and greatest of finite values; none without any.
fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values
        .filter(|value| value.is_finite())
        .fold(None, |found, value| {
            let (least, most) = found.unwrap_or((value, value));
            Some((least.min(value), most.max(value)))
        })
}

fn draw(canvas: &Canvas<'_>, frame: &Frame, curves: &[Curve]) -> Result<(), PlotError> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (Some((x_least, x_most)), Some((_, y_most))) =
        (extent(points().map(|p| p.0)), extent(points().map(|p| p.1)))
    else {
        return Ok(());
    };
    let mut builder = ChartBuilder::on(canvas);
    builder
        .caption(&frame.caption, (FONT, CAPTION_POINTS))
        .margin(10)
        .x_label_area_size(38)
        .y_label_area_size(64);
    let y = 0.0..(y_most * HEADROOM).max(f64::MIN_POSITIVE);
    // An axis has some length even for one point.
    let x_most = if x_most > x_least {
        x_most
    } else {
        x_least + 1.0
    };
    if frame.x_is_logarithmic {
        let x = (x_least..x_most).log_scale().base(2.0);
        fill(drawn(builder.build_cartesian_2d(x, y))?, frame, curves)
    } else {
        fill(
            drawn(builder.build_cartesian_2d(0.0..x_most, y))?,
            frame,
            curves,
        )
    }
}

/// Draws axes, curves and legend.
fn fill<'a, X>(
    mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, RangedCoordf64>>,
    frame: &Frame,
    curves: &[Curve],
) -> Result<(), PlotError>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    const LEGEND_LENGTH: i32 = 18;
    // Above this an axis needs no decimals.
    const MANY: f64 = 10.0;
    let y_most = chart.y_range().end;
    let mesh = chart
        .configure_mesh()
        .x_desc(frame.x_label)
        .y_desc(frame.y_label)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| {
            if y_most < MANY {
                format!("{y:.1}")
            } else {
                format!("{y:.0}")
            }
        })
        .label_style((FONT, LABEL_POINTS))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.15))
        .draw();
    drawn(mesh)?;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(if curve.is_thin { 1 } else { 3 });
        let points = || curve.points.iter().copied();
        drawn(chart.draw_series(LineSeries::new(points(), style)))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + LEGEND_LENGTH, y)], style));
        let dots = points().map(|point| Circle::new(point, 2, colour.filled()));
        drawn(chart.draw_series(dots))?;
    }
    let legend = chart
        .configure_series_labels()
        .position(frame.legend.clone())
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, LABEL_POINTS))
        .draw();
    drawn(legend)
}

#[cfg(test)]
mod tests {
    use mobifs_flash::Preset;

    use super::super::validation::{DeviceUnderTest, Extent, validate};
    use super::*;

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

    #[test]
    fn what_is_no_number_does_not_count() {
        assert_eq!(extent([].into_iter()), None);
        let values = [f64::NAN, 2.0, 1.0, f64::INFINITY];
        assert_eq!(extent(values.into_iter()), Some((1.0, 2.0)));
    }
}
