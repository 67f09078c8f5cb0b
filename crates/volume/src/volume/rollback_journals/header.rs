//! The header of a rollback journal, as far as it says whether a transaction is under way.

/// Begins each header that is valid, and ends the name of a super-journal.
pub(super) const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
/// Begins each database.
pub(super) const DATABASE_MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// How much of a journal's header is looked at.
pub(super) const HEADER_BYTES: usize = 28;
/// How much of a database's header is looked at.
pub(super) const DATABASE_HEADER_BYTES: usize = 18;

/// What a journal's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// The transaction has begun, and is not rolled back for this journal.
    Prepared,
    /// The database is rolled back for this journal.
    Valid,
    /// There is no transaction, or this is none of SQLite's journals.
    Other,
}

impl Header {
    /// What the header of a journal says that belongs to a database with this header, all zeros if
    /// it is empty.
    pub(super) fn of(journal: &[u8; HEADER_BYTES], database: &[u8; DATABASE_HEADER_BYTES]) -> Self {
        let word = |at: usize| {
            let bytes = [
                journal[at],
                journal[at + 1],
                journal[at + 2],
                journal[at + 3],
            ];
            u32::from_be_bytes(bytes)
        };
        let (pages_before, sector_bytes, page_bytes) = (word(16), word(20), word(24));
        let of_database = match u16::from_be_bytes([database[16], database[17]]) {
            1 => 65_536,
            bytes => u32::from(bytes),
        };
        let is_new = pages_before == 0 && *database == [0; DATABASE_HEADER_BYTES];
        let is_alike = database.starts_with(DATABASE_MAGIC) && page_bytes == of_database;
        let is_valid_header = (is_new || is_alike)
            && (512..=65_536).contains(&page_bytes)
            && page_bytes.is_power_of_two()
            && (32..=65_536).contains(&sector_bytes)
            && sector_bytes.is_power_of_two();
        if !is_valid_header {
            Self::Other
        } else if journal.starts_with(&MAGIC) {
            Self::Valid
        } else if journal[..12] == [0; 12] {
            Self::Prepared
        } else {
            Self::Other
        }
    }
}
