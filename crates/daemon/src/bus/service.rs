//! What all services on the bus have in common: their properties.

use super::connection::Connection;
use super::error::BusError;
use super::message::Message;
use super::wire::Value;

pub(super) const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// All properties of an interface, by name.
pub(super) fn properties(
    connection: &Connection,
    name: &str,
    path: &str,
    interface: &str,
) -> Result<Value, BusError> {
    let body = vec![Value::Text(interface.to_owned())];
    let answer = connection.ask(&Message::call(name, path, PROPERTIES, "GetAll", body))?;
    match answer.body.into_iter().next() {
        Some(properties @ Value::Map(_)) => Ok(properties),
        _ => Err(BusError::Type),
    }
}

/// One property.
pub(super) fn property(
    connection: &Connection,
    name: &str,
    path: &str,
    interface: &str,
    property: &str,
) -> Result<Value, BusError> {
    let body = [interface, property].map(|text| Value::Text(text.to_owned()));
    let call = Message::call(name, path, PROPERTIES, "Get", body.into());
    let answer = connection.ask(&call)?;
    let value = answer.first().ok_or(BusError::Type)?;
    Ok(value.inner().clone())
}
