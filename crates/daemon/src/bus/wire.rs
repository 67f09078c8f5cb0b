//! Values as D-Bus writes them (specification, "Marshaling"): each is aligned to its size, from
//! the beginning of the message on.
//!
//! What is written is little-endian; what is read is in the order that its sender chose. Of the
//! types that the services here do not use, only the length is understood.

/// Deepest nesting of what is read; the specification allows 64.
const DEPTH_MAX: usize = 16;

/// A value, as far as its type matters here.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    U32(u32),
    U64(u64),
    Double(f64),
    Text(String),
    /// `as`: an array of text.
    Texts(Vec<String>),
    /// `a{sv}`: properties by name.
    Map(Vec<(String, Self)>),
    /// `v`: a value that brings its type.
    Variant(Box<Self>),
    /// The number of a descriptor that comes with the message.
    Descriptor(u32),
    /// A value of another type than expected.
    Other,
}

impl Value {
    /// Its type, as D-Bus writes it. Never asked of [`Value::Other`], which is only read.
    pub(super) const fn signature(&self) -> &'static str {
        match self {
            Self::Bool(_) => "b",
            Self::U32(_) => "u",
            Self::U64(_) => "t",
            Self::Double(_) => "d",
            Self::Text(_) => "s",
            Self::Texts(_) => "as",
            Self::Map(_) => "a{sv}",
            Self::Variant(_) => "v",
            Self::Descriptor(_) => "h",
            Self::Other => "",
        }
    }

    /// What a variant holds, or the value itself.
    pub(super) fn inner(&self) -> &Self {
        match self {
            Self::Variant(inner) => inner.inner(),
            other => other,
        }
    }

    /// The property of this name.
    pub(super) fn property(&self, name: &str) -> Option<&Self> {
        let Self::Map(properties) = self else {
            return None;
        };
        let found = properties.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.inner())
    }

    pub(super) const fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) const fn as_u32(&self) -> Option<u32> {
        match self {
            Self::U32(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) const fn as_u64(&self) -> Option<u64> {
        match self {
            Self::U64(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) const fn as_double(&self) -> Option<f64> {
        match self {
            Self::Double(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) const fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(value) => Some(value.as_str()),
            _ => None,
        }
    }
}

/// Writes values one after another.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Zeros up to the next multiple of `alignment`.
    pub(super) fn align(&mut self, alignment: usize) {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(alignment), 0);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.align(4);
        self.bytes.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.align(8);
        self.bytes.extend(value.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.u32(length(text.len()));
        self.bytes.extend(text.as_bytes());
        self.byte(0);
    }

    pub(super) fn signature(&mut self, signature: &str) {
        // All of ours are a few characters long.
        self.byte(signature.len() as u8);
        self.bytes.extend(signature.as_bytes());
        self.byte(0);
    }

    /// An array whose elements are aligned to `alignment`; its length is written in bytes, without
    /// the padding before the first one.
    pub(super) fn array(&mut self, alignment: usize, elements: impl FnOnce(&mut Self)) {
        self.u32(0);
        let length_at = self.bytes.len() - 4;
        self.align(alignment);
        let start = self.bytes.len();
        elements(self);
        let written = length(self.bytes.len() - start);
        self.bytes[length_at..length_at + 4].copy_from_slice(&written.to_le_bytes());
    }

    pub(super) fn value(&mut self, value: &Value) {
        match value {
            Value::Bool(value) => self.u32(u32::from(*value)),
            Value::U32(value) | Value::Descriptor(value) => self.u32(*value),
            Value::U64(value) => self.u64(*value),
            Value::Double(value) => self.u64(value.to_bits()),
            Value::Text(text) => self.text(text),
            Value::Texts(texts) => self.array(4, |array| {
                for text in texts {
                    array.text(text);
                }
            }),
            Value::Map(properties) => self.array(8, |array| {
                for (name, value) in properties {
                    array.align(8);
                    array.text(name);
                    array.signature(value.signature());
                    array.value(value);
                }
            }),
            Value::Variant(inner) => {
                self.signature(inner.signature());
                self.value(inner);
            }
            Value::Other => {}
        }
    }
}

/// Our messages are far shorter than 32 bits can count.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Reads values one after another. Everything is refused that does not lie within the bytes; the
/// error gives no details, because it is not sent anywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
    is_big_endian: bool,
}

/// The bytes are not what their type says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl<'a> Decoder<'a> {
    /// Reads from `at` on; alignment counts from the beginning of `bytes`.
    pub(super) const fn new(bytes: &'a [u8], at: usize, is_big_endian: bool) -> Self {
        Self {
            bytes,
            at,
            is_big_endian,
        }
    }

    pub(super) const fn position(&self) -> usize {
        self.at
    }

    pub(super) fn align(&mut self, alignment: usize) -> Result<(), Malformed> {
        let aligned = self.at.checked_next_multiple_of(alignment);
        self.at = aligned
            .filter(|at| *at <= self.bytes.len())
            .ok_or(Malformed)?;
        Ok(())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let rest = self.bytes.get(self.at..).ok_or(Malformed)?;
        let taken = rest.get(..count).ok_or(Malformed)?;
        self.at += count;
        Ok(taken)
    }

    fn number<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], Malformed> {
        self.align(BYTES)?;
        let taken = self.take(BYTES)?;
        let mut bytes: [u8; BYTES] = taken.try_into().map_err(|_| Malformed)?;
        if self.is_big_endian {
            bytes.reverse();
        }
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.number::<1>()?[0])
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.number().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.number().map(u64::from_le_bytes)
    }

    fn length(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.u32()?).map_err(|_| Malformed)
    }

    fn text_of(&mut self, length: usize) -> Result<&'a str, Malformed> {
        let text = self.take(length)?;
        match self.take(1)? {
            [0] => std::str::from_utf8(text).map_err(|_| Malformed),
            _ => Err(Malformed),
        }
    }

    fn text(&mut self) -> Result<&'a str, Malformed> {
        let length = self.length()?;
        self.text_of(length)
    }

    pub(super) fn signature(&mut self) -> Result<&'a str, Malformed> {
        let length = usize::from(self.byte()?);
        self.text_of(length)
    }

    /// One value of each type in `signature`.
    pub(super) fn values(&mut self, signature: &str) -> Result<Vec<Value>, Malformed> {
        let mut rest = signature;
        let mut values = Vec::new();
        while !rest.is_empty() {
            let (first, others) = first_type(rest)?;
            values.push(self.value(first, 0)?);
            rest = others;
        }
        Ok(values)
    }

    /// A variant's value, with a type of its own.
    pub(super) fn variant(&mut self, depth: usize) -> Result<Value, Malformed> {
        let signature = self.signature()?;
        match first_type(signature)? {
            (whole, "") => self.value(whole, depth + 1),
            _ => Err(Malformed),
        }
    }

    fn value(&mut self, signature: &str, depth: usize) -> Result<Value, Malformed> {
        if depth > DEPTH_MAX {
            return Err(Malformed);
        }
        Ok(match signature.as_bytes() {
            [b'b'] => match self.u32()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                _ => return Err(Malformed),
            },
            [b'u'] => Value::U32(self.u32()?),
            [b't'] => Value::U64(self.u64()?),
            [b'd'] => Value::Double(f64::from_bits(self.u64()?)),
            [b's' | b'o'] => Value::Text(self.text()?.to_owned()),
            [b'h'] => Value::Descriptor(self.u32()?),
            [b'v'] => Value::Variant(Box::new(self.variant(depth)?)),
            [b'a', element @ ..] => return self.array(signature, element, depth),
            [b'(', fields @ .., b')'] => {
                self.align(8)?;
                let mut rest = std::str::from_utf8(fields).map_err(|_| Malformed)?;
                while !rest.is_empty() {
                    let (first, others) = first_type(rest)?;
                    self.value(first, depth + 1)?;
                    rest = others;
                }
                Value::Other
            }
            [b'y'] => self.byte().map(|_| Value::Other)?,
            [b'n' | b'q'] => self.number::<2>().map(|_| Value::Other)?,
            [b'i'] => self.u32().map(|_| Value::Other)?,
            [b'x'] => self.u64().map(|_| Value::Other)?,
            [b'g'] => self.signature().map(|_| Value::Other)?,
            _ => return Err(Malformed),
        })
    }

    fn array(&mut self, signature: &str, element: &[u8], depth: usize) -> Result<Value, Malformed> {
        let length = self.length()?;
        self.align(alignment_of(element)?)?;
        let start = self.at;
        self.take(length)?;
        // Elements may not reach beyond their array.
        let mut elements = Self {
            bytes: &self.bytes[..self.at],
            at: start,
            is_big_endian: self.is_big_endian,
        };
        match signature {
            "a{sv}" => {
                let mut properties = Vec::new();
                while elements.at < self.at {
                    elements.align(8)?;
                    let name = elements.text()?.to_owned();
                    properties.push((name, elements.variant(depth + 1)?));
                }
                Ok(Value::Map(properties))
            }
            "as" => {
                let mut texts = Vec::new();
                while elements.at < self.at {
                    texts.push(elements.text()?.to_owned());
                }
                Ok(Value::Texts(texts))
            }
            _ => Ok(Value::Other),
        }
    }
}

/// How a value whose type begins so is aligned.
fn alignment_of(signature: &[u8]) -> Result<usize, Malformed> {
    match signature.first() {
        Some(b'y' | b'g' | b'v') => Ok(1),
        Some(b'n' | b'q') => Ok(2),
        Some(b'b' | b'i' | b'u' | b's' | b'o' | b'a' | b'h') => Ok(4),
        Some(b'x' | b't' | b'd' | b'(' | b'{') => Ok(8),
        _ => Err(Malformed),
    }
}

/// The first complete type of a signature, and what follows it.
fn first_type(signature: &str) -> Result<(&str, &str), Malformed> {
    let mut depth = 0_usize;
    for (at, byte) in signature.bytes().enumerate() {
        match byte {
            // An array's element follows.
            b'a' => continue,
            b'(' | b'{' => depth += 1,
            b')' | b'}' => depth = depth.checked_sub(1).ok_or(Malformed)?,
            _ => {}
        }
        if depth == 0 {
            return signature.split_at_checked(at + 1).ok_or(Malformed);
        }
    }
    Err(Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_split_into_complete_types() {
        assert_eq!(first_type("sa{sv}as"), Ok(("s", "a{sv}as")));
        assert_eq!(first_type("a{sv}as"), Ok(("a{sv}", "as")));
        assert_eq!(first_type("aa(sus)b"), Ok(("aa(sus)", "b")));
        for malformed in ["a", "(s", ")", "a{s"] {
            assert_eq!(first_type(malformed), Err(Malformed), "{malformed}");
        }
    }

    #[test]
    fn a_value_is_read_as_it_was_written() {
        let map = Value::Map(vec![
            ("IdleHint".into(), Value::Bool(true)),
            ("Percentage".into(), Value::Double(12.5)),
            ("InhibitDelayMaxUSec".into(), Value::U64(5_000_000)),
        ]);
        let values = [
            Value::Text("a".into()),
            map,
            Value::Texts(vec!["x".into(), String::new()]),
            Value::Variant(Box::new(Value::U32(7))),
            Value::Descriptor(0),
        ];
        let mut encoder = Encoder::default();
        let mut signature = String::new();
        for value in &values {
            encoder.value(value);
            signature += value.signature();
        }
        let bytes = encoder.into_bytes();
        let mut decoder = Decoder::new(&bytes, 0, false);
        assert_eq!(decoder.values(&signature).unwrap(), values);
        assert_eq!(decoder.position(), bytes.len());
    }

    #[test]
    fn what_another_byte_order_says_is_understood() {
        let bytes = [0, 0, 0, 2, b'o', b'k', 0, 0, 0, 0, 0, 1];
        let mut decoder = Decoder::new(&bytes, 0, true);
        let expected = [Value::Text("ok".into()), Value::Bool(true)];
        assert_eq!(decoder.values("sb").unwrap(), expected);
    }

    #[test]
    fn types_that_nothing_here_uses_are_passed_over() {
        // a(uu) with one element, then a byte, an int16 and a text.
        let bytes = [
            8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 9, 0, 1, 0, 1, 0, 0, 0, b'x', 0,
        ];
        let values = Decoder::new(&bytes, 0, false).values("a(uu)yns").unwrap();
        assert_eq!(values[3], Value::Text("x".into()));
    }

    #[test]
    fn what_nests_too_deeply_or_overruns_is_refused() {
        let mut encoder = Encoder::default();
        let mut value = Value::Bool(true);
        for _ in 0..DEPTH_MAX + 2 {
            value = Value::Variant(Box::new(value));
        }
        encoder.value(&value);
        let bytes = encoder.into_bytes();
        assert_eq!(Decoder::new(&bytes, 0, false).values("v"), Err(Malformed));
        // A text of 4 GiB; an array that is longer than the message; a boolean that is none.
        for (bytes, signature) in [
            (&[255, 255, 255, 255, b'x', 0][..], "s"),
            (&[64, 0, 0, 0, 0, 0, 0, 0], "a{sv}"),
            (&[2, 0, 0, 0], "b"),
            (&[1, 0, 0, 0, 255, 0], "s"),
        ] {
            let decoded = Decoder::new(bytes, 0, false).values(signature);
            assert_eq!(decoded, Err(Malformed), "{signature}");
        }
    }
}
