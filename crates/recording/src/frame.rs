//! The file of a log: a beginning, and frames one after another, each written by one call.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..16 | `MobiFSrecording`, version 1 |
//!
//! and then frames of a head of 32 bytes (little end first) and a payload:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..4 | `FRAM` |
//! | 4..8 | CRC-32C of all that follows, payload included |
//! | 8..12 | size of the payload |
//! | 12..16 | what it is: 1 the header (first frame), 2 observations, 3 apps from here on, 4 a gap |
//! | 16..24 | earliest moment at which one of its observations began |
//! | 24..32 | observations that were lost before it |
//!
//! A frame that is not whole ends the log: its writer was killed, or the disk was full.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use mobifs_base::MonotonicNs;

use crate::codec::encode;
use crate::{LogError, LogHeader, Observation};

/// The first bytes of a log.
pub const MAGIC: [u8; 16] = *b"MobiFSrecording\x01";
const FRAME_MAGIC: [u8; 4] = *b"FRAM";
const HEAD_BYTES: usize = 32;
/// Where the checksum's bytes end and what it covers begins.
const CHECKED_FROM: usize = 8;
/// Larger payloads are not written, so what claims to be one is damaged.
const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// Size of the largest part: a part that is smaller has room for any observation.
pub const fn part_bytes_max() -> usize {
    PAYLOAD_BYTES_MAX
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// The log's header; the first frame.
    Header = 1,
    /// Observations; [`crate::Decoder`] reads them.
    Observations = 2,
    /// Other directories are apps from here on.
    Apps = 3,
    /// Observations are missing here, and with them perhaps names.
    Gap = 4,
}

/// A frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// What its payload is.
    pub kind: FrameKind,
    payload_bytes: usize,
    /// The earliest moment at which one of its observations began.
    pub begun_min: MonotonicNs,
    /// Observations that were lost before it.
    pub lost: u64,
}

/// Observations that are written together. Memory is kept when it is cleared.
#[derive(Debug)]
pub struct LogPart {
    /// Room for the head, then the payload.
    bytes: Vec<u8>,
    begun_min: MonotonicNs,
    events: u64,
}

impl Default for LogPart {
    fn default() -> Self {
        Self {
            bytes: vec![0; HEAD_BYTES],
            begun_min: MonotonicNs(u64::MAX),
            events: 0,
        }
    }
}

impl LogPart {
    /// Adds an observation.
    pub fn push(&mut self, observation: &Observation<'_>) {
        encode(observation, &mut self.bytes);
        self.begun_min = self.begun_min.min(observation.begun_at());
        self.events += 1;
    }

    /// Size of what was added, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len() - HEAD_BYTES
    }

    /// How many observations were added.
    pub const fn len(&self) -> u64 {
        self.events
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.bytes.truncate(HEAD_BYTES);
        self.begun_min = MonotonicNs(u64::MAX);
        self.events = 0;
    }

    /// The bytes to append to a log, by one call; `lost` observations are missing before it.
    pub fn frame(&mut self, lost: u64) -> &[u8] {
        seal(
            &mut self.bytes,
            FrameKind::Observations,
            self.begun_min,
            lost,
        );
        &self.bytes
    }
}

/// Fills in the head in front of a payload.
fn seal(bytes: &mut [u8], kind: FrameKind, begun_min: MonotonicNs, lost: u64) {
    let payload_bytes = (bytes.len() - HEAD_BYTES) as u32;
    bytes[..4].copy_from_slice(&FRAME_MAGIC);
    bytes[8..12].copy_from_slice(&payload_bytes.to_le_bytes());
    bytes[12..16].copy_from_slice(&(kind as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&begun_min.0.to_le_bytes());
    bytes[24..32].copy_from_slice(&lost.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[CHECKED_FROM..]);
    bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
}

fn text_frame(kind: FrameKind, text: &str) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES];
    bytes.extend_from_slice(text.as_bytes());
    seal(&mut bytes, kind, MonotonicNs(u64::MAX), 0);
    bytes
}

/// Begins a log in an empty file.
///
/// # Errors
/// The file cannot be written.
pub fn start_log(file: &mut File, header: &LogHeader) -> io::Result<()> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(text_frame(FrameKind::Header, &header_text(header)));
    file.write_all(&bytes)
}

/// Goes on with the log of a process that has died: what it had not written whole is cut off,
/// and that something is missing is noted. The file is at its end then. Returns how many
/// bytes there are.
///
/// # Errors
/// The file is no log, or cannot be read or written.
pub fn resume_log(file: &mut File, note: &str) -> Result<u64, LogError> {
    let mut frames = Frames::new(file.try_clone()?)?;
    while frames.next_frame()?.is_some() {}
    let end = frames.whole_bytes();
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    let gap = text_frame(FrameKind::Gap, note);
    file.write_all(&gap)?;
    Ok(end + gap.len() as u64)
}

/// What to append to a log when other directories become apps; as [`LogHeader::apps`].
pub fn apps_frame(apps: &[String]) -> Vec<u8> {
    text_frame(FrameKind::Apps, &apps.join("\n"))
}

/// A line each: a key, a space, the value.
fn header_text(header: &LogHeader) -> String {
    let one_line = |text: &str| text.replace('\n', " ");
    let mut text = format!("started_ns {}\n", header.started_at.0);
    text += &format!("tool {}\n", one_line(&header.tool));
    for app in &header.apps {
        text += &format!("app {}\n", one_line(app));
    }
    for note in &header.notes {
        text += &format!("note {}\n", one_line(note));
    }
    text
}

/// The header that a frame of kind [`FrameKind::Header`] has as its payload.
///
/// # Errors
/// The text is damaged.
pub fn parse_header(payload: &[u8]) -> Result<LogHeader, LogError> {
    let text = std::str::from_utf8(payload).map_err(|error| LogError::Header(error.to_string()))?;
    let mut header = LogHeader::default();
    for line in text.lines() {
        let (word, value) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "started_ns" => {
                let ns = value.parse();
                let ns = ns.map_err(|_| LogError::Header(format!("'{value}' is not a time")))?;
                header.started_at = MonotonicNs(ns);
            }
            "tool" => value.clone_into(&mut header.tool),
            "app" => header.apps.push(value.to_owned()),
            "note" => header.notes.push(value.to_owned()),
            _ => return Err(LogError::Header(format!("'{word}' is not known"))),
        }
    }
    Ok(header)
}

/// The frames of a log, one after the other.
#[derive(Debug)]
pub struct Frames<R> {
    input: R,
    whole_bytes: u64,
    payload: Vec<u8>,
}

impl Frames<BufReader<File>> {
    /// From the first frame of the file `path` on.
    ///
    /// # Errors
    /// The file cannot be read, or is no log.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        Self::new(File::open(path)?)
    }

    /// From the first frame on.
    fn new(mut file: File) -> Result<Self, LogError> {
        file.rewind()?;
        Self::of(BufReader::new(file))
    }
}

impl<R: Read> Frames<R> {
    /// The frames of anything that can be read.
    ///
    /// # Errors
    /// It cannot be read, or is no log.
    pub fn of(mut input: R) -> Result<Self, LogError> {
        let mut magic = [0; MAGIC.len()];
        match input.read_exact(&mut magic) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error.into()),
            Ok(()) if magic == MAGIC => {}
            _ => return Err(LogError::NotALog),
        }
        Ok(Self {
            input,
            whole_bytes: MAGIC.len() as u64,
            payload: Vec::new(),
        })
    }

    /// Bytes up to the end of the last frame that was whole.
    const fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// The next frame with its payload; none at the end, or where the log was cut off.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn next_frame(&mut self) -> Result<Option<(FrameHead, &[u8])>, LogError> {
        let mut head = [0; HEAD_BYTES];
        if !self.fill_head(&mut head)? {
            return Ok(None);
        }
        let Some(parsed) = parse_head(&head) else {
            return Ok(None);
        };
        self.payload.clear();
        // Not allocated before it is there: a damaged head may claim anything.
        let claimed = parsed.payload_bytes as u64;
        let read = (&mut self.input)
            .take(claimed)
            .read_to_end(&mut self.payload)?;
        let checksum = crc32c::crc32c(&head[CHECKED_FROM..]);
        let checksum = crc32c::crc32c_append(checksum, &self.payload);
        if read != parsed.payload_bytes || head[4..8] != checksum.to_le_bytes() {
            return Ok(None);
        }
        self.whole_bytes += (HEAD_BYTES + read) as u64;
        Ok(Some((parsed, &self.payload)))
    }

    fn fill_head(&mut self, head: &mut [u8; HEAD_BYTES]) -> io::Result<bool> {
        match self.input.read_exact(head) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn parse_head(head: &[u8; HEAD_BYTES]) -> Option<FrameHead> {
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?))
    };
    let long = |at: usize| -> Option<u64> {
        Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?))
    };
    let kind = match word(12)? {
        1 => FrameKind::Header,
        2 => FrameKind::Observations,
        3 => FrameKind::Apps,
        4 => FrameKind::Gap,
        _ => return None,
    };
    let payload_bytes = usize::try_from(word(8)?).ok()?;
    let is_frame = head.starts_with(&FRAME_MAGIC) && payload_bytes <= PAYLOAD_BYTES_MAX;
    is_frame.then_some(FrameHead {
        kind,
        payload_bytes,
        begun_min: MonotonicNs(long(16)?),
        lost: long(24)?,
    })
}
