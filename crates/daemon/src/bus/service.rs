//! What all services on the bus have in common: their properties.

use dbus::Message;
use dbus::arg::{Arg, Get, PropMap, Variant};

use super::connection::{BusError, Connection};

pub(crate) const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// All properties of an interface, by name.
pub(crate) fn properties(
    connection: &Connection,
    name: &str,
    path: &str,
    interface: &str,
) -> Result<PropMap, BusError> {
    let call = Message::call_with_args(name, path, PROPERTIES, "GetAll", (interface,));
    Ok(connection.ask(call)?.read1()?)
}

/// One property.
pub(crate) fn property<T: Arg + for<'answer> Get<'answer>>(
    connection: &Connection,
    name: &str,
    path: &str,
    interface: &str,
    property: &str,
) -> Result<T, BusError> {
    let call = Message::call_with_args(name, path, PROPERTIES, "Get", (interface, property));
    let value: Variant<T> = connection.ask(call)?.read1()?;
    Ok(value.0)
}
