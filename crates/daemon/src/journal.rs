//! The log of the system, journald, where there is one.
//!
//! A stream socket whose first lines say who writes (systemd: `sd_journal_stream_fd(3)`); each line after them is
//! an entry, with its priority in front as `<4>`. A service has such a stream as standard error already.

use std::fmt;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Where journald listens for such streams.
pub(crate) const SOCKET: &str = "/run/systemd/journal/stdout";

/// Identifier, unit (journald finds it out), priority of lines that have none (a panic: a warning), lines may have
/// one, and copies to syslog, kernel and console: none.
const HEADER: &[u8] = b"mobifs\n\n4\n1\n0\n0\n0\n";

/// A new stream to the journald that listens at `socket`.
///
/// # Errors
/// No journald is there.
pub(crate) fn connect(socket: &Path) -> io::Result<OwnedFd> {
    let mut stream = UnixStream::connect(socket)?;
    stream.shutdown(std::net::Shutdown::Read)?;
    stream.write_all(HEADER)?;
    Ok(stream.into())
}

/// Whether `log` is a stream to the journald that listens at `socket`.
pub(crate) fn is_behind(log: impl AsFd, socket: &Path) -> bool {
    let Ok(copy) = log.as_fd().try_clone_to_owned() else {
        return false;
    };
    let peer = UnixStream::from(copy).peer_addr();
    peer.is_ok_and(|peer| peer.as_pathname() == Some(socket))
}

/// From now on a line that does not fit into the stream is lost. Journald's own files may lie on a mount: a
/// daemon that waited for it could wait for itself.
pub(crate) fn never_wait(log: impl AsFd) -> io::Result<()> {
    UnixStream::from(log.as_fd().try_clone_to_owned()?).set_nonblocking(true)
}

/// Lines with their priority, and without the time, which journald has.
pub(crate) struct JournalFormat(Format<Full, ()>);

impl JournalFormat {
    pub(crate) fn new() -> Self {
        let format = Format::default().without_time().with_level(false);
        Self(format.with_target(false).with_ansi(false))
    }
}

impl<S, N> FormatEvent<S, N> for JournalFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// The priority of syslog(3).
const fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixListener;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn a_stream_says_who_writes_and_is_known_for_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("stdout");
        assert!(connect(&socket).is_err());
        let journald = UnixListener::bind(&socket).unwrap();
        let log = connect(&socket).unwrap();
        assert!(is_behind(&log, &socket));
        assert!(!is_behind(&log, Path::new(SOCKET)));
        assert!(!is_behind(tempfile::tempfile().unwrap(), &socket));
        let (mut stream, _) = journald.accept().unwrap();
        UnixStream::from(log).write_all(b"<6>mounted\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, "mobifs\n\n4\n1\n0\n0\n0\n<6>mounted\n");
    }

    /// The files of journald may lie on the mount, and then it waits for the daemon.
    #[test]
    fn a_journald_that_reads_nothing_stops_no_writer() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("stdout");
        let _journald = UnixListener::bind(&socket).unwrap();
        let log = connect(&socket).unwrap();
        never_wait(&log).unwrap();
        let mut stream = UnixStream::from(log);
        let written = (0..100_000).try_for_each(|_| stream.write_all(&[b'x'; 1000]));
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn lines_have_the_priorities_of_syslog_and_no_time() {
        let written = Shared(Arc::default());
        let writer = written.clone();
        let lines = tracing_subscriber::fmt::layer()
            .event_format(JournalFormat::new())
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            tracing::error!("broken");
            tracing::warn!(bytes = 7, "full");
            tracing::info!("mounted");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text, "<3>broken\n<4>full bytes=7\n<6>mounted\n");
    }

    #[derive(Clone)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
