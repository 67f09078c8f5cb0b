//! One line of the Pixel traces: `process,device,rw_flag,sector,size,timestamp`.
//!
//! They were made from the kernel's `block_rq_issue` tracepoint. Sector and size are in
//! sectors of 512 bytes, the timestamp in seconds with up to nine meaningful decimals, the
//! flag is the beginning of the tracepoint's `rwbs` field.

use thiserror::Error;

use super::{Access, BlockRequest};

/// Longest line that is looked at; those of a trace have less than 100 bytes.
pub const LINE_BYTES_MAX: usize = 4096;

/// Columns of a line. The process comes first, so that a comma in its name does no harm.
const COLUMNS: usize = 6;
const NS_PER_SECOND: u64 = 1_000_000_000;
const DECIMALS_OF_NS: usize = 9;

/// Why a line is not a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LineError {
    /// Columns are missing.
    #[error("{found} columns where 6 are needed: process,device,rw_flag,sector,size,timestamp")]
    Columns {
        /// How many there are.
        found: usize,
    },
    /// A column that should be a number.
    #[error("the {column} '{found}' is not {expected}")]
    Number {
        /// Which one.
        column: &'static str,
        /// What it is.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A flag that says neither read, write, discard nor flush.
    #[error("the rw_flag '{0}' is none of R, W, D and F (followed by A, F, M, N, S, V)")]
    Access(String),
    /// A read, write or discard of nothing.
    #[error("a size of 0 sectors")]
    Empty,
    /// The line is too long.
    #[error("the line is longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
}

/// Reads one line, without its line end.
///
/// # Errors
/// What is wrong with the first column that cannot be read.
pub fn parse_line(line: &[u8]) -> Result<BlockRequest, LineError> {
    let mut columns = line.rsplitn(COLUMNS, |&byte| byte == b',');
    let mut next = || columns.next();
    let found = line.split(|&byte| byte == b',').count().min(COLUMNS);
    let (Some(timestamp), Some(size), Some(sector), Some(flag), Some(device), Some(process)) =
        (next(), next(), next(), next(), next(), next())
    else {
        return Err(LineError::Columns { found });
    };
    let device = number("device", device)?;
    let access = access(trim(flag))?;
    let start = number("sector", sector)?;
    let sectors = number("size", size)?;
    let sectors = u32::try_from(sectors)
        .map_err(|_| not_a_number("size", size, "a number of sectors below 2³²"))?;
    if sectors == 0 && access != Access::Flush {
        return Err(LineError::Empty);
    }
    let at_ns = nanoseconds(trim(timestamp)).ok_or_else(|| {
        let expected = "a time in seconds, such as 653406.907265";
        not_a_number("timestamp", timestamp, expected)
    })?;
    Ok(BlockRequest {
        at_ns,
        process: trim(process).to_vec(),
        device,
        access,
        start,
        sectors,
    })
}

/// Whether a line names the columns. The traces spell the first one `proces`.
pub(crate) fn is_header(line: &[u8]) -> bool {
    let mut columns = line.rsplit(|&byte| byte == b',').map(trim);
    columns.next() == Some(b"timestamp") && columns.next() == Some(b"size")
}

const fn trim(bytes: &[u8]) -> &[u8] {
    bytes.trim_ascii()
}

fn not_a_number(column: &'static str, found: &[u8], expected: &'static str) -> LineError {
    const SHOWN_CHARACTERS: usize = 40;
    let found = String::from_utf8_lossy(trim(found));
    LineError::Number {
        column,
        found: found.chars().take(SHOWN_CHARACTERS).collect(),
        expected,
    }
}

fn number(column: &'static str, text: &[u8]) -> Result<u64, LineError> {
    digits(trim(text)).ok_or_else(|| not_a_number(column, text, "a number below 2⁶⁴"))
}

/// Decimal digits and nothing else.
fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Seconds with decimals. Integers all the way: a float has no nanoseconds left at the
/// uptime of a phone.
fn nanoseconds(text: &[u8]) -> Option<u64> {
    let mut parts = text.splitn(2, |&byte| byte == b'.');
    let seconds = digits(parts.next()?)?;
    let decimals = match parts.next() {
        None => 0,
        Some(text) => {
            if !text.iter().all(u8::is_ascii_digit) {
                return None;
            }
            // What follows the ninth decimal is noise of the recorder's arithmetic.
            let kept = &text[..text.len().min(DECIMALS_OF_NS)];
            let scale = 10_u64.pow((DECIMALS_OF_NS - kept.len()) as u32);
            digits(kept)? * scale
        }
    };
    seconds.checked_mul(NS_PER_SECOND)?.checked_add(decimals)
}

/// The kernel's `rwbs`: an F before the operation is a flush, one after it FUA. A flush
/// alone is F, FF or FN, as the kernel's age has it.
fn access(flag: &[u8]) -> Result<Access, LineError> {
    let unknown = || LineError::Access(String::from_utf8_lossy(flag).into_owned());
    let (flush_before, rest) = match flag {
        [b'F', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (operation, modifiers) = match rest {
        [] | [b'N', ..] => (b'F', rest),
        [operation, modifiers @ ..] => (*operation, modifiers),
    };
    if !modifiers.iter().all(|letter| b"AFMNSV".contains(letter)) {
        return Err(unknown());
    }
    match operation {
        b'R' if !flush_before => Ok(Access::Read),
        b'W' => Ok(Access::Write {
            flush_before,
            durable: modifiers.contains(&b'F'),
        }),
        b'D' if !flush_before => Ok(Access::Discard),
        b'F' if flush_before => Ok(Access::Flush),
        _ => Err(unknown()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain_write() -> Access {
        Access::Write {
            flush_before: false,
            durable: false,
        }
    }

    #[test]
    fn a_line_of_a_pixel_trace() {
        let line = b"ll.splashscreen-2001,8388608,R,4709256,32,653409.113348";
        let expected = BlockRequest {
            at_ns: 653_409_113_348_000,
            process: b"ll.splashscreen-2001".to_vec(),
            device: 8_388_608,
            access: Access::Read,
            start: 4_709_256,
            sectors: 32,
        };
        assert_eq!(parse_line(line), Ok(expected));
    }

    #[test]
    fn a_comma_in_the_name_of_a_process_is_no_separator() {
        let request = parse_line(b"a,b-7,1,W,8,16,2.5").unwrap();
        assert_eq!(request.process, b"a,b-7");
        assert_eq!(request.access, plain_write());
        assert_eq!(request.at_ns, 2_500_000_000);
    }

    #[test]
    fn decimals_after_the_ninth_are_dropped() {
        assert_eq!(nanoseconds(b"660881.0188740001"), Some(660_881_018_874_000));
        assert_eq!(nanoseconds(b"7"), Some(7_000_000_000));
        assert_eq!(nanoseconds(b"7.000000001"), Some(7_000_000_001));
        for wrong in ["", ".5", "7.", "-7.5", "7.5e3", "1.2.3", "99999999999.0"] {
            assert_eq!(nanoseconds(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn flags_mean_what_the_kernel_means_by_them() {
        let write = |flush_before, durable| Access::Write {
            flush_before,
            durable,
        };
        for (flag, expected) in [
            ("R", Access::Read),
            ("RA", Access::Read),
            ("RSM", Access::Read),
            ("W", write(false, false)),
            ("WS", write(false, false)),
            ("WFS", write(false, true)),
            ("FWS", write(true, false)),
            ("FWFS", write(true, true)),
            ("D", Access::Discard),
            ("F", Access::Flush),
            ("FN", Access::Flush),
            ("FF", Access::Flush),
        ] {
            assert_eq!(access(flag.as_bytes()), Ok(expected), "{flag}");
        }
        for flag in ["", "X", "N", "FR", "FX", "R W", "w"] {
            assert!(access(flag.as_bytes()).is_err(), "{flag}");
        }
    }

    #[test]
    fn the_error_names_what_is_wrong() {
        for (line, message) in [
            (
                "",
                "1 columns where 6 are needed: process,device,rw_flag,sector,size,timestamp",
            ),
            ("p,1,R,x,8,1.0", "the sector 'x' is not a number below 2⁶⁴"),
            (
                "p,1,R,0,4294967296,1.0",
                "the size '4294967296' is not a number of sectors below 2³²",
            ),
            ("p,1,R,0,0,1.0", "a size of 0 sectors"),
            (
                "p,1,Q,0,8,1.0",
                "the rw_flag 'Q' is none of R, W, D and F (followed by A, F, M, N, S, V)",
            ),
            (
                "p,1,R,0,8,soon",
                "the timestamp 'soon' is not a time in seconds, such as 653406.907265",
            ),
        ] {
            let error = parse_line(line.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn the_first_line_of_the_traces_is_a_header() {
        assert!(is_header(b"proces,device,rw_flag,sector,size,timestamp"));
        assert!(!is_header(b"p,1,R,0,8,1.0"));
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_line(&line);
            let _ = is_header(&line);
        }

        #[test]
        fn no_line_that_looks_right_makes_it_panic(line in "[a-z,.0-9RWDFNS-]{0,60}") {
            let _ = parse_line(line.as_bytes());
        }

        #[test]
        fn what_is_written_is_read_again(
            process in "[a-zA-Z0-9.:/<>,_-]{0,20}",
            sector in 0..u64::MAX / 2,
            sectors in 1..u32::MAX,
            micros in 0..u64::MAX / 1_000_000,
        ) {
            let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
            let line = format!("{process},8,W,{sector},{sectors},{seconds}.{fraction:06}");
            let expected = BlockRequest {
                at_ns: micros * 1_000,
                process: process.into_bytes(),
                device: 8,
                access: plain_write(),
                start: sector,
                sectors,
            };
            prop_assert_eq!(parse_line(line.as_bytes()), Ok(expected));
        }
    }
}
