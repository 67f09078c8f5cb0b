//! Messages of D-Bus (specification, "Message Format"): a header with its fields, and a body of
//! values.

use std::os::fd::OwnedFd;

use super::wire::{Decoder, Encoder, Malformed, Value};

/// Bytes from which the length of a message is known.
pub(super) const PREFIX_BYTES: usize = 16;
/// The longest header or body that the specification allows, so that lengths do not overflow.
const PART_BYTES_MAX: usize = 1 << 27;
const VERSION: u8 = 1;
const LITTLE_ENDIAN: u8 = b'l';
const BIG_ENDIAN: u8 = b'B';

/// What a message is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Call,
    Return,
    Error,
    Signal,
    /// The specification says that others are to be ignored.
    Unknown,
}

impl Kind {
    const fn of(code: u8) -> Self {
        match code {
            1 => Self::Call,
            2 => Self::Return,
            3 => Self::Error,
            4 => Self::Signal,
            _ => Self::Unknown,
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Call => 1,
            Self::Return => 2,
            Self::Error => 3,
            Self::Signal => 4,
            Self::Unknown => 0,
        }
    }
}

/// Codes of header fields.
mod field {
    pub(super) const PATH: u8 = 1;
    pub(super) const INTERFACE: u8 = 2;
    pub(super) const MEMBER: u8 = 3;
    pub(super) const ERROR_NAME: u8 = 4;
    pub(super) const REPLY_SERIAL: u8 = 5;
    pub(super) const DESTINATION: u8 = 6;
    pub(super) const SENDER: u8 = 7;
    pub(super) const SIGNATURE: u8 = 8;
    pub(super) const UNIX_FDS: u8 = 9;
}

/// A message, read or to be written.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Its number among those of its sender.
    pub(super) serial: u32,
    /// The number of the call that it answers.
    pub(super) reply_serial: Option<u32>,
    pub(super) path: Option<String>,
    pub(super) interface: Option<String>,
    pub(super) member: Option<String>,
    pub(super) error_name: Option<String>,
    pub(super) destination: Option<String>,
    /// Filled in by the bus, so it can be trusted.
    pub(super) sender: Option<String>,
    /// Empty where it is not what its signature says.
    pub(super) body: Vec<Value>,
    pub(super) descriptors: Vec<OwnedFd>,
    /// How long it was as it was read; 0 for one to be written.
    pub(super) wire_bytes: usize,
}

impl Message {
    const fn new(kind: Kind) -> Self {
        Self {
            kind,
            serial: 0,
            reply_serial: None,
            path: None,
            interface: None,
            member: None,
            error_name: None,
            destination: None,
            sender: None,
            body: Vec::new(),
            descriptors: Vec::new(),
            wire_bytes: 0,
        }
    }

    /// A call of a service's method.
    pub(super) fn call(
        destination: &str,
        path: &str,
        interface: &str,
        member: &str,
        body: Vec<Value>,
    ) -> Self {
        Self {
            path: Some(path.to_owned()),
            interface: Some(interface.to_owned()),
            member: Some(member.to_owned()),
            destination: Some(destination.to_owned()),
            body,
            ..Self::new(Kind::Call)
        }
    }

    /// The first value of the body.
    pub(super) fn first(&self) -> Option<&Value> {
        self.body.first()
    }

    /// The bytes of the message with this number; the descriptors go beside them.
    pub(super) fn encode(&self, serial: u32) -> Vec<u8> {
        let mut body = Encoder::default();
        let mut signature = String::new();
        for value in &self.body {
            body.value(value);
            signature += value.signature();
        }
        let body = body.into_bytes();
        let mut encoder = Encoder::default();
        for byte in [LITTLE_ENDIAN, self.kind.code(), 0, VERSION] {
            encoder.byte(byte);
        }
        encoder.u32(body.len() as u32);
        encoder.u32(serial);
        encoder.array(8, |fields| {
            let texts = [
                (field::PATH, "o", &self.path),
                (field::INTERFACE, "s", &self.interface),
                (field::MEMBER, "s", &self.member),
                (field::ERROR_NAME, "s", &self.error_name),
                (field::DESTINATION, "s", &self.destination),
            ];
            for (code, signature, text) in texts {
                if let Some(text) = text {
                    begin_field(fields, code, signature);
                    fields.text(text);
                }
            }
            let numbers = [
                (field::REPLY_SERIAL, self.reply_serial),
                (
                    field::UNIX_FDS,
                    Some(self.descriptors.len() as u32).filter(|count| *count > 0),
                ),
            ];
            for (code, number) in numbers {
                if let Some(number) = number {
                    begin_field(fields, code, "u");
                    fields.u32(number);
                }
            }
            if !signature.is_empty() {
                begin_field(fields, field::SIGNATURE, "g");
                fields.signature(&signature);
            }
        });
        encoder.align(8);
        let mut bytes = encoder.into_bytes();
        bytes.extend(body);
        bytes
    }

    /// How long the message is that begins so, and how long its header.
    pub(super) fn length(prefix: &[u8; PREFIX_BYTES]) -> Result<usize, Malformed> {
        let parts = Parts::of(prefix)?;
        Ok(parts.body_at + parts.body_bytes)
    }

    /// Reads a whole message. The descriptors that it says come with it are taken from the front
    /// of `descriptors`.
    pub(super) fn decode(
        bytes: &[u8],
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Self, Malformed> {
        let prefix = bytes.first_chunk().ok_or(Malformed)?;
        let parts = Parts::of(prefix)?;
        let header = bytes.get(..parts.fields_end).ok_or(Malformed)?;
        let mut message = Self::new(Kind::of(prefix[1]));
        message.wire_bytes = bytes.len();
        message.serial = Decoder::new(header, 8, parts.is_big_endian).u32()?;
        let mut fields = Decoder::new(header, PREFIX_BYTES, parts.is_big_endian);
        let mut signature = String::new();
        while fields.position() < parts.fields_end {
            fields.align(8)?;
            let code = fields.byte()?;
            // A signature is a value of a type that is used nowhere else.
            if code == field::SIGNATURE {
                if fields.signature()? != "g" {
                    return Err(Malformed);
                }
                signature = fields.signature()?.to_owned();
                continue;
            }
            let value = fields.variant(0)?;
            let text = || value.as_text().map(str::to_owned);
            match code {
                field::PATH => message.path = text(),
                field::INTERFACE => message.interface = text(),
                field::MEMBER => message.member = text(),
                field::ERROR_NAME => message.error_name = text(),
                field::REPLY_SERIAL => message.reply_serial = value.as_u32(),
                field::DESTINATION => message.destination = text(),
                field::SENDER => message.sender = text(),
                field::UNIX_FDS => {
                    let count = value.as_u32().ok_or(Malformed)?;
                    for _ in 0..count {
                        let descriptor = descriptors.next().ok_or(Malformed)?;
                        message.descriptors.push(descriptor);
                    }
                }
                _ => {}
            }
        }
        let mut body = Decoder::new(
            bytes.get(parts.body_at..).ok_or(Malformed)?,
            0,
            parts.is_big_endian,
        );
        // The header is valid, so the next message can be found even if the body is not.
        message.body = body.values(&signature).unwrap_or_default();
        Ok(message)
    }
}

fn begin_field(fields: &mut Encoder, code: u8, signature: &str) {
    fields.align(8);
    fields.byte(code);
    fields.signature(signature);
}

/// Where the parts of a message lie.
struct Parts {
    is_big_endian: bool,
    fields_end: usize,
    /// A multiple of 8, so that alignment within the body is that within the message.
    body_at: usize,
    body_bytes: usize,
}

impl Parts {
    fn of(prefix: &[u8; PREFIX_BYTES]) -> Result<Self, Malformed> {
        let is_big_endian = match prefix[0] {
            LITTLE_ENDIAN => false,
            BIG_ENDIAN => true,
            _ => return Err(Malformed),
        };
        if prefix[3] != VERSION {
            return Err(Malformed);
        }
        let length_at = |at| {
            let bytes = Decoder::new(prefix, at, is_big_endian).u32()?;
            let bytes = usize::try_from(bytes).map_err(|_| Malformed)?;
            (bytes <= PART_BYTES_MAX).then_some(bytes).ok_or(Malformed)
        };
        let fields_end = PREFIX_BYTES + length_at(12)?;
        Ok(Self {
            is_big_endian,
            fields_end,
            body_at: fields_end.next_multiple_of(8),
            body_bytes: length_at(4)?,
        })
    }
}

#[cfg(test)]
impl Message {
    pub(super) fn signal(path: &str, interface: &str, member: &str, body: Vec<Value>) -> Self {
        Self {
            path: Some(path.to_owned()),
            interface: Some(interface.to_owned()),
            member: Some(member.to_owned()),
            body,
            ..Self::new(Kind::Signal)
        }
    }

    pub(super) fn reply(call: &Self, body: Vec<Value>) -> Self {
        Self {
            reply_serial: Some(call.serial),
            destination: call.sender.clone(),
            body,
            ..Self::new(Kind::Return)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let changed = Value::Map(vec![("IdleHint".into(), Value::Bool(true))]);
        let body = vec![
            Value::Text("org.freedesktop.login1.Manager".into()),
            changed,
            Value::Texts(Vec::new()),
        ];
        Message::signal("/a", "b.c", "Changed", body).encode(7)
    }

    fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
        Message::decode(bytes, &mut std::iter::empty())
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let bytes = sample();
        let length = Message::length(bytes.first_chunk().unwrap());
        assert_eq!(length, Ok(bytes.len()));
        let message = decode(&bytes).unwrap();
        assert_eq!((message.kind, message.serial), (Kind::Signal, 7));
        assert_eq!(message.path.as_deref(), Some("/a"));
        assert_eq!(message.member.as_deref(), Some("Changed"));
        assert_eq!(message.body.len(), 3);
        assert_eq!(
            message.body[1]
                .property("IdleHint")
                .and_then(Value::as_bool),
            Some(true)
        );
        let call = Message::call("d.e", "/a", "b.c", "Do", vec![Value::U32(1)]).encode(8);
        let call = decode(&call).unwrap();
        assert_eq!(call.destination.as_deref(), Some("d.e"));
        assert_eq!(call.first(), Some(&Value::U32(1)));
        let reply = decode(&Message::reply(&call, Vec::new()).encode(9)).unwrap();
        assert_eq!((reply.kind, reply.reply_serial), (Kind::Return, Some(8)));
    }

    #[test]
    fn descriptors_belong_to_the_message_that_names_them() {
        let open = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let mut message = Message::call("d.e", "/a", "b.c", "Do", vec![Value::Descriptor(0)]);
        message.descriptors.push(open());
        let bytes = message.encode(1);
        let mut came = vec![open(), open()].into_iter();
        let read = Message::decode(&bytes, &mut came).unwrap();
        assert_eq!((read.descriptors.len(), came.len()), (1, 1));
        assert!(decode(&bytes).is_err(), "it did not come");
    }

    /// Bytes that no bus sends are refused or read; they never cause a panic.
    #[test]
    fn damaged_messages_do_not_panic() {
        let whole = sample();
        for length in 0..whole.len() {
            let _refused = decode(&whole[..length]);
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 7, 8, b'(', b')', b'a', b'v', b'{', 127, 128, 255] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let _length = damaged.first_chunk().map(Message::length);
                let _read = decode(&damaged);
            }
        }
    }
}
