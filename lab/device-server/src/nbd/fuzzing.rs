//! An NBD server without a socket, for the fuzz targets.

use std::io::{self, Cursor, Read, Write};
use std::sync::Arc;

use parking_lot::Mutex;

use super::handshake::{Agreement, Export, negotiate};
use super::transmission::Connection;
use crate::block::{Block, Completion, PowerCycle, Request};

/// Size of the served device.
pub const DEVICE_BYTES: u64 = 64 << 10;

/// What a client sends, prepared, and what it is sent.
struct Client<'a> {
    sends: Cursor<&'a [u8]>,
    received: Vec<u8>,
}

impl Read for Client<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.sends.read(out)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.received.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Negotiates with a client that sends these bytes. Says whether the two agreed, and what
/// the client got.
///
/// # Errors
/// As a connection ends.
pub fn handshake(sends: &[u8]) -> (io::Result<bool>, Vec<u8>) {
    let mut client = Client {
        sends: Cursor::new(sends),
        received: Vec::new(),
    };
    let export = Export {
        name: super::EXPORT_NAME.to_owned(),
        description: "a device in memory".to_owned(),
        size_bytes: DEVICE_BYTES,
    };
    let agreed = negotiate(&mut client, &export).map(|agreement| agreement.is_some());
    (agreed, client.received)
}

/// Serves a client that is past its handshake and sends these bytes. Returns how the
/// connection ended and what the client got.
///
/// # Errors
/// As a connection ends.
pub fn transmission(sends: &[u8], structured: bool) -> (io::Result<()>, Vec<u8>) {
    let connection = Connection {
        device: Arc::new(Memory(Mutex::new(vec![0; DEVICE_BYTES as usize]))),
        cycle: PowerCycle(0),
        agreement: Agreement { structured },
    };
    let mut received = Vec::new();
    let ended = connection.serve(&mut &sends[..], &mut received);
    (ended, received)
}

/// A device that is done at once. Panics where a request does not fit it, which the server
/// has to see to.
struct Memory(Mutex<Vec<u8>>);

impl Block for Memory {
    fn size_bytes(&self) -> u64 {
        DEVICE_BYTES
    }

    fn power_cycle(&self) -> PowerCycle {
        PowerCycle(0)
    }

    fn submit(&self, _: PowerCycle, request: Request<'_>, completion: Completion) {
        let mut content = self.0.lock();
        let mut data = Vec::new();
        match request {
            Request::Read { offset, bytes } => {
                data = content[offset as usize..][..bytes].to_vec();
            }
            Request::Write { offset, data, .. } => {
                content[offset as usize..][..data.len()].copy_from_slice(data);
            }
            Request::Flush => {}
            Request::Discard { offset, bytes, .. } | Request::Zero { offset, bytes, .. } => {
                content[offset as usize..][..bytes as usize].fill(0);
            }
        }
        completion(Ok(data));
    }
}
