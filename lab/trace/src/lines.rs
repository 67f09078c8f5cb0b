//! Text files, plain or gzipped, line by line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

/// The first bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// One line, without its line end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Whole(&'a [u8]),
    /// The line was longer than lines may be, and is skipped.
    TooLong,
}

/// The lines of a file; memory for one of them at a time.
pub(crate) struct Lines {
    path: PathBuf,
    input: Box<dyn BufRead>,
    line_bytes_max: usize,
    number: u64,
    buffer: Vec<u8>,
}

/// Opens a file; whether it is gzipped is seen from its content.
pub(crate) fn open_text(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(File::open(path)?);
    Ok(if file.fill_buf()?.starts_with(&GZIP_MAGIC) {
        Box::new(BufReader::new(MultiGzDecoder::new(file)))
    } else {
        Box::new(file)
    })
}

impl Lines {
    pub(crate) fn open(path: &Path, line_bytes_max: usize) -> io::Result<Self> {
        Ok(Self::new(path.to_owned(), open_text(path)?, line_bytes_max))
    }

    pub(crate) fn new(path: PathBuf, input: Box<dyn BufRead>, line_bytes_max: usize) -> Self {
        Self {
            path,
            input,
            line_bytes_max,
            number: 0,
            buffer: Vec::new(),
        }
    }

    /// What errors call the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Lines read so far: the number of the last one, from 1.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The next line; none at the end of the file.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.buffer.clear();
        let most = self.line_bytes_max as u64 + 1;
        let limited = self.input.by_ref().take(most);
        if { limited }.read_until(b'\n', &mut self.buffer)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        } else if self.buffer.len() > self.line_bytes_max {
            self.skip_line()?;
            return Ok(Some(Line::TooLong));
        }
        Ok(Some(Line::Whole(&self.buffer)))
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
}
