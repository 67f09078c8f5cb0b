//! Messages of D-Bus.

use std::os::fd::OwnedFd;

use crate::value::{Reader, Value, WireError, Writer, length_of};

/// The largest message that is read, in bytes. Those that are of interest here are small.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The fixed fields, and the length of the others.
pub const HEADER_BYTES: usize = 16;

/// Flag: no program is started to answer.
const NO_AUTO_START: u8 = 2;
/// The version of the protocol.
const VERSION: u8 = 1;

/// What a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Somebody is asked to do something.
    #[default]
    Call,
    /// The answer.
    Return,
    /// The answer: it could not be done.
    Error,
    /// Something has happened.
    Signal,
    /// Something newer, to be passed over.
    Other(u8),
}

impl Kind {
    const fn number(self) -> u8 {
        match self {
            Self::Call => 1,
            Self::Return => 2,
            Self::Error => 3,
            Self::Signal => 4,
            Self::Other(number) => number,
        }
    }

    const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Call,
            2 => Self::Return,
            3 => Self::Error,
            4 => Self::Signal,
            other => Self::Other(other),
        }
    }
}

/// One message. Names that it does not have are empty.
#[derive(Debug, Default)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// The sender's number of it; not 0.
    pub serial: u32,
    /// What is answered; 0: nothing.
    pub reply_serial: u32,
    /// The object that is called, or that something happened to.
    pub path: String,
    /// The interface of the member.
    pub interface: String,
    /// The method or signal.
    pub member: String,
    /// The name of an error.
    pub error_name: String,
    /// Who is to get it.
    pub destination: String,
    /// Who sent it, as the bus says: its unique name.
    pub sender: String,
    /// What it carries.
    pub body: Vec<Value>,
    /// Number of descriptors that come with it.
    pub descriptors_count: u32,
    /// They themselves; not part of the bytes.
    pub descriptors: Vec<OwnedFd>,
}

impl Message {
    /// A call that starts nobody.
    pub fn call(destination: &str, path: &str, interface: &str, member: &str) -> Self {
        Self {
            destination: destination.to_owned(),
            path: path.to_owned(),
            interface: interface.to_owned(),
            member: member.to_owned(),
            ..Self::default()
        }
    }

    /// With this in it.
    #[must_use]
    pub fn with(mut self, body: Vec<Value>) -> Self {
        self.body = body;
        self
    }

    /// Length of the message that begins with these bytes.
    ///
    /// # Errors
    /// If no message begins so.
    pub fn length(header: &[u8; HEADER_BYTES]) -> Result<usize, WireError> {
        let is_big_endian = match header[0] {
            b'l' => false,
            b'B' => true,
            _ => return Err(WireError::Header),
        };
        if header[3] != VERSION {
            return Err(WireError::Header);
        }
        let mut reader = Reader::new(header, is_big_endian);
        reader.take(4)?;
        let body = reader.u32()? as usize;
        reader.u32()?;
        let fields = reader.u32()? as usize;
        (HEADER_BYTES + fields)
            .checked_next_multiple_of(8)
            .and_then(|start| start.checked_add(body))
            .ok_or(WireError::Header)
    }

    /// Reads one message, whole, from `bytes`.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let header = bytes.first_chunk().ok_or(WireError::Short)?;
        if Self::length(header)? != bytes.len() {
            return Err(WireError::Short);
        }
        let is_big_endian = header[0] == b'B';
        let mut reader = Reader::new(bytes, is_big_endian);
        let mut message = Self {
            kind: Kind::from_number(reader.take(4)?[1]),
            ..Self::default()
        };
        reader.u32()?;
        message.serial = reader.u32()?;
        let mut signature = String::new();
        let fields = reader.values("a(yv)")?;
        let Some(Value::Array { items, .. }) = fields.into_iter().next() else {
            return Err(WireError::Header);
        };
        for field in items {
            message.set_field(field, &mut signature)?;
        }
        reader.align(8)?;
        let body = &bytes[reader.at()..];
        let mut reader = Reader::new(body, is_big_endian);
        message.body = reader.values(&signature)?;
        if reader.at() != body.len() || message.serial == 0 {
            return Err(WireError::Header);
        }
        Ok(message)
    }

    fn set_field(&mut self, field: Value, signature: &mut String) -> Result<(), WireError> {
        let Value::Structure(field) = field else {
            return Err(WireError::Header);
        };
        let [Value::Byte(code), Value::Variant(value)] = &field[..] else {
            return Err(WireError::Header);
        };
        match (code, &**value) {
            (1, Value::Path(path)) => self.path.clone_from(path),
            (2, Value::Text(text)) => self.interface.clone_from(text),
            (3, Value::Text(text)) => self.member.clone_from(text),
            (4, Value::Text(text)) => self.error_name.clone_from(text),
            (5, Value::U32(serial)) => self.reply_serial = *serial,
            (6, Value::Text(text)) => self.destination.clone_from(text),
            (7, Value::Text(text)) => self.sender.clone_from(text),
            (8, Value::Signature(text)) => signature.clone_from(text),
            (9, Value::U32(count)) => self.descriptors_count = *count,
            (1..=9, _) => return Err(WireError::Header),
            // Newer fields are passed over.
            _ => {}
        }
        Ok(())
    }

    /// The message in bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        self.body.iter().for_each(|value| body.value(value));
        let mut writer = Writer {
            bytes: vec![b'l', self.kind.number(), NO_AUTO_START, VERSION],
        };
        writer.number(length_of(body.bytes.len()).to_le_bytes());
        writer.number(self.serial.to_le_bytes());
        writer.value(&Value::Array {
            of: "(yv)".into(),
            items: self.fields(),
        });
        writer.align(8);
        writer.bytes.extend_from_slice(&body.bytes);
        writer.bytes
    }

    fn fields(&self) -> Vec<Value> {
        let text = |text: &String| Value::Text(text.clone());
        let count = |count: u32| (count > 0).then_some(Value::U32(count));
        let some = |of: &String, value: Value| (!of.is_empty()).then_some(value);
        let signature: String = self.body.iter().map(Value::signature).collect();
        let fields = [
            some(&self.path, Value::Path(self.path.clone())),
            some(&self.interface, text(&self.interface)),
            some(&self.member, text(&self.member)),
            some(&self.error_name, text(&self.error_name)),
            count(self.reply_serial),
            some(&self.destination, text(&self.destination)),
            some(&self.sender, text(&self.sender)),
            some(&signature, Value::Signature(signature.clone())),
            count(self.descriptors_count),
        ];
        let numbered = (1_u8..).zip(fields);
        numbered
            .filter_map(|(code, value)| {
                let value = value?.into_variant();
                Some(Value::Structure(vec![Value::Byte(code), value]))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(one: &Message, other: &Message) -> bool {
        (one.kind, one.serial, one.reply_serial) == (other.kind, other.serial, other.reply_serial)
            && (&one.path, &one.interface, &one.member)
                == (&other.path, &other.interface, &other.member)
            && (&one.sender, &one.destination, &one.error_name)
                == (&other.sender, &other.destination, &other.error_name)
            && one.body == other.body
    }

    /// What busctl (systemd 252) says first.
    const HELLO: &[u8] = b"l\x01\x00\x01\x00\x00\x00\x00\x01\x00\x00\x00\x6d\x00\x00\x00\
        \x01\x01o\x00\x15\x00\x00\x00/org/freedesktop/DBus\x00\x00\x00\
        \x03\x01s\x00\x05\x00\x00\x00Hello\x00\x00\x00\
        \x02\x01s\x00\x14\x00\x00\x00org.freedesktop.DBus\x00\x00\x00\x00\
        \x06\x01s\x00\x14\x00\x00\x00org.freedesktop.DBus\x00\x00\x00\x00";

    #[test]
    fn a_message_of_another_program_is_read() {
        let message = Message::parse(HELLO).unwrap();
        assert_eq!((message.kind, message.serial), (Kind::Call, 1));
        assert_eq!(message.member, "Hello");
        assert_eq!(message.path, "/org/freedesktop/DBus");
        assert_eq!(message.destination, "org.freedesktop.DBus");
        for cut in 0..HELLO.len() {
            assert!(Message::parse(&HELLO[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let entry = |name: &str, value: Value| {
            Value::Entry(Box::new((Value::Text(name.into()), value.into_variant())))
        };
        let message = Message {
            kind: Kind::Signal,
            serial: 7,
            sender: ":1.5".into(),
            ..Message::call("", "/a/b", "org.example", "Changed")
        };
        let message = message.with(vec![
            Value::Text("org.example".into()),
            Value::Array {
                of: "{sv}".into(),
                items: vec![
                    entry("Percentage", Value::Double(12.5)),
                    entry("IdleHint", Value::Bool(true)),
                    entry("Level", Value::U32(3)),
                ],
            },
            Value::Array {
                of: "s".into(),
                items: Vec::new(),
            },
            Value::Structure(vec![Value::Byte(1), Value::I64(-2), Value::I16(-3)]),
            Value::U64(u64::MAX),
        ]);
        let again = Message::parse(&message.encode()).unwrap();
        assert!(same(&message, &again), "{again:?}");
        assert_eq!(again.body[1].get("Level"), Some(&Value::U32(3)));
        assert_eq!(again.body[1].get("level"), None);
    }

    /// A message whose body is a variant of this type, with zeroes behind it.
    fn variant_of(signature: &str) -> Vec<u8> {
        let message = Message {
            serial: 1,
            ..Message::call("", "/", "", "x")
        };
        let mut bytes = message.with(vec![Value::Byte(0).into_variant()]).encode();
        // The variant: length of its signature, signature, zero, value.
        bytes.truncate(bytes.len() - 4);
        let from = bytes.len();
        bytes.push(signature.len() as u8);
        bytes.extend_from_slice(signature.as_bytes());
        bytes.extend_from_slice(&[0; 64]);
        let body = ((bytes.len() - from) as u32).to_le_bytes();
        bytes[4..8].copy_from_slice(&body);
        bytes
    }

    #[test]
    fn signatures_that_make_no_sense_are_refused() {
        let deep = "a".repeat(40) + "y";
        for (signature, error) in [
            ("a", WireError::Signature),
            ("(", WireError::Signature),
            ("()", WireError::Signature),
            ("(y", WireError::Signature),
            ("{sv}", WireError::Signature),
            ("a{vs}", WireError::Signature),
            ("a{s}", WireError::Signature),
            ("z", WireError::Signature),
            ("yy", WireError::Signature),
            ("", WireError::Signature),
            (&deep, WireError::Depth),
            // Right, but shorter than what comes.
            ("u", WireError::Header),
            ("a{sv}", WireError::Header),
            ("(su)", WireError::Header),
        ] {
            let parsed = Message::parse(&variant_of(signature));
            assert_eq!(parsed.err(), Some(error), "{signature}");
        }
    }

    #[test]
    fn values_that_a_type_does_not_have_are_refused() {
        let message = Message {
            serial: 1,
            ..Message::call("", "/", "", "x")
        };
        let bytes = message.with(vec![Value::Bool(true)]).encode();
        let with = |value: u8| {
            let mut bytes = bytes.clone();
            let at = bytes.len() - 4;
            bytes[at] = value;
            Message::parse(&bytes).map(|message| message.body)
        };
        assert_eq!(with(1), Ok(vec![Value::Bool(true)]));
        assert_eq!(with(2), Err(WireError::Value));
        let mut zero = bytes.clone();
        zero[8] = 0;
        assert_eq!(Message::parse(&zero).err(), Some(WireError::Header));
        let mut newer = bytes;
        newer[3] = 2;
        assert_eq!(Message::parse(&newer).err(), Some(WireError::Header));
    }
}
