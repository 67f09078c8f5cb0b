//! Charts as SVG, curves and groups of bars with axes and a legend, and the pages that show them.

#![forbid(unsafe_code)]

mod page;
mod sources;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use thiserror::Error;

pub use page::{Page, Table, figure};
pub use sources::cited_sources;

const FONT: &str = "sans-serif";
const CAPTION_POINTS: i32 = 15;
const LABEL_POINTS: i32 = 12;
/// Room above the highest value.
const HEADROOM: f64 = 1.1;
/// Colours that people with colour vision deficiencies can distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];

/// Text as HTML and SVG show it.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A picture that could not be drawn.
#[derive(Debug, Error)]
#[error("the plot cannot be drawn: {0}")]
pub struct PlotError(String);

/// Where a chart is drawn.
pub type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stroke {
    Thick,
    Thin,
    /// Points without a line.
    None,
}

/// A curve with its name and how it is drawn.
#[derive(Clone, Debug)]
pub struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
    stroke: Stroke,
    has_dots: bool,
}

impl Curve {
    /// A thick line with a dot at each point.
    #[must_use]
    pub fn new(name: impl Into<String>, points: impl Iterator<Item = (f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points: points.collect(),
            stroke: Stroke::Thick,
            has_dots: true,
        }
    }

    /// The curve with a thin line.
    #[must_use]
    pub const fn thin(mut self) -> Self {
        self.stroke = Stroke::Thin;
        self
    }

    /// Only the points.
    #[must_use]
    pub const fn dots(mut self) -> Self {
        self.stroke = Stroke::None;
        self
    }

    /// Only the line: for curves of very many points.
    #[must_use]
    pub const fn line(mut self) -> Self {
        self.has_dots = false;
        self.stroke = Stroke::Thin;
        self
    }
}

/// What stands around the curves.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Heading.
    pub caption: String,
    /// Name of the horizontal axis.
    pub x_label: &'static str,
    /// Name of the vertical axis.
    pub y_label: &'static str,
    /// Whether the horizontal axis is logarithmic, to the base 2.
    pub x_is_logarithmic: bool,
    /// Where the legend is.
    pub legend: Legend,
}

/// Where a chart's legend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Legend {
    /// In the upper left corner.
    UpperLeft,
    /// In the upper right corner.
    UpperRight,
    /// At the left edge, half way up.
    MiddleLeft,
    /// In the lower right corner.
    LowerRight,
}

impl Legend {
    const fn position(self) -> SeriesLabelPosition {
        match self {
            Self::UpperLeft => SeriesLabelPosition::UpperLeft,
            Self::UpperRight => SeriesLabelPosition::UpperRight,
            Self::MiddleLeft => SeriesLabelPosition::MiddleLeft,
            Self::LowerRight => SeriesLabelPosition::LowerRight,
        }
    }
}

/// One group of bars for each category, one bar of it for each series; values that are not
/// there have no bar.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Names of the groups.
    pub categories: Vec<String>,
    /// Each series with its name, and a value for each category.
    pub series: Vec<(String, Vec<Option<f64>>)>,
}

/// Draws a picture of this size, in pixels.
///
/// # Errors
/// The drawing library refuses.
pub fn picture(
    width: u32,
    height: u32,
    content: impl FnOnce(&Canvas<'_>) -> Result<(), PlotError>,
) -> Result<String, PlotError> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (width, height)).into_drawing_area();
        drawn(root.fill(&WHITE))?;
        content(&root)?;
        drawn(root.present())?;
    }
    Ok(text)
}

/// The library's error as a [`PlotError`].
fn drawn<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, PlotError> {
    result.map_err(|error| PlotError(error.to_string()))
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

/// Draws curves with axes and a legend; nothing if there are no points.
///
/// # Errors
/// The drawing library refuses.
pub fn draw(canvas: &Canvas<'_>, frame: &Frame, curves: &[Curve]) -> Result<(), PlotError> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (Some((x_least, x_most)), Some((_, y_most))) =
        (extent(points().map(|p| p.0)), extent(points().map(|p| p.1)))
    else {
        return Ok(());
    };
    let mut builder = builder(canvas, frame);
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

fn builder<'c, 'a>(canvas: &'c Canvas<'a>, frame: &Frame) -> ChartBuilder<'c, 'c, SVGBackend<'a>> {
    let mut builder = ChartBuilder::on(canvas);
    builder
        .caption(&frame.caption, (FONT, CAPTION_POINTS))
        .margin(10)
        .x_label_area_size(38)
        .y_label_area_size(64);
    builder
}

fn draw_legend<'a, X>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, RangedCoordf64>>,
    frame: &Frame,
) -> Result<(), PlotError>
where
    X: Ranged<ValueType = f64>,
{
    let legend = chart
        .configure_series_labels()
        .position(frame.legend.position())
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, LABEL_POINTS))
        .draw();
    drawn(legend)
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
        let style = colour.stroke_width(if curve.stroke == Stroke::Thick { 3 } else { 1 });
        let points = || curve.points.iter().copied();
        let line = (curve.stroke != Stroke::None)
            .then(points)
            .into_iter()
            .flatten();
        drawn(chart.draw_series(LineSeries::new(line, style)))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + LEGEND_LENGTH, y)], style));
        let dots = curve.has_dots.then(points).into_iter().flatten();
        let dots = dots.map(|point| Circle::new(point, 2, colour.filled()));
        drawn(chart.draw_series(dots))?;
    }
    draw_legend(&mut chart, frame)
}

/// Between an axis and the names under it.
const NAME_GAP: i32 = 6;

/// Pixels that names of bars need under the axis: they are written upwards, so that long ones lie
/// beside each other.
pub fn names_height(names: &[String]) -> u32 {
    const LETTER_WIDTH: usize = 7;
    let letters = names.iter().map(|name| name.chars().count()).max();
    (letters.unwrap_or(0) * LETTER_WIDTH) as u32 + 2 * NAME_GAP as u32
}

/// A picture of groups of bars, as high as their names need; nothing is in it if there are none.
///
/// # Errors
/// The drawing library refuses.
pub fn bar_chart(
    width: u32,
    caption: String,
    y_label: &'static str,
    legend: Legend,
    bars: &Bars,
) -> Result<String, PlotError> {
    const PLOT_HEIGHT: u32 = 280;
    let frame = Frame {
        caption,
        x_label: "",
        y_label,
        x_is_logarithmic: false,
        legend,
    };
    let height = PLOT_HEIGHT + names_height(&bars.categories);
    picture(width, height, |canvas| draw_bars(canvas, &frame, bars))
}

/// Draws groups of bars with axes and a legend; nothing if there are none.
///
/// # Errors
/// The drawing library refuses.
pub fn draw_bars(canvas: &Canvas<'_>, frame: &Frame, bars: &Bars) -> Result<(), PlotError> {
    const LEGEND_SIDE: i32 = 10;
    let values = bars.series.iter().flat_map(|(_, values)| values);
    let Some((_, most)) = extent(values.filter_map(|value| *value)) else {
        return Ok(());
    };
    let groups = bars.categories.len();
    let mut builder = builder(canvas, frame);
    builder.x_label_area_size(names_height(&bars.categories));
    let y = 0.0..(most * HEADROOM).max(f64::MIN_POSITIVE);
    let mut chart = drawn(builder.build_cartesian_2d(0.0..groups as f64, y))?;
    let mesh = chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_desc(frame.y_label)
        .label_style((FONT, LABEL_POINTS))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.15))
        .draw();
    drawn(mesh)?;
    let name_style = TextStyle::from((FONT, LABEL_POINTS).into_font())
        .transform(FontTransform::Rotate270)
        .pos(Pos::new(HPos::Right, VPos::Center));
    for (group, name) in bars.categories.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(group as f64 + 0.5, 0.0));
        let name = Text::new(name.as_str(), (x, y + NAME_GAP), name_style.clone());
        drawn(canvas.draw(&name))?;
    }
    let width = 0.8 / bars.series.len().max(1) as f64;
    for (number, ((name, values), colour)) in
        bars.series.iter().zip(COLOURS.iter().cycle()).enumerate()
    {
        let left = 0.1 + number as f64 * width;
        let rectangles = values.iter().enumerate().filter_map(|(group, value)| {
            let left = group as f64 + left;
            let corners = [(left, 0.0), (left + width, (*value)?)];
            Some(Rectangle::new(corners, colour.filled()))
        });
        drawn(chart.draw_series(rectangles))?
            .label(name)
            .legend(move |(x, y)| {
                let corners = [
                    (x, y - LEGEND_SIDE / 2),
                    (x + LEGEND_SIDE, y + LEGEND_SIDE / 2),
                ];
                Rectangle::new(corners, colour.filled())
            });
    }
    draw_legend(&mut chart, frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(
            escaped("<a href='x'>&\""),
            "&lt;a href=&#39;x&#39;&gt;&amp;&quot;"
        );
    }

    #[test]
    fn what_is_no_number_does_not_count() {
        assert_eq!(extent([].into_iter()), None);
        let values = [f64::NAN, 2.0, 1.0, f64::INFINITY];
        assert_eq!(extent(values.into_iter()), Some((1.0, 2.0)));
    }
}
