//! Where things are in the arena.

/// Says that it is an arena.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"MobiFSar");
/// Raised when the meaning of anything in the arena changes, the records of
/// `mobifs_engine::persist` included: a program that was replaced while it ran finds what its
/// predecessor left.
pub(super) const VERSION: u64 = 10;

// Words of the header.
pub(super) const MAGIC_AT: usize = 0;
pub(super) const VERSION_AT: usize = 8;
/// Chunks that were ever used.
pub(super) const CHUNKS_AT: usize = 16;
/// Entries of the published batch; 0: none is under way.
pub(super) const BATCH_AT: usize = 24;
/// Not 0: something could not be kept, so the arena's state cannot be used.
pub(super) const INCOMPLETE_AT: usize = 32;
/// Which of the two session texts counts: 0 none, 1, 2.
pub(super) const SESSION_AT: usize = 40;
/// Where the entries of batches are, if that is not where the [`Layout`] has room for them.
pub(super) const BATCH_AREA_AT: usize = 48;
/// Processes that began to take over since one has read the whole arena.
pub(super) const ENTRIES_AT: usize = 56;
/// Bytes of the last process's progress log; they lie where the requests were.
pub(super) const PROGRESS_BYTES_AT: usize = 64;

/// Each: its length as a word, then the text.
pub(super) const SESSION_TEXTS_AT: [usize; 2] = [4096, 8192];
pub(super) const SESSION_BYTES_MAX: usize = 2048;

pub(super) const REQUESTS_AT: usize = 64 << 10;
pub(super) const REQUEST_SLOTS: usize = 96;
/// The size of one slot: a page with words, then the buffer.
pub(super) const REQUEST_STRIDE_BYTES: usize = (1 << 20) + (16 << 10);
pub(super) const REQUEST_BUFFER_AT: usize = 4096;
/// Room for the largest request that FUSE sends: 1 MiB of data and its headers.
pub(super) const REQUEST_BUFFER_BYTES: usize = (1 << 20) + (8 << 10);
/// Word of a slot: how the request in it ends, if that is an error.
pub(super) const REFUSED_AT: usize = 0;

/// Progress log of the last process, which answers no requests.
pub(super) const PROGRESS_AT: usize = REQUESTS_AT;
pub(super) const PROGRESS_BYTES_MAX: usize = REQUEST_SLOTS * REQUEST_STRIDE_BYTES;

/// Where what grows is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Room for requests of the kernel.
    pub(super) request_slots: usize,
    /// A batch's entries, one word each.
    pub(super) batch_at: usize,
    /// Most entries of a batch here; a larger batch has a place of its own.
    pub(super) batch_entries: usize,
    /// The rest is chunks, all of this size.
    pub(super) chunks_at: usize,
    pub(super) chunk_bytes: usize,
}

impl Layout {
    /// The layout of a mount's arena, which has no name and takes memory where it is written.
    pub(super) const MOUNT: Self = Self {
        request_slots: REQUEST_SLOTS,
        batch_at: 128 << 20,
        batch_entries: 16 << 20,
        chunks_at: 256 << 20,
        chunk_bytes: 256 << 10,
    };

    /// The layout of an arena in a file, as one database has it: it is as long as what is used, so nothing
    /// lies far from the start, and each class of slots takes a chunk, so they are small.
    pub(super) const FILE: Self = Self {
        request_slots: 0,
        batch_at: 16 << 10,
        batch_entries: 2048,
        chunks_at: 32 << 10,
        chunk_bytes: 32 << 10,
    };

    const fn is_consistent(&self) -> bool {
        let texts_end = SESSION_TEXTS_AT[1] + 8 + SESSION_BYTES_MAX;
        let requests_end = REQUESTS_AT + self.request_slots * REQUEST_STRIDE_BYTES;
        texts_end <= REQUESTS_AT
            && texts_end <= self.batch_at
            && (self.request_slots == 0 || requests_end <= self.batch_at)
            && self.batch_at + self.batch_entries * 8 <= self.chunks_at
    }
}

const _: () = assert!(Layout::MOUNT.is_consistent() && Layout::FILE.is_consistent());
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
