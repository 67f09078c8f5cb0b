//! Pieces of text from a tool, none of them longer than a tool can mean.

use std::io::{self, BufRead};

/// Longer than anything that the tools print between two separators, but for lists.
const PIECE_MAX: usize = 64 << 10;

fn unexpected(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Up to one of two bytes, which is not part of it but returned; none at the end of the output.
pub(crate) fn until(
    input: &mut (impl BufRead + ?Sized),
    stops: [u8; 2],
) -> io::Result<Option<(Vec<u8>, u8)>> {
    let mut piece = Vec::new();
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(None);
        }
        let stop = buffer.iter().position(|byte| stops.contains(byte));
        let length = stop.unwrap_or(buffer.len());
        piece.extend_from_slice(buffer.get(..length).unwrap_or_default());
        let found = stop.and_then(|at| buffer.get(at).copied());
        input.consume(length + usize::from(found.is_some()));
        if let Some(found) = found {
            return Ok(Some((piece, found)));
        }
        if piece.len() > PIECE_MAX {
            return Err(unexpected("a tool of e2fsprogs printed something endless"));
        }
    }
}

/// A line without its end; the end of the output is an error, because an answer has an end of its own.
pub(crate) fn line(input: &mut (impl BufRead + ?Sized)) -> io::Result<Vec<u8>> {
    match until(input, [b'\n'; 2])? {
        Some((line, _)) => Ok(line),
        None => Err(ended()),
    }
}

pub(crate) fn ended() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "a tool of e2fsprogs ended too soon",
    )
}

/// The first byte that is next, without taking it.
pub(crate) fn peek(input: &mut (impl BufRead + ?Sized)) -> io::Result<Option<u8>> {
    Ok(input.fill_buf()?.first().copied())
}

/// A number of decimal digits.
pub(crate) fn number<N: std::str::FromStr>(digits: &[u8]) -> Option<N> {
    let digits = digits.trim_ascii();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(digits).ok()?.parse().ok())?
}

/// What a tool says, as a part of a sentence: the last of several parts with colons stays.
pub(crate) fn said(line: &[u8]) -> String {
    let text = crate::names::shown(line.trim_ascii());
    text.chars().take(200).collect()
}
