//! A number together with where it comes from.

use serde::{Deserialize, Serialize};

/// One value of a configuration and its origin. In TOML:
/// `{ value = 900, source = "…" }` or `{ value = 900, assumed = "why" }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written<T>", into = "Written<T>")]
#[serde(bound(
    serialize = "T: Clone + Serialize",
    deserialize = "T: Deserialize<'de>"
))]
pub struct Parameter<T> {
    /// The value.
    pub value: T,
    /// Where it comes from.
    pub origin: Origin,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A publication, standard or data sheet that states it.
    Source(String),
    /// Our own assumption or fit, and its reason.
    Assumed(String),
}

impl<T> Parameter<T> {
    /// A value that is assumed for the reason given.
    pub fn assumed(value: T, reason: &str) -> Self {
        Self {
            value,
            origin: Origin::Assumed(reason.to_owned()),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<T> {
    value: T,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    assumed: Option<String>,
}

impl<T> TryFrom<Written<T>> for Parameter<T> {
    type Error = &'static str;

    fn try_from(written: Written<T>) -> Result<Self, Self::Error> {
        let origin = match (written.source, written.assumed) {
            (Some(source), None) => Origin::Source(source),
            (None, Some(reason)) => Origin::Assumed(reason),
            (Some(_), Some(_)) => return Err("give `source` or `assumed`, not both"),
            (None, None) => return Err("a value needs `source` or `assumed` beside it"),
        };
        Ok(Self {
            value: written.value,
            origin,
        })
    }
}

impl<T> From<Parameter<T>> for Written<T> {
    fn from(parameter: Parameter<T>) -> Self {
        let (source, assumed) = match parameter.origin {
            Origin::Source(source) => (Some(source), None),
            Origin::Assumed(reason) => (None, Some(reason)),
        };
        Self {
            value: parameter.value,
            source,
            assumed,
        }
    }
}
