//! Headers of pages, looked at before the library reads them.
//!
//! It skips unknown elements of a header one after the other, and a list may claim two thousand
//! million of them that take no bytes: a damaged file of a few bytes would keep it busy for ever.
//! No header of a page has a list, so one that has is refused. The walk takes the type of a field
//! from its number, as the library does, and not from the file, where it knows the number.

use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;

/// Most headers are much shorter than this.
const WINDOW_BYTES: u64 = 4096;
/// Structures in structures.
const DEPTH_MAX: u32 = 32;

/// What the library takes a field for whose number it knows.
#[derive(Clone, Copy)]
enum Known {
    Number,
    Flag,
    Structure(&'static [Self]),
}

/// The fields of a page's header, from 1 on (Apache Parquet's `parquet.thrift`).
const PAGE: &[Known] = {
    use Known::{Flag, Number, Structure};
    &[
        Number,
        Number,
        Number,
        Number,
        Structure(&[Number; 4]),
        Structure(&[]),
        Structure(&[Number, Number, Flag]),
        Structure(&[Number, Number, Number, Number, Number, Number, Flag]),
    ]
};
/// Number of the field that says how many bytes of content follow.
const CONTENT_BYTES_FIELD: i64 = 3;

/// Why a header is refused.
enum Refused {
    /// The header goes on after what there is of it.
    CutShort,
    /// The header has what no header of a page has.
    Foreign(&'static str),
}

/// Walks through the headers of a column's pages.
///
/// # Errors
/// A header that cannot be read in time, or is none.
pub(super) fn check(input: &impl ChunkReader, column: &ColumnChunkMetaData) -> Result<()> {
    let (mut position, length) = column.byte_range();
    let end = position
        .checked_add(length)
        .filter(|&end| end <= input.len())
        .ok_or_else(|| damaged("a column ends after the end of the file"))?;
    while position < end {
        let rest = end - position;
        let header = match read(input, position, rest.min(WINDOW_BYTES))? {
            Err(Refused::CutShort) if rest > WINDOW_BYTES => read(input, position, rest)?,
            other => other,
        };
        let header = header.map_err(|refused| match refused {
            Refused::CutShort => damaged("a page's header is cut short"),
            Refused::Foreign(what) => damaged(what),
        })?;
        position = position.saturating_add(header.bytes + header.content_bytes);
    }
    Ok(())
}

fn damaged(what: &str) -> ParquetError {
    ParquetError::General(what.to_owned())
}

fn read(
    input: &impl ChunkReader,
    position: u64,
    length: u64,
) -> Result<std::result::Result<Header, Refused>> {
    let length = usize::try_from(length).map_err(|_| damaged("a column is too long"))?;
    Ok(Header::parse(&input.get_bytes(position, length)?))
}

/// The header of a page.
struct Header {
    bytes: u64,
    content_bytes: u64,
}

impl Header {
    fn parse(window: &[u8]) -> std::result::Result<Self, Refused> {
        let mut walk = Walk {
            rest: window,
            content_bytes: None,
        };
        walk.structure(PAGE, 0)?;
        let content_bytes = walk.content_bytes.unwrap_or(0);
        Ok(Self {
            bytes: (window.len() - walk.rest.len()) as u64,
            content_bytes: u64::try_from(content_bytes)
                .map_err(|_| Refused::Foreign("a page has less than no bytes"))?,
        })
    }
}

/// A walk through structures of Thrift's compact protocol.
struct Walk<'a> {
    rest: &'a [u8],
    content_bytes: Option<i64>,
}

impl Walk<'_> {
    fn byte(&mut self) -> std::result::Result<u8, Refused> {
        let (&first, rest) = self.rest.split_first().ok_or(Refused::CutShort)?;
        self.rest = rest;
        Ok(first)
    }

    fn pass(&mut self, bytes: u64) -> std::result::Result<(), Refused> {
        let bytes = usize::try_from(bytes).map_err(|_| Refused::CutShort)?;
        self.rest = self.rest.get(bytes..).ok_or(Refused::CutShort)?;
        Ok(())
    }

    fn unsigned(&mut self) -> std::result::Result<u64, Refused> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Refused::Foreign("a number in a page's header is too long"))
    }

    fn signed(&mut self) -> std::result::Result<i64, Refused> {
        let number = self.unsigned()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn structure(&mut self, known: &[Known], depth: u32) -> std::result::Result<(), Refused> {
        if depth == DEPTH_MAX {
            return Err(Refused::Foreign("a page's header has no end of depth"));
        }
        let mut number = 0;
        loop {
            let (delta, kind) = {
                let byte = self.byte()?;
                (byte >> 4, byte & 0x0f)
            };
            if kind == 0 {
                return Ok(());
            }
            number = match delta {
                0 => self.signed()?,
                delta => number + i64::from(delta),
            };
            let position = usize::try_from(number - 1).ok();
            match position.and_then(|position| known.get(position)) {
                Some(Known::Number) => {
                    let value = self.signed()?;
                    if depth == 0 && number == CONTENT_BYTES_FIELD {
                        self.content_bytes = Some(value);
                    }
                }
                Some(Known::Flag) => {}
                Some(Known::Structure(fields)) => self.structure(fields, depth + 1)?,
                None => self.unknown(kind, depth)?,
            }
        }
    }

    fn unknown(&mut self, kind: u8, depth: u32) -> std::result::Result<(), Refused> {
        match kind {
            // The value is in the kind.
            1 | 2 => Ok(()),
            3 => self.pass(1),
            4..=6 => self.unsigned().map(drop),
            7 => self.pass(8),
            8 => {
                let bytes = self.unsigned()?;
                self.pass(bytes)
            }
            12 => self.structure(&[], depth + 1),
            _ => Err(Refused::Foreign("a page's header has a list")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> std::result::Result<(u64, u64), &'static str> {
        match Header::parse(bytes) {
            Ok(header) => Ok((header.bytes, header.content_bytes)),
            Err(Refused::CutShort) => Err("cut short"),
            Err(Refused::Foreign(what)) => Err(what),
        }
    }

    /// Kind 0, 20 bytes, 10 of them in the file, a data page of 3 values, plain.
    const DATA_PAGE: &[u8] = &[
        0x15, 0, 0x15, 40, 0x15, 20, 0x2c, 0x15, 6, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0,
    ];

    #[test]
    fn a_header_says_where_the_next_one_is() {
        assert_eq!(parse(DATA_PAGE), Ok((17, 10)));
        let longer = [DATA_PAGE, &[1, 2, 3]].concat();
        assert_eq!(parse(&longer), Ok((17, 10)));
        for length in 0..DATA_PAGE.len() {
            assert_eq!(parse(&DATA_PAGE[..length]), Err("cut short"), "{length}");
        }
    }

    #[test]
    fn what_is_unknown_is_passed_over_unless_it_is_a_list() {
        let with = |field: &[u8]| {
            let mut header = DATA_PAGE.to_vec();
            header.truncate(16);
            header.extend_from_slice(field);
            header.push(0);
            parse(&header)
        };
        // After field 5: field 15 as a flag, bytes, a double, a structure with a number.
        for field in [
            &[0xa1][..],
            &[0xa8, 2, 7, 7],
            &[0xa7, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0xac, 0x16, 9, 0],
            &[0x08, 30, 1, 7],
        ] {
            let bytes = 17 + field.len() as u64;
            assert_eq!(with(field), Ok((bytes, 10)), "{field:?}");
        }
        let flags = [0xf1, 0xff, 0xff, 0xff, 0xff, 7];
        for kind in [9, 10, 11, 13, 15] {
            let field = [&[0xa0 | kind][..], &flags].concat();
            assert_eq!(with(&field), Err("a page's header has a list"), "{kind}");
        }
        let deep = vec![0x1c; 100];
        assert_eq!(
            with(&[&[0xac][..], &deep].concat()),
            Err("a page's header has no end of depth")
        );
        assert_eq!(with(&[0x08, 6, 1]), Err("a page has less than no bytes"));
    }
}
