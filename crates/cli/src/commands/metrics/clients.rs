//! The clients that are connected. Where there are as many as may be, one that has not asked for anything yet is left
//! for a new one: the one that came first.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// A connection of a client.
pub(super) trait Connection: Read + Write + Sized + Send {
    /// Another handle of it.
    fn handle(&self) -> io::Result<Self>;
    /// Reads and writes fail after so long.
    fn limit(&self, wait: Duration) -> io::Result<()>;
    /// What reads it or writes to it comes to its end.
    fn end(&self);
}

macro_rules! connection {
    ($stream:ty) => {
        impl Connection for $stream {
            fn handle(&self) -> io::Result<Self> {
                self.try_clone()
            }

            fn limit(&self, wait: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(wait))?;
                self.set_write_timeout(Some(wait))
            }

            fn end(&self) {
                // A client may have ended it.
                let _ended = self.shutdown(Shutdown::Both);
            }
        }
    };
}

connection!(TcpStream);
connection!(UnixStream);

/// All of them.
pub(super) struct Clients<C> {
    max: usize,
    state: Mutex<State<C>>,
    has_gone: Condvar,
}

struct State<C> {
    /// How many there are.
    count: usize,
    next_number: u64,
    /// Those that have not asked for anything yet, in the order in which they came.
    silent: Vec<(u64, C)>,
}

/// One of them, until it is dropped.
pub(super) struct Client<'a, C> {
    clients: &'a Clients<C>,
    number: u64,
}

impl<C: Connection> Clients<C> {
    pub(super) const fn new(max: usize) -> Self {
        Self {
            max,
            state: Mutex::new(State {
                count: 0,
                next_number: 0,
                silent: Vec::new(),
            }),
            has_gone: Condvar::new(),
        }
    }

    /// A new one. Waits until there is room for it.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(super) fn enter(&self, connection: &C) -> io::Result<Client<'_, C>> {
        let handle = connection.handle()?;
        let mut state = self.state.lock();
        while state.count >= self.max {
            if !state.silent.is_empty() {
                let (_, first) = state.silent.remove(0);
                first.end();
            }
            self.has_gone.wait(&mut state);
        }
        state.count += 1;
        state.next_number += 1;
        let number = state.next_number;
        state.silent.push((number, handle));
        drop(state);
        Ok(Client {
            clients: self,
            number,
        })
    }
}

impl<C> Client<'_, C> {
    /// It is not left for another one any more.
    pub(super) fn has_asked(&self) {
        let mut state = self.clients.state.lock();
        state.silent.retain(|&(number, _)| number != self.number);
    }
}

impl<C> Drop for Client<'_, C> {
    fn drop(&mut self) {
        self.has_asked();
        self.clients.state.lock().count -= 1;
        self.clients.has_gone.notify_one();
    }
}
