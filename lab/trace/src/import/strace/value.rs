//! Values as strace writes them.

use crate::import::text::decimal;

/// A descriptor that is an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DescriptorArgument {
    /// Its number; none for `AT_FDCWD`.
    pub(super) number: Option<i64>,
    /// What `-y` says of it: a path, or what else it is.
    pub(super) annotation: Option<Vec<u8>>,
    /// The path has gone.
    pub(super) is_deleted: bool,
}

/// Reads `3`, `3</path>`, `AT_FDCWD`, `AT_FDCWD</path>`, `3</path>(deleted)`.
pub(super) fn descriptor(argument: &[u8]) -> Option<DescriptorArgument> {
    let (number, rest) = match argument.strip_prefix(b"AT_FDCWD") {
        Some(rest) => (None, rest),
        None => {
            let end = argument.iter().position(|&byte| byte == b'<');
            let (digits, rest) = argument.split_at(end.unwrap_or(argument.len()));
            (Some(integer(digits)?), rest)
        }
    };
    let mut is_deleted = false;
    let annotation = rest.strip_prefix(b"<").map(|rest| {
        let end = rest
            .iter()
            .rposition(|&byte| byte == b'>')
            .unwrap_or(rest.len());
        is_deleted = rest[end..].ends_with(b"(deleted)");
        let path = unescaped(&rest[..end]);
        match path.strip_suffix(b" (deleted)") {
            Some(path) => {
                is_deleted = true;
                path.to_vec()
            }
            None => path,
        }
    });
    Some(DescriptorArgument {
        number,
        annotation,
        is_deleted,
    })
}

/// A whole string in quotes; none if strace cut it off.
pub(super) fn string(argument: &[u8]) -> Option<Vec<u8>> {
    let inner = argument.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    Some(unescaped(inner))
}

/// What a string without its quotes stands for.
pub(super) fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        if text[at] != b'\\' || at + 1 == text.len() {
            bytes.push(text[at]);
            at += 1;
            continue;
        }
        let (byte, length) = escape(&text[at + 1..]);
        bytes.push(byte);
        at += 1 + length;
    }
    bytes
}

/// The byte that the text after a backslash stands for, and how long that text is.
fn escape(text: &[u8]) -> (u8, usize) {
    let is_octal = |byte: &&u8| (b'0'..=b'7').contains(*byte);
    let octal = text.iter().take(3).take_while(is_octal).count();
    if octal > 0 {
        let value = text[..octal]
            .iter()
            .fold(0_u32, |sum, byte| sum * 8 + u32::from(byte - b'0'));
        return (value as u8, octal);
    }
    if text[0] == b'x'
        && let Some(digits) = text.get(1..3)
        && let Some(value) = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
    {
        return (value, 3);
    }
    let byte = match text[0] {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'v' => 0x0b,
        b'f' => 0x0c,
        other => other,
    };
    (byte, 1)
}

/// A number: decimal, `0x…`, or octal with a 0 in front; may be negative.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let magnitude = magnitude(digits)?;
    if is_negative {
        return i64::try_from(magnitude).ok().map(|number| -number);
    }
    // Addresses use all 64 bits.
    Some(magnitude as i64)
}

fn magnitude(digits: &[u8]) -> Option<u64> {
    let radix = |digits: &[u8], radix| {
        let digits = std::str::from_utf8(digits).ok()?;
        let is_plain = !digits.starts_with('+');
        is_plain.then(|| u64::from_str_radix(digits, radix).ok())?
    };
    match digits {
        [b'0', b'x', rest @ ..] => radix(rest, 16),
        [b'0', rest @ ..] if !rest.is_empty() => radix(rest, 8),
        _ => decimal(digits),
    }
}

/// A number that is not negative.
pub(super) fn unsigned(text: &[u8]) -> Option<u64> {
    u64::try_from(integer(text)?).ok()
}

/// The number in `[10]` or `[10] => [60]`; none for `NULL`.
pub(super) fn boxed(text: &[u8]) -> Option<u64> {
    let inner = text.strip_prefix(b"[")?;
    let end = inner.iter().position(|&byte| byte == b']')?;
    unsigned(&inner[..end])
}

/// Whether a word is among those joined with `|`, at the top level or in `{flags=…}`.
pub(super) fn has_flag(text: &[u8], flag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut words = text.split(|&byte| !is_word(byte));
    words.any(|word| word == flag.as_bytes())
}

/// The number after `name` in a structure, the first one.
pub(super) fn field(text: &[u8], name: &str) -> Option<u64> {
    let at = text
        .windows(name.len())
        .position(|window| window == name.as_bytes())?;
    let rest = &text[at + name.len()..];
    let end = rest.iter().position(|byte| !byte.is_ascii_digit());
    decimal(&rest[..end.unwrap_or(rest.len())])
}

/// The sum of all `iov_len`.
pub(super) fn vector_length(text: &[u8]) -> u64 {
    const NAME: &str = "iov_len=";
    let starts = text.windows(NAME.len()).enumerate();
    let starts = starts.filter(|(_, window)| *window == NAME.as_bytes());
    let lengths = starts.filter_map(|(at, _)| field(&text[at..], NAME));
    lengths.fold(0, u64::saturating_add)
}
