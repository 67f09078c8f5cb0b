//! What dumpe2fs prints: the superblock, and for each group its free blocks.

use std::io::{self, BufRead};

use super::text::{number, until};

/// What is needed of the superblock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) block_bytes: u64,
    pub(super) blocks: u64,
    pub(super) needs_recovery: bool,
}

/// Reads all of it. `found` gets start and length of free extents, in bytes.
pub(super) fn read(
    input: &mut dyn BufRead,
    head: &mut Head,
    found: &mut dyn FnMut(u64, u64),
) -> io::Result<()> {
    // A key is all before the first colon.
    while let Some((key, stop)) = until(input, [b':', b'\n'])? {
        if stop == b'\n' {
            continue;
        }
        let key = key.trim_ascii_start();
        if head.block_bytes == 0 || key != b"Free blocks" {
            let Some((value, _)) = until(input, [b'\n'; 2])? else {
                break;
            };
            superblock(head, key, &value);
            continue;
        }
        let mut is_first = true;
        loop {
            let Some((range, stop)) = until(input, [b',', b'\n'])? else {
                return Ok(());
            };
            // The superblock has such a line as well, with a number after many spaces.
            let is_number = is_first && range.starts_with(b"  ");
            is_first = false;
            if let Some((first, last)) = blocks(&range).filter(|_| !is_number) {
                let length = (last - first).saturating_add(1);
                found(
                    first.saturating_mul(head.block_bytes),
                    length.saturating_mul(head.block_bytes),
                );
            }
            if stop == b'\n' {
                break;
            }
        }
    }
    Ok(())
}

fn superblock(head: &mut Head, key: &[u8], value: &[u8]) {
    match key {
        b"Block size" => head.block_bytes = number(value).unwrap_or(0),
        b"Block count" => head.blocks = number(value).unwrap_or(0),
        b"Filesystem features" => {
            let mut features = value.split(|&byte| byte == b' ');
            head.needs_recovery = features.any(|feature| feature == b"needs_recovery");
        }
        _ => {}
    }
}

/// `12-15` or `12`.
fn blocks(range: &[u8]) -> Option<(u64, u64)> {
    let mut ends = range.splitn(2, |&byte| byte == b'-');
    let first = number(ends.next()?)?;
    let last = match ends.next() {
        Some(last) => number(last)?,
        None => first,
    };
    (first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
Filesystem volume name:   Free blocks: 1-9
Filesystem features:      has_journal extent needs_recovery 64bit
Block count:              65536
Free blocks:              53651
Block size:               1024
Free blocks:              53651

Group 0: (Blocks 1-8192) csum 0xda39 [ITABLE_ZEROED]
  Block bitmap at 259 (+258), csum 0x3a169c91
  3808 free blocks, 2026 free inodes, 4 directories
  Free blocks: 4385-8192
  Free inodes: 23-2048
Group 1: (Blocks 8193-16384)
  Free blocks: 
  Free blocks: 8454-8456, 8753, 9401-10240
";

    pub(super) fn read_text(text: &[u8]) -> (Head, Vec<(u64, u64)>) {
        let (mut head, mut extents) = (Head::default(), Vec::new());
        let mut found = |start, length| extents.push((start, length));
        read(&mut &*text, &mut head, &mut found).unwrap();
        (head, extents)
    }

    #[test]
    fn superblock_and_free_blocks_are_read() {
        let (head, extents) = read_text(OUTPUT.as_bytes());
        let expected = Head {
            block_bytes: 1024,
            blocks: 65536,
            needs_recovery: true,
        };
        assert_eq!(head, expected);
        let blocks: Vec<_> = extents.iter().map(|(a, b)| (a / 1024, b / 1024)).collect();
        assert_eq!(blocks, [(4385, 3808), (8454, 3), (8753, 1), (9401, 840)]);
    }

    #[test]
    fn rubbish_has_no_free_blocks() {
        let rubbish = "Block size: 4096\n Free blocks: 9-3, x, -, 5-, 18446744073709551615\n";
        assert_eq!(read_text(rubbish.as_bytes()).1.len(), 1);
        assert_eq!(read_text(b""), (Head::default(), Vec::new()));
    }

    proptest::proptest! {
        #[test]
        fn noise_is_survived(noise: Vec<u8>, at in 0..OUTPUT.len()) {
            let mut text = OUTPUT.as_bytes().to_vec();
            text.splice(at..at, noise.iter().copied());
            read_text(&text);
            read_text(&noise);
            read_text(&OUTPUT.as_bytes()[..at]);
        }
    }
}
