//! Parsing requests: what is understood and whether an answer is expected follows from the
//! header alone, in both forms of SETXATTR.

use mobifs_fuse::{Malformed, Request};

use super::layout::{BATCH_FORGET, FORGET, HEADER_BYTES, Opcode, fixed_bytes, header};
use crate::{Target, Verdict};

/// The bytes of a request.
pub const FUSE_REQUEST: Target = Target {
    name: "fuse_request",
    run,
    seeds,
};

fn run(input: &[u8]) -> Verdict {
    let verdicts = [check(input, false), check(input, true)];
    // The same with a length that is right, or a single wrong byte would end it all.
    let mut repaired = input.to_vec();
    if let Some(length) = repaired.get_mut(..4) {
        length.copy_from_slice(&(input.len() as u32).to_le_bytes());
    }
    let again = [check(&repaired, false), check(&repaired, true)];
    if verdicts.iter().chain(&again).any(|v| *v == Verdict::Taken) {
        Verdict::Taken
    } else {
        Verdict::Refused
    }
}

fn check(bytes: &[u8], set_xattr_extended: bool) -> Verdict {
    let parsed = Request::parse(bytes, set_xattr_extended);
    if bytes.len() < HEADER_BYTES {
        assert!(matches!(parsed, Err(Malformed::Header)));
        return Verdict::Refused;
    }
    let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|step| bytes[at + step]));
    let expected_unique = u64::from(number(8)) | u64::from(number(12)) << 32;
    let expected_reply = ![FORGET, BATCH_FORGET].contains(&number(4));
    match parsed {
        Err(Malformed::Header) => panic!("there is a header"),
        Err(Malformed::Arguments {
            unique,
            expects_reply,
        }) => {
            assert_eq!((unique, expects_reply), (expected_unique, expected_reply));
            Verdict::Refused
        }
        Ok(request) => {
            let found = (request.header.unique, request.expects_reply());
            assert_eq!(found, (expected_unique, expected_reply));
            assert_eq!(number(0) as usize, bytes.len());
            Verdict::Taken
        }
    }
}

/// Every kind of request once, with zeros for arguments and two names after them.
fn seeds() -> Vec<Vec<u8>> {
    let requests = Opcode::ALL.iter().map(|&opcode| {
        let mut arguments = vec![0; fixed_bytes(opcode)];
        arguments.extend(b"name\0other\0");
        header(opcode as u32, 1, 1, 0, &arguments)
    });
    requests.collect()
}
