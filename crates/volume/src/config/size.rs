//! Sizes in a configuration: a number of bytes, or a number with a unit.

use std::fmt;

use mobifs_base::PAGE_BYTES_U64;
use serde::de::{self, Visitor};
use serde::{Deserialize, Serialize};

/// A number of bytes, read from an integer or from a string such as `"512MiB"`, written
/// as an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size(
    /// Bytes.
    pub u64,
);

impl Size {
    /// Pages that so many bytes fill, the last one perhaps in part.
    pub(super) const fn pages(self) -> u64 {
        self.0.div_ceil(PAGE_BYTES_U64)
    }
}

const UNITS: &str = "B, K, KB, KiB, M, MB, MiB, G, GB, GiB, T, TB or TiB";

/// Reads a size such as `"512MiB"`, `"64 M"`, `"4096"`, in bytes. A bare letter and the
/// `iB` units count in powers of 1024, `KB`, `MB`, … in powers of 1000.
///
/// # Errors
/// A sentence that says what is expected.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if unit.starts_with(['.', ',']) {
        return Err(format!(
            "\"{text}\" is not a size: write a whole number, of a smaller unit ({UNITS})"
        ));
    }
    let number: u64 = number
        .parse()
        .map_err(|_| format!("\"{text}\" is not a size: write digits and a unit ({UNITS})"))?;
    let unit = unit.trim();
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("\"{unit}\" is not a unit of size: use {UNITS}")),
    };
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("\"{text}\" is more than 2^64 bytes"))
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size in bytes, such as 4096 or \"512MiB\"")
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes)
                    .map(Size)
                    .map_err(|_| E::custom("a size cannot be negative"))
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                parse(text).map(Size).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_count_as_they_say() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("512MiB"), Ok(512 << 20));
        assert_eq!(parse(" 64 m "), Ok(64 << 20));
        assert_eq!(parse("2G"), Ok(2 << 30));
        assert_eq!(parse("2GB"), Ok(2_000_000_000));
    }

    #[test]
    fn nonsense_is_refused_with_a_hint() {
        for bad in ["", "MiB", "-5", "5 parsecs", "1.5G"] {
            assert!(parse(bad).unwrap_err().contains("KiB"), "{bad}");
        }
        // It said that ".5GiB" is no unit.
        let message = parse("1.5GiB").unwrap_err();
        assert!(message.contains("\"1.5GiB\" is not a size: write a whole number"));
        assert!(parse("99999999999TiB").unwrap_err().contains("2^64"));
    }
}
