//! Globs over paths.

use globset::GlobBuilder;
use regex_automata::nfa::thompson::{Config, WhichCaptures, pikevm::PikeVM};
use regex_automata::util::syntax;

/// What one glob may take of memory; far more than any that has a meaning.
const BYTES_MAX: usize = 1 << 20;

/// A glob: `*` and `?` stay within one directory, `**` does not. Paths are bytes.
///
/// `globset` reads it and says it as a regular expression. Its own matcher brings what makes searches in long texts
/// fast, which is much of a small program; names are short, and the plain machine is enough for them.
#[derive(Clone, Debug)]
pub(super) struct Glob {
    text: String,
    machine: PikeVM,
}

impl PartialEq for Glob {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Glob {}

impl Glob {
    /// # Errors
    /// Why the glob is none.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let mut builder = GlobBuilder::new(text);
        let builder = builder.literal_separator(true).backslash_escape(true);
        let glob = builder.build().map_err(|error| error.kind().to_string())?;
        let bytes = syntax::Config::new().utf8(false).dot_matches_new_line(true);
        let size = Config::new()
            .utf8(false)
            .which_captures(WhichCaptures::None)
            .nfa_size_limit(Some(BYTES_MAX));
        let machine = PikeVM::builder()
            .syntax(bytes)
            .thompson(size)
            .build(glob.regex());
        Ok(Self {
            text: text.to_owned(),
            machine: machine.map_err(|error| error.to_string())?,
        })
    }

    /// As it was written.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether it matches the whole of `path`.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        self.machine
            .is_match(&mut self.machine.create_cache(), path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    fn matches(glob: &str, path: &[u8]) -> bool {
        Glob::new(glob).unwrap().matches(path)
    }

    #[test]
    fn stars_and_marks_stay_within_a_directory() {
        for (glob, path, expected) in [
            ("*", "mail", true),
            ("*", "", true),
            ("*", "mail/inbox", false),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("home/*", "home/ann", true),
            ("home/*", "xhome/ann", false),
            ("home/*", "home/ann/mail", false),
            ("bank-*", "bank-one", true),
            ("bank-*", "my-bank-one", false),
        ] {
            assert_eq!(
                matches(glob, path.as_bytes()),
                expected,
                "{glob} and {path}"
            );
        }
    }

    #[test]
    fn two_stars_go_through_directories() {
        assert!(matches("**", b"a/b/c") && matches("a/**", b"a/b/c"));
        assert!(matches("**/c", b"a/b/c") && matches("a/**/c", b"a/c"));
        assert!(!matches("a/**", b"b/c") && !matches("**/c", b"a/b/cc"));
    }

    #[test]
    fn classes_alternatives_and_escapes_are_known() {
        assert!(matches("[a-c]x", b"bx") && !matches("[a-c]x", b"dx"));
        assert!(matches("[!a]x", b"bx") && !matches("[!a]x", b"ax"));
        assert!(matches("{mail,home/*}", b"home/ann") && !matches("{mail,home/*}", b"web"));
        assert!(matches(r"a\*", b"a*") && !matches(r"a\*", b"ab"));
        assert!(
            matches("a.c", b"a.c") && !matches("a.c", b"abc"),
            "no regular expression"
        );
    }

    #[test]
    fn names_are_bytes() {
        assert!(matches("*", b"\xff\xfe") && matches("a*", b"a\nb"));
        assert!(matches("d\u{e4}t\u{e4}", "d\u{e4}t\u{e4}".as_bytes()));
        assert!(!matches("d\u{e4}t\u{e4}", b"d\xe4t\xe4"));
    }

    #[test]
    fn what_is_no_glob_is_refused_with_the_reason() {
        assert!(
            Glob::new("a[")
                .unwrap_err()
                .contains("unclosed character class")
        );
        assert!(Glob::new("{a").unwrap_err().contains("unclosed alternate"));
        let huge = "{a,b}".repeat(BYTES_MAX / 32);
        assert!(Glob::new(&huge).unwrap_err().contains("limit"));
    }

    /// The glob's own library has another matcher, which decides the same.
    #[test]
    fn it_matches_what_the_matcher_of_the_library_matches() {
        let globs = [
            "*", "?*", "a*b", "*/b", "a/**/b", "**", "[!b]*", "{a,b/}*", "*a*a*a*",
        ];
        let letters = [b'a', b'b', b'/', 0xff, b'\n'];
        for glob in globs {
            let own = Glob::new(glob).unwrap();
            let mut builder = GlobBuilder::new(glob);
            let builder = builder.literal_separator(true).backslash_escape(true);
            let theirs = builder.build().unwrap().compile_matcher();
            for number in 0..letters.len().pow(5) {
                let mut rest = number;
                let path: Vec<u8> = std::iter::from_fn(|| {
                    let letter = letters[rest % letters.len()];
                    let is_more = rest > 0;
                    rest /= letters.len();
                    is_more.then_some(letter)
                })
                .collect();
                let as_path = std::path::Path::new(std::ffi::OsStr::from_bytes(&path));
                assert_eq!(
                    own.matches(&path),
                    theirs.is_match(as_path),
                    "{glob} and {path:?}"
                );
            }
        }
    }
}
