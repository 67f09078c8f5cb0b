//! Figures of bars, with their data.

use mobifs_charts::{Bars, Frame, Legend, PlotError, draw_bars, names_height, picture};

use super::figure::Figure;

/// The height of the bars; their names come below.
const HEIGHT: u32 = 360;

/// A figure that is not drawn yet.
pub(super) struct BarFigure<'f> {
    pub(super) name: &'f str,
    pub(super) title: &'f str,
    pub(super) caption: &'f str,
    /// What the groups are.
    pub(super) category: &'f str,
    pub(super) y_label: &'static str,
    /// Decimals of the values in the data.
    pub(super) decimals: usize,
    pub(super) width: u32,
    pub(super) bars: Bars,
    pub(super) remark: String,
}

impl BarFigure<'_> {
    pub(super) fn draw(self) -> Result<Figure, PlotError> {
        let (bars, y_label) = (self.bars, self.y_label);
        let frame = Frame {
            caption: self.caption.to_owned(),
            x_label: "",
            y_label,
            x_is_logarithmic: false,
            legend: Legend::UpperRight,
        };
        let height = HEIGHT + names_height(&bars.categories);
        let heads = bars.series.iter().map(|(name, _)| name);
        let heads = heads.map(|name| format!("{name}, {y_label}"));
        let rows = bars.categories.iter().enumerate().map(|(row, category)| {
            let values = bars.series.iter().map(|(_, values)| values[row]);
            let cells = values.map(|value| {
                value.map_or_else(String::new, |value| format!("{value:.*}", self.decimals))
            });
            std::iter::once(category.clone()).chain(cells).collect()
        });
        Ok(Figure {
            name: self.name.to_owned(),
            title: self.title.to_owned(),
            svg: picture(self.width, height, |canvas| {
                draw_bars(canvas, &frame, &bars)
            })?,
            columns: std::iter::once(self.category.to_owned())
                .chain(heads)
                .collect(),
            rows: rows.collect(),
            remark: self.remark,
        })
    }
}
