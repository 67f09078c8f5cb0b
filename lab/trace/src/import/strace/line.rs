//! A line of strace's output, and the call in it.

use crate::import::text::{decimal, seconds};

/// Nanoseconds of a day: `-tt` has times of the day only.
const DAY_NS: u64 = 86_400_000_000_000;

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body<'a> {
    /// A whole call: what is before the result, and the result.
    Call(&'a [u8]),
    /// The beginning of a call that ends in a later line.
    Unfinished(&'a [u8]),
    /// The end of such a call.
    Resumed(&'a [u8]),
    /// The task has ended.
    Exit,
    /// A signal, or a message of strace.
    Other,
}

/// A line, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TaskLine<'a> {
    /// The task; 0 if the output is of one that is not named.
    pub(super) task: u32,
    pub(super) time_ns: u64,
    /// The time is one of the day, which begins again at midnight.
    pub(super) is_time_of_day: bool,
    pub(super) body: Body<'a>,
}

/// Takes a line apart; none if it is no line of strace with times.
pub(super) fn task_line(line: &[u8]) -> Option<TaskLine<'_>> {
    let (task, rest) = task(line)?;
    let end = rest.iter().position(|&byte| byte == b' ')?;
    let (time, rest) = (&rest[..end], rest[end..].trim_ascii_start());
    let time_of_day = time_of_day(time);
    let time_ns = match time_of_day {
        Some(time_ns) => time_ns,
        None if time.contains(&b'.') => seconds(time)?,
        None => return None,
    };
    Some(TaskLine {
        task,
        time_ns,
        is_time_of_day: time_of_day.is_some(),
        body: body(rest)?,
    })
}

/// `PID ` or `[pid PID] ` in front, or nothing.
fn task(line: &[u8]) -> Option<(u32, &[u8])> {
    if let Some(rest) = line.strip_prefix(b"[pid") {
        let end = rest.iter().position(|&byte| byte == b']')?;
        let task = u32::try_from(decimal(rest[..end].trim_ascii())?).ok()?;
        return Some((task, rest[end + 1..].trim_ascii_start()));
    }
    let end = line.iter().position(|&byte| byte == b' ')?;
    match decimal(&line[..end]) {
        Some(task) => Some((u32::try_from(task).ok()?, line[end..].trim_ascii_start())),
        None => Some((0, line)),
    }
}

/// `HH:MM:SS.ffffff`.
fn time_of_day(text: &[u8]) -> Option<u64> {
    let parts: Vec<&[u8]> = text.split(|&byte| byte == b':').collect();
    let &[hours, minutes, rest] = parts.as_slice() else {
        return None;
    };
    let minutes = decimal(hours)?
        .checked_mul(60)?
        .checked_add(decimal(minutes)?)?;
    let time_ns = minutes
        .checked_mul(60_000_000_000)?
        .checked_add(seconds(rest)?)?;
    (time_ns < DAY_NS).then_some(time_ns)
}

fn body(rest: &[u8]) -> Option<Body<'_>> {
    if rest.starts_with(b"+++ ") {
        return Some(Body::Exit);
    }
    if rest.starts_with(b"--- ") || rest.starts_with(b"strace: ") {
        return Some(Body::Other);
    }
    if let Some(resumed) = rest.strip_prefix(b"<... ") {
        let mark = b" resumed>";
        let end = resumed
            .windows(mark.len())
            .position(|window| window == mark)?;
        return Some(Body::Resumed(&resumed[end + mark.len()..]));
    }
    let name_end = rest.iter().position(|&byte| byte == b'(')?;
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    if name_end == 0 || !rest[..name_end].iter().all(is_name) {
        return None;
    }
    Some(match rest.strip_suffix(b"<unfinished ...>") {
        Some(begin) => Body::Unfinished(begin),
        None => Body::Call(rest),
    })
}

/// What a call returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The number; none if strace does not know it (`?`).
    pub(super) value: Option<i64>,
    /// The error's name.
    pub(super) error: Option<String>,
    /// What `-y` says of a descriptor that was returned.
    pub(super) annotation: Option<Vec<u8>>,
}

/// A whole call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call<'a> {
    pub(super) name: &'a str,
    pub(super) arguments: Vec<&'a [u8]>,
    pub(super) outcome: Outcome,
    pub(super) duration_ns: u64,
}

/// Takes a whole call apart.
pub(super) fn call(text: &[u8]) -> Option<Call<'_>> {
    let open = text.iter().position(|&byte| byte == b'(')?;
    let name = std::str::from_utf8(&text[..open]).ok()?;
    let (arguments, end) = arguments(text, open + 1)?;
    let rest = text[end..]
        .trim_ascii_start()
        .strip_prefix(b"=")?
        .trim_ascii();
    let (rest, duration_ns) = duration(rest);
    Some(Call {
        name,
        arguments,
        outcome: outcome(rest)?,
        duration_ns,
    })
}

/// The arguments from `start` on, and where the text goes on after the closing bracket.
fn arguments(text: &[u8], start: usize) -> Option<(Vec<&[u8]>, usize)> {
    let mut arguments = Vec::new();
    let (mut begin, mut depth, mut at) = (start, 0_usize, start);
    while at < text.len() {
        match text[at] {
            b'"' => at = string_end(text, at)?,
            b'/' if text[at..].starts_with(b"/*") => at = comment_end(text, at)?,
            b'<' => at = annotation_end(text, at).unwrap_or(at),
            b'(' | b'[' | b'{' => depth += 1,
            b')' if depth == 0 => {
                let last = text[begin..at].trim_ascii();
                if !last.is_empty() || !arguments.is_empty() {
                    arguments.push(last);
                }
                return Some((arguments, at + 1));
            }
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => {
                arguments.push(text[begin..at].trim_ascii());
                begin = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Where the string that begins at `at` has its closing quote.
fn string_end(text: &[u8], at: usize) -> Option<usize> {
    let mut end = at + 1;
    loop {
        match *text.get(end)? {
            b'\\' => end += 2,
            b'"' => return Some(end),
            _ => end += 1,
        }
    }
}

fn comment_end(text: &[u8], at: usize) -> Option<usize> {
    let length = text[at..].windows(2).position(|window| window == b"*/")?;
    Some(at + length + 1)
}

/// Where what `-y` says of the descriptor before `at` ends: the place of its `>`. None if `<`
/// means something else there. Brackets in paths are escaped; those of sockets have `->`.
fn annotation_end(text: &[u8], at: usize) -> Option<usize> {
    let before = *text.get(at.checked_sub(1)?)?;
    if !(before.is_ascii_digit() || before == b'D') || text.get(at + 1) == Some(&b'<') {
        return None;
    }
    let mut depth = 0_usize;
    for (place, &byte) in text.iter().enumerate().skip(at) {
        match byte {
            b'<' => depth += 1,
            b'>' if text[place - 1] != b'-' => {
                depth -= 1;
                if depth == 0 {
                    return Some(place);
                }
            }
            _ => {}
        }
    }
    None
}

/// Splits ` <0.000123>` off the end.
fn duration(rest: &[u8]) -> (&[u8], u64) {
    let found = rest.strip_suffix(b">").and_then(|inner| {
        let begin = inner.iter().rposition(|&byte| byte == b'<')?;
        Some((inner[..begin].trim_ascii(), seconds(&inner[begin + 1..])?))
    });
    found.unwrap_or((rest, 0))
}

fn outcome(rest: &[u8]) -> Option<Outcome> {
    let is_value = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'?');
    let end = rest
        .iter()
        .position(|byte| !is_value(byte))
        .unwrap_or(rest.len());
    let value = &rest[..end];
    let mut outcome = Outcome::default();
    if value != b"?" {
        outcome.value = Some(super::value::integer(value)?);
    }
    let mut rest = &rest[end..];
    if rest.first() == Some(&b'<') && end > 0 {
        // The annotation's end is looked for in the text with the digit before it.
        let padded = [b"0", rest].concat();
        let close = annotation_end(&padded, 1)?;
        outcome.annotation = Some(super::value::unescaped(&rest[1..close - 1]));
        rest = &rest[close..];
    }
    let word = rest.trim_ascii().split(|&byte| byte == b' ').next()?;
    if word.first() == Some(&b'E') {
        outcome.error = Some(String::from_utf8_lossy(word).into_owned());
    }
    Some(outcome)
}
