//! What the importers of text have in common.

use std::path::Path;

use super::options::LoadOptions;
use super::report::ImportReport;
use crate::lines::Line;
use crate::model::Trace;

/// Takes the lines of a file one by one and makes a trace of them.
pub(super) trait TextImport {
    /// Longer lines are malformed.
    const LINE_BYTES_MAX: usize;

    /// `path` is what the file is called.
    fn new(path: &Path, options: &LoadOptions) -> Self;

    /// Takes a line. The error says why it cannot be understood.
    fn line(
        &mut self,
        number: u64,
        line: Line<'_>,
        report: &mut ImportReport,
    ) -> Result<(), String>;

    fn finish(self, report: &mut ImportReport) -> Trace;
}

/// The content of a line, or that it is too long.
pub(super) fn content(line: Line<'_>, bytes_max: usize) -> Result<&[u8], String> {
    match line {
        Line::Whole(content) => Ok(content.trim_ascii()),
        Line::TooLong => Err(format!("the line is longer than {bytes_max} bytes")),
    }
}

/// Decimal digits and nothing else.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Seconds with up to nine decimals, in nanoseconds; further decimals are dropped.
pub(super) fn seconds(text: &[u8]) -> Option<u64> {
    let mut parts = text.splitn(2, |&byte| byte == b'.');
    let whole = decimal(parts.next()?)?;
    let fraction = match parts.next() {
        None => 0,
        Some(digits) => {
            let kept = &digits[..digits.len().min(9)];
            if !digits.iter().all(u8::is_ascii_digit) {
                return None;
            }
            decimal(kept)? * 10_u64.pow(9 - kept.len() as u32)
        }
    };
    whole.checked_mul(1_000_000_000)?.checked_add(fraction)
}

/// A piece of a line for an error message.
pub(super) fn shown(text: &[u8]) -> String {
    const SHOWN_CHARACTERS: usize = 60;
    let text = String::from_utf8_lossy(text);
    text.chars().take(SHOWN_CHARACTERS).collect()
}
