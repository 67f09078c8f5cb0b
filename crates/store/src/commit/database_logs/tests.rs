use proptest::prelude::*;

use super::layout::*;
use mobifs_base::{PAGE_BYTES, PageIndex};

fn log_header(page_bytes: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&0x377f_0683_u32.to_be_bytes());
    header[8..12].copy_from_slice(&page_bytes.to_be_bytes());
    header[16..24].copy_from_slice(b"the salt");
    header
}

/// For each byte of a file the frame, and the offset in its content; none between contents.
fn byte_by_byte(
    bytes: usize,
    (header, before, page, after): (usize, usize, usize, usize),
) -> Vec<Option<(u64, u64)>> {
    let of = |at: usize| {
        let at = at.checked_sub(header)?;
        let frame_bytes = before + page + after;
        let within = (at % frame_bytes).checked_sub(before)?;
        (within < page).then(|| {
            let frame = header + at / frame_bytes * frame_bytes;
            (frame as u64, within as u64)
        })
    };
    (0..bytes).map(of).collect()
}

proptest! {
    #[test]
    fn parts_are_all_content_of_frames_and_nothing_else(
        kind in prop::sample::select(vec![Kind::Log, Kind::RollbackJournal]),
        page_power in 9..=16_u32,
    ) {
        const PAGES: usize = 70;
        let page_bytes = 1_usize << page_power;
        let header = match kind {
            Kind::Log => log_header(page_bytes as u32),
            Kind::RollbackJournal => [0; HEADER_BYTES],
        };
        let (layout, _) = Layout::of(kind, &header, || Some(page_bytes as u64)).unwrap();
        let shape = match kind {
            Kind::Log => (32, 24, page_bytes, 0),
            Kind::RollbackJournal => (512, 4, page_bytes, 4),
        };
        let expected = byte_by_byte(PAGES * PAGE_BYTES, shape);
        let mut found = vec![None; PAGES * PAGE_BYTES];
        for page in 0..PAGES {
            for part in layout.parts(PageIndex(page as u64)) {
                for (number, within) in part.within.enumerate() {
                    let at = page * PAGE_BYTES + within;
                    prop_assert_eq!(found[at], None);
                    found[at] = Some((part.frame, part.within_content + number as u64));
                }
            }
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn no_header_and_no_place_overflows(
        kind in prop::sample::select(vec![Kind::Log, Kind::RollbackJournal]),
        mut header in any::<[u8; HEADER_BYTES]>(),
        is_magic in any::<bool>(),
        page_bytes in any::<u64>(),
        page in any::<u64>(),
    ) {
        if is_magic {
            header[..12].copy_from_slice(&log_header(4096)[..12]);
        }
        if let Some((layout, _)) = Layout::of(kind, &header, || Some(page_bytes)) {
            let index = PageIndex(page / PAGE_BYTES as u64);
            prop_assert!(layout.parts(index).all(|part| part.within.end <= PAGE_BYTES));
        }
    }
}

#[test]
fn logs_are_known_by_name_and_header() {
    let of = |name: &'static str| Kind::of_name(name.as_bytes());
    let database = Some(&b"a.db"[..]);
    assert_eq!(of("a.db-wal"), Some((Kind::Log, [database, None])));
    let journal = (Kind::RollbackJournal, [database, None]);
    assert_eq!(of("a.db-journal"), Some(journal));
    let beside = Some(&b"a.db-mobifs"[..]);
    assert_eq!(of("a.db-mobifs-wal"), Some((Kind::Log, [beside, database])));
    assert_eq!((of("a.db"), of("wal"), of("")), (None, None, None));

    let (layout, salt) = Layout::of(Kind::Log, &log_header(1024), || None).unwrap();
    assert_eq!((layout.page_bytes(), &salt), (1024, b"the salt"));
    for no_size in [0, 256, 1000, 1 << 17] {
        assert!(Layout::of(Kind::Log, &log_header(no_size), || None).is_none());
    }
    assert!(Layout::of(Kind::Log, &[0; HEADER_BYTES], || None).is_none());
    assert!(Layout::of(Kind::RollbackJournal, &[0; HEADER_BYTES], || None).is_none());
}

#[test]
fn the_size_of_pages_is_that_of_the_database() {
    let mut header = [0; HEADER_BYTES];
    assert_eq!(database_page_bytes(&header), None);
    header[..16].copy_from_slice(b"SQLite format 3\0");
    for (stored, bytes) in [(512_u16, 512), (4096, 4096), (1, 65536)] {
        header[16..18].copy_from_slice(&stored.to_be_bytes());
        assert_eq!(database_page_bytes(&header), Some(bytes));
    }
}
