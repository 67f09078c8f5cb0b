//! The area of fast commits: records that are no blocks, behind the log.

use crate::bytes::le16;

const TAG_BYTES: usize = 4;
const TAIL: u16 = 8;
/// The highest tag that there is.
const LAST_TAG: u16 = 10;

/// How many fast commits end in a block of the area.
#[must_use]
pub fn fast_commits(block: &[u8]) -> u64 {
    let (mut at, mut commits) = (0, 0);
    while at + TAG_BYTES <= block.len() {
        let (tag, length) = (le16(block, at), usize::from(le16(block, at + 2)));
        if tag == 0 || tag > LAST_TAG {
            break;
        }
        commits += u64::from(tag == TAIL);
        at += TAG_BYTES + length;
    }
    commits
}

/// Whether a block of the area has the beginning of a record.
#[must_use]
pub fn has_fast_commit(block: &[u8]) -> bool {
    (1..=LAST_TAG).contains(&le16(block, 0))
}
