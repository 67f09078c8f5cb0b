//! Journals of ext4 that anybody may have made.

use mobifs_persistence::fuzzing::{self, read};

use crate::{Target, Verdict};

/// An image of a filesystem, or a journal alone: the first byte says whether checksums are put right first, so
/// that mutations get past them.
pub const JBD2: Target = Target {
    name: "jbd2",
    run,
    seeds: || {
        let journals = fuzzing::seeds().into_iter();
        journals
            .flat_map(|journal| [[&[0], &journal[..]].concat(), [&[1], &journal[..]].concat()])
            .collect()
    },
};

/// Transactions lie within the ring and do not overlap, their sequences ascend, and what is counted adds up.
fn run(input: &[u8]) -> Verdict {
    let Some((&first, image)) = input.split_first() else {
        return Verdict::Refused;
    };
    let mut image = image.to_vec();
    if first & 1 == 1 {
        fuzzing::seal(&mut image);
    }
    let found = read(&image);
    if let Ok((figures, transactions)) = &found {
        let taken: u64 = transactions.iter().map(|found| found.blocks()).sum();
        assert!(
            taken <= u64::from(figures.log_blocks),
            "{taken} blocks of {}",
            figures.log_blocks
        );
        let mut sequences = transactions.windows(2);
        assert!(
            sequences.all(|two| two[0].sequence <= two[1].sequence),
            "in order"
        );
        let logged: usize = transactions.iter().map(|found| found.logged.len()).sum();
        assert!(
            figures.logged_blocks <= logged as u64,
            "{} of {logged}",
            figures.logged_blocks
        );
        let kinds: u64 = figures.kinds.iter().map(|kind| kind.blocks).sum();
        assert_eq!(kinds, figures.logged_blocks, "each block is of one kind");
    }
    Verdict::from(&found)
}
