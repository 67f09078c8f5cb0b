//! Requests and replies, once both sides agreed. Many requests of a connection are under
//! way at the same time and are answered in the order in which the device is done.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::{Condvar, Mutex};
use zerocopy::IntoBytes;

use super::handshake::{Agreement, REQUEST_BYTES_MAX};
use super::wire::{
    ChunkHeader, ErrorChunk, REQUEST_MAGIC, RequestHeader, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, SimpleReply, WireError, chunk, command, command_flag,
};
use crate::block::{Block, PowerCycle, Refusal, Request, SECTOR_BYTES};

/// Requests of one connection that may be under way; more wait in the socket.
const UNDER_WAY_MAX: usize = 128;

/// One connection that is past its handshake.
pub(super) struct Connection {
    pub(super) device: Arc<dyn Block>,
    pub(super) cycle: PowerCycle,
    pub(super) agreement: Agreement,
}

/// A reply on its way to the writer.
struct Outcome {
    cookie: u64,
    offset: u64,
    is_read: bool,
    result: Result<Vec<u8>, (WireError, String)>,
}

/// Counts requests under way.
#[derive(Default)]
struct UnderWay {
    count: Mutex<usize>,
    fewer: Condvar,
}

impl UnderWay {
    fn begin(&self) {
        let mut count = self.count.lock();
        while *count >= UNDER_WAY_MAX {
            self.fewer.wait(&mut count);
        }
        *count += 1;
    }

    fn end(&self) {
        *self.count.lock() -= 1;
        self.fewer.notify_one();
    }
}

impl Connection {
    /// Serves until the client leaves. Returns when everything under way is answered.
    ///
    /// # Errors
    /// If the connection fails or the client does not keep to the protocol.
    pub(super) fn serve(
        &self,
        reader: &mut impl Read,
        writer: &mut (impl Write + Send),
    ) -> io::Result<()> {
        let under_way = Arc::new(UnderWay::default());
        let (replies, to_write) = channel();
        std::thread::scope(|scope| {
            let counting = Arc::clone(&under_way);
            let structured = self.agreement.structured;
            scope.spawn(move || write_replies(writer, &to_write, structured, &counting));
            let ended = self.read_requests(reader, &replies, &under_way);
            // The writer ends when the last request under way has dropped its sender.
            drop(replies);
            ended
        })
    }

    fn read_requests(
        &self,
        reader: &mut impl Read,
        replies: &Sender<Outcome>,
        under_way: &UnderWay,
    ) -> io::Result<()> {
        let mut data = Vec::new();
        loop {
            let mut header = RequestHeader::default();
            match reader.read_exact(header.as_mut_bytes()) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                other => other?,
            }
            if header.magic.get() != REQUEST_MAGIC {
                return Err(bad("a request does not begin with its magic number"));
            }
            if header.command.get() == command::DISCONNECT {
                return Ok(());
            }
            data.clear();
            if header.command.get() == command::WRITE {
                if header.length.get() > REQUEST_BYTES_MAX {
                    return Err(bad("a write is larger than was offered"));
                }
                data.resize(header.length.get() as usize, 0);
                reader.read_exact(&mut data)?;
            }
            under_way.begin();
            self.start(&header, &data, replies.clone());
        }
    }

    fn start(&self, header: &RequestHeader, data: &[u8], replies: Sender<Outcome>) {
        let outcome = |result| Outcome {
            cookie: header.cookie.get(),
            offset: header.offset.get(),
            is_read: header.command.get() == command::READ,
            result,
        };
        match parse(header, data, self.device.size_bytes()) {
            Ok(request) => {
                let empty = outcome(Ok(Vec::new()));
                let completion = move |result: Result<Vec<u8>, Refusal>| {
                    let result =
                        result.map_err(|refusal| (wire_error(refusal), refusal.to_string()));
                    // The writer ends early only if the client has closed the connection.
                    let _heard = replies.send(Outcome { result, ..empty });
                };
                self.device
                    .submit(self.cycle, request, Box::new(completion));
            }
            Err((error, message)) => {
                let _heard = replies.send(outcome(Err((error, message.to_owned()))));
            }
        }
    }
}

fn bad(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn wire_error(refusal: Refusal) -> WireError {
    match refusal {
        Refusal::NoPower | Refusal::Medium => WireError::Io,
        Refusal::Stale => WireError::Shutdown,
        Refusal::Misplaced => WireError::Invalid,
    }
}

/// Checks a request and says what it asks of the device.
fn parse<'a>(
    header: &RequestHeader,
    data: &'a [u8],
    size_bytes: u64,
) -> Result<Request<'a>, (WireError, &'static str)> {
    let (flags, number) = (header.flags.get(), header.command.get());
    let allowed = match number {
        command::READ => command_flag::FUA | command_flag::DF,
        command::WRITE_ZEROES => command_flag::FUA | command_flag::NO_HOLE,
        _ => command_flag::FUA,
    };
    if flags & !allowed != 0 {
        return Err((WireError::Invalid, "the command does not have these flags"));
    }
    let (offset, bytes) = (header.offset.get(), u64::from(header.length.get()));
    let durable = flags & command_flag::FUA != 0;
    if number == command::FLUSH {
        return if offset == 0 && bytes == 0 {
            Ok(Request::Flush)
        } else {
            Err((WireError::Invalid, "a flush has no range"))
        };
    }
    if offset.checked_add(bytes).is_none_or(|end| end > size_bytes) {
        let error = match number {
            command::WRITE | command::WRITE_ZEROES => WireError::NoSpace,
            _ => WireError::Invalid,
        };
        return Err((error, "the range goes beyond the end of the device"));
    }
    if bytes == 0 || offset % SECTOR_BYTES != 0 || bytes % SECTOR_BYTES != 0 {
        return Err((WireError::Invalid, "the range is not made of whole sectors"));
    }
    Ok(match number {
        command::READ if bytes > u64::from(REQUEST_BYTES_MAX) => {
            return Err((WireError::Invalid, "the read is larger than was offered"));
        }
        command::READ => Request::Read {
            offset,
            // At most `REQUEST_BYTES_MAX`.
            bytes: bytes as usize,
        },
        command::WRITE => Request::Write {
            offset,
            data,
            durable,
        },
        command::TRIM => Request::Discard {
            offset,
            bytes,
            durable,
        },
        command::WRITE_ZEROES if flags & command_flag::NO_HOLE == 0 => Request::Discard {
            offset,
            bytes,
            durable,
        },
        command::WRITE_ZEROES => Request::Zero {
            offset,
            bytes,
            durable,
        },
        _ => return Err((WireError::NotSupported, "the command is not offered")),
    })
}

/// The writer's thread. After a failure it only counts, so that the reader ends.
fn write_replies(
    writer: &mut impl Write,
    replies: &Receiver<Outcome>,
    structured: bool,
    under_way: &UnderWay,
) {
    let mut works = true;
    for outcome in replies {
        if works {
            let written = write_reply(writer, &outcome, structured);
            if let Err(error) = written.and_then(|()| writer.flush()) {
                tracing::debug!(%error, "an NBD client did not take its reply");
                works = false;
            }
        }
        under_way.end();
    }
}

fn write_reply(writer: &mut impl Write, outcome: &Outcome, structured: bool) -> io::Result<()> {
    let cookie = outcome.cookie.into();
    if !structured {
        let error = outcome
            .result
            .as_ref()
            .map_or_else(|(e, _)| *e as u32, |_| 0);
        let header = SimpleReply {
            magic: SIMPLE_REPLY_MAGIC.into(),
            error: error.into(),
            cookie,
        };
        writer.write_all(header.as_bytes())?;
        return match &outcome.result {
            Ok(data) => writer.write_all(data),
            Err(_) => Ok(()),
        };
    }
    let (kind, head, body) = match &outcome.result {
        Ok(data) if outcome.is_read => (
            chunk::OFFSET_DATA,
            outcome.offset.to_be_bytes().to_vec(),
            data.as_slice(),
        ),
        Ok(_) => (chunk::NONE, Vec::new(), &[][..]),
        Err((error, message)) => {
            let head = ErrorChunk {
                error: (*error as u32).into(),
                // Our own messages, and short.
                message_bytes: (message.len() as u16).into(),
            };
            (chunk::ERROR, head.as_bytes().to_vec(), message.as_bytes())
        }
    };
    let header = ChunkHeader {
        magic: STRUCTURED_REPLY_MAGIC.into(),
        flags: chunk::FLAG_DONE.into(),
        kind: kind.into(),
        cookie,
        // At most `REQUEST_BYTES_MAX` and a few bytes.
        length: ((head.len() + body.len()) as u32).into(),
    };
    writer.write_all(&[header.as_bytes(), &head].concat())?;
    writer.write_all(body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::FromBytes;

    use super::*;
    use crate::block::Completion;

    const SIZE_BYTES: u64 = 64 << 10;

    /// Done at once, and remembers what was asked.
    #[derive(Default)]
    struct Memory {
        content: Mutex<Vec<u8>>,
        seen: Mutex<Vec<String>>,
    }

    impl Block for Memory {
        fn size_bytes(&self) -> u64 {
            SIZE_BYTES
        }

        fn power_cycle(&self) -> PowerCycle {
            PowerCycle(0)
        }

        fn submit(&self, _: PowerCycle, request: Request<'_>, completion: Completion) {
            let mut content = self.content.lock();
            content.resize(SIZE_BYTES as usize, 0);
            let mut data = Vec::new();
            let seen = match request {
                Request::Read { offset, bytes } => {
                    data = content[offset as usize..][..bytes].to_vec();
                    "read".to_owned()
                }
                Request::Write {
                    offset,
                    data,
                    durable,
                } => {
                    content[offset as usize..][..data.len()].copy_from_slice(data);
                    format!("write durable={durable}")
                }
                Request::Flush => "flush".to_owned(),
                Request::Discard { offset, bytes, .. } | Request::Zero { offset, bytes, .. } => {
                    content[offset as usize..][..bytes as usize].fill(0);
                    "clear".to_owned()
                }
            };
            self.seen.lock().push(seen);
            completion(Ok(data));
        }
    }

    fn request(number: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> Vec<u8> {
        let header = RequestHeader {
            magic: REQUEST_MAGIC.into(),
            flags: flags.into(),
            command: number.into(),
            cookie: 77.into(),
            offset: offset.into(),
            length: length.into(),
        };
        [header.as_bytes(), data].concat()
    }

    fn serve(structured: bool, sent: &[u8]) -> (io::Result<()>, Vec<u8>, Vec<String>) {
        let memory = Arc::new(Memory::default());
        let connection = Connection {
            device: Arc::clone(&memory) as Arc<dyn Block>,
            cycle: PowerCycle(0),
            agreement: Agreement { structured },
        };
        let mut received = Vec::new();
        let ended = connection.serve(&mut &sent[..], &mut received);
        let seen = memory.seen.lock().clone();
        (ended, received, seen)
    }

    #[test]
    fn a_durable_write_arrives_as_such_and_reads_back() {
        let sent = [
            request(command::WRITE, command_flag::FUA, 512, 512, &[5; 512]),
            request(command::WRITE, 0, 0, 512, &[6; 512]),
            request(command::FLUSH, 0, 0, 0, &[]),
            request(command::READ, 0, 0, 1024, &[]),
            request(command::DISCONNECT, 0, 0, 0, &[]),
        ]
        .concat();
        let (ended, received, seen) = serve(false, &sent);
        ended.unwrap();
        let expected = ["write durable=true", "write durable=false", "flush", "read"];
        assert_eq!(seen, expected);
        assert_eq!(received.len(), 4 * 16 + 1024);
        assert_eq!(received[4 * 16..][..512], [6; 512]);
        assert_eq!(received[4 * 16 + 512..], [5; 512]);
    }

    #[test]
    fn structured_errors_say_why() {
        let sent = request(command::READ, 0, SIZE_BYTES, 512, &[]);
        let (_, received, seen) = serve(true, &sent);
        assert!(seen.is_empty());
        let (header, payload) = ChunkHeader::read_from_prefix(&received).unwrap();
        assert_eq!(header.kind.get(), chunk::ERROR);
        let (error, message) = ErrorChunk::read_from_prefix(payload).unwrap();
        assert_eq!(error.error.get(), 22);
        assert!(String::from_utf8_lossy(message).contains("beyond the end"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_the_connection_goes_on() {
        let refused = [
            (command::WRITE, 0, SIZE_BYTES, 28),
            (command::READ, 0, 100, 22),
            (command::READ, command_flag::NO_HOLE, 0, 22),
            (command::FLUSH, 0, 512, 22),
            (7, 0, 0, 95),
        ];
        for (number, flags, offset, error) in refused {
            let data: &[u8] = if number == command::WRITE {
                &[0; 512]
            } else {
                &[]
            };
            let sent = [
                request(number, flags, offset, 512, data),
                request(command::FLUSH, 0, 0, 0, &[]),
            ]
            .concat();
            let (ended, received, seen) = serve(false, &sent);
            ended.unwrap();
            assert_eq!(seen, ["flush"]);
            let reply = SimpleReply::read_from_bytes(&received[..16]).unwrap();
            assert_eq!((reply.error.get(), reply.cookie.get()), (error, 77));
        }
    }

    proptest! {
        #[test]
        fn no_client_makes_it_panic(
            requests in proptest::collection::vec(
                (0_u16..9, 0_u16..8, 0..2 * SIZE_BYTES / 512, 0_u32..8),
                0..8,
            ),
            tail in proptest::collection::vec(any::<u8>(), 0..60),
            structured in any::<bool>(),
        ) {
            let mut sent = Vec::new();
            for (number, flags, sector, sectors) in requests {
                let data = vec![1; if number == 1 { sectors as usize * 512 } else { 0 }];
                sent.extend(request(number, flags, sector * 512, sectors * 512, &data));
            }
            sent.extend(tail);
            let _ended = serve(structured, &sent);
        }
    }
}
