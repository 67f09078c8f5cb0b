//! Values of D-Bus messages: their types, and how they lie in bytes.
//!
//! Everything is aligned from the start of what is read or written, which in a message is a
//! multiple of 8.

/// Deepest nesting of containers that is read; the bus allows 64.
const DEPTH_MAX: u32 = 16;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A value goes on behind the end.
    #[error("it ends in the middle of a value")]
    Short,
    /// A type that there is not.
    #[error("its signature makes no sense")]
    Signature,
    /// Containers in containers in containers.
    #[error("it is nested too deeply")]
    Depth,
    /// A value that its type does not have.
    #[error("a value does not fit its type")]
    Value,
    /// The fixed fields at the start make no sense.
    #[error("its header makes no sense")]
    Header,
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `y`
    Byte(u8),
    /// `b`
    Bool(bool),
    /// `n`
    I16(i16),
    /// `q`
    U16(u16),
    /// `i`
    I32(i32),
    /// `u`
    U32(u32),
    /// `x`
    I64(i64),
    /// `t`
    U64(u64),
    /// `d`
    Double(f64),
    /// `s`
    Text(String),
    /// `o`
    Path(String),
    /// `g`
    Signature(String),
    /// `h`: which of the message's descriptors.
    Descriptor(u32),
    /// `a`
    Array {
        /// The type of the items.
        of: String,
        /// The items.
        items: Vec<Value>,
    },
    /// `(…)`
    Structure(Vec<Value>),
    /// `{…}`, only in arrays.
    Entry(Box<(Value, Value)>),
    /// `v`
    Variant(Box<Value>),
}

impl Value {
    /// A variant that holds this.
    pub fn into_variant(self) -> Self {
        Self::Variant(Box::new(self))
    }

    /// Its type.
    pub fn signature(&self) -> String {
        match self {
            Self::Byte(_) => "y".into(),
            Self::Bool(_) => "b".into(),
            Self::I16(_) => "n".into(),
            Self::U16(_) => "q".into(),
            Self::I32(_) => "i".into(),
            Self::U32(_) => "u".into(),
            Self::I64(_) => "x".into(),
            Self::U64(_) => "t".into(),
            Self::Double(_) => "d".into(),
            Self::Text(_) => "s".into(),
            Self::Path(_) => "o".into(),
            Self::Signature(_) => "g".into(),
            Self::Descriptor(_) => "h".into(),
            Self::Array { of, .. } => format!("a{of}"),
            Self::Structure(fields) => {
                let fields: String = fields.iter().map(Self::signature).collect();
                format!("({fields})")
            }
            Self::Entry(entry) => format!("{{{}{}}}", entry.0.signature(), entry.1.signature()),
            Self::Variant(_) => "v".into(),
        }
    }

    /// Text, a path or a signature.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Path(text) | Self::Signature(text) => Some(text),
            _ => None,
        }
    }

    /// What it holds, if it is a variant; else itself.
    pub fn inner(&self) -> &Self {
        match self {
            Self::Variant(value) => value,
            other => other,
        }
    }

    /// Of an array of entries with names (`a{sv}`), what has this name.
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Self::Array { items, .. } = self else {
            return None;
        };
        items.iter().find_map(|item| match item {
            Self::Entry(entry) if entry.0.as_text() == Some(name) => Some(entry.1.inner()),
            _ => None,
        })
    }
}

/// The alignment of what begins with this letter of a signature.
fn alignment(kind: u8) -> Result<usize, WireError> {
    match kind {
        b'y' | b'g' | b'v' => Ok(1),
        b'n' | b'q' => Ok(2),
        b'b' | b'i' | b'u' | b's' | b'o' | b'h' | b'a' => Ok(4),
        b'x' | b't' | b'd' | b'(' | b'{' => Ok(8),
        _ => Err(WireError::Signature),
    }
}

/// The length of the first complete type of a signature.
fn first_type(signature: &[u8], depth: u32) -> Result<usize, WireError> {
    if depth > DEPTH_MAX {
        return Err(WireError::Depth);
    }
    let kind = *signature.first().ok_or(WireError::Signature)?;
    let close = match kind {
        b'a' => {
            let item = &signature[1..];
            return Ok(1 + first_type_of_array(item, depth + 1)?);
        }
        b'(' => b')',
        // Entries are met in arrays only.
        b'{' => return Err(WireError::Signature),
        _ => return alignment(kind).map(|_| 1),
    };
    let mut at = 1;
    while *signature.get(at).ok_or(WireError::Signature)? != close {
        at += first_type(&signature[at..], depth + 1)?;
    }
    if at == 1 {
        return Err(WireError::Signature);
    }
    Ok(at + 1)
}

fn first_type_of_array(item: &[u8], depth: u32) -> Result<usize, WireError> {
    if item.first() != Some(&b'{') {
        return first_type(item, depth);
    }
    let name = 1;
    // A name is no container.
    if matches!(item.get(name), None | Some(b'a' | b'(' | b'{' | b'v')) {
        return Err(WireError::Signature);
    }
    alignment(item[name])?;
    let value = name + 1;
    let end = value + first_type(item.get(value..).unwrap_or_default(), depth + 1)?;
    if item.get(end) != Some(&b'}') {
        return Err(WireError::Signature);
    }
    Ok(end + 1)
}

/// Takes values from bytes.
#[derive(Debug)]
pub(crate) struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    is_big_endian: bool,
}

macro_rules! read_number {
    ($name:ident, $type:ty) => {
        pub(crate) fn $name(&mut self) -> Result<$type, WireError> {
            const BYTES: usize = size_of::<$type>();
            self.align(BYTES)?;
            let mut bytes = [0; BYTES];
            bytes.copy_from_slice(self.take(BYTES)?);
            Ok(if self.is_big_endian {
                <$type>::from_be_bytes(bytes)
            } else {
                <$type>::from_le_bytes(bytes)
            })
        }
    };
}

impl<'b> Reader<'b> {
    pub(crate) const fn new(bytes: &'b [u8], is_big_endian: bool) -> Self {
        Self {
            bytes,
            at: 0,
            is_big_endian,
        }
    }

    read_number!(u16, u16);
    read_number!(u32, u32);
    read_number!(u64, u64);

    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'b [u8], WireError> {
        let end = self.at.checked_add(length).ok_or(WireError::Short)?;
        let taken = self.bytes.get(self.at..end).ok_or(WireError::Short)?;
        self.at = end;
        Ok(taken)
    }

    pub(crate) fn align(&mut self, alignment: usize) -> Result<(), WireError> {
        let padding = self.at.next_multiple_of(alignment) - self.at;
        self.take(padding).map(drop)
    }

    /// All values of a signature.
    pub(crate) fn values(&mut self, signature: &str) -> Result<Vec<Value>, WireError> {
        self.values_of(signature.as_bytes(), 0)
    }

    fn values_of(&mut self, signature: &[u8], depth: u32) -> Result<Vec<Value>, WireError> {
        let mut values = Vec::new();
        let mut rest = signature;
        while !rest.is_empty() {
            let (first, others) = rest.split_at(first_type(rest, depth)?);
            values.push(self.value(first, depth)?);
            rest = others;
        }
        Ok(values)
    }

    /// A value of one complete type.
    fn value(&mut self, kind: &[u8], depth: u32) -> Result<Value, WireError> {
        if depth > DEPTH_MAX {
            return Err(WireError::Depth);
        }
        Ok(match kind[0] {
            b'y' => Value::Byte(self.take(1)?[0]),
            b'b' => match self.u32()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                _ => return Err(WireError::Value),
            },
            b'n' => Value::I16(self.u16()?.cast_signed()),
            b'q' => Value::U16(self.u16()?),
            b'i' => Value::I32(self.u32()?.cast_signed()),
            b'u' => Value::U32(self.u32()?),
            b'x' => Value::I64(self.u64()?.cast_signed()),
            b't' => Value::U64(self.u64()?),
            b'd' => Value::Double(f64::from_bits(self.u64()?)),
            b's' => Value::Text(self.text()?),
            b'o' => Value::Path(self.text()?),
            b'g' => Value::Signature(self.signature()?),
            b'h' => Value::Descriptor(self.u32()?),
            b'a' => self.array(&kind[1..], depth + 1)?,
            b'(' => {
                self.align(8)?;
                Value::Structure(self.values_of(&kind[1..kind.len() - 1], depth + 1)?)
            }
            b'{' => {
                self.align(8)?;
                let name = self.value(&kind[1..2], depth + 1)?;
                let value = self.value(&kind[2..kind.len() - 1], depth + 1)?;
                Value::Entry(Box::new((name, value)))
            }
            b'v' => {
                let signature = self.signature()?;
                let kind = signature.as_bytes();
                if first_type(kind, depth + 1)? != kind.len() {
                    return Err(WireError::Signature);
                }
                self.value(kind, depth + 1)?.into_variant()
            }
            _ => return Err(WireError::Signature),
        })
    }

    fn array(&mut self, item: &[u8], depth: u32) -> Result<Value, WireError> {
        let length = self.u32()? as usize;
        self.align(alignment(item[0])?)?;
        let end = self.at.checked_add(length).ok_or(WireError::Short)?;
        if end > self.bytes.len() {
            return Err(WireError::Short);
        }
        let mut items = Vec::new();
        while self.at < end {
            items.push(self.value(item, depth)?);
        }
        if self.at != end {
            return Err(WireError::Value);
        }
        let of = String::from_utf8_lossy(item).into_owned();
        Ok(Value::Array { of, items })
    }

    fn text(&mut self) -> Result<String, WireError> {
        let length = self.u32()? as usize;
        self.text_of(length)
    }

    fn signature(&mut self) -> Result<String, WireError> {
        let length = self.take(1)?[0].into();
        self.text_of(length)
    }

    /// So many bytes of text, and the zero behind it.
    fn text_of(&mut self, length: usize) -> Result<String, WireError> {
        let text = self.take(length)?;
        let end = self.take(1)?;
        if end != [0] || text.contains(&0) {
            return Err(WireError::Value);
        }
        String::from_utf8(text.to_vec()).map_err(|_| WireError::Value)
    }
}

/// Puts values into bytes, little end first.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn align(&mut self, alignment: usize) {
        let padded = self.bytes.len().next_multiple_of(alignment);
        self.bytes.resize(padded, 0);
    }

    pub(crate) fn number<const BYTES: usize>(&mut self, bytes: [u8; BYTES]) {
        self.align(BYTES);
        self.bytes.extend_from_slice(&bytes);
    }

    fn text(&mut self, text: &str) {
        self.number(length_of(text.len()).to_le_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
    }

    fn signature(&mut self, signature: &str) {
        // What is longer is no signature of anything that is sent here.
        self.bytes
            .push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
        self.bytes.extend_from_slice(signature.as_bytes());
        self.bytes.push(0);
    }

    pub(crate) fn value(&mut self, value: &Value) {
        match value {
            Value::Byte(byte) => self.bytes.push(*byte),
            Value::Bool(is) => self.number(u32::from(*is).to_le_bytes()),
            Value::I16(number) => self.number(number.to_le_bytes()),
            Value::U16(number) => self.number(number.to_le_bytes()),
            Value::I32(number) => self.number(number.to_le_bytes()),
            Value::U32(number) | Value::Descriptor(number) => self.number(number.to_le_bytes()),
            Value::I64(number) => self.number(number.to_le_bytes()),
            Value::U64(number) => self.number(number.to_le_bytes()),
            Value::Double(number) => self.number(number.to_bits().to_le_bytes()),
            Value::Text(text) | Value::Path(text) => self.text(text),
            Value::Signature(signature) => self.signature(signature),
            Value::Array { of, items } => self.array(of, items),
            Value::Structure(fields) => {
                self.align(8);
                fields.iter().for_each(|field| self.value(field));
            }
            Value::Entry(entry) => {
                self.align(8);
                self.value(&entry.0);
                self.value(&entry.1);
            }
            Value::Variant(value) => {
                self.signature(&value.signature());
                self.value(value);
            }
        }
    }

    fn array(&mut self, of: &str, items: &[Value]) {
        self.number([0; 4]);
        let length_at = self.bytes.len() - 4;
        let first = of.bytes().next();
        self.align(first.and_then(|kind| alignment(kind).ok()).unwrap_or(1));
        let from = self.bytes.len();
        items.iter().for_each(|item| self.value(item));
        let length = length_of(self.bytes.len() - from);
        self.bytes[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }
}

/// Lengths are sent in 32 bits; nothing here comes near that.
pub(crate) fn length_of(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
