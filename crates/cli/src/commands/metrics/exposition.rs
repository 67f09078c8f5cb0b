//! The text of metrics: OpenMetrics 1.0, and Prometheus's older format.

use std::fmt::Write as _;

/// How the text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0 (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).
    OpenMetrics,
    /// Prometheus's text format 0.0.4, which the textfile collector reads.
    Prometheus,
}

impl Format {
    /// For the header of a reply.
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// What the numbers of a family are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// They go up and down.
    Gauge,
    /// They only grow, but for a restart.
    Counter,
    /// 1, with labels that say something.
    Info,
}

/// Metrics of one name.
#[derive(Clone, Debug)]
pub(super) struct Family {
    /// Without the suffix of its kind.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// With which the name ends; empty: none.
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
    samples: Vec<(Labels, f64)>,
}

/// Names and values.
pub(super) type Labels = Vec<(&'static str, String)>;

impl Family {
    pub(super) const fn new(
        name: &'static str,
        kind: Kind,
        unit: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            unit,
            help,
            samples: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, labels: &Labels, value: f64) {
        self.samples.push((labels.clone(), value));
    }

    const fn suffix(&self) -> &'static str {
        match self.kind {
            Kind::Gauge => "",
            Kind::Counter => "_total",
            Kind::Info => "_info",
        }
    }

    fn write(&self, text: &mut String, format: Format) {
        let (name, suffix) = (self.name, self.suffix());
        let kind = match (self.kind, format) {
            (Kind::Counter, _) => "counter",
            (Kind::Info, Format::OpenMetrics) => "info",
            (Kind::Gauge | Kind::Info, _) => "gauge",
        };
        // The older format names a family as its samples are named.
        let family = match format {
            Format::OpenMetrics => name.to_owned(),
            Format::Prometheus => format!("{name}{suffix}"),
        };
        // Writing to a string cannot fail.
        let _written = writeln!(text, "# HELP {family} {}", self.help);
        let _written = writeln!(text, "# TYPE {family} {kind}");
        if format == Format::OpenMetrics && !self.unit.is_empty() {
            let _written = writeln!(text, "# UNIT {family} {}", self.unit);
        }
        for (labels, value) in &self.samples {
            let _written = writeln!(text, "{name}{suffix}{} {value}", in_braces(labels));
        }
    }
}

/// The families that have samples, and the end.
pub(super) fn text_of(families: &[Family], format: Format) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        family.write(&mut text, format);
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn in_braces(labels: &Labels) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let pairs: Vec<_> = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    format!("{{{}}}", pairs.join(","))
}

/// A label's value as both formats take it. Control characters, which a name may have, stay within
/// the quotes; only these three would end them, or the line.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formats_are_written_as_their_specifications_say() {
        let mut bytes = Family::new(
            "mobifs_commit_written_bytes",
            Kind::Counter,
            "bytes",
            "Bytes written.",
        );
        bytes.push(&vec![("mount", "/a\"b\\c\nd".to_owned())], 8192.0);
        let empty = Family::new("mobifs_none", Kind::Gauge, "", "Nothing.");
        let families = [bytes, empty];
        assert_eq!(
            text_of(&families, Format::OpenMetrics),
            "# HELP mobifs_commit_written_bytes Bytes written.\n\
             # TYPE mobifs_commit_written_bytes counter\n\
             # UNIT mobifs_commit_written_bytes bytes\n\
             mobifs_commit_written_bytes_total{mount=\"/a\\\"b\\\\c\\nd\"} 8192\n\
             # EOF\n"
        );
        assert_eq!(
            text_of(&families, Format::Prometheus),
            "# HELP mobifs_commit_written_bytes_total Bytes written.\n\
             # TYPE mobifs_commit_written_bytes_total counter\n\
             mobifs_commit_written_bytes_total{mount=\"/a\\\"b\\\\c\\nd\"} 8192\n"
        );
    }
}
