//! Words of a command line that a message tells its reader to run.

use std::path::Path;

/// A word as a shell takes it: as it is where that is plain, otherwise in single quotes.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A path as [`shell_word`]; bytes that are not UTF-8 are replaced.
pub fn shell_path(path: impl AsRef<Path>) -> String {
    shell_word(&path.as_ref().to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_the_word_as_it_is() {
        assert_eq!(shell_path("/srv/a-b"), "/srv/a-b");
        for path in ["/w/a b", "/w/$(id)", "/w/it's", "", "/w/~;`x`\\\"*"] {
            let script = format!("printf %s {}", shell_path(path));
            let output = std::process::Command::new("sh")
                .args(["-c", &script])
                .output()
                .unwrap();
            assert_eq!(output.stdout, path.as_bytes(), "{script}");
        }
    }
}
