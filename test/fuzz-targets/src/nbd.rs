//! The NBD server against clients that send anything: it answers each request once and in
//! the protocol's form, or ends the connection.

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Result, Unstructured};
use mobifs_device_server::fuzzing::{DEVICE_BYTES, handshake, transmission};

use crate::noise::noises;
use crate::{Target, Verdict};

/// The first exchange of a connection.
pub const NBD_HANDSHAKE: Target = Target {
    name: "nbd_handshake",
    run: negotiate,
    seeds: handshakes,
};

/// Requests after the handshake.
pub const NBD_TRANSMISSION: Target = Target {
    name: "nbd_transmission",
    run: serve,
    seeds: noises,
};

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
const SECTOR_BYTES: u64 = 512;
const REQUESTS_MAX: usize = 64;
const TAIL_BYTES_MAX: usize = 40;
const GREETING_BYTES: usize = 18;
const EXPORT_NAME_REPLY_BYTES: usize = 10;
const OLD_PADDING_BYTES: usize = 124;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;

/// Takes numbers off what the server sent, all of them big-endian.
struct Received<'a>(&'a [u8]);

impl<'a> Received<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        assert!(count <= self.0.len(), "the server's answer is cut short");
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn number<const N: usize>(&mut self) -> u64 {
        let bytes = self.take(N);
        bytes
            .iter()
            .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
    }
}

fn negotiate(input: &[u8]) -> Verdict {
    let (agreed, answer) = handshake(input);
    let mut received = Received(&answer);
    assert_eq!(received.take(8), b"NBDMAGIC");
    assert_eq!(received.number::<8>(), OPTION_MAGIC);
    received.take(GREETING_BYTES - 16);
    let is_agreed = matches!(agreed, Ok(true));
    while !received.0.is_empty() {
        let is_last = [
            EXPORT_NAME_REPLY_BYTES,
            EXPORT_NAME_REPLY_BYTES + OLD_PADDING_BYTES,
        ]
        .contains(&received.0.len());
        if is_agreed && is_last && !received.0.starts_with(&OPTION_REPLY_MAGIC.to_be_bytes()) {
            assert_eq!(received.number::<8>(), DEVICE_BYTES);
            received.take(received.0.len());
            break;
        }
        assert_eq!(received.number::<8>(), OPTION_REPLY_MAGIC);
        received.take(8);
        let length = received.number::<4>() as usize;
        received.take(length);
    }
    Verdict::from(&agreed)
}

fn handshakes() -> Vec<Vec<u8>> {
    let option = |number: u32, data: &[u8]| {
        let header = [
            &OPTION_MAGIC.to_be_bytes()[..],
            &number.to_be_bytes(),
            &(data.len() as u32).to_be_bytes(),
        ];
        [&header.concat(), data].concat()
    };
    let flags = |flags: u32| flags.to_be_bytes().to_vec();
    let go = [&5_u32.to_be_bytes()[..], b"flash", &[0, 1, 0, 3]].concat();
    vec![
        [flags(3), option(8, &[]), option(7, &go)].concat(),
        [flags(1), option(1, b"flash")].concat(),
        [flags(3), option(3, &[]), option(6, &go), option(2, &[])].concat(),
        [flags(3), option(7, &[0; 6])].concat(),
    ]
}

/// One request of a client.
#[derive(Arbitrary, Debug)]
struct Ask {
    command: u8,
    flags: u8,
    sector: u8,
    sectors: u8,
    oddness: u8,
    /// Position and length as they are, not in sectors.
    odd: (u64, u32),
}

impl Ask {
    /// Mostly none.
    fn flags(&self) -> u16 {
        u16::from(self.flags).saturating_sub(192) % 8
    }

    /// Mostly whole sectors of the device.
    fn range(&self) -> (u64, u32) {
        if self.oddness.is_multiple_of(8) {
            return self.odd;
        }
        let sector = u64::from(self.sector) % (DEVICE_BYTES / SECTOR_BYTES);
        (sector * SECTOR_BYTES, u32::from(self.sectors % 16) * 512)
    }
}

/// What was asked, to compare with what is answered.
struct Asked {
    command: u16,
    length: u32,
}

/// Requests, and bytes after them that are most likely no requests.
fn conversation<'a>(u: &mut Unstructured<'a>) -> Result<(Vec<Ask>, &'a [u8])> {
    let tail_bytes = u.int_in_range(0..=TAIL_BYTES_MAX)?;
    let tail = u.bytes(tail_bytes.min(u.len()))?;
    let mut asks = Vec::new();
    while asks.len() < REQUESTS_MAX && !u.is_empty() {
        asks.push(u.arbitrary()?);
    }
    Ok((asks, tail))
}

fn serve(input: &[u8]) -> Verdict {
    let mut u = Unstructured::new(input);
    let (Ok(structured), Ok((asks, tail))) = (u.arbitrary::<bool>(), conversation(&mut u)) else {
        return Verdict::Refused;
    };
    let (mut sends, mut asked) = (Vec::new(), BTreeMap::new());
    let mut is_over = false;
    for (cookie, ask) in (1_u64..).zip(&asks) {
        let command = u16::from(ask.command % 9);
        let (offset, length) = ask.range();
        // Data as long as a write may be is not worth the time.
        let length = if command == WRITE {
            length % 70_000
        } else {
            length
        };
        sends.extend(REQUEST_MAGIC.to_be_bytes());
        sends.extend(ask.flags().to_be_bytes());
        sends.extend(command.to_be_bytes());
        sends.extend(cookie.to_be_bytes());
        sends.extend(offset.to_be_bytes());
        sends.extend(length.to_be_bytes());
        if command == WRITE {
            sends.resize(sends.len() + length as usize, ask.flags);
        }
        is_over |= command == DISCONNECT;
        if !is_over {
            asked.insert(cookie, Asked { command, length });
        }
    }
    sends.extend(tail);
    let (_ended, answer) = transmission(&sends, structured);
    let mut received = Received(&answer);
    let mut successes = 0;
    while !received.0.is_empty() {
        let cookie = if structured {
            structured_reply(&mut received, &asked)
        } else {
            simple_reply(&mut received, &asked)
        };
        // What the rest of the input happens to ask has a cookie of its own.
        if let Some((cookie, succeeded)) = cookie {
            successes += usize::from(succeeded);
            let ask = asked.remove(&cookie);
            assert!(ask.is_some() || !tail.is_empty(), "answered twice");
        }
    }
    assert!(
        asked.is_empty(),
        "{} requests are not answered",
        asked.len()
    );
    if successes > 0 {
        Verdict::Taken
    } else {
        Verdict::Refused
    }
}

/// Reads a reply; its cookie and whether it says success.
fn simple_reply(received: &mut Received<'_>, asked: &BTreeMap<u64, Asked>) -> Option<(u64, bool)> {
    assert_eq!(received.number::<4>(), u64::from(SIMPLE_REPLY_MAGIC));
    let error = received.number::<4>();
    let cookie = received.number::<8>();
    let Some(ask) = asked.get(&cookie) else {
        // Of a request in the tail: its length is not known here.
        received.take(received.0.len());
        return None;
    };
    if error == 0 && ask.command == READ {
        received.take(ask.length as usize);
    }
    assert!(
        error == 0 || [5, 22, 28, 95, 108].contains(&error),
        "error {error}"
    );
    Some((cookie, error == 0))
}

/// As [`simple_reply`], of a chunk that is a whole reply.
fn structured_reply(
    received: &mut Received<'_>,
    asked: &BTreeMap<u64, Asked>,
) -> Option<(u64, bool)> {
    const OFFSET_DATA: u64 = 1;
    const ERROR: u64 = (1 << 15) + 1;
    assert_eq!(received.number::<4>(), u64::from(STRUCTURED_REPLY_MAGIC));
    assert_eq!(received.number::<2>(), 1, "one chunk is the whole reply");
    let kind = received.number::<2>();
    let cookie = received.number::<8>();
    let length = received.number::<4>();
    received.take(length as usize);
    let ask = asked.get(&cookie)?;
    match kind {
        OFFSET_DATA => {
            assert_eq!(ask.command, READ);
            assert_eq!(length, u64::from(ask.length) + 8);
        }
        ERROR => assert!(length > 6, "an error says why"),
        _ => assert_eq!(length, 0),
    }
    Some((cookie, kind != ERROR))
}
