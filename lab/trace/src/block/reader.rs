//! A block trace, request by request.

use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::BlockRequest;
use super::line::{self, LINE_BYTES_MAX, LineError, parse_line};
use crate::lines::{Line, Lines};

/// Why a trace does not go on, or a line of it is no request.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be read any further.
    #[error("{}: line {line}: {source}", path.display())]
    Io {
        /// The trace.
        path: PathBuf,
        /// The line that was being read; 0 if it could not be opened.
        line: u64,
        /// What the system or the decompressor said.
        source: io::Error,
    },
    /// A line cannot be understood; the next ones can still be read.
    #[error("{}: line {line}: {reason}", path.display())]
    Line {
        /// The trace.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: LineError,
    },
}

/// Requests of a trace in the order of its lines; memory for one line at a time.
pub struct TraceReader {
    lines: Lines,
    has_ended: bool,
}

impl TraceReader {
    /// Opens a trace; whether it is gzipped is seen from its content.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let lines = Lines::open(path, LINE_BYTES_MAX);
        let lines = lines.map_err(|source| TraceError::Io {
            path: path.to_owned(),
            line: 0,
            source,
        })?;
        Ok(Self {
            lines,
            has_ended: false,
        })
    }

    /// Reads from anything; `path` is what errors call it.
    pub fn new(path: PathBuf, input: Box<dyn BufRead>) -> Self {
        Self {
            lines: Lines::new(path, input, LINE_BYTES_MAX),
            has_ended: false,
        }
    }

    /// Lines read so far, the header and empty ones included.
    pub const fn lines(&self) -> u64 {
        self.lines.number()
    }
}

fn parse(number: u64, line: Line<'_>) -> Option<Result<BlockRequest, LineError>> {
    let Line::Whole(content) = line else {
        return Some(Err(LineError::TooLong));
    };
    let content = content.trim_ascii();
    if content.is_empty() || (number == 1 && line::is_header(content)) {
        return None;
    }
    Some(parse_line(content))
}

impl Iterator for TraceReader {
    type Item = Result<BlockRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.has_ended {
            let before = self.lines.number();
            let parsed = match self.lines.next() {
                Ok(Some(line)) => parse(before + 1, line),
                Ok(None) => {
                    self.has_ended = true;
                    None
                }
                Err(source) => {
                    self.has_ended = true;
                    return Some(Err(TraceError::Io {
                        path: self.lines.path().to_owned(),
                        line: before + 1,
                        source,
                    }));
                }
            };
            if let Some(parsed) = parsed {
                return Some(parsed.map_err(|reason| TraceError::Line {
                    path: self.lines.path().to_owned(),
                    line: self.lines.number(),
                    reason,
                }));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write as _};

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "proces,device,rw_flag,sector,size,timestamp\n\
                         a-1,8,R,0,8,1.0\r\n\
                         \n\
                         nonsense\n\
                         b-2,8,W,8,8,1.5";

    fn outcomes(content: &[u8]) -> Vec<Result<u64, String>> {
        let input = Box::new(Cursor::new(content.to_vec()));
        TraceReader::new(PathBuf::from("trace"), input)
            .map(|item| match item {
                Ok(request) => Ok(request.start),
                Err(error) => Err(error.to_string()),
            })
            .collect()
    }

    #[test]
    fn a_bad_line_is_named_and_the_next_one_read() {
        let message = "trace: line 4: 1 columns where 6 are needed: \
                       process,device,rw_flag,sector,size,timestamp";
        let expected = vec![Ok(0), Err(message.to_owned()), Ok(8)];
        assert_eq!(outcomes(TRACE.as_bytes()), expected);
    }

    #[test]
    fn a_header_counts_only_in_the_first_line() {
        let twice = "p,d,rw_flag,sector,size,timestamp\n".repeat(2);
        assert_eq!(outcomes(twice.as_bytes()).len(), 1);
    }

    #[test]
    fn a_line_without_end_is_skipped_in_pieces() {
        let mut content = vec![b'x'; 100_000];
        content.extend_from_slice(b"\na-1,8,R,16,8,1.0\n");
        let expected = vec![
            Err("trace: line 1: the line is longer than 4096 bytes".to_owned()),
            Ok(16),
        ];
        assert_eq!(outcomes(&content), expected);
    }

    #[test]
    fn gzip_is_recognised_by_its_content_and_a_cut_file_reported() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(TRACE.as_bytes()).unwrap();
        let zipped = encoder.finish().unwrap();
        std::fs::write(&path, &zipped).unwrap();
        let read = || TraceReader::open(&path).unwrap();
        assert_eq!(read().filter(Result::is_ok).count(), 2);

        std::fs::write(&path, &zipped[..zipped.len() / 2]).unwrap();
        let last = read().last();
        assert!(matches!(last, Some(Err(TraceError::Io { .. }))), "{last:?}");
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(content in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let lines = content.split(|&byte| byte == b'\n').count();
            prop_assert!(outcomes(&content).len() <= lines);
        }
    }
}
