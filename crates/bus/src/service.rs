//! What all services on the bus have in common: their properties.

use crate::connection::{BusError, Connection};
use crate::message::Message;
use crate::value::Value;

pub(crate) const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// All properties of an interface, by name; none of them if the answer makes no sense.
pub(crate) fn properties(
    connection: &mut Connection,
    name: &str,
    path: &str,
    interface: &str,
) -> Result<Value, BusError> {
    let call = Message::call(name, path, PROPERTIES, "GetAll");
    first_of(connection.ask(call.with(vec![Value::Text(interface.into())]))?)
}

/// One property.
pub(crate) fn property(
    connection: &mut Connection,
    name: &str,
    path: &str,
    interface: &str,
    property: &str,
) -> Result<Value, BusError> {
    let arguments = [interface, property].map(|argument| Value::Text(argument.into()));
    let call = Message::call(name, path, PROPERTIES, "Get").with(arguments.to_vec());
    first_of(connection.ask(call)?).map(|value| value.inner().clone())
}

fn first_of(answer: Message) -> Result<Value, BusError> {
    let first = answer.body.into_iter().next();
    first.ok_or_else(|| BusError::Answer {
        name: "empty".into(),
        message: "an answer without a value".into(),
    })
}
