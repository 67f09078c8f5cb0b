//! What a measurement is compared with.

use serde::Serialize;

/// How a criterion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The value lies in the accepted range.
    Pass,
    /// The value lies outside the accepted range.
    Fail,
    /// The publication measured another kind of device: shown for comparison only.
    Noted,
    /// The value lies outside the accepted range, for a reason of which the evidence was measured as well and passed.
    Differs,
}

impl Verdict {
    /// The word in tables.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Noted => "noted",
            Self::Differs => "differs",
        }
    }
}

/// A measured value beside the published one, and the range that is accepted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Criterion {
    /// What is measured.
    pub name: String,
    /// Where the published value is.
    pub source: &'static str,
    /// The published value, as the publication puts it.
    pub published: String,
    /// What the model gave; none if it gave nothing that can be compared.
    pub measured: Option<f64>,
    /// Unit of the measured value and the range; empty for ratios.
    pub unit: &'static str,
    /// Least accepted value.
    pub at_least: Option<f64>,
    /// Greatest accepted value.
    pub at_most: Option<f64>,
    /// How it ended.
    pub verdict: Verdict,
    /// Why the value differs from the published one, if it does and the evidence is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}

impl Criterion {
    /// A criterion that accepts everything, still.
    pub fn new(
        name: impl Into<String>,
        source: &'static str,
        published: impl Into<String>,
        measured: f64,
    ) -> Self {
        let mut criterion = Self {
            name: name.into(),
            source,
            published: published.into(),
            measured: measured.is_finite().then_some(measured),
            unit: "",
            at_least: None,
            at_most: None,
            verdict: Verdict::Pass,
            because: None,
        };
        criterion.judge();
        criterion
    }

    /// States the unit.
    #[must_use]
    pub const fn in_unit(mut self, unit: &'static str) -> Self {
        self.unit = unit;
        self
    }

    /// Accepts no less than this.
    #[must_use]
    pub fn at_least(mut self, least: f64) -> Self {
        self.at_least = Some(least);
        self.judge();
        self
    }

    /// Accepts no more than this.
    #[must_use]
    pub fn at_most(mut self, most: f64) -> Self {
        self.at_most = Some(most);
        self.judge();
        self
    }

    /// Accepts what is within `percent` of the published `value`.
    #[must_use]
    pub fn within_percent(self, value: f64, percent: f64) -> Self {
        let margin = value * percent / 100.0;
        self.at_least(value - margin).at_most(value + margin)
    }

    /// For comparison only, unless `applies`.
    #[must_use]
    pub fn judged_if(mut self, applies: bool) -> Self {
        if !applies {
            self.verdict = Verdict::Noted;
        }
        self
    }

    /// A value outside the range is no failure if it has this reason: only if all of the `evidence`, which
    /// are criteria of their own, was judged and holds.
    #[must_use]
    pub fn explained_by(mut self, reason: impl Into<String>, evidence: &[Self]) -> Self {
        let is_shown = !evidence.is_empty()
            && evidence
                .iter()
                .all(|criterion| criterion.verdict == Verdict::Pass);
        if self.verdict == Verdict::Fail && self.measured.is_some() && is_shown {
            self.verdict = Verdict::Differs;
            let names: Vec<_> = evidence
                .iter()
                .map(|criterion| format!("“{}”", criterion.name))
                .collect();
            self.because = Some(format!(
                "{} (evidence: {})",
                reason.into(),
                names.join(", ")
            ));
        }
        self
    }

    fn judge(&mut self) {
        let accepted = self.measured.is_some_and(|value| {
            self.at_least.is_none_or(|least| value >= least)
                && self.at_most.is_none_or(|most| value <= most)
        });
        self.verdict = if accepted {
            Verdict::Pass
        } else {
            Verdict::Fail
        };
    }

    /// The accepted range, as people write it.
    pub fn accepted(&self) -> String {
        match (self.at_least, self.at_most) {
            (None, None) => "any".to_owned(),
            (Some(least), None) => format!("≥ {}", figure(least)),
            (None, Some(most)) => format!("≤ {}", figure(most)),
            (Some(least), Some(most)) => format!("{} … {}", figure(least), figure(most)),
        }
    }
}

/// Three significant digits, all digits before the point.
pub fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        small if small < 0.1 => 4,
        small if small < 1.0 => 3,
        small if small < 10.0 => 2,
        medium if medium < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(measured: f64) -> Criterion {
        Criterion::new("x", "S4", "about 3.5", measured)
    }

    #[test]
    fn the_bounds_belong_to_the_range() {
        assert_eq!(of(2.0).at_least(2.0).at_most(3.0).verdict, Verdict::Pass);
        assert_eq!(of(3.0).at_least(2.0).at_most(3.0).verdict, Verdict::Pass);
        assert_eq!(of(3.1).at_least(2.0).at_most(3.0).verdict, Verdict::Fail);
        assert_eq!(of(1.9).at_least(2.0).verdict, Verdict::Fail);
        assert_eq!(of(90.0).within_percent(100.0, 10.0).verdict, Verdict::Pass);
        assert_eq!(of(111.0).within_percent(100.0, 10.0).verdict, Verdict::Fail);
    }

    #[test]
    fn what_is_no_number_passes_nothing() {
        assert_eq!(of(f64::NAN).verdict, Verdict::Fail);
        assert_eq!(of(f64::INFINITY).at_least(1.0).verdict, Verdict::Fail);
        assert_eq!(of(f64::NAN).measured, None);
    }

    #[test]
    fn another_device_is_not_judged() {
        assert_eq!(
            of(9.0).at_most(3.0).judged_if(false).verdict,
            Verdict::Noted
        );
        assert_eq!(of(9.0).at_most(3.0).judged_if(true).verdict, Verdict::Fail);
    }

    #[test]
    fn a_difference_is_explained_by_evidence_only() {
        let good = of(1.0).at_least(0.5);
        let bad = of(1.0).at_least(2.0);
        let noted = of(1.0).judged_if(false);
        let explained = |evidence: &[Criterion]| of(9.0).at_most(3.0).explained_by("x", evidence);
        let differs = explained(std::slice::from_ref(&good));
        assert_eq!(differs.verdict, Verdict::Differs);
        assert_eq!(differs.because.as_deref(), Some("x (evidence: “x”)"));
        for evidence in [
            vec![],
            vec![bad],
            vec![noted],
            vec![good.clone(), of(f64::NAN)],
        ] {
            let criterion = explained(&evidence);
            assert_eq!(criterion.verdict, Verdict::Fail, "{evidence:?}");
            assert_eq!(criterion.because, None);
        }
        let passed = of(2.0)
            .at_most(3.0)
            .explained_by("x", std::slice::from_ref(&good));
        assert_eq!((passed.verdict, passed.because), (Verdict::Pass, None));
        let nothing = of(f64::NAN).explained_by("x", &[good]);
        assert_eq!(nothing.verdict, Verdict::Fail);
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(of(1.0).at_least(0.95).accepted(), "≥ 0.950");
        assert_eq!(
            of(1.0).at_least(2.333).at_most(5.29).accepted(),
            "2.33 … 5.29"
        );
        assert_eq!(figure(1234.5), "1234");
        assert_eq!(figure(0.0123), "0.0123");
        assert_eq!(figure(0.0), "0");
    }
}
