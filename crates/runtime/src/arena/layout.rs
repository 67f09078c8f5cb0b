//! Where things are in the arena.

/// Says that it is an arena.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"MobiFSar");
/// Grows when anything in the arena means something else, the records of `mobifs_core::image`
/// included: a program that was replaced while it ran finds what its predecessor left.
pub(super) const VERSION: u64 = 4;

// Words of the header.
pub(super) const MAGIC_AT: usize = 0;
pub(super) const VERSION_AT: usize = 8;
/// Chunks that were ever used.
pub(super) const CHUNKS_AT: usize = 16;
/// Entries of the published batch; 0: none is under way.
pub(super) const BATCH_AT: usize = 24;
/// Not 0: something could not be kept, so nothing here can be relied on.
pub(super) const INCOMPLETE_AT: usize = 32;
/// Which of the two session texts counts: 0 none, 1, 2.
pub(super) const SESSION_AT: usize = 40;

/// Each: its length as a word, then the text.
pub(super) const SESSION_TEXTS_AT: [usize; 2] = [4096, 8192];
pub(super) const SESSION_BYTES_MAX: usize = 2048;

/// Words and texts: what comes before the requests.
pub(super) const HEADER_BYTES: usize = REQUESTS_AT;

pub(super) const REQUESTS_AT: usize = 64 << 10;
pub(super) const REQUEST_SLOTS: usize = 96;
/// Of one slot: a page with words, then the buffer.
pub(super) const REQUEST_STRIDE_BYTES: usize = (1 << 20) + (16 << 10);
pub(super) const REQUEST_BUFFER_AT: usize = 4096;
/// Room for the largest request that FUSE sends: 1 MiB of data and its headers.
pub(super) const REQUEST_BUFFER_BYTES: usize = (1 << 20) + (8 << 10);
/// Word of a slot: how the request in it ends, if that is an error.
pub(super) const REFUSED_AT: usize = 0;

/// A batch's entries, one word each.
pub(super) const BATCH_ENTRIES_AT: usize = 128 << 20;
pub(super) const BATCH_ENTRIES_MAX: usize = 16 << 20;
/// Room for the entries of usual batches, which an arena in a file has from the start.
pub(super) const BATCH_RESERVED_BYTES: usize = 64 << 10;
/// The rest is chunks.
pub(super) const CHUNKS_START: usize = 256 << 20;

const _: () = assert!(REQUESTS_AT + REQUEST_SLOTS * REQUEST_STRIDE_BYTES <= BATCH_ENTRIES_AT);
const _: () = assert!(BATCH_ENTRIES_AT + BATCH_ENTRIES_MAX * 8 <= CHUNKS_START);
const _: () = assert!(REQUEST_BUFFER_AT + REQUEST_BUFFER_BYTES <= REQUEST_STRIDE_BYTES);

// A record's header.
/// Word: not 0 if the record counts.
pub(super) const LIVE_AT: usize = 0;
/// Word: kind, part and number of parts.
pub(super) const SHAPE_AT: usize = 8;
/// Word: bytes of this part's content.
pub(super) const LENGTH_AT: usize = 16;
pub(super) const FIRST_AT: usize = 24;
pub(super) const SECOND_AT: usize = 32;
pub(super) const RECORD_HEADER_BYTES: usize = 40;
