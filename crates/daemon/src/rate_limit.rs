//! Log lines that repeat are not all written: an ordinary user could fill the disk with them.
//!
//! What counts is the place in the program that a line comes from. The first lines of each
//! place are written; the others are counted, and the next line that is written after a while
//! is preceded by how many there were.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Most lines of one place that are written within one [`PERIOD`].
const BURST: u32 = 20;
/// How long the lines of one place are counted.
const PERIOD: Duration = Duration::from_secs(60);

/// What was written, and not, of one place.
struct Place {
    since: Instant,
    written: u32,
    suppressed: u64,
}

/// What becomes of one line.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Write,
    /// The line is written, after this many that were not.
    WriteAfter(u64),
    /// The first of perhaps many.
    LastBeforeSilence,
    Suppress,
}

/// Keeps repeated lines from the layers after it.
#[derive(Default)]
pub(crate) struct RateLimit {
    places: Mutex<HashMap<Identifier, Place>>,
}

impl RateLimit {
    fn judge(&self, place: Identifier, now: Instant) -> Verdict {
        let Ok(mut places) = self.places.lock() else {
            // A thread that panicked in here has suppressed no line.
            return Verdict::Write;
        };
        let place = places.entry(place).or_insert(Place {
            since: now,
            written: 0,
            suppressed: 0,
        });
        let mut before = 0;
        if now.saturating_duration_since(place.since) >= PERIOD {
            before = place.suppressed;
            *place = Place {
                since: now,
                written: 0,
                suppressed: 0,
            };
        }
        if place.written >= BURST {
            place.suppressed += 1;
            return Verdict::Suppress;
        }
        place.written += 1;
        match (before, place.written) {
            (0, BURST) => Verdict::LastBeforeSilence,
            (0, _) => Verdict::Write,
            (before, _) => Verdict::WriteAfter(before),
        }
    }
}

impl<S: Subscriber> Layer<S> for RateLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let about = event.metadata();
        // The messages of this layer are not limited: each is written once in a period and place.
        if about.target() == module_path!() {
            return true;
        }
        // The lock is free again: a message written here passes through this layer itself.
        match self.judge(about.callsite(), Instant::now()) {
            Verdict::Write => true,
            Verdict::WriteAfter(lines) => {
                tracing::info!("suppressed {lines} messages like the next");
                true
            }
            Verdict::LastBeforeSilence => {
                tracing::info!(
                    seconds = PERIOD.as_secs(),
                    "further messages like the next are suppressed for a while"
                );
                true
            }
            Verdict::Suppress => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;

    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    /// 600 changes of a class wrote 600 lines.
    #[test]
    fn lines_that_repeat_are_not_all_written() {
        let lines = Lines::default();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(lines.clone())
            .with_ansi(false);
        let subscriber = tracing_subscriber::registry()
            .with(RateLimit::default())
            .with(layer);
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..600 {
                tracing::info!(number, "settings changed");
            }
            tracing::warn!("something else");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches("settings changed").count(), BURST as usize);
        assert!(text.contains("number=0 ") || text.contains("number=0\n"));
        assert!(text.contains("something else"));
    }

    #[test]
    fn what_was_not_written_is_counted() {
        let limit = RateLimit::default();
        let place = || {
            static CALLSITE: tracing::callsite::DefaultCallsite = {
                static META: tracing::Metadata<'static> = tracing::metadata! {
                    name: "test",
                    target: "test",
                    level: tracing::Level::INFO,
                    fields: &[],
                    callsite: &CALLSITE,
                    kind: tracing::metadata::Kind::EVENT,
                };
                tracing::callsite::DefaultCallsite::new(&META)
            };
            Identifier(&CALLSITE)
        };
        let start = Instant::now();
        for line in 1..=600 {
            let expected = match line {
                ..BURST => Verdict::Write,
                BURST => Verdict::LastBeforeSilence,
                _ => Verdict::Suppress,
            };
            assert_eq!(limit.judge(place(), start), expected);
        }
        let suppressed = 600 - u64::from(BURST);
        assert_eq!(
            limit.judge(place(), start + PERIOD),
            Verdict::WriteAfter(suppressed)
        );
        assert_eq!(limit.judge(place(), start + PERIOD), Verdict::Write);
    }
}
