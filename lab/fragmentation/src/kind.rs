//! The kind of a file, by its name and by how its content begins.

use serde::Serialize;

/// The kinds that S4 distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Databases of SQLite, their journals and write-ahead logs.
    Sqlite,
    /// Programs, libraries, and packages of them.
    Executable,
    /// Pictures, sound, films.
    Multimedia,
    /// Everything else.
    Other,
}

/// Bytes of a file's beginning that show its kind.
pub(crate) const HEADER_BYTES: usize = 16;

const SQLITE: [&[u8]; 7] = [
    b"db",
    b"db-journal",
    b"db-wal",
    b"db-shm",
    b"sqlite",
    b"sqlite3",
    b"sqlite-wal",
];
const SQLITE_MORE: [&[u8]; 3] = [b"sqlite-journal", b"sqlite3-journal", b"sqlite3-wal"];
const EXECUTABLE: [&[u8]; 9] = [
    b"so", b"dex", b"odex", b"vdex", b"oat", b"art", b"apk", b"apex", b"elf",
];
const MULTIMEDIA: [&[u8]; 28] = [
    b"jpg", b"jpeg", b"png", b"gif", b"webp", b"bmp", b"heic", b"heif", b"avif", b"tif", b"tiff",
    b"dng", b"mp3", b"m4a", b"aac", b"ogg", b"oga", b"opus", b"flac", b"wav", b"amr", b"mp4",
    b"m4v", b"mkv", b"webm", b"mov", b"avi", b"3gp",
];

/// How content begins: at which byte, with what, and of which kind it is then.
const HEADERS: [(usize, &[u8], Kind); 18] = [
    (0, b"SQLite format 3\0", Kind::Sqlite),
    // A rollback journal; write-ahead logs of both byte orders.
    (0, b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", Kind::Sqlite),
    (0, b"\x37\x7f\x06\x82", Kind::Sqlite),
    (0, b"\x37\x7f\x06\x83", Kind::Sqlite),
    (0, b"\x7fELF", Kind::Executable),
    (0, b"dex\n0", Kind::Executable),
    (0, b"vdex0", Kind::Executable),
    (0, b"\xff\xd8\xff", Kind::Multimedia),
    (0, b"\x89PNG\r\n\x1a\n", Kind::Multimedia),
    (0, b"GIF8", Kind::Multimedia),
    (8, b"WEBP", Kind::Multimedia),
    (8, b"WAVE", Kind::Multimedia),
    (8, b"AVI ", Kind::Multimedia),
    // MP4, QuickTime, HEIC.
    (4, b"ftyp", Kind::Multimedia),
    (0, b"OggS", Kind::Multimedia),
    (0, b"fLaC", Kind::Multimedia),
    (0, b"ID3", Kind::Multimedia),
    (0, b"\x1a\x45\xdf\xa3", Kind::Multimedia),
];

impl Kind {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 4] = [
        Self::Sqlite,
        Self::Executable,
        Self::Multimedia,
        Self::Other,
    ];

    /// As reports call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Executable => "executable",
            Self::Multimedia => "multimedia",
            Self::Other => "other",
        }
    }

    /// Its place in [`Kind::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// The kind that the last part of a path says, if it says one.
    #[must_use]
    pub fn of_name(name: &[u8]) -> Option<Self> {
        let dot = name.iter().rposition(|&byte| byte == b'.')?;
        let extension = name.get(dot + 1..)?.to_ascii_lowercase();
        let is_one_of = |list: &[&[u8]]| list.contains(&extension.as_slice());
        if is_one_of(&SQLITE) || is_one_of(&SQLITE_MORE) {
            Some(Self::Sqlite)
        } else if is_one_of(&EXECUTABLE) {
            Some(Self::Executable)
        } else {
            is_one_of(&MULTIMEDIA).then_some(Self::Multimedia)
        }
    }

    /// The kind that the beginning of the content says, if it says one.
    #[must_use]
    pub fn of_header(header: &[u8]) -> Option<Self> {
        let found = HEADERS.iter().find(|(at, bytes, _)| {
            header
                .get(*at..)
                .is_some_and(|rest| rest.starts_with(bytes))
        });
        found.map(|&(_, _, kind)| kind)
    }
}

/// Whether the name is that of a rollback journal of SQLite, which lives for one transaction.
#[must_use]
pub fn is_rollback_journal(name: &[u8]) -> bool {
    name.ends_with(b"-journal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_kinds() {
        let of = |name: &str| Kind::of_name(name.as_bytes());
        for name in [
            "a.db",
            "a.db-journal",
            "x.y.db-wal",
            "A.DB",
            ".db",
            "s.sqlite3-wal",
        ] {
            assert_eq!(of(name), Some(Kind::Sqlite), "{name}");
        }
        assert_eq!(of("classes.dex"), Some(Kind::Executable));
        assert_eq!(of("base.apk"), Some(Kind::Executable));
        assert_eq!(of("IMG.JPG"), Some(Kind::Multimedia));
        for name in ["db", "a.db.gz", "", ".", "x.", "libc.so.6", "notes.txt"] {
            assert_eq!(of(name), None, "{name}");
        }
        assert_eq!(Kind::of_name(b"\xff.png"), Some(Kind::Multimedia));
    }

    #[test]
    fn content_says_kinds() {
        let of = Kind::of_header;
        assert_eq!(of(b"SQLite format 3\0"), Some(Kind::Sqlite));
        assert_eq!(of(b"SQLite format 3"), None);
        assert_eq!(of(b"\x7fELF\x02\x01"), Some(Kind::Executable));
        assert_eq!(of(b"RIFF\0\0\0\0WEBPVP8 "), Some(Kind::Multimedia));
        assert_eq!(of(b"\0\0\0\x18ftypmp42"), Some(Kind::Multimedia));
        assert_eq!(of(b"PK\x03\x04"), None, "a zip is an apk by its name only");
        assert_eq!(of(b""), None);
        let longest = HEADERS.iter().map(|(at, bytes, _)| at + bytes.len()).max();
        assert_eq!(longest, Some(HEADER_BYTES));
    }

    #[test]
    fn kinds_have_their_places() {
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), place);
        }
    }
}
