//! What debugfs prints for `ls -p`: `/inode/mode/user/group/name/size/`, one entry a line. A name
//! has no slash, so that lines within names do no harm.

use std::io::{self, BufRead};

use super::text::{self, number, peek, until};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    File,
    Directory,
    Other,
    /// Its inode is not in use: the directory is damaged.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'e> {
    pub(super) inode: u32,
    pub(super) kind: EntryKind,
    pub(super) name: &'e [u8],
}

/// Reads an answer up to its end, which is a line of its own. What the tool found wrong is returned.
pub(super) fn read(
    input: &mut dyn BufRead,
    end: &str,
    found: &mut dyn FnMut(Entry<'_>),
) -> io::Result<Option<String>> {
    let mut problem = None;
    loop {
        if peek(input)? == Some(b'/') {
            if !entry(input, found)? {
                problem.get_or_insert_with(|| "a directory has an impossible entry".to_owned());
            }
            continue;
        }
        let line = text::line(input)?;
        if line == end.as_bytes() {
            return Ok(problem);
        }
        let is_echo = line.starts_with(b"debugfs: ");
        if !is_echo && !line.trim_ascii().is_empty() {
            // debugfs takes its first argument for its own name here.
            let line = line.strip_prefix(b"-p: ").unwrap_or(&line);
            problem.get_or_insert_with(|| text::said(line));
        }
    }
}

/// Reads one entry; `false` if it cannot be one.
fn entry(input: &mut dyn BufRead, found: &mut dyn FnMut(Entry<'_>)) -> io::Result<bool> {
    const FORMAT: u32 = 0o170_000;
    input.consume(1);
    let mut fields: [Vec<u8>; 6] = Default::default();
    for field in &mut fields {
        let Some((text, _)) = until(input, [b'/'; 2])? else {
            return Err(text::ended());
        };
        *field = text;
    }
    let [inode, mode, _, _, name, _] = &fields;
    if peek(input)? != Some(b'\n') {
        return Ok(false);
    }
    input.consume(1);
    let mode = std::str::from_utf8(mode).ok();
    let mode = mode.and_then(|mode| u32::from_str_radix(mode, 8).ok());
    let (Some(inode), Some(mode)) = (number(inode), mode) else {
        return Ok(false);
    };
    let kind = match mode & FORMAT {
        0o100_000 => EntryKind::File,
        0o040_000 => EntryKind::Directory,
        0 => EntryKind::Nothing,
        _ => EntryKind::Other,
    };
    if inode != 0 && !matches!(name.as_slice(), b"." | b"..") {
        found(Entry { inode, kind, name });
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &[u8] = b"debugfs: ls -p <12>\n\
/12/040755/0/0/.//\n/2/040755/0/0/..//\n/13/040755/0/0/e//\n/14/100644/0/0/a/163840/\n\
/19/100644/0/0/new\nline/1/\n/24/100644/0/0/\n#end 7/3/\n/20/120777/0/0/\xff/3/\n\n#end 7\n";

    type Listed = Vec<(u32, EntryKind, Vec<u8>)>;

    fn read_text(text: &[u8]) -> (io::Result<Option<String>>, Listed) {
        let mut listed = Vec::new();
        let result = read(&mut &*text, "#end 7", &mut |entry| {
            listed.push((entry.inode, entry.kind, entry.name.to_vec()));
        });
        (result, listed)
    }

    #[test]
    fn entries_are_read_whatever_their_names() {
        let (result, listed) = read_text(OUTPUT);
        assert_eq!(result.unwrap(), None);
        let expected: [(u32, EntryKind, &[u8]); 5] = [
            (13, EntryKind::Directory, b"e"),
            (14, EntryKind::File, b"a"),
            (19, EntryKind::File, b"new\nline"),
            (24, EntryKind::File, b"\n#end 7"),
            (20, EntryKind::Other, b"\xff"),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(i, k, n)| (*i, *k, n.to_vec()))
            .collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn what_the_tool_complains_of_is_a_problem() {
        let text = b"debugfs: ls -p <9>\n\nls: Ext2 inode is not a directory \n#end 7\n";
        let problem = read_text(text).0.unwrap().unwrap();
        assert_eq!(problem, "ls: Ext2 inode is not a directory");
        let text = b"debugfs: ls -p <9>\n-p: Directory block is damaged\n#end 7\n";
        let problem = read_text(text).0.unwrap().unwrap();
        assert_eq!(
            problem, "Directory block is damaged",
            "no option of the tool"
        );
        let impossible = b"/1/2/3/4/5/6/7/8\n#end 7\n/x/100644/0/0/n/1/\n#end 7\n";
        assert!(read_text(impossible).0.unwrap().is_some());
        assert!(read_text(b"debugfs: ls").0.is_err(), "it ended too soon");
    }

    proptest::proptest! {
        #[test]
        fn noise_is_survived(noise: Vec<u8>, at in 0..OUTPUT.len()) {
            let mut text = OUTPUT.to_vec();
            text.splice(at..at, noise.iter().copied());
            for text in [text.as_slice(), &noise, &OUTPUT[..at]] {
                let (_, listed) = read_text(text);
                proptest::prop_assert!(listed.len() <= text.len() / 10 + 1);
            }
        }
    }
}
