//! What debugfs prints for `stat`: what is known of an inode, then its extents or blocks.

use std::io::{self, BufRead};

use super::text::{self, number, until};
use crate::extent::Extent;

/// Flags of inodes.
const ENCRYPTED: u32 = 0x800;
const INLINE: u32 = 0x1000_0000;

/// What comes before the places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) is_file: bool,
    pub(super) size: u64,
    pub(super) links: u64,
    pub(super) read_s: i64,
    pub(super) is_inline: bool,
    pub(super) is_encrypted: bool,
    /// What the tool found wrong.
    pub(super) problem: Option<String>,
    places: Places,
}

/// What follows the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Places {
    /// Nothing: the answer has ended.
    #[default]
    Ended,
    /// A list.
    Listed,
}

/// Consecutive blocks of a file that lie on consecutive blocks of the filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    logical: u64,
    physical: u64,
    count: u64,
    is_unwritten: bool,
}

impl Blocks {
    pub(super) fn extent(&self, block_bytes: u64) -> Extent {
        Extent {
            logical: self.logical.saturating_mul(block_bytes),
            physical: self.physical.saturating_mul(block_bytes),
            length: self.count.saturating_mul(block_bytes),
            is_unwritten: self.is_unwritten,
            ..Extent::default()
        }
    }
}

/// Reads up to the list of places, or to the end of the answer if there is none.
pub(super) fn read_head(input: &mut dyn BufRead, end: &str) -> io::Result<Head> {
    let mut head = Head::default();
    let mut has_inode = false;
    let mut other = None;
    loop {
        let line = text::line(input)?;
        if line == end.as_bytes() {
            break;
        }
        if line == b"EXTENTS:" || line == b"BLOCKS:" {
            head.places = Places::Listed;
            break;
        }
        if line.starts_with(b"Inode: ") {
            has_inode = true;
            head.is_file = value(&line, b"Type: ").is_some_and(|kind| kind == b"regular");
            let flags = value(&line, b"Flags: 0x")
                .and_then(hexadecimal)
                .unwrap_or(0);
            head.is_inline = flags & u64::from(INLINE) != 0;
            head.is_encrypted = flags & u64::from(ENCRYPTED) != 0;
        } else if line.starts_with(b"User: ") {
            head.size = value(&line, b" Size: ").and_then(number).unwrap_or(0);
        } else if line.starts_with(b"Links: ") {
            head.links = value(&line, b"Links: ").and_then(number).unwrap_or(0);
        } else if let Some(time) = value(&line, b"atime: 0x") {
            head.read_s = seconds(time).unwrap_or(0);
        } else if !line.starts_with(b"debugfs: ") && !line.trim_ascii().is_empty() {
            other.get_or_insert(line);
        }
    }
    let has_list = head.is_inline || head.places == Places::Listed;
    if head.is_file && !has_list {
        head.problem = Some("its list of blocks cannot be read".to_owned());
    }
    if !has_inode {
        head.problem = Some(other.map_or_else(|| "no inode".to_owned(), |line| text::said(&line)));
    }
    Ok(head)
}

/// The word after a key.
fn value<'l>(line: &'l [u8], key: &[u8]) -> Option<&'l [u8]> {
    let at = line.windows(key.len()).position(|part| part == key)?;
    let rest = line.get(at + key.len()..)?.trim_ascii_start();
    rest.split(|&byte| byte == b' ').next()
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// `6b09ea7a:285d71b0`: seconds, then two bits that extend them and nanoseconds; or seconds alone.
fn seconds(time: &[u8]) -> Option<i64> {
    let mut parts = time.splitn(2, |&byte| byte == b':');
    let low = u32::try_from(hexadecimal(parts.next()?)?).ok()?;
    let high = parts.next().and_then(hexadecimal).unwrap_or(0) & 3;
    Some(i64::from(low.cast_signed()) + (high.cast_signed() << 32))
}

/// Reads the places up to the end of the answer. What the tool found wrong is returned.
pub(super) fn read_extents(
    input: &mut dyn BufRead,
    head: &Head,
    end: &str,
    found: &mut dyn FnMut(Blocks),
) -> io::Result<Option<String>> {
    if head.places == Places::Ended {
        return Ok(None);
    }
    let mut problem = None;
    loop {
        let Some((item, stop)) = until(input, [b',', b'\n'])? else {
            return Err(text::ended());
        };
        let item = item.trim_ascii();
        if item == end.as_bytes() && stop == b'\n' {
            return Ok(problem);
        }
        match place(item) {
            Item::Blocks(blocks) => found(blocks),
            Item::Nothing => {}
            Item::Other => {
                problem.get_or_insert_with(|| text::said(item));
            }
        }
    }
}

enum Item {
    Blocks(Blocks),
    /// Metadata of the list, an empty line, a total.
    Nothing,
    Other,
}

/// `(0-7):8705-8712`, `(4):19`, `(8-15[u]):30-37`, `(ETB0):8451`, `(IND):1035`.
fn place(item: &[u8]) -> Item {
    if item.is_empty() || item.starts_with(b"TOTAL: ") {
        return Item::Nothing;
    }
    let parts = item.strip_prefix(b"(").and_then(|rest| {
        let at = rest.iter().position(|&byte| byte == b')')?;
        Some((rest.get(..at)?, rest.get(at + 1..)?.strip_prefix(b":")?))
    });
    let Some((logical, physical)) = parts else {
        return Item::Other;
    };
    if logical.first().is_some_and(u8::is_ascii_uppercase) {
        return Item::Nothing;
    }
    let mark = logical.iter().position(|&byte| byte == b'[');
    let (logical, is_unwritten) = match mark {
        Some(at) => (logical.get(..at).unwrap_or_default(), true),
        None => (logical, false),
    };
    let blocks = range(logical).zip(range(physical));
    let blocks = blocks.filter(|(logical, physical)| logical.1 == physical.1);
    blocks.map_or(Item::Other, |((logical, count), (physical, _))| {
        Item::Blocks(Blocks {
            logical,
            physical,
            count,
            is_unwritten,
        })
    })
}

/// First and count of `4-7` or `4`.
fn range(text: &[u8]) -> Option<(u64, u64)> {
    let mut ends = text.splitn(2, |&byte| byte == b'-');
    let first: u64 = number(ends.next()?)?;
    let last: u64 = match ends.next() {
        Some(last) => number(last)?,
        None => first,
    };
    Some((first, last.checked_sub(first)?.checked_add(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &[u8] = b"debugfs: stat <14>\n\
Inode: 14   Type: regular    Mode:  0644   Flags: 0x80000\n\
Generation: 3324817640    Version: 0x00000000:00000015\n\
User:     0   Group:     0   Project:     0   Size: 163840\n\
File ACL: 0\nLinks: 2   Blockcount: 2050\nFragment:  Address: 0    Number: 0    Size: 0\n \
ctime: 0x6b09ea7b:bb3b189c -- Fri Nov 27 20:39:23 2026\n \
atime: 0x6b09ea7a:285d71b1 -- Fri Nov 27 20:39:22 2026\n\
Extended attributes:\n  user.x (14) = \"a\\ndebugfs: foo\"\nInode checksum: 0x66c4aed5\n\
EXTENTS:\n(ETB0):8451, (0-7):8705-8712, (8):8729, (160-1023[u]):11265-12128\n#end 3\n";

    fn read_text(text: &[u8]) -> io::Result<(Head, Vec<Blocks>, Option<String>)> {
        let mut input = text;
        let head = read_head(&mut input, "#end 3")?;
        let mut blocks = Vec::new();
        let problem = read_extents(&mut input, &head, "#end 3", &mut |b| blocks.push(b))?;
        Ok((head, blocks, problem))
    }

    const fn blocks(logical: u64, physical: u64, count: u64, is_unwritten: bool) -> Blocks {
        Blocks {
            logical,
            physical,
            count,
            is_unwritten,
        }
    }

    #[test]
    fn an_inode_with_extents_is_read() {
        let (head, found, problem) = read_text(OUTPUT).unwrap();
        assert_eq!(problem, None);
        assert!(head.is_file && !head.is_inline && head.problem.is_none());
        assert_eq!((head.size, head.links), (163_840, 2));
        assert_eq!(head.read_s, 0x6b09_ea7a + (1 << 32));
        let expected = [
            blocks(0, 8705, 8, false),
            blocks(8, 8729, 1, false),
            blocks(160, 11265, 864, true),
        ];
        assert_eq!(found, expected);
        assert_eq!(found[0].extent(1024).physical, 8705 * 1024);
    }

    #[test]
    fn an_inode_with_blocks_is_read() {
        let text = b"Inode: 5   Type: regular    Mode:  0644   Flags: 0x0\nBLOCKS:\n\
(0-11):523-534, (IND):1035, (12):528, (DIND):7\nTOTAL: 15\n\n#end 3\n";
        let (_, found, problem) = read_text(text).unwrap();
        assert_eq!(problem, None);
        assert_eq!(
            found,
            [blocks(0, 523, 12, false), blocks(12, 528, 1, false)]
        );
    }

    #[test]
    fn inline_data_has_no_places() {
        let text = b"Inode: 17   Type: regular    Mode:  0644   Flags: 0x10000000\n\
User:     0   Group:     0   Project:     0   Size: 3\nSize of inline data: 60\n#end 3\n";
        let (head, found, problem) = read_text(text).unwrap();
        assert!(head.is_inline && found.is_empty() && problem.is_none());
        assert_eq!(head.size, 3);
    }

    #[test]
    fn what_the_tool_complains_of_is_a_problem() {
        let text = b"debugfs: stat <9>\nstat: Inode checksum does not match inode\n#end 3\n";
        let (head, ..) = read_text(text).unwrap();
        assert!(head.problem.unwrap().contains("checksum"));
        let text = b"Inode: 1   Type: regular\nEXTENTS:\n(0-3):5-9, (5):7\n#end 3\n";
        let (_, found, problem) = read_text(text).unwrap();
        assert!(problem.is_some(), "four blocks on five");
        assert_eq!(found, [blocks(5, 7, 1, false)]);
        assert!(
            read_text(&OUTPUT[..OUTPUT.len() - 3]).is_err(),
            "it ended too soon"
        );
    }

    #[test]
    fn times_before_1970_and_without_fractions_are_read() {
        assert_eq!(seconds(b"00000000"), Some(0));
        assert_eq!(seconds(b"ffffffff:00000000"), Some(-1));
        assert_eq!(seconds(b"x"), None);
    }

    proptest::proptest! {
        #[test]
        fn noise_is_survived(noise: Vec<u8>, at in 0..OUTPUT.len()) {
            let mut text = OUTPUT.to_vec();
            text.splice(at..at, noise.iter().copied());
            // An answer or an error, and never a panic.
            let _read = (read_text(&text), read_text(&noise), read_text(&OUTPUT[..at]));
        }
    }
}
