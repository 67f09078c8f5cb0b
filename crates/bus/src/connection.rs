//! A connection to a bus: a Unix socket, authentication as ourselves, messages.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::message::{HEADER_BYTES, Kind, MESSAGE_BYTES_MAX, Message};
use crate::value::{Value, WireError};

/// Where the system bus is if nobody says otherwise.
const DEFAULT_ADDRESS: &str = "unix:path=/run/dbus/system_bus_socket";
/// What the environment says it with.
const ADDRESS_VARIABLE: &str = "DBUS_SYSTEM_BUS_ADDRESS";
/// How long an answer may take.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Longest line of the authentication.
const LINE_BYTES_MAX: usize = 1 << 10;
/// Signals that are kept while an answer is waited for.
const BACKLOG_MAX: usize = 1_000;
/// The bus itself.
pub(crate) const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";

/// Why something that a bus is needed for cannot be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BusError {
    /// The connection is gone, or was never there.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// None of the transports of an address is known.
    #[error("the address \"{0}\" cannot be used")]
    Address(String),
    /// The bus does not take us for who we are.
    #[error("the bus refused: {0}")]
    Refused(String),
    /// What came is no message.
    #[error("what the bus sent is no message: {0}")]
    Wire(#[from] WireError),
    /// Somebody answered that it cannot be done.
    #[error("{name}: {message}")]
    Answer {
        /// Name of the error.
        name: String,
        /// For people.
        message: String,
    },
    /// An answer did not come in time.
    #[error("no answer in time")]
    Late,
}

impl BusError {
    /// Whether the connection is still good.
    pub(crate) const fn is_of_one_call(&self) -> bool {
        matches!(self, Self::Answer { .. } | Self::Late)
    }
}

/// The address of the system bus.
pub(crate) fn system_address() -> String {
    std::env::var(ADDRESS_VARIABLE).unwrap_or_else(|_| DEFAULT_ADDRESS.to_owned())
}

/// A connection that has said hello.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    serial: u32,
    /// The beginning of a message.
    input: Vec<u8>,
    /// Bytes to come of a message that is too large to be of interest.
    skipped_bytes: usize,
    /// Descriptors that came with bytes before those of `input` that are not read.
    descriptors: VecDeque<OwnedFd>,
    /// Came while an answer was waited for.
    backlog: VecDeque<Message>,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Connection {
    /// Connects to the first bus of an address that answers.
    pub(crate) fn open(address: &str) -> Result<Self, BusError> {
        let mut last = BusError::Address(address.to_owned());
        for one in address.split(';') {
            match connect(one).and_then(Self::over) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn over(mut stream: UnixStream) -> Result<Self, BusError> {
        stream.set_read_timeout(Some(ANSWER_WAIT))?;
        stream.set_write_timeout(Some(ANSWER_WAIT))?;
        authenticate(&mut stream)?;
        let mut connection = Self {
            stream,
            serial: 0,
            input: Vec::new(),
            skipped_bytes: 0,
            descriptors: VecDeque::new(),
            backlog: VecDeque::new(),
        };
        connection.ask_bus("Hello", Vec::new())?;
        Ok(connection)
    }

    /// Asks the bus itself.
    pub(crate) fn ask_bus(
        &mut self,
        member: &str,
        arguments: Vec<Value>,
    ) -> Result<Message, BusError> {
        self.ask(Message::call(BUS, BUS_PATH, BUS, member).with(arguments))
    }

    /// Sends a call and waits for the answer.
    pub(crate) fn ask(&mut self, call: Message) -> Result<Message, BusError> {
        let serial = self.send(call)?;
        let until = Instant::now() + ANSWER_WAIT;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(BusError::Late);
            }
            self.stream.set_read_timeout(Some(rest))?;
            let Some(message) = self.receive(RecvFlags::empty())? else {
                return Err(BusError::Late);
            };
            match message.kind {
                Kind::Return if message.reply_serial == serial => return Ok(message),
                Kind::Error if message.reply_serial == serial => {
                    let text = message.body.first().and_then(Value::as_text);
                    return Err(BusError::Answer {
                        message: text.unwrap_or_default().to_owned(),
                        name: message.error_name,
                    });
                }
                Kind::Signal | Kind::Call if self.backlog.len() < BACKLOG_MAX => {
                    self.backlog.push_back(message);
                }
                _ => {}
            }
        }
    }

    /// Sends a message, and says under which number.
    pub(crate) fn send(&mut self, mut message: Message) -> Result<u32, BusError> {
        // 0 is no number.
        self.serial = self.serial.checked_add(1).unwrap_or(1);
        message.serial = self.serial;
        self.stream.write_all(&message.encode())?;
        Ok(self.serial)
    }

    /// What has come; none if nothing has.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, BusError> {
        match self.backlog.pop_front() {
            Some(message) => Ok(Some(message)),
            None => self.receive(RecvFlags::DONTWAIT),
        }
    }

    /// The next message from the socket; none if none comes in time.
    fn receive(&mut self, flags: RecvFlags) -> Result<Option<Message>, BusError> {
        loop {
            let wanted = self.bytes_wanted()?;
            if wanted == 0 {
                return self.take_message().map(Some);
            }
            if !self.receive_bytes(wanted, flags)? {
                return Ok(None);
            }
        }
    }

    /// How many bytes are to come at least until a message is whole.
    fn bytes_wanted(&mut self) -> Result<usize, BusError> {
        if self.skipped_bytes > 0 {
            return Ok(self.skipped_bytes);
        }
        let Some(header) = self.input.first_chunk::<HEADER_BYTES>() else {
            return Ok(HEADER_BYTES - self.input.len());
        };
        let length = Message::length(header)?;
        let wanted = length.saturating_sub(self.input.len());
        if length > MESSAGE_BYTES_MAX {
            self.skipped_bytes = wanted;
            self.input.clear();
            // Nobody asked for what might come with it.
            self.descriptors.clear();
        }
        Ok(wanted)
    }

    /// Receives at most so many bytes; false if none come in time.
    fn receive_bytes(&mut self, wanted: usize, flags: RecvFlags) -> Result<bool, BusError> {
        let mut buffer = [0; 4096];
        let wanted = wanted.min(buffer.len());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut buffer[..wanted])],
            &mut ancillary,
            flags | RecvFlags::CMSG_CLOEXEC,
        );
        let received = match received {
            Ok(received) => received,
            Err(rustix::io::Errno::AGAIN) => return Ok(false),
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(errno) => return Err(io::Error::from(errno).into()),
        };
        if received.bytes == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            tracing::debug!("more descriptors came over the bus than anybody asked for");
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        let bytes = &buffer[..received.bytes];
        if self.skipped_bytes > 0 {
            self.skipped_bytes -= bytes.len();
            self.descriptors.clear();
        } else {
            self.input.extend_from_slice(bytes);
        }
        Ok(true)
    }

    fn take_message(&mut self) -> Result<Message, BusError> {
        let parsed = Message::parse(&self.input);
        self.input.clear();
        let mut message = parsed?;
        let count = (message.descriptors_count as usize).min(self.descriptors.len());
        message.descriptors = self.descriptors.drain(..count).collect();
        Ok(message)
    }
}

/// Connects to one address: `unix:path=…` or `unix:abstract=…`, with whatever else in it.
fn connect(address: &str) -> Result<UnixStream, BusError> {
    let unusable = || BusError::Address(address.to_owned());
    let pairs = address.strip_prefix("unix:").ok_or_else(unusable)?;
    for pair in pairs.split(',') {
        match pair.split_once('=') {
            Some(("path", path)) => {
                let path = unescaped(path).ok_or_else(unusable)?;
                let address = SocketAddr::from_pathname(std::ffi::OsStr::new(&path))?;
                return Ok(UnixStream::connect_addr(&address)?);
            }
            Some(("abstract", name)) => {
                let name = unescaped(name).ok_or_else(unusable)?;
                let address = SocketAddr::from_abstract_name(name.as_bytes())?;
                return Ok(UnixStream::connect_addr(&address)?);
            }
            _ => {}
        }
    }
    Err(unusable())
}

/// A value of an address: `%2f` stands for a byte.
fn unescaped(value: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// As the user that we are, which the bus sees for itself; and with descriptors.
fn authenticate(stream: &mut UnixStream) -> Result<(), BusError> {
    let user = rustix::process::geteuid().as_raw().to_string();
    let user: String = user.bytes().map(|digit| format!("{digit:02x}")).collect();
    stream.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes())?;
    expect(stream, "OK ")?;
    stream.write_all(b"NEGOTIATE_UNIX_FD\r\n")?;
    expect(stream, "AGREE_UNIX_FD")?;
    stream.write_all(b"BEGIN\r\n")?;
    Ok(())
}

fn expect(stream: &mut UnixStream, start: &str) -> Result<(), BusError> {
    let mut line = Vec::new();
    // Nothing but the line comes until we say something.
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
        if line.len() > LINE_BYTES_MAX {
            break;
        }
    }
    if line.starts_with(start.as_bytes()) {
        return Ok(());
    }
    let line = String::from_utf8_lossy(&line);
    Err(BusError::Refused(line.trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_in_addresses_are_bytes() {
        assert_eq!(unescaped("/run/a%20b").as_deref(), Some("/run/a b"));
        assert_eq!(unescaped("%2"), None);
        assert_eq!(unescaped("%zz"), None);
    }

    #[test]
    fn addresses_of_other_kinds_are_refused() {
        for address in [
            "",
            "tcp:host=localhost,port=1",
            "unix:guid=7",
            "unix:path=%",
        ] {
            let error = Connection::open(address).unwrap_err();
            assert!(matches!(error, BusError::Address(_)), "{address}: {error}");
        }
        let error = Connection::open("tcp:host=x;unix:path=/nonexistent/bus").unwrap_err();
        assert!(matches!(error, BusError::Io(_)), "{error}");
    }
}
