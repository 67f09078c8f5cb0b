//! What anybody on the system bus may send: it is a message or it is refused, and a message
//! that is written and read again is the same.

use mobifs_bus::{HEADER_BYTES, Kind, Message, Value};

use crate::{Target, Verdict};

/// Messages.
pub const BUS_MESSAGE: Target = Target {
    name: "bus_message",
    run: parse,
    seeds: messages,
};

fn parse(input: &[u8]) -> Verdict {
    if let Some(header) = input.first_chunk::<HEADER_BYTES>() {
        // However long it says to be, asking costs nothing.
        let _length = Message::length(header);
    }
    let parsed = Message::parse(input);
    let verdict = Verdict::from(&parsed);
    if let Ok(message) = parsed {
        let bytes = message.encode();
        let again = Message::parse(&bytes).unwrap_or_else(|error| panic!("{error}: {message:?}"));
        // Bytes, because a number that is none does not equal itself.
        assert_eq!(again.encode(), bytes, "{message:?}");
    }
    verdict
}

fn messages() -> Vec<Vec<u8>> {
    let text = |text: &str| Value::Text(text.into());
    let entry =
        |name: &str, value: Value| Value::Entry(Box::new((text(name), value.into_variant())));
    let changed = vec![
        text("org.freedesktop.login1.Manager"),
        Value::Array {
            of: "{sv}".into(),
            items: vec![
                entry("IdleHint", Value::Bool(true)),
                entry("IdleSinceHint", Value::U64(1 << 40)),
                entry("Percentage", Value::Double(12.5)),
                entry(
                    "BlockInhibited",
                    Value::Structure(vec![Value::Path("/".into()), Value::I16(-1)]),
                ),
            ],
        },
        Value::Array {
            of: "s".into(),
            items: Vec::new(),
        },
    ];
    [vec![Value::Bool(true)], changed, vec![Value::Descriptor(0)]]
        .into_iter()
        .map(|body| {
            let signal = Message {
                kind: Kind::Signal,
                serial: 9,
                sender: ":1.7".into(),
                ..Message::call("", "/org/freedesktop/login1", "org.example", "Changed")
            };
            signal.with(body).encode()
        })
        .collect()
}
