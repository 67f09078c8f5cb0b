//! Names as they are shown: no name can hide, or pretend to be something else.

use std::fmt::Write as _;

/// Characters that change how the text around them is shown.
const fn is_misleading(character: char) -> bool {
    matches!(character,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A name or path for people: control characters, those that change direction, and bytes that are
/// not UTF-8 are written as `\xNN` or `\u{NNNN}`.
#[must_use]
pub fn shown(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            // Writing to a string cannot fail.
            let _written = match character {
                '\\' => text.write_str("\\\\"),
                c if c.is_ascii_control() => write!(text, "\\x{:02x}", u32::from(c)),
                c if c.is_control() || is_misleading(c) => {
                    write!(text, "\\u{{{:x}}}", u32::from(c))
                }
                c => text.write_char(c),
            };
        }
        for byte in chunk.invalid() {
            let _written = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Bytes as people read them: the one way in which all reports of fragmentation show them.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"");
    while value >= 1024.0 {
        let Some(larger) = units.next() else { break };
        (value, unit) = (value / 1024.0, larger);
    }
    if value.fract() == 0.0 || value >= 100.0 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// A number of things: of one in the singular.
#[must_use]
pub fn counted(count: u64, one: &str, several: &str) -> String {
    format!(
        "{} {}",
        number(count),
        if count == 1 { one } else { several }
    )
}

/// A number with a comma between thousands.
#[must_use]
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_pretend() {
        assert_eq!(shown("a/bé.db".as_bytes()), "a/bé.db");
        assert_eq!(shown(b"a\nb\x1b[2J\xff"), "a\\x0ab\\x1b[2J\\xff");
        assert_eq!(shown(b"a\\nb"), "a\\\\nb");
        assert_eq!(
            shown("x\u{202e}gpj.db\u{85}".as_bytes()),
            "x\\u{202e}gpj.db\\u{85}"
        );
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(
            [size(0), size(1023), size(1536)],
            ["0 bytes", "1023 bytes", "1.5 KiB"]
        );
        assert_eq!([size(1 << 30), size(u64::MAX)], ["1 GiB", "16 EiB"]);
        assert_eq!(
            [number(0), number(999), number(1_234_567)],
            ["0", "999", "1,234,567"]
        );
    }
}
