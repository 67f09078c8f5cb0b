//! A trace from a log.

use std::io::{Cursor, Read, Write};
use std::path::Path;

use mobifs_recording::{Frames, Observation};

use super::ConvertError;
use super::events::Translator;
use super::order::{Sink, Survey, deliver, survey};
use crate::import::ImportReport;
use crate::model::Trace;
use crate::store::{GROUP_EVENTS, TraceWriter};

/// What became of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// Events in the trace.
    pub events: u64,
    /// What was left out.
    pub report: ImportReport,
}

/// Makes a trace of a log, a row group at a time.
///
/// # Errors
/// The log cannot be read, is none, or the trace cannot be written.
pub fn convert<W: Write + Send>(log: &Path, output: W) -> Result<(Converted, W), ConvertError> {
    let survey = survey(&mut Frames::open(log)?)?;
    let translator = Translator::new(&survey.header);
    let mut writer = TraceWriter::new(output, translator.header())?;
    let mut append = |part: &Trace| -> Result<(), ConvertError> {
        Ok(writer.append(&part.events, &part.apps, &part.paths)?)
    };
    let mut reading = Reading::new(translator, Some(&mut append));
    deliver(&mut Frames::open(log)?, &survey, &mut reading)?;
    reading.hand_over()?;
    let (converted, notes) = reading.end();
    for note in notes {
        writer.note(note);
    }
    Ok((converted, writer.finish()?))
}

/// Reads a log as a trace, all of it in memory.
///
/// # Errors
/// The log cannot be read, or is none.
pub fn read_log(log: &Path) -> Result<(Trace, ImportReport), ConvertError> {
    let survey = survey(&mut Frames::open(log)?)?;
    read_surveyed(&mut Frames::open(log)?, &survey)
}

/// Reads the bytes of a log as a trace.
///
/// # Errors
/// They are no log.
pub(crate) fn read_log_bytes(log: &[u8]) -> Result<(Trace, ImportReport), ConvertError> {
    let survey = survey(&mut Frames::of(Cursor::new(log))?)?;
    read_surveyed(&mut Frames::of(Cursor::new(log))?, &survey)
}

fn read_surveyed<R: Read>(
    frames: &mut Frames<R>,
    survey: &Survey,
) -> Result<(Trace, ImportReport), ConvertError> {
    let mut reading = Reading::new(Translator::new(&survey.header), None);
    deliver(frames, survey, &mut reading)?;
    let mut trace = reading.translator.take();
    let (converted, notes) = reading.end();
    trace.header.notes.extend(notes);
    Ok((trace, converted.report))
}

/// Takes part of a trace.
type TakePart<'a> = &'a mut dyn FnMut(&Trace) -> Result<(), ConvertError>;

struct Reading<'a> {
    translator: Translator,
    /// Takes the events, a row group at a time; none: they are kept.
    taker: Option<TakePart<'a>>,
    events: u64,
    lost: u64,
    gaps: Vec<String>,
    damaged: u64,
}

impl<'a> Reading<'a> {
    fn new(translator: Translator, taker: Option<TakePart<'a>>) -> Self {
        Self {
            translator,
            taker,
            events: 0,
            lost: 0,
            gaps: Vec::new(),
            damaged: 0,
        }
    }

    fn hand_over(&mut self) -> Result<(), ConvertError> {
        match &mut self.taker {
            Some(taker) => {
                let part = self.translator.take();
                self.events += part.events.len() as u64;
                taker(&part)
            }
            None => Ok(()),
        }
    }

    /// What became of the log, and the notes for the trace.
    fn end(self) -> (Converted, Vec<String>) {
        let report = self.translator.report;
        let mut notes = report.notes();
        if self.lost > 0 {
            let lost = self.lost;
            notes.push(format!(
                "lost: {lost} operations, because the file was not written as fast as they came"
            ));
        }
        notes.extend(self.gaps.into_iter().map(|gap| format!("lost: {gap}")));
        if self.damaged > 0 {
            notes.push(format!("damaged parts of the recording: {}", self.damaged));
        }
        let converted = Converted {
            events: self.events,
            report,
        };
        (converted, notes)
    }
}

impl Sink for Reading<'_> {
    fn observation(&mut self, observation: &Observation<'_>) -> Result<(), ConvertError> {
        self.translator.add(observation);
        if self.taker.is_some() && self.translator.len() >= GROUP_EVENTS {
            self.hand_over()?;
        }
        Ok(())
    }

    fn lost(&mut self, count: u64) {
        self.lost += count;
        self.translator.gap();
    }

    fn gap(&mut self, note: &str) {
        self.gaps.push(note.to_owned());
        self.translator.gap();
    }

    fn apps(&mut self, apps: Vec<String>) {
        self.translator.set_apps(&apps);
    }

    fn damaged(&mut self) {
        self.damaged += 1;
        self.translator.gap();
    }
}
