//! A trace file, plain or gzipped, line by line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use thiserror::Error;

use super::BlockRequest;
use super::line::{self, LINE_BYTES_MAX, LineError, parse_line};

/// The first bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

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
    path: PathBuf,
    input: Box<dyn BufRead>,
    line: u64,
    buffer: Vec<u8>,
    has_ended: bool,
}

impl TraceReader {
    /// Opens a trace; whether it is gzipped is seen from its content.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let open = || -> io::Result<Box<dyn BufRead>> {
            let mut file = BufReader::new(File::open(path)?);
            Ok(if file.fill_buf()?.starts_with(&GZIP_MAGIC) {
                Box::new(BufReader::new(MultiGzDecoder::new(file)))
            } else {
                Box::new(file)
            })
        };
        let input = open().map_err(|source| TraceError::Io {
            path: path.to_owned(),
            line: 0,
            source,
        })?;
        Ok(Self::new(path.to_owned(), input))
    }

    /// Reads from anything; `path` is what errors call it.
    pub fn new(path: PathBuf, input: Box<dyn BufRead>) -> Self {
        Self {
            path,
            input,
            line: 0,
            buffer: Vec::new(),
            has_ended: false,
        }
    }

    /// Lines read so far, the header and empty ones included.
    pub const fn lines(&self) -> u64 {
        self.line
    }

    /// Brings the next line into the buffer; false at the end of the file.
    fn fetch(&mut self) -> io::Result<bool> {
        self.buffer.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        let read = self
            .input
            .by_ref()
            .take(most)
            .read_until(b'\n', &mut self.buffer)?;
        if read == 0 {
            return Ok(false);
        }
        self.line += 1;
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        } else if self.buffer.len() > LINE_BYTES_MAX {
            self.skip_line()?;
        }
        Ok(true)
    }

    /// Skips the rest of a line that is too long, without keeping it.
    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let available = self.input.fill_buf()?;
            let end = available.iter().position(|&byte| byte == b'\n');
            let used = end.map_or(available.len(), |position| position + 1);
            self.input.consume(used);
            if end.is_some() || used == 0 {
                return Ok(());
            }
        }
    }

    fn parse(&self) -> Option<Result<BlockRequest, LineError>> {
        let content = self.buffer.trim_ascii();
        if content.is_empty() || (self.line == 1 && line::is_header(content)) {
            return None;
        }
        if self.buffer.len() > LINE_BYTES_MAX {
            return Some(Err(LineError::TooLong));
        }
        Some(parse_line(content))
    }
}

impl Iterator for TraceReader {
    type Item = Result<BlockRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.has_ended {
            match self.fetch() {
                Ok(true) => {}
                Ok(false) => self.has_ended = true,
                Err(source) => {
                    self.has_ended = true;
                    return Some(Err(TraceError::Io {
                        path: self.path.clone(),
                        line: self.line + 1,
                        source,
                    }));
                }
            }
            if self.has_ended {
                break;
            }
            if let Some(parsed) = self.parse() {
                return Some(parsed.map_err(|reason| TraceError::Line {
                    path: self.path.clone(),
                    line: self.line,
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
                Ok(request) => Ok(request.start.0),
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
