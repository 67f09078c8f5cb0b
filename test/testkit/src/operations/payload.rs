//! Content to write, described in a few bytes.

use mobifs_numerics::Random;

/// Tags from here on stand for what SQLite's files begin with, and their frames.
const SQLITE_TAGS: u32 = 0xf000_0000;

/// Content made from a tag: long enough to write megabytes, short enough to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Which content; 0 is zeros. Those that [`SqlitePart`] makes begin with bytes that a reader of SQLite's
    /// files understands.
    pub tag: u32,
    /// Length in bytes.
    pub length: u32,
}

impl Payload {
    /// The bytes. No two places of one content, and no two contents, look alike, so
    /// that a block that lands in a wrong place is seen.
    pub fn bytes(self) -> Vec<u8> {
        if self.tag == 0 {
            return vec![0; self.length as usize];
        }
        let mut out = Vec::with_capacity(self.length as usize + 8);
        if let Some(part) = SqlitePart::of_tag(self.tag) {
            out.extend(part.bytes());
        }
        let mut random = Random::new(u64::from(self.tag) << 32);
        while out.len() < self.length as usize {
            out.extend_from_slice(&random.next_u64().to_le_bytes());
        }
        out.truncate(self.length as usize);
        out
    }
}

/// The bytes of a database of SQLite, its log and its rollback journal that say where their pages are. Pages have
/// 4096 bytes, sectors 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SqlitePart {
    /// The first bytes of a database.
    Database,
    /// The header of a log, with the lower byte of its salt.
    Log { salt: u8 },
    /// The header of a frame in a log.
    LogFrame { page: u8, salt: u8 },
    /// The header of a rollback journal.
    RollbackJournal,
    /// What is before a page in a rollback journal.
    RollbackFrame { page: u8 },
}

impl SqlitePart {
    pub(super) fn payload(self) -> Payload {
        let length = self.bytes().len();
        let (kind, page, salt) = match self {
            Self::Database => (0, 0, 0),
            Self::Log { salt } => (1, 0, salt),
            Self::LogFrame { page, salt } => (2, page, salt),
            Self::RollbackJournal => (3, 0, 0),
            Self::RollbackFrame { page } => (4, page, 0),
        };
        Payload {
            tag: SQLITE_TAGS | kind << 16 | u32::from(page) << 8 | u32::from(salt),
            length: length as u32,
        }
    }

    fn of_tag(tag: u32) -> Option<Self> {
        let [_, kind, page, salt] = tag.checked_sub(SQLITE_TAGS)?.to_be_bytes();
        Some(match kind {
            0 => Self::Database,
            1 => Self::Log { salt },
            2 => Self::LogFrame { page, salt },
            3 => Self::RollbackJournal,
            _ => Self::RollbackFrame { page },
        })
    }

    fn bytes(self) -> Vec<u8> {
        let mut out = vec![0; 32];
        match self {
            Self::Database => {
                out[..16].copy_from_slice(b"SQLite format 3\0");
                out[16..18].copy_from_slice(&4096_u16.to_be_bytes());
            }
            Self::Log { salt } => {
                out[..4].copy_from_slice(&0x377f_0682_u32.to_be_bytes());
                out[8..12].copy_from_slice(&4096_u32.to_be_bytes());
                out[16] = salt;
            }
            Self::LogFrame { page, salt } => {
                out.truncate(24);
                out[3] = page;
                out[8] = salt;
            }
            Self::RollbackJournal => {
                out[..8].copy_from_slice(&[0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7]);
                out[20..24].copy_from_slice(&512_u32.to_be_bytes());
            }
            Self::RollbackFrame { page } => {
                out.truncate(4);
                out[3] = page;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_sqlite_are_found_again_by_their_tags() {
        for part in [
            SqlitePart::Database,
            SqlitePart::Log { salt: 7 },
            SqlitePart::LogFrame { page: 12, salt: 9 },
            SqlitePart::RollbackJournal,
            SqlitePart::RollbackFrame { page: 3 },
        ] {
            let payload = part.payload();
            assert_eq!(SqlitePart::of_tag(payload.tag), Some(part));
            assert_eq!(payload.bytes(), part.bytes());
        }
        assert_eq!(SqlitePart::of_tag(12), None);
    }

    #[test]
    fn contents_differ_by_tag_and_place() {
        let (a, b) = (
            Payload {
                tag: 1,
                length: 8192,
            },
            Payload {
                tag: 2,
                length: 8192,
            },
        );
        assert_ne!(a.bytes(), b.bytes());
        assert_ne!(a.bytes()[..4096], a.bytes()[4096..]);
        assert_eq!(
            a.bytes()[..100],
            Payload {
                tag: 1,
                length: 100
            }
            .bytes()
        );
        assert_eq!(Payload { tag: 0, length: 3 }.bytes(), [0, 0, 0]);
    }
}
