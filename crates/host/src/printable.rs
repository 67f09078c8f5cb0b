//! Names and texts of others, made safe for a terminal.
//!
//! The program that makes a file chooses its name, and a terminal interprets control characters: a
//! name could clear the screen, change its title, or pretend to be another line of a report.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

/// A name, or a sentence with names in it, in which a terminal finds no command: control
/// characters, and those that change the direction of what follows or end a line, are written as
/// escapes. One line.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_command)
}

/// The printable form of a whole report, which keeps its lines and tabs.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |character| {
        is_command(character) && !matches!(character, '\n' | '\t')
    })
}

/// A path as [`printable`]; bytes that are not UTF-8 are replaced.
pub fn printable_path(path: impl AsRef<Path>) -> String {
    printable(&path.as_ref().to_string_lossy()).into_owned()
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_escaped(character) {
            escape(&mut shown, character);
        } else {
            shown.push(character);
        }
    }
    shown.into()
}

/// As JSON escapes a character, so that a document stays one: it has these only in strings. All of them have four
/// digits.
fn escape(text: &mut String, character: char) {
    match character {
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        other => {
            // Writing to a string does not fail.
            let _ = write!(text, "\\u{:04x}", u32::from(other));
        }
    }
}

/// Control characters (C0, DEL, C1), line and paragraph separators, and the marks, embeddings,
/// overrides and isolates of the bidirectional algorithm.
fn is_command(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_command_the_terminal() {
        assert_eq!(printable("mail ünd 音楽 👩‍💻"), "mail ünd 音楽 👩‍💻");
        assert_eq!(printable("\u{1b}[31mred\nline"), "\\u001b[31mred\\nline");
        assert_eq!(printable("\u{9b}31m\u{7f}"), "\\u009b31m\\u007f");
        assert_eq!(printable("a\u{202e}gpj.exe"), "a\\u202egpj.exe");
        // A document stays one.
        let name = "x\u{202e}\u{7f}\u{2028}\u{9b}";
        let document = format!("{{\"{name}\": 1}}\n");
        assert_eq!(
            printable_lines(&document),
            "{\"x\\u202e\\u007f\\u2028\\u009b\": 1}\n"
        );
        assert_eq!(printable_path("/a\r/b"), "/a\\r/b");
    }

    #[test]
    fn reports_keep_their_lines() {
        assert_eq!(printable_lines("a\tb\nc\u{1b}c"), "a\tb\nc\\u001bc");
    }
}
