//! The file `id`: which store a `.mobifs` directory belongs to.

use std::io;

use crate::StoreError;
use crate::lower::{Create, Lower};

pub(crate) const NAME: &[u8] = b"id";
/// 32 hexadecimal digits and a newline.
const FILE_BYTES: usize = 33;

/// The identity in the file; none if there is no file.
pub(crate) fn read<L: Lower>(
    lower: &L,
    directory: &L::Handle,
) -> Result<Option<Identity>, StoreError> {
    let file = match lower.open(directory, NAME, false) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::lower("opening .mobifs/id")(error)),
    };
    let mut content = [0; FILE_BYTES + 1];
    let count = lower
        .read_at(&file, &mut content, 0)
        .map_err(StoreError::lower("reading .mobifs/id"))?;
    Ok(Some(
        parse(&content[..count]).map_or(Identity::Illegible, Identity::Uuid),
    ))
}

/// The content of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// An identity.
    Uuid([u8; 16]),
    /// Anything else.
    Illegible,
}

/// Writes the file, durably except for its directory entry.
pub(crate) fn write<L: Lower>(lower: &L, directory: &L::Handle, uuid: [u8; 16]) -> io::Result<()> {
    lower.create(directory, NAME, Create::Regular)?;
    let file = lower.open(directory, NAME, true)?;
    lower.write_at(&file, text(uuid).as_bytes(), 0)?;
    lower.sync(&file)
}

/// The identity as users see it.
pub(super) fn text(uuid: [u8; 16]) -> String {
    format!("{:032x}\n", u128::from_be_bytes(uuid))
}

fn parse(content: &[u8]) -> Option<[u8; 16]> {
    let digits = content
        .strip_suffix(b"\n")
        .filter(|digits| digits.len() == FILE_BYTES - 1)?;
    if !digits
        .iter()
        .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    {
        return None;
    }
    let digits = str::from_utf8(digits).ok()?;
    Some(u128::from_str_radix(digits, 16).ok()?.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_as_text_and_nothing_else_is_taken() {
        let uuid = *b"\x00\xff23456789abcdef";
        let shown = text(uuid);
        assert_eq!(shown.len(), FILE_BYTES);
        assert_eq!(parse(shown.as_bytes()), Some(uuid));
        for bad in [
            "",
            "\n",
            &shown[..32],
            &shown[1..],
            &format!("+{}", &shown[1..]),
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
