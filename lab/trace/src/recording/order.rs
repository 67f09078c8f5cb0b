//! Observations in the order in which they began, from a log that has them in the order in
//! which they were written.
//!
//! An operation that took long is in the log after others that began after it. Each frame says when
//! the earliest of its observations began; so a first pass over all frames shows how far the order
//! is final after each of them, and memory is needed for what lies in between only.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read};
use std::sync::Arc;

use mobifs_base::MonotonicNs;
use mobifs_recording::{
    Decoder, FrameKind, Frames, LogError, LogHeader, Observation, parse_header,
};

use super::ConvertError;

/// What a first pass finds in a log.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) header: LogHeader,
    /// For each frame, the earliest moment at which a later observation began.
    later_begun: Vec<MonotonicNs>,
}

/// First pass over all frames.
pub(super) fn survey<R: Read>(frames: &mut Frames<R>) -> Result<Survey, LogError> {
    let header = match frames.next_frame()? {
        Some((head, payload)) if head.kind == FrameKind::Header => parse_header(payload)?,
        _ => return Err(LogError::Header("it is not there".to_owned())),
    };
    let mut begun = Vec::new();
    while let Some((head, _)) = frames.next_frame()? {
        begun.push(head.begun_min);
    }
    // Of each frame what comes after it, not what it has.
    let mut earliest = MonotonicNs(u64::MAX);
    for begun_at in begun.iter_mut().rev() {
        let own = std::mem::replace(begun_at, earliest);
        earliest = earliest.min(own);
    }
    Ok(Survey {
        header,
        later_begun: begun,
    })
}

/// What the log has besides observations.
pub(super) trait Sink {
    fn observation(&mut self, observation: &Observation<'_>) -> Result<(), ConvertError>;
    /// Records that `count` events are missing.
    fn lost(&mut self, count: u64);
    /// Something is missing; how much is unknown.
    fn gap(&mut self, note: &str);
    fn apps(&mut self, apps: Vec<String>);
    /// A frame has bytes that are no observation.
    fn damaged(&mut self);
}

/// An observation that waits for those that began before it: where it is in which frame.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    begun_at: MonotonicNs,
    /// Place in the log.
    place: u64,
    at: usize,
    payload: Arc<[u8]>,
}

/// Hands everything to `sink`, observations in the order in which they began.
pub(super) fn deliver<R: Read>(
    frames: &mut Frames<R>,
    survey: &Survey,
    sink: &mut dyn Sink,
) -> Result<(), ConvertError> {
    let mut waiting = BinaryHeap::new();
    let mut place = 0;
    // Past the header, which was read at the first look.
    if frames.next_frame()?.is_none() {
        return Ok(());
    }
    for &later_begun in &survey.later_begun {
        let Some((head, payload)) = frames.next_frame()? else {
            let error = "the recording has become shorter while it was read";
            return Err(LogError::Io(io::Error::other(error)).into());
        };
        if head.lost > 0 {
            sink.lost(head.lost);
        }
        match head.kind {
            FrameKind::Observations => take(payload, &mut place, &mut waiting, sink),
            FrameKind::Gap => sink.gap(&String::from_utf8_lossy(payload)),
            FrameKind::Apps => {
                let text = String::from_utf8_lossy(payload);
                sink.apps(text.lines().map(str::to_owned).collect());
            }
            FrameKind::Header => sink.damaged(),
        }
        while let Some(Reverse(next)) = waiting.peek()
            && next.begun_at < later_begun
        {
            let Some(Reverse(next)) = waiting.pop() else {
                break;
            };
            if let Some(observation) = Decoder::new(&next.payload[next.at..]).observation() {
                sink.observation(&observation)?;
            }
        }
    }
    while let Some(Reverse(next)) = waiting.pop() {
        if let Some(observation) = Decoder::new(&next.payload[next.at..]).observation() {
            sink.observation(&observation)?;
        }
    }
    Ok(())
}

/// Puts the observations of a frame among those that wait.
fn take(
    payload: &[u8],
    place: &mut u64,
    waiting: &mut BinaryHeap<Reverse<Waiting>>,
    sink: &mut dyn Sink,
) {
    let payload: Arc<[u8]> = payload.into();
    let mut decoder = Decoder::new(&payload);
    while !decoder.rest().is_empty() {
        let at = payload.len() - decoder.rest().len();
        let Some(observation) = decoder.observation() else {
            return sink.damaged();
        };
        waiting.push(Reverse(Waiting {
            begun_at: observation.begun_at(),
            place: *place,
            at,
            payload: Arc::clone(&payload),
        }));
        *place += 1;
    }
}
