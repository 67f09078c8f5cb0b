//! Addresses of buses (D-Bus specification, "Server Addresses"): `;` between several, the first
//! that a bus listens at counts. Only local sockets are understood, which is where system buses are.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::error::BusError;

/// Where the system bus is if the environment does not name another place.
const DEFAULT: &str = "unix:path=/run/dbus/system_bus_socket";
const VARIABLE: &str = "DBUS_SYSTEM_BUS_ADDRESS";

/// The address of the system bus.
pub(super) fn system() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| DEFAULT.to_owned())
}

/// Connects to the first of the places that takes the connection. Does not wait for one whose
/// queue is full.
pub(super) fn connect_to_first(address: &str) -> Result<std::os::unix::net::UnixStream, BusError> {
    let mut failure = "the address names no local socket".to_owned();
    for place in address.split(';').filter(|place| !place.is_empty()) {
        let Some(socket_address) = place_of(place) else {
            continue;
        };
        match connect_at_once(&socket_address) {
            Ok(stream) => return Ok(stream),
            Err(errno) => failure = format!("{place}: {errno}"),
        }
    }
    Err(BusError::Unreachable(failure))
}

fn connect_at_once(address: &SocketAddrUnix) -> rustix::io::Result<std::os::unix::net::UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, address)?;
    Ok(socket.into())
}

/// The socket that one place of an address names.
fn place_of(place: &str) -> Option<SocketAddrUnix> {
    let pairs = place.strip_prefix("unix:")?;
    let value_of = |wanted: &str| {
        let mut pairs = pairs.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(key, value)| (key == wanted).then(|| unescape(value)))
    };
    if let Some(path) = value_of("path") {
        return SocketAddrUnix::new(path?).ok();
    }
    let name = value_of("abstract")??;
    SocketAddrUnix::new_abstract_name(&name.into_vec()).ok()
}

/// `%` and two hexadecimal digits stand for a byte; none where they are missing.
fn unescape(text: &str) -> Option<OsString> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, others)) = rest.split_first() {
        rest = others;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    Some(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_from_addresses() {
        let place = place_of("unix:path=/run/a%20b,guid=7").unwrap();
        assert_eq!(place.path_bytes(), Some(&b"/run/a b"[..]));
        let name = place_of("unix:abstract=/tmp/x").unwrap();
        assert_eq!(name.abstract_name(), Some(&b"/tmp/x"[..]));
        for unusable in [
            "tcp:host=a,port=1",
            "unix:guid=7",
            "unix:path=%",
            "unix:path=%zz",
            "x",
        ] {
            assert!(place_of(unusable).is_none(), "{unusable}");
        }
    }
}
