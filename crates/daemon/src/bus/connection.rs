//! A connection to a bus: calls with answers in bounded time, and signals when they come.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use dbus::Message;
use dbus::arg::{AppendAll, TypeMismatchError};
use dbus::channel::Channel;
use dbus::message::MessageType;

/// Where the system bus is if nobody says otherwise.
const DEFAULT_ADDRESS: &str = "unix:path=/run/dbus/system_bus_socket";
/// What the environment says it with.
const ADDRESS_VARIABLE: &str = "DBUS_SYSTEM_BUS_ADDRESS";
/// How long an answer may take.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Signals that are kept while an answer is waited for.
const BACKLOG_MAX: usize = 1_000;
/// The bus itself.
pub(crate) const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";

/// Why something that a bus is needed for cannot be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BusError {
    /// There is no bus at an address.
    #[error("no connection: {0}")]
    Unreachable(dbus::Error),
    /// The connection is gone.
    #[error("the bus is gone")]
    Gone,
    /// Somebody answered that it cannot be done.
    #[error(transparent)]
    Answer(#[from] dbus::Error),
    /// An answer did not come in time.
    #[error("no answer in time")]
    Late,
    /// Somebody answered something else than was asked for.
    #[error(transparent)]
    Type(#[from] TypeMismatchError),
    /// The system does not let us wait.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl BusError {
    /// Whether the connection is still good.
    pub(crate) const fn is_of_one_call(&self) -> bool {
        matches!(self, Self::Answer(_) | Self::Type(_) | Self::Late)
    }
}

/// The address of the system bus.
pub(crate) fn system_address() -> String {
    std::env::var(ADDRESS_VARIABLE).unwrap_or_else(|_| DEFAULT_ADDRESS.to_owned())
}

/// A connection that has said hello.
#[derive(Debug)]
pub(crate) struct Connection {
    channel: Channel,
    /// Came while an answer was waited for.
    backlog: RefCell<VecDeque<Message>>,
}

impl Connection {
    /// Connects to the first bus of an address that is there.
    pub(crate) fn open(address: &str) -> Result<Self, BusError> {
        let mut channel = Channel::open_private(address).map_err(BusError::Unreachable)?;
        channel.set_watch_enabled(true);
        let connection = Self {
            channel,
            backlog: RefCell::default(),
        };
        connection.ask_bus("Hello", ())?;
        Ok(connection)
    }

    /// Asks the bus itself.
    pub(crate) fn ask_bus(
        &self,
        member: &str,
        arguments: impl AppendAll,
    ) -> Result<Message, BusError> {
        let call = Message::call_with_args(BUS, BUS_PATH, BUS, member, arguments);
        self.ask(call)
    }

    /// Sends a call and waits for the answer.
    ///
    /// (The library's calls that do both wait without end for a bus that is there and does
    /// not say who it is.)
    pub(crate) fn ask(&self, call: Message) -> Result<Message, BusError> {
        let serial = self.channel.send(call).map_err(|()| BusError::Gone)?;
        let until = Instant::now() + ANSWER_WAIT;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            let Some(mut message) = self.receive(rest)? else {
                if rest.is_zero() {
                    return Err(BusError::Late);
                }
                continue;
            };
            match message.msg_type() {
                MessageType::MethodReturn | MessageType::Error
                    if message.get_reply_serial() == Some(serial) =>
                {
                    message.as_result()?;
                    return Ok(message);
                }
                MessageType::Signal | MessageType::MethodCall => self.put_off(message),
                // The answer to a question that was given up.
                _ => {}
            }
        }
    }

    fn put_off(&self, message: Message) {
        let mut backlog = self.backlog.borrow_mut();
        if backlog.len() < BACKLOG_MAX {
            backlog.push_back(message);
        }
    }

    /// What has come; none if nothing has.
    pub(crate) fn next(&self) -> Result<Option<Message>, BusError> {
        let first = self.backlog.borrow_mut().pop_front();
        match first {
            Some(message) => Ok(Some(message)),
            None => self.receive(Duration::ZERO),
        }
    }

    /// The next message from the bus; none if none comes in time, or something else does.
    fn receive(&self, timeout: Duration) -> Result<Option<Message>, BusError> {
        if let Some(message) = self.channel.pop_message() {
            return Ok(Some(message));
        }
        // Fails if the connection is gone; what came before may still be there.
        let read = self.channel.read_write(Some(timeout));
        match self.channel.pop_message() {
            None if read.is_err() => Err(BusError::Gone),
            message => Ok(message),
        }
    }

    /// Readable when something has come, or the connection is gone.
    pub(crate) fn descriptor(&self) -> Result<RawFd, BusError> {
        if self.channel.is_connected() {
            Ok(self.channel.watch().fd)
        } else {
            Err(BusError::Gone)
        }
    }
}

#[cfg(test)]
impl Connection {
    /// Sends what nobody answers.
    pub(crate) fn send(&self, message: Message) -> Result<(), BusError> {
        self.channel.send(message).map_err(|()| BusError::Gone)?;
        self.channel.flush();
        Ok(())
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

    /// What a bus does that is there and not well.
    #[derive(Clone, Copy, Debug)]
    enum Failing {
        Silent,
        Closing,
        ClosingAfterAuthentication,
    }

    fn fail(how: Failing, mut stream: UnixStream) -> Option<UnixStream> {
        let mut line = [0; 256];
        match how {
            Failing::Silent => return Some(stream),
            Failing::Closing => {}
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
        use Failing::{Closing, ClosingAfterAuthentication, Silent};
        for how in [Closing, ClosingAfterAuthentication, Silent] {
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
}
