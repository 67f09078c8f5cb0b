//! A connection to a bus: calls with answers in bounded time, and signals when they come.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::address;
use super::error::BusError;
use super::message::{Kind, Message, PREFIX_BYTES};
use super::wire::Value;

/// How long an answer may take.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Signals that are kept while an answer is waited for: so many, and so many bytes of them. In memory
/// a message takes a small multiple of what it takes on the wire.
const BACKLOG_MAX: usize = 1_000;
const BACKLOG_BYTES_MAX: usize = 1 << 20;
/// Longer messages are skipped. The services here send some thousand bytes; the bus passes on up to
/// 32 MiB, from any user of the machine.
const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Bytes read at a time.
const READ_BYTES: usize = 4096;
/// The most that the kernel hands over at a time (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: usize = 253;
/// Longest line of the authentication.
const LINE_BYTES_MAX: usize = 1024;
/// The bus itself.
pub(super) const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";

/// A connection after the bus's greeting (`Hello`).
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the message that was sent last.
    serial: u32,
    input: Input,
    backlog: Backlog,
}

/// What came while an answer was waited for. Any user of the machine can have the bus send signals.
#[derive(Debug, Default)]
struct Backlog {
    messages: VecDeque<Message>,
    /// Total size of the queued messages on the wire.
    wire_bytes: usize,
}

impl Backlog {
    /// Drops the message where there is no room.
    fn push(&mut self, mut message: Message) {
        let wire_bytes = self.wire_bytes.saturating_add(message.wire_bytes);
        if self.messages.len() >= BACKLOG_MAX || wire_bytes > BACKLOG_BYTES_MAX {
            tracing::debug!("dropped a message of the system bus: too many wait");
            return;
        }
        // Only answers bring descriptors that are wanted.
        message.descriptors.clear();
        self.wire_bytes = wire_bytes;
        self.messages.push_back(message);
    }

    fn pop(&mut self) -> Option<Message> {
        let message = self.messages.pop_front()?;
        self.wire_bytes -= message.wire_bytes;
        Some(message)
    }
}

impl Connection {
    /// Connects to the first bus of an address that is there.
    pub(super) fn open(address: &str) -> Result<Self, BusError> {
        let connection = Self {
            stream: address::connect_to_first(address)?,
            state: RefCell::default(),
        };
        connection.authenticate()?;
        connection.ask_bus("Hello", Vec::new())?;
        Ok(connection)
    }

    /// As the user that this process belongs to, which the bus learns from the kernel.
    fn authenticate(&self) -> Result<(), BusError> {
        let until = Instant::now() + ANSWER_WAIT;
        let user = rustix::process::geteuid().as_raw().to_string();
        let user: String = user.bytes().map(|digit| format!("{digit:02x}")).collect();
        self.write(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes(), &[], until)?;
        if !self.read_line(until)?.starts_with("OK ") {
            return Err(BusError::Unreachable("this user is refused".to_owned()));
        }
        self.write(b"NEGOTIATE_UNIX_FD\r\n", &[], until)?;
        // Without it there is no inhibitor of logind, and everything else works.
        let _answer = self.read_line(until)?;
        self.write(b"BEGIN\r\n", &[], until)
    }

    fn read_line(&self, until: Instant) -> Result<String, BusError> {
        loop {
            let mut state = self.state.borrow_mut();
            if let Some(line) = state.input.take_line()? {
                return Ok(line);
            }
            drop(state);
            if !self.read(until)? {
                return Err(BusError::Late);
            }
        }
    }

    /// Asks the bus itself.
    pub(super) fn ask_bus(&self, member: &str, body: Vec<Value>) -> Result<Message, BusError> {
        self.ask(&Message::call(BUS, BUS_PATH, BUS, member, body))
    }

    /// Sends a call and waits for the answer.
    pub(super) fn ask(&self, call: &Message) -> Result<Message, BusError> {
        let until = Instant::now() + ANSWER_WAIT;
        let serial = self.send(call, until)?;
        loop {
            let Some(message) = self.receive(until)? else {
                return Err(BusError::Late);
            };
            let is_answer = message.reply_serial == Some(serial);
            match message.kind {
                Kind::Return if is_answer => return Ok(message),
                Kind::Error if is_answer => return Err(refusal(&message)),
                Kind::Signal | Kind::Call => self.state.borrow_mut().backlog.push(message),
                // The answer to a call that has timed out.
                _ => {}
            }
        }
    }

    /// Sends a message; its number.
    fn send(&self, message: &Message, until: Instant) -> Result<u32, BusError> {
        let serial = {
            let mut state = self.state.borrow_mut();
            // No message has the number 0.
            state.serial = state.serial.checked_add(1).unwrap_or(1);
            state.serial
        };
        let descriptors: Vec<_> = message.descriptors.iter().map(OwnedFd::as_fd).collect();
        self.write(&message.encode(serial), &descriptors, until)?;
        Ok(serial)
    }

    /// What has come; none if nothing has.
    pub(super) fn next(&self) -> Result<Option<Message>, BusError> {
        let first = self.state.borrow_mut().backlog.pop();
        match first {
            Some(message) => Ok(Some(message)),
            None => self.receive(Instant::now()),
        }
    }

    /// The next message from the bus; none if none comes in time.
    fn receive(&self, until: Instant) -> Result<Option<Message>, BusError> {
        loop {
            if let Some(message) = self.state.borrow_mut().input.take_message()? {
                return Ok(Some(message));
            }
            if !self.read(until)? {
                return Ok(None);
            }
        }
    }

    /// Reads some bytes; false if none come in time.
    fn read(&self, until: Instant) -> Result<bool, BusError> {
        loop {
            match self.state.borrow_mut().input.read(&self.stream) {
                Ok(()) => return Ok(true),
                Err(Errno::AGAIN) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return Err(BusError::Gone),
            }
            if !self.wait(PollFlags::IN, until)? {
                return Ok(false);
            }
        }
    }

    fn write(
        &self,
        mut bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        until: Instant,
    ) -> Result<(), BusError> {
        let mut descriptors = descriptors;
        while !bytes.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            let parts = [IoSlice::new(bytes)];
            match sendmsg(&self.stream, &parts, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    bytes = bytes.get(sent..).unwrap_or_default();
                    // They go with the first byte.
                    descriptors = &[];
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if !self.wait(PollFlags::OUT, until)? {
                        return Err(BusError::Gone);
                    }
                }
                Err(_) => return Err(BusError::Gone),
            }
        }
        Ok(())
    }

    /// Waits until the connection is ready; false if it is not in time.
    fn wait(&self, flags: PollFlags, until: Instant) -> Result<bool, BusError> {
        let rest = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(rest).map_err(io::Error::other)?;
        let mut waited = [PollFd::new(&self.stream, flags)];
        match poll(&mut waited, Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }

    /// Readable when data has arrived, or the connection is closed.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn refusal(message: &Message) -> BusError {
    let text = message.first().and_then(Value::as_text);
    BusError::Answer {
        name: message.error_name.clone().unwrap_or_default(),
        text: text.unwrap_or_default().to_owned(),
    }
}

/// What has come from the bus and is not a whole message yet.
#[derive(Debug, Default)]
struct Input {
    bytes: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    /// Bytes still to come of a message that is skipped.
    passed_over: usize,
}

impl Input {
    /// Reads what is there, at least one byte.
    fn read(&mut self, stream: &UnixStream) -> rustix::io::Result<()> {
        let mut bytes = [0; READ_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(stream, &mut parts, &mut ancillary, flags)?.bytes;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                self.descriptors.extend(rights);
            }
        }
        if received == 0 {
            return Err(Errno::PIPE);
        }
        let skipped = received.min(self.passed_over);
        self.passed_over -= skipped;
        self.bytes.extend(&bytes[skipped..received]);
        Ok(())
    }

    /// A line of the authentication, without what ends it.
    fn take_line(&mut self) -> Result<Option<String>, BusError> {
        let Some(end) = self.bytes.windows(2).position(|pair| pair == b"\r\n") else {
            // The peer speaks another protocol.
            let is_too_long = self.bytes.len() > LINE_BYTES_MAX;
            return if is_too_long {
                Err(BusError::Gone)
            } else {
                Ok(None)
            };
        };
        let line = self.bytes.drain(..end + 2).take(end).collect();
        String::from_utf8(line)
            .map(Some)
            .map_err(|_| BusError::Gone)
    }

    /// The first whole message.
    fn take_message(&mut self) -> Result<Option<Message>, BusError> {
        loop {
            let Some(prefix) = self.bytes.first_chunk::<PREFIX_BYTES>() else {
                return Ok(None);
            };
            let length = Message::length(prefix)?;
            if length > MESSAGE_BYTES_MAX {
                self.pass_over(length);
                continue;
            }
            if self.bytes.len() < length {
                return Ok(None);
            }
            let bytes: Vec<u8> = self.bytes.drain(..length).collect();
            let mut descriptors = std::iter::from_fn(|| self.descriptors.pop_front());
            return Ok(Some(Message::decode(&bytes, &mut descriptors)?));
        }
    }

    /// Drops a message that is too long; the descriptors that came with its first bytes, too.
    fn pass_over(&mut self, length: usize) {
        tracing::debug!(
            length,
            "skipped a message of the system bus that is too long"
        );
        let here = length.min(self.bytes.len());
        self.bytes.drain(..here);
        self.passed_over = length - here;
        self.descriptors.clear();
    }
}

#[cfg(test)]
impl Connection {
    /// Sends what is not answered.
    pub(super) fn send_message(&self, message: &Message) -> Result<(), BusError> {
        self.send(message, Instant::now() + ANSWER_WAIT).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn addresses_without_a_bus_are_refused() {
        for address in [
            "",
            "tcp:host=localhost,port=1",
            "unix:guid=7",
            "unix:path=%",
            "unix:path=/nonexistent/bus",
            "tcp:host=x;unix:path=/nonexistent/bus",
        ] {
            let error = Connection::open(address).unwrap_err();
            assert!(
                matches!(error, BusError::Unreachable(_)),
                "{address}: {error}"
            );
        }
    }

    /// How a bus that accepts connections misbehaves.
    #[derive(Clone, Copy, Debug)]
    enum Failing {
        Silent,
        Closing,
        Endless,
        ClosingAfterAuthentication,
    }

    fn fail(how: Failing, mut stream: UnixStream) -> Option<UnixStream> {
        let mut line = [0; 256];
        match how {
            Failing::Silent => return Some(stream),
            Failing::Closing => {}
            Failing::Endless => while stream.write_all(&[b'x'; 1024]).is_ok() {},
            Failing::ClosingAfterAuthentication => {
                for answer in ["OK 1234567890abcdef1234567890abcdef", "AGREE_UNIX_FD"] {
                    let _line = stream.read(&mut line).unwrap();
                    write!(stream, "{answer}\r\n").unwrap();
                }
                let _line = stream.read(&mut line).unwrap();
            }
        }
        None
    }

    #[test]
    fn a_bus_that_does_not_answer_is_given_up() {
        use Failing::{Closing, ClosingAfterAuthentication, Endless, Silent};
        for how in [Closing, ClosingAfterAuthentication, Endless, Silent] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("bus");
            let socket = UnixListener::bind(&path).unwrap();
            let bus = std::thread::spawn(move || fail(how, socket.accept().unwrap().0));
            let error = Connection::open(&format!("unix:path={}", path.display())).unwrap_err();
            assert!(
                matches!(error, BusError::Gone | BusError::Late),
                "{how:?}: {error}"
            );
            drop(bus.join().unwrap());
        }
    }

    #[test]
    fn messages_that_are_too_long_are_passed_over() {
        let text = |bytes| vec![Value::Text("x".repeat(bytes))];
        let long = Message::signal("/a", "b.c", "Long", text(MESSAGE_BYTES_MAX));
        let short = Message::signal("/a", "b.c", "Short", text(3));
        let bytes = [long.encode(1), short.encode(2), short.encode(3)].concat();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let writing = std::thread::spawn(move || ours.write_all(&bytes));
        let mut input = Input::default();
        let mut serials = Vec::new();
        while serials.len() < 2 {
            match input.take_message().unwrap() {
                Some(message) => serials.push(message.serial),
                None => match input.read(&theirs) {
                    Ok(()) | Err(Errno::AGAIN) => {}
                    Err(errno) => panic!("{errno}"),
                },
            }
            assert!(input.bytes.len() <= READ_BYTES + MESSAGE_BYTES_MAX);
        }
        assert_eq!(serials, [2, 3]);
        writing.join().unwrap().unwrap();
    }

    /// While an answer was waited for, any user's signals could take 250 MiB of memory.
    #[test]
    fn signals_that_wait_take_little_memory() {
        const SIGNALS: usize = 64;
        const SIGNAL_BYTES: usize = 200 << 10;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let connection = Connection {
            stream: ours,
            state: RefCell::default(),
        };
        let writing = std::thread::spawn(move || {
            let body = vec![Value::Text("x".repeat(SIGNAL_BYTES))];
            let signal = Message::signal("/a", "b.c", "Long", body).encode(9);
            for _ in 0..SIGNALS {
                theirs.write_all(&signal).unwrap();
            }
            let mut call = Message::call(BUS, BUS_PATH, BUS, "Ask", Vec::new());
            call.serial = 1;
            let answer = Message::reply(&call, vec![Value::U32(5)]);
            theirs.write_all(&answer.encode(10)).unwrap();
            theirs
        });
        let answer = connection.ask_bus("Ask", Vec::new()).unwrap();
        assert_eq!(answer.first(), Some(&Value::U32(5)));
        let mut kept_bytes = 0;
        while let Some(signal) = connection.next().unwrap() {
            kept_bytes += signal.first().and_then(Value::as_text).unwrap().len();
        }
        assert!(kept_bytes >= SIGNAL_BYTES, "none was kept");
        assert!(kept_bytes <= 1 << 20, "{kept_bytes} bytes waited");
        drop(writing.join().unwrap());
    }
}
