//! What the tools of e2fsprogs print, without the tools, for the fuzz target.

use std::fmt::Write as _;
use std::io::{self, BufReader};

use super::{groups, inode, listing};

/// Which tool has printed it.
#[derive(Clone, Copy, Debug)]
pub enum Printed {
    /// `dumpe2fs`.
    Groups,
    /// `debugfs`, for `stat`.
    Inode,
    /// `debugfs`, for `ls -p`.
    Listing,
}

/// Ends the answers of `debugfs`.
pub const END: &str = "#end 1";

/// Reads it, from pieces of this size; what was found, in words.
///
/// # Errors
/// It is not what the tool prints.
pub fn read(printed: Printed, text: &[u8], piece_bytes: usize) -> io::Result<String> {
    let mut input = BufReader::with_capacity(piece_bytes.max(1), text);
    let mut found = String::new();
    match printed {
        Printed::Groups => {
            let mut head = groups::Head::default();
            groups::read(&mut input, &mut head, &mut |start, length| {
                assert!(length > 0, "a free extent has blocks");
                let _written = write!(found, "{start}+{length} ");
            })?;
            let _written = write!(found, "{head:?}");
        }
        Printed::Inode => {
            let head = inode::read_head(&mut input, END)?;
            let problem = inode::read_extents(&mut input, &head, END, &mut |blocks| {
                let extent = blocks.extent(4096);
                assert!(extent.length > 0, "an extent has blocks");
                let _written = write!(found, "{extent:?} ");
            })?;
            let _written = write!(found, "{head:?} {problem:?}");
        }
        Printed::Listing => {
            let problem = listing::read(&mut input, END, &mut |entry| {
                assert!(!entry.name.contains(&b'/'), "a name has no slash");
                let _written = write!(found, "{entry:?} ");
            })?;
            let _written = write!(found, "{problem:?}");
        }
    }
    Ok(found)
}
