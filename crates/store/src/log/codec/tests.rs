//! Records survive encoding; other bytes are refused without a panic.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::log::record::{CopiedBytes, diff};
use mobifs_base::Page;

fn encoded(records: &[Record]) -> Vec<u8> {
    let mut bytes = vec![0xee; usize::try_from(encoded_bytes(records)).unwrap()];
    encode(records, &mut bytes);
    bytes
}

fn count(records: &[Record]) -> u32 {
    u32::try_from(records.len()).unwrap()
}

/// Numbers of every length, and the extremes.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        (any::<u64>(), 0..64_u32).prop_map(|(value, shift)| value >> shift),
        Just(0),
        Just(u64::MAX),
    ]
}

fn id() -> impl Strategy<Value = ObjectId> {
    let first_new = ObjectId::FIRST_NEW.0;
    prop_oneof![
        number().prop_map(ObjectId),
        (0..1000_u64).prop_map(move |step| ObjectId(first_new + step)),
        prop::sample::select(vec![
            first_new - 1,
            first_new,
            2 * first_new - 1,
            2 * first_new
        ])
        .prop_map(ObjectId),
    ]
}

fn kind() -> impl Strategy<Value = FileKind> {
    prop::sample::select(vec![
        FileKind::Regular,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ])
}

fn range() -> impl Strategy<Value = ByteRange> {
    (number(), number()).prop_map(|(start, end)| ByteRange { start, end })
}

fn time() -> impl Strategy<Value = Timestamp> {
    (number(), 0..1_000_000_000_u32)
        .prop_map(|(seconds, nanoseconds)| Timestamp::new(seconds.cast_signed(), nanoseconds))
}

fn name() -> impl Strategy<Value = Name> {
    vec(any::<u8>(), 1..=255).prop_filter_map("a possible name", |bytes| Name::new(&bytes).ok())
}

fn page_index() -> impl Strategy<Value = PageIndex> {
    number().prop_map(|value| PageIndex(value % (u64::MAX / PAGE_BYTES_U64 + 1)))
}

fn run() -> impl Strategy<Value = (u16, Vec<u8>)> {
    (0..=4096_u16, vec(any::<u8>(), 0..200)).prop_map(|(offset, mut bytes)| {
        bytes.truncate(PAGE_BYTES - usize::from(offset));
        (offset, bytes)
    })
}

fn copied_bytes() -> impl Strategy<Value = CopiedBytes> {
    (0..=4096_u16, 0..=4096_u16, id(), number()).prop_map(|(offset, length, source, from)| {
        CopiedBytes {
            offset,
            length: length.min(4096 - offset),
            source,
            from: from.min(u64::MAX - PAGE_BYTES_U64),
        }
    })
}

fn attributes() -> BoxedStrategy<Attributes> {
    let times = (time(), option::of(time()), option::of(time()));
    let numbers = (
        any::<u16>(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        number(),
        any::<u32>(),
    );
    (kind(), numbers, times)
        .prop_map(
            |(kind, (mode, uid, gid, rdev, size, nlink), (atime, mtime, ctime))| {
                let mtime = mtime.unwrap_or(atime);
                let ctime = ctime.unwrap_or(mtime);
                let rdev = DeviceNumber(rdev);
                Attributes {
                    kind,
                    mode,
                    uid,
                    gid,
                    rdev,
                    size,
                    nlink,
                    atime,
                    mtime,
                    ctime,
                }
            },
        )
        .boxed()
}

fn shared(bytes: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Arc<[u8]>> {
    bytes.prop_map(Arc::from)
}

fn object() -> impl Strategy<Value = ObjectState> {
    let bytes = || shared(vec(any::<u8>(), 0..40)).boxed();
    let ranges = || vec(range(), 0..4).boxed();
    let xattrs = vec((bytes(), option::of(bytes())), 0..4).boxed();
    (
        id(),
        any::<bool>(),
        attributes(),
        option::of(bytes()).boxed(),
        ranges(),
        ranges(),
        xattrs,
    )
        .prop_map(
            |(id, created, attributes, symlink_target, zeroed, allocated, xattrs)| ObjectState {
                id,
                created,
                attributes,
                symlink_target,
                zeroed,
                allocated,
                xattrs,
            },
        )
}

/// Any record that may be written.
/// On the heap: tests run with small stacks.
pub(crate) fn record() -> BoxedStrategy<Record> {
    let known = (id(), number(), kind(), id(), vec(any::<u8>(), 0..300)).prop_map(
        |(id, inode, kind, parent, name)| Record::Known {
            id,
            inode,
            kind,
            parent,
            name,
        },
    );
    let dentry =
        (id(), name(), option::of(id())).prop_map(|(parent, name, child)| Record::Dentry {
            parent,
            name,
            child,
        });
    let bytes = (id(), page_index(), any::<bool>(), vec(run(), 0..4)).prop_map(
        |(object, index, fresh, runs)| Record::Bytes {
            object,
            index,
            fresh,
            runs,
        },
    );
    let copied = (
        id(),
        page_index(),
        any::<bool>(),
        vec(copied_bytes(), 0..4),
        vec(run(), 0..4),
        any::<u32>(),
    )
        .prop_map(
            |(object, index, fresh, copies, runs, crc32c)| Record::Copied {
                object,
                index,
                fresh,
                copies,
                runs,
                crc32c,
            },
        );
    let direct = (id(), range()).prop_map(|(object, range)| Record::Direct { object, range });
    let external = (number(), number(), any::<u32>(), any::<u32>()).prop_map(
        |(file, bytes, records, crc32c)| Record::External {
            file,
            bytes,
            records,
            crc32c,
        },
    );
    let bind = (id(), number()).prop_map(|(id, inode)| Record::Bind { id, inode });
    let found = (id(), number()).prop_map(|(id, inode)| Record::Found {
        id,
        inode: std::num::NonZeroU64::new(inode),
    });
    // Each on the heap: several values of all of them together overflow a small stack.
    prop_oneof![
        known.boxed(),
        object().prop_map(Record::Object).boxed(),
        dentry.boxed(),
        bytes.boxed(),
        copied.boxed(),
        Just(Record::Materialized).boxed(),
        direct.boxed(),
        external.boxed(),
        bind.boxed(),
        Just(Record::RenameMark).boxed(),
        Just(Record::RenameMarkInPart).boxed(),
        found.boxed(),
    ]
    .boxed()
}

fn page() -> impl Strategy<Value = Page> {
    // Few values, in runs: pages that are similar, as in practice.
    vec(
        (prop::sample::select(vec![0_u8, 0, 7, 9]), 1..600_usize),
        0..12,
    )
    .prop_map(|stretches| {
        let mut bytes: Vec<u8> = stretches
            .into_iter()
            .flat_map(|(value, length)| std::iter::repeat_n(value, length))
            .collect();
        bytes.truncate(PAGE_BYTES);
        Page::new(&bytes)
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(records in vec(record(), 0..8)) {
        prop_assert!(records.iter().all(is_encodable));
        prop_assert_eq!(decode(&encoded(&records), count(&records)), Ok(records));
    }

    #[test]
    fn a_part_is_refused(records in vec(record(), 1..5), cut in any::<prop::sample::Index>()) {
        let bytes = encoded(&records);
        prop_assert!(decode(&bytes[..cut.index(bytes.len())], count(&records)).is_err());
        prop_assert!(decode(&bytes, count(&records) - 1).is_err());
        prop_assert!(decode(&bytes, count(&records) + 1).is_err());
    }

    /// Every accepted record can be written again: the store relies on it.
    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..400), count in any::<u32>()) {
        if let Ok(records) = decode(&bytes, count) {
            prop_assert!(records.iter().all(is_encodable));
        }
    }

    #[test]
    fn changed_bytes_never_panic(
        records in vec(record(), 1..5),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = encoded(&records);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(decoded) = decode(&bytes, count(&records)) {
            prop_assert!(decoded.iter().all(is_encodable));
            prop_assert_eq!(decode(&encoded(&decoded), count(&decoded)), Ok(decoded));
        }
    }

    #[test]
    fn a_difference_leads_from_base_to_page(base in option::of(page()), page in page()) {
        let runs = diff(base.as_ref(), &page);
        let mut rebuilt = base.clone().unwrap_or_default();
        prop_assert_eq!(runs.is_empty(), rebuilt == page);
        let mut after = None;
        for (offset, bytes) in &runs {
            let start = usize::from(*offset);
            prop_assert!(!bytes.is_empty());
            prop_assert!(after.is_none_or(|end| start >= end + 16), "close runs are merged");
            after = Some(start + bytes.len());
            rebuilt.write(start, bytes);
        }
        prop_assert_eq!(rebuilt, page);
    }
}

#[test]
fn a_difference_is_as_short_as_it_can_be() {
    let mut page = Page::new(&[1; PAGE_BYTES]);
    let base = page.clone();
    page.write(10, &[2]);
    page.write(26, &[2]);
    page.write(43, &[2, 2]);
    page.write(4095, &[2]);
    let mut near = vec![1; 17];
    (near[0], near[16]) = (2, 2);
    let expected = vec![(10, near), (43, vec![2, 2]), (4095, vec![2])];
    assert_eq!(diff(Some(&base), &page), expected);
    // Zeros after what a fresh page stores are not written.
    assert_eq!(diff(None, &Page::new(&[0, 5, 0, 0])), vec![(1, vec![5])]);
    // The removed tail of a page is in the difference.
    assert_eq!(
        diff(Some(&Page::new(b"abc")), &Page::new(b"a")),
        vec![(1, vec![0, 0])]
    );
}

#[test]
fn false_counts_end_in_an_error_without_room_for_them() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    let mut bytes = vec![BYTES, 2, 0];
    bytes.extend(huge);
    assert!(decode(&bytes, 1).is_err());
    let mut bytes = vec![KNOWN, 2, 2, 1, 2];
    bytes.extend(huge);
    assert!(decode(&bytes, 1).is_err());
    assert!(decode(&[], u32::MAX).is_err());
}

#[test]
fn bytes_outside_their_page_are_neither_written_nor_read() {
    let bad = [
        Record::Bytes {
            object: ObjectId(5),
            index: PageIndex(0),
            fresh: true,
            runs: vec![(4095, vec![1, 2])],
        },
        Record::Bytes {
            object: ObjectId(5),
            index: PageIndex(u64::MAX / PAGE_BYTES_U64 + 1),
            fresh: true,
            runs: vec![],
        },
        copied(4095, 2, 0),
        copied(0, 4097, 0),
        copied(0, 1, u64::MAX - PAGE_BYTES_U64 + 1),
    ];
    for record in bad {
        assert!(!is_encodable(&record));
        assert!(decode(&encoded(std::slice::from_ref(&record)), 1).is_err());
    }
}

fn copied(offset: u16, length: u16, from: u64) -> Record {
    Record::Copied {
        object: ObjectId(300),
        index: PageIndex(129),
        fresh: false,
        copies: vec![CopiedBytes {
            offset,
            length,
            source: ObjectId(7),
            from,
        }],
        runs: vec![(4, vec![5])],
        crc32c: 0xdead_beef,
    }
}

#[test]
fn ordinary_records_are_small() {
    let new = |step| ObjectId(ObjectId::FIRST_NEW.0 + step);
    let name = Name::new(b"a.db-journal").unwrap();
    let dentry = Record::Dentry {
        parent: ObjectId(1000),
        name,
        child: Some(new(10)),
    };
    assert_eq!(encoded_bytes(&[dentry]), 1 + 2 + 1 + 12 + 1);
    let runs = vec![(24, vec![0; 4]), (92, vec![0; 8])];
    let object = new(10);
    let bytes = Record::Bytes {
        object,
        index: PageIndex(3),
        fresh: false,
        runs,
    };
    assert_eq!(encoded_bytes(&[bytes]), 1 + 1 + 1 + 1 + 2 + 4 + 2 + 8);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn state_of_all_fields() -> ObjectState {
    let time = |seconds| Timestamp {
        seconds,
        nanoseconds: 999_999_999,
    };
    ObjectState {
        id: ObjectId(ObjectId::FIRST_NEW.0 + 300),
        created: true,
        attributes: Attributes {
            kind: FileKind::Symlink,
            mode: 0o7777,
            uid: 1000,
            gid: u32::MAX,
            rdev: DeviceNumber(0x0803),
            size: 6,
            nlink: 1,
            atime: time(-1),
            mtime: time(1_700_000_000),
            ctime: time(1_700_000_001),
        },
        symlink_target: Some(Arc::from(&b"target"[..])),
        zeroed: vec![ByteRange::new(0, 4096), ByteRange::from(8192)],
        allocated: vec![ByteRange::new(4096, 8192)],
        xattrs: vec![
            (Arc::from(&b"user.a"[..]), Some(Arc::from(&b"value"[..]))),
            (Arc::from(&b"user.b"[..]), None),
        ],
    }
}

/// Journals of earlier builds must stay readable: this changes only with the format's version.
#[test]
fn records_keep_their_bytes() {
    let name = |bytes: &[u8]| Name::new(bytes).unwrap();
    let records = [
        Record::Known {
            id: ObjectId(7),
            inode: 1 << 40,
            kind: FileKind::Directory,
            parent: ObjectId::ROOT,
            name: b"dir".to_vec(),
        },
        Record::Object(state_of_all_fields()),
        Record::Dentry {
            parent: ObjectId(7),
            name: name(b"entry"),
            child: Some(ObjectId(u64::MAX)),
        },
        Record::Dentry {
            parent: ObjectId(7),
            name: name(b"gone"),
            child: None,
        },
        Record::Bytes {
            object: ObjectId(300),
            index: PageIndex(129),
            fresh: true,
            runs: vec![(0, b"abc".to_vec()), (4000, vec![0xff])],
        },
        Record::Direct {
            object: ObjectId(300),
            range: ByteRange::new(4096, 1 << 33),
        },
        Record::External {
            file: 5,
            bytes: 1 << 20,
            records: 70_000,
            crc32c: 0xdead_beef,
        },
        Record::Bind {
            id: ObjectId(300),
            inode: 77,
        },
        Record::RenameMark,
        Record::RenameMarkInPart,
        Record::Found {
            id: ObjectId(300),
            inode: NonZeroU64::new(78),
        },
        copied(24, 4072, 1 << 20),
        Record::Materialized,
    ];
    let golden = "010e80808080802002020364697202d9040303ff1fe807ffffffff0f8310060101ff93ebdc0380c4\
        9fd50cff93ebdc0382c49fd50cff93ebdc0306746172676574020081208040000180208140020675\
        7365722e610676616c756506757365722e6200030e05656e7472798080808080808001ffffffffff\
        ffffff040e04676f6e6506d8048101020003616263a01f01ff07d804802081808080200805808040\
        f0a204effdb6f50d09d8044d0a0c0bd8044e0dd80481010118e81f0e80804001040105efbeadde0f";
    assert_eq!(hex(&encoded(&records)), golden);
}
