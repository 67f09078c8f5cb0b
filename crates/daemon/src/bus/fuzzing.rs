//! What the fuzzer of the bus needs: any process on the bus can send messages.

use super::message::{Kind, Message, PREFIX_BYTES};
use super::wire::Value;

/// Messages as logind and UPower send them, to start from.
pub fn bus_message_seeds() -> Vec<Vec<u8>> {
    let property = |name: &str, value| (name.to_owned(), value);
    let changed = Value::Map(vec![
        property("IdleHint", Value::Bool(true)),
        property("Percentage", Value::Double(12.5)),
        property("InhibitDelayMaxUSec", Value::U64(5_000_000)),
    ]);
    let bodies = [
        vec![],
        vec![Value::Bool(true)],
        vec![
            Value::Text("org.freedesktop.login1.Manager".to_owned()),
            changed,
            Value::Texts(vec!["LidClosed".to_owned(), String::new()]),
        ],
        vec![Value::Variant(Box::new(Value::U32(7)))],
    ];
    let message = |body| Message::call(":1.5", "/org/a", "org.a.B", "Signalled", body);
    bodies.map(|body| message(body).encode(9)).into()
}

/// Reads a message; returns whether it was understood.
///
/// # Panics
/// If a message that was understood has no length, or is another one after it was written.
pub fn read_bus_message(bytes: &[u8]) -> bool {
    let read = |bytes: &[u8]| Message::decode(bytes, &mut std::iter::empty());
    let Ok(message) = read(bytes) else {
        return false;
    };
    let prefix: Option<&[u8; PREFIX_BYTES]> = bytes.first_chunk();
    let length = prefix.map(Message::length);
    assert!(matches!(length, Some(Ok(_))), "{message:?}");
    if message.kind == Kind::Unknown || message.body.iter().any(has_other) {
        return true;
    }
    let again = read(&message.encode(message.serial));
    // NaN equals itself only as text.
    let shown = |message: &Message| {
        let message = (
            (message.kind, message.serial, message.reply_serial),
            (&message.path, &message.interface, &message.member),
            (&message.error_name, &message.destination, &message.body),
        );
        format!("{message:?}")
    };
    assert_eq!(again.as_ref().map(shown), Ok(shown(&message)));
    true
}

/// Whether it holds a value that the decoder skips and the encoder never writes.
fn has_other(value: &Value) -> bool {
    match value {
        Value::Other => true,
        Value::Variant(inner) => has_other(inner),
        Value::Map(properties) => properties.iter().any(|(_, value)| has_other(value)),
        _ => false,
    }
}
