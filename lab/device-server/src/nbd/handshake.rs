//! The fixed newstyle handshake. Total: whatever the other side sends ends in an
//! agreement, a refusal or an error.

use std::io::{self, Read, Write};

use zerocopy::{FromBytes, IntoBytes};

use super::wire::{
    BlockSizeInfo, ExportInfo, ExportReply, Greeting, INITIAL_MAGIC, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader, export, handshake, info, option,
    option_reply,
};
use crate::block::SECTOR_BYTES;

/// Longest data of an option; names have at most 4 KiB.
const OPTION_BYTES_MAX: u32 = 8 << 10;
/// A client that sends more options is refused.
const OPTIONS_MAX: usize = 256;
/// Zeroes after the answer to EXPORT_NAME that old clients want.
const OLD_PADDING_BYTES: usize = 124;
/// The unit in which the device maps.
const PREFERRED_BYTES: u32 = 4096;
/// Largest request, in bytes.
pub(super) const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// What is offered.
#[derive(Clone, Debug)]
pub(super) struct Export {
    /// Its name; the empty name means it as well.
    pub(super) name: String,
    pub(super) description: String,
    pub(super) size_bytes: u64,
}

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    /// Reads, and errors, are answered with structured replies.
    pub(super) structured: bool,
}

impl Export {
    fn is_called(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// A flush on one connection covers requests that were completed on others, so several
    /// connections make sense.
    fn flags(&self, structured: bool) -> u16 {
        let always = export::HAS_FLAGS
            | export::SEND_FLUSH
            | export::SEND_FUA
            | export::SEND_TRIM
            | export::SEND_WRITE_ZEROES
            | export::CAN_MULTI_CONN;
        if structured {
            always | export::SEND_DF
        } else {
            always
        }
    }
}

/// Negotiates; none if the client only wanted to look.
///
/// # Errors
/// If the connection fails or the client does not speak the protocol.
pub(super) fn negotiate(
    stream: &mut (impl Read + Write),
    offered: &Export,
) -> io::Result<Option<Agreement>> {
    let greeting = Greeting {
        magic: INITIAL_MAGIC.into(),
        option_magic: OPTION_MAGIC.into(),
        flags: (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).into(),
    };
    stream.write_all(greeting.as_bytes())?;
    let mut flags = [0; 4];
    stream.read_exact(&mut flags)?;
    let flags = u32::from_be_bytes(flags);
    let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    if flags & !known != 0 || flags & u32::from(handshake::FIXED_NEWSTYLE) == 0 {
        return Err(bad(
            "the client does not speak the fixed newstyle handshake",
        ));
    }
    let mut haggling = Haggling {
        stream,
        offered,
        structured: false,
        no_zeroes: flags & u32::from(handshake::NO_ZEROES) != 0,
    };
    for _ in 0..OPTIONS_MAX {
        match haggling.answer_option()? {
            Step::Next => {}
            Step::Agreed => {
                return Ok(Some(Agreement {
                    structured: haggling.structured,
                }));
            }
            Step::Left => return Ok(None),
        }
    }
    Err(bad("the client sends options without end"))
}

fn bad(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

enum Step {
    Next,
    Agreed,
    Left,
}

struct Haggling<'a, S> {
    stream: &'a mut S,
    offered: &'a Export,
    structured: bool,
    no_zeroes: bool,
}

impl<S: Read + Write> Haggling<'_, S> {
    fn answer_option(&mut self) -> io::Result<Step> {
        let mut header = OptionHeader::default();
        self.stream.read_exact(header.as_mut_bytes())?;
        if header.magic.get() != OPTION_MAGIC {
            return Err(bad("an option does not begin with its magic number"));
        }
        if header.length.get() > OPTION_BYTES_MAX {
            return Err(bad("an option is too long"));
        }
        let mut data = vec![0; header.length.get() as usize];
        self.stream.read_exact(&mut data)?;
        let number = header.option.get();
        match number {
            option::EXPORT_NAME => self.export_name(&data),
            option::ABORT => {
                // The client may close the connection before it gets this.
                let _sent = self.reply(number, option_reply::ACK, &[]);
                Ok(Step::Left)
            }
            option::LIST if data.is_empty() => self.list(),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.reply(number, option_reply::ACK, &[])?;
                Ok(Step::Next)
            }
            option::LIST | option::STRUCTURED_REPLY => self.refuse(
                number,
                option_reply::ERROR_INVALID,
                "this option has no data",
            ),
            option::INFO | option::GO => self.information(number, &data),
            _ => self.refuse(number, option_reply::ERROR_UNSUPPORTED, "not offered here"),
        }
    }

    fn export_name(&mut self, name: &[u8]) -> io::Result<Step> {
        if !self.offered.is_called(name) {
            // This option has no way to say so.
            return Err(bad("the client asked for an export that is not there"));
        }
        let reply = ExportReply {
            size: self.offered.size_bytes.into(),
            flags: self.offered.flags(self.structured).into(),
        };
        self.stream.write_all(reply.as_bytes())?;
        if !self.no_zeroes {
            self.stream.write_all(&[0; OLD_PADDING_BYTES])?;
        }
        Ok(Step::Agreed)
    }

    fn list(&mut self) -> io::Result<Step> {
        let name = self.offered.name.as_bytes();
        // Our own name, and short.
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name);
        self.reply(option::LIST, option_reply::SERVER, &data)?;
        self.reply(option::LIST, option_reply::ACK, &[])?;
        Ok(Step::Next)
    }

    fn information(&mut self, number: u32, data: &[u8]) -> io::Result<Step> {
        let Some((name, wanted)) = parse_information(data) else {
            return self.refuse(number, option_reply::ERROR_INVALID, "malformed option");
        };
        if !self.offered.is_called(name) {
            let message = "there is no export of that name; leave the name empty";
            return self.refuse(number, option_reply::ERROR_UNKNOWN, message);
        }
        let about = ExportInfo {
            kind: info::EXPORT.into(),
            size: self.offered.size_bytes.into(),
            flags: self.offered.flags(self.structured).into(),
        };
        self.reply(number, option_reply::INFO, about.as_bytes())?;
        let sizes = BlockSizeInfo {
            kind: info::BLOCK_SIZE.into(),
            smallest: (SECTOR_BYTES as u32).into(),
            preferred: PREFERRED_BYTES.into(),
            largest: REQUEST_BYTES_MAX.into(),
        };
        self.reply(number, option_reply::INFO, sizes.as_bytes())?;
        let texts = [
            (info::NAME, &self.offered.name),
            (info::DESCRIPTION, &self.offered.description),
        ];
        for (kind, text) in texts {
            if wanted.contains(&kind) {
                let data = [&kind.to_be_bytes()[..], text.as_bytes()].concat();
                self.reply(number, option_reply::INFO, &data)?;
            }
        }
        self.reply(number, option_reply::ACK, &[])?;
        Ok(if number == option::GO {
            Step::Agreed
        } else {
            Step::Next
        })
    }

    fn refuse(&mut self, number: u32, kind: u32, message: &str) -> io::Result<Step> {
        self.reply(number, kind, message.as_bytes())?;
        Ok(Step::Next)
    }

    fn reply(&mut self, number: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let header = OptionReplyHeader {
            magic: OPTION_REPLY_MAGIC.into(),
            option: number.into(),
            kind: kind.into(),
            // All that is sent is ours, and short.
            length: (data.len() as u32).into(),
        };
        self.stream.write_all(&[header.as_bytes(), data].concat())
    }
}

/// The name and the kinds of information that INFO and GO ask for.
fn parse_information(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (name, rest) = rest.split_at_checked(length)?;
    let (count, rest) = rest.split_first_chunk::<2>()?;
    let kinds = <[zerocopy::byteorder::big_endian::U16]>::ref_from_bytes(rest).ok()?;
    if kinds.len() != usize::from(u16::from_be_bytes(*count)) {
        return None;
    }
    Some((name, kinds.iter().map(|kind| kind.get()).collect()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a client sends, prepared, and what it is sent.
    struct Client {
        sends: io::Cursor<Vec<u8>>,
        received: Vec<u8>,
    }

    impl Read for Client {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.sends.read(out)
        }
    }

    impl Write for Client {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.received.write(data)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn offered() -> Export {
        Export {
            name: "flash".to_owned(),
            description: "a test".to_owned(),
            size_bytes: 1 << 20,
        }
    }

    fn option_bytes(number: u32, data: &[u8]) -> Vec<u8> {
        let header = OptionHeader {
            magic: OPTION_MAGIC.into(),
            option: number.into(),
            length: (data.len() as u32).into(),
        };
        [header.as_bytes(), data].concat()
    }

    fn go(name: &[u8]) -> Vec<u8> {
        let length = (name.len() as u32).to_be_bytes();
        option_bytes(option::GO, &[&length[..], name, &[0, 1, 0, 3]].concat())
    }

    fn run(flags: u32, options: &[Vec<u8>]) -> (io::Result<Option<Agreement>>, Vec<u8>) {
        let sends = [flags.to_be_bytes().to_vec(), options.concat()].concat();
        let mut client = Client {
            sends: io::Cursor::new(sends),
            received: Vec::new(),
        };
        let outcome = negotiate(&mut client, &offered());
        (outcome, client.received[18..].to_vec())
    }

    fn replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let (header, rest) = OptionReplyHeader::read_from_prefix(bytes).unwrap();
            assert_eq!(header.magic.get(), OPTION_REPLY_MAGIC);
            let (data, rest) = rest.split_at(header.length.get() as usize);
            found.push((header.option.get(), header.kind.get(), data.to_vec()));
            bytes = rest;
        }
        found
    }

    #[test]
    fn a_modern_client_agrees_on_everything() {
        let options = [option_bytes(option::STRUCTURED_REPLY, &[]), go(b"")];
        let (outcome, received) = run(3, &options);
        assert_eq!(outcome.unwrap(), Some(Agreement { structured: true }));
        let replies = replies(&received);
        let kinds: Vec<_> = replies.iter().map(|reply| reply.1).collect();
        assert_eq!(kinds, [1, 3, 3, 1]);
        let about = ExportInfo::read_from_bytes(&replies[1].2).unwrap();
        assert_eq!(about.size.get(), 1 << 20);
        let wanted = export::SEND_FLUSH | export::SEND_FUA | export::SEND_DF;
        assert_eq!(about.flags.get() & wanted, wanted);
    }

    #[test]
    fn an_old_client_gets_its_padding() {
        let (outcome, received) = run(1, &[option_bytes(option::EXPORT_NAME, b"flash")]);
        assert_eq!(outcome.unwrap(), Some(Agreement { structured: false }));
        assert_eq!(received.len(), 10 + OLD_PADDING_BYTES);
    }

    #[test]
    fn what_is_not_offered_is_refused_and_haggling_goes_on() {
        let options = [
            option_bytes(5, &[]),
            option_bytes(option::LIST, b"x"),
            go(b"other"),
            option_bytes(option::GO, &[0, 0, 0, 9]),
            option_bytes(option::LIST, &[]),
            option_bytes(option::ABORT, &[]),
        ];
        let (outcome, received) = run(3, &options);
        assert_eq!(outcome.unwrap(), None);
        let kinds: Vec<_> = replies(&received).iter().map(|reply| reply.1).collect();
        let expected = [
            option_reply::ERROR_UNSUPPORTED,
            option_reply::ERROR_INVALID,
            option_reply::ERROR_UNKNOWN,
            option_reply::ERROR_INVALID,
            option_reply::SERVER,
            option_reply::ACK,
            option_reply::ACK,
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn clients_with_another_protocol_are_disconnected() {
        assert!(run(0, &[]).0.is_err());
        assert!(run(0xffff, &[go(b"")]).0.is_err());
        assert!(run(3, &[vec![0; 16]]).0.is_err());
        assert!(
            run(3, &[option_bytes(option::EXPORT_NAME, b"other")])
                .0
                .is_err()
        );
        assert!(
            run(3, &vec![option_bytes(99, &[]); OPTIONS_MAX + 1])
                .0
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn no_client_makes_it_panic(
            flags in 0_u32..4,
            options in proptest::collection::vec(
                (0_u32..12, proptest::collection::vec(any::<u8>(), 0..40)),
                0..6,
            ),
            tail in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes: Vec<_> = options
                .iter()
                .map(|(number, data)| option_bytes(*number, data))
                .collect();
            bytes.push(tail);
            let (outcome, _) = run(flags, &bytes);
            // Only an option that selects the export leads to an agreement.
            let selects = options.iter().any(|(number, _)| matches!(number, 1 | 7));
            prop_assert!(selects || !matches!(outcome, Ok(Some(_))));
        }
    }
}
