//! Names of apps in JSON and on terminals: paths may be any bytes.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The path of an app relative to its mount. In JSON a string, or where it is not UTF-8,
/// `{"hex":"6d61ff"}` with its bytes; shown as a shell takes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppName(Vec<u8>);

/// The JSON form of a name that is not UTF-8.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InHex {
    hex: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(InHex),
}

impl AppName {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The bytes in hexadecimal digits.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The opposite of [`AppName::to_hex`]; none if these are no digits.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let digits = hex.as_bytes().chunks(2).map(|pair| {
            let pair = std::str::from_utf8(pair).ok()?;
            let is_hex = pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit());
            u8::from_str_radix(pair, 16).ok().filter(|_| is_hex)
        });
        digits.collect::<Option<Vec<u8>>>().map(Self)
    }
}

impl From<&str> for AppName {
    fn from(name: &str) -> Self {
        Self(name.as_bytes().to_vec())
    }
}

impl From<&[u8]> for AppName {
    fn from(name: &[u8]) -> Self {
        Self(name.to_vec())
    }
}

impl From<OsString> for AppName {
    fn from(name: OsString) -> Self {
        Self(name.into_vec())
    }
}

impl Serialize for AppName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_text() {
            Some(text) => serializer.serialize_str(text),
            None => InHex { hex: self.to_hex() }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for AppName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Text(text) => Ok(Self(text.into_bytes())),
            Written::Bytes(InHex { hex }) => Self::from_hex(&hex)
                .ok_or_else(|| serde::de::Error::custom("these are no hexadecimal digits")),
        }
    }
}

impl fmt::Display for AppName {
    /// As it is; with bytes that are no text, or that a terminal would obey, in the quotes of bash,
    /// ksh and zsh: `$'ma\\xff'`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = self
            .as_text()
            .filter(|text| !text.contains(char::is_control))
        {
            return f.write_str(text);
        }
        f.write_str("$'")?;
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\'' | '\\' => write!(f, "\\{character}")?,
                    character if character.is_control() => {
                        let mut bytes = [0; 4];
                        for byte in character.encode_utf8(&mut bytes).bytes() {
                            write!(f, "\\x{byte:02x}")?;
                        }
                    }
                    character => write!(f, "{character}")?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        f.write_str("'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_survives_json_and_texts_stay_texts() {
        let names: [&[u8]; 5] = [
            b"mail",
            "ünd".as_bytes(),
            b"ma\xff",
            b"\x00\x1b\xfe",
            br"a\xff",
        ];
        for name in names {
            let name = AppName::from(name);
            let json = serde_json::to_string(&name).unwrap();
            assert_eq!(
                serde_json::from_str::<AppName>(&json).unwrap(),
                name,
                "{json}"
            );
        }
        assert_eq!(
            serde_json::to_string(&AppName::from("mail")).unwrap(),
            "\"mail\""
        );
        let json = serde_json::to_string(&AppName::from(&b"ma\xff"[..])).unwrap();
        assert_eq!(json, r#"{"hex":"6d61ff"}"#);
        for bad in [
            r#"{"hex":"6"}"#,
            r#"{"hex":"+f"}"#,
            r#"{"hex":"zz"}"#,
            "7",
            r#"{"x":""}"#,
        ] {
            assert!(serde_json::from_str::<AppName>(bad).is_err(), "{bad}");
        }
    }

    /// A name that is no text was shown with replacement characters, which name nothing.
    #[test]
    fn names_are_shown_as_a_shell_takes_them() {
        let shown = |name: &[u8]| AppName::from(name).to_string();
        assert_eq!(shown("mail ünd 音楽".as_bytes()), "mail ünd 音楽");
        assert_eq!(shown(b"ma\xff'il"), r"$'ma\xff\'il'");
        assert_eq!(shown(b"\x1b[31mred\nline\\"), r"$'\x1b[31mred\x0aline\\'");
        assert_eq!(shown("\u{9b}31m".as_bytes()), r"$'\xc2\x9b31m'");
    }
}
