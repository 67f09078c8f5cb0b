//! What the tools of e2fsprogs print of images that anybody may have made.

use mobifs_fragmentation::fuzzing::{END, Printed, read};

use crate::{Target, Verdict};

/// The first byte says which tool has printed the rest.
pub const E2FSPROGS: Target = Target {
    name: "e2fsprogs",
    run,
    seeds: || {
        let groups = "Filesystem features:      has_journal extent needs_recovery 64bit\n\
                      Block count:              65536\nBlock size:               1024\n\
                      Free blocks:              53651\n\nGroup 0: (Blocks 1-8192) csum 0xda39\n  \
                      Block bitmap at 259 (+258), csum 0x3a169c91\n  Free blocks: 4385-8192, 9000\n";
        let inode = format!(
            "debugfs: stat <14>\nInode: 14   Type: regular    Mode:  0644   Flags: 0x80000\n\
             User:     0   Group:     0   Project:     0   Size: 163840\nLinks: 1   Blockcount: 320\n \
             atime: 0x6b09ea7a:285d71b0 -- Tue Nov 24 10:00:00 2026\nEXTENTS:\n\
             (0-7):8705-8712, (8-15[u]):30-37, (ETB0):8451\n{END}\n"
        );
        let listing = format!(
            "debugfs: ls -p <12>\n/12/040755/0/0/.//\n/13/040755/0/0/e//\n/14/100644/0/0/a/163840/\n{END}\n"
        );
        let texts = [groups.to_owned(), inode, listing];
        let numbered = texts.into_iter().zip(0_u8..);
        numbered
            .map(|(text, number)| [&[number], text.as_bytes()].concat())
            .collect()
    },
};

/// Where the pipe divides the text makes no difference.
fn run(input: &[u8]) -> Verdict {
    let Some((&first, text)) = input.split_first() else {
        return Verdict::Refused;
    };
    let printed = match first % 3 {
        0 => Printed::Groups,
        1 => Printed::Inode,
        _ => Printed::Listing,
    };
    let whole = read(printed, text, text.len());
    for piece_bytes in [1, 7] {
        let divided = read(printed, text, piece_bytes);
        match (&whole, &divided) {
            (Ok(whole), Ok(divided)) => assert_eq!(whole, divided),
            // Both are too long, or end too soon.
            (Err(_), Err(_)) => {}
            _ => panic!("{whole:?} in one piece, {divided:?} in pieces of {piece_bytes}"),
        }
    }
    Verdict::from(&whole)
}
