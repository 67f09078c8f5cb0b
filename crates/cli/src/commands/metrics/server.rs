//! Metrics over HTTP: one answer a connection. What a client sends is bounded in bytes and in time, and silent
//! clients do not delay others: [`super::clients`] drops them where there are too many.

use std::io::{self, Read};
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use mobifs_daemon::{Code, Failure};
use mobifs_host::group_id;

use super::super::tell;
use super::clients::{Client, Clients, Connection};
use super::exposition::Format;

/// Longest head of a request.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// A client that sends or takes nothing for longer is left.
const CLIENT_WAIT: Duration = Duration::from_secs(5);
/// Most clients that have a thread at a time; of more, the one that has been silent for longest is left.
const CLIENTS_MAX: usize = 32;

/// What is answered now.
type Text<'a> = dyn Fn(Format) -> Result<String, Failure> + Sync + 'a;

/// Answers until the process ends. `text`: what is answered now.
pub(super) fn serve(address: &str, group: Option<&str>, text: &Text<'_>) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        // Of a port or a host that cannot be one.
        let code = match error.kind() {
            io::ErrorKind::InvalidInput => Code::Usage,
            _ => Code::Failed,
        };
        Failure::new(code, format!("cannot listen on {address}: {error}"))
    };
    if address.contains('/') {
        let listener = listen_locally(Path::new(address), group).map_err(|error| match error {
            Listen::Group(failure) => failure,
            Listen::Io(error) => failed(error),
        })?;
        talk_to_all(listener.incoming(), text);
        return Ok(());
    }
    if group.is_some() {
        let message =
            "--group is for a Unix socket; everyone who reaches the port may read the metrics";
        return Err(Failure::new(Code::Usage, message));
    }
    if !address.contains(':') {
        let message = format!(
            "\"{address}\" is neither an address with a port, such as 127.0.0.1:9464, nor the path of \
             a socket, which has a slash"
        );
        return Err(Failure::new(Code::Usage, message));
    }
    let listener = TcpListener::bind(address).map_err(failed)?;
    talk_to_all(listener.incoming(), text);
    Ok(())
}

enum Listen {
    Group(Failure),
    Io(io::Error),
}

impl From<io::Error> for Listen {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A Unix socket in the place of one that no process listens to any more.
fn listen_locally(path: &Path, group: Option<&str>) -> Result<UnixListener, Listen> {
    let group = group.map(|name| {
        group_id(name)
            .map_err(|error| Listen::Group(Failure::new(Code::Usage, format!("--group: {error}"))))
    });
    let group = group.transpose()?;
    let is_socket = path
        .symlink_metadata()
        .is_ok_and(|about| about.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let mode = match group {
        Some(group) => {
            chown(path, None, Some(group))?;
            0o660
        }
        None => 0o600,
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

fn talk_to_all<C: Connection>(streams: impl Iterator<Item = io::Result<C>>, text: &Text<'_>) {
    let clients = Clients::new(CLIENTS_MAX);
    let clients = &clients;
    std::thread::scope(|scope| {
        for stream in streams {
            let started = stream.and_then(|stream| {
                let client = clients.enter(&stream)?;
                let talk = move || talk(stream, &client, text);
                std::thread::Builder::new().spawn_scoped(scope, talk)?;
                Ok(())
            });
            if let Err(error) = started {
                tell(&format!("warning: cannot accept a connection: {error}"));
                // Out of descriptors, most likely: do not spin.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    });
}

/// A client that fails is its own affair.
fn talk<C: Connection>(mut stream: C, client: &Client<'_, C>, text: &Text<'_>) {
    if let Err(error) = answer(&mut stream, || client.has_asked(), text) {
        tracing::debug!(%error, "a client of the metrics got no answer");
    }
}

fn answer(
    stream: &mut impl Connection,
    has_asked: impl FnOnce(),
    text: &Text<'_>,
) -> io::Result<()> {
    stream.limit(CLIENT_WAIT)?;
    let head = head_of(stream)?;
    has_asked();
    let request = Request::parse(&head);
    let (status, kind, body) = match request {
        Some(request) if !request.is_read => (
            "405 Method Not Allowed",
            "text/plain",
            "only GET\n".to_owned(),
        ),
        Some(Request { path, format, .. }) if path == "/metrics" || path == "/" => {
            match text(format) {
                Ok(text) => ("200 OK", format.content_type(), text),
                Err(failure) => (
                    "500 Internal Server Error",
                    "text/plain; charset=utf-8",
                    format!("{failure}\n"),
                ),
            }
        }
        Some(_) => ("404 Not Found", "text/plain", "try /metrics\n".to_owned()),
        None => ("400 Bad Request", "text/plain", "this is HTTP\n".to_owned()),
    };
    let is_head = head.starts_with(b"HEAD ");
    let length = body.len();
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{}",
        if is_head { "" } else { &body }
    );
    stream.write_all(reply.as_bytes())
}

/// The head of a request, with the empty line that ends it.
fn head_of(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let start = Instant::now();
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let is_too_much = head.len() >= REQUEST_BYTES_MAX || start.elapsed() >= CLIENT_WAIT;
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if is_too_much => return Err(io::Error::other("the request has no end")),
            read => head.extend_from_slice(part.get(..read).unwrap_or_default()),
        }
    }
    Ok(head)
}

/// What a client asks for.
struct Request<'a> {
    is_read: bool,
    path: &'a str,
    format: Format,
}

impl<'a> Request<'a> {
    fn parse(head: &'a [u8]) -> Option<Self> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if !version.starts_with("HTTP/1.") || words.next().is_some() {
            return None;
        }
        let accepts = |line: &str| {
            let (name, value) = line.split_once(':')?;
            let is_accept = name.eq_ignore_ascii_case("accept");
            is_accept.then(|| value.contains("application/openmetrics-text"))
        };
        let format = match lines.filter_map(accepts).any(|is_open| is_open) {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        };
        Some(Self {
            is_read: matches!(method, "GET" | "HEAD"),
            path: target.split('?').next().unwrap_or(target),
            format,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Found by strangers: it was no error of usage.
    #[test]
    fn a_port_that_cannot_be_one_is_an_error_of_usage() {
        let refused = serve("127.0.0.1:99999", None, &|_| Ok(String::new())).unwrap_err();
        assert_eq!(refused.code, Code::Usage, "{refused}");
    }

    fn asked(request: &str) -> String {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        here.write_all(request.as_bytes()).unwrap();
        answer(&mut there, || (), &|format| Ok(format!("{format:?}\n"))).unwrap();
        drop(there);
        let mut reply = String::new();
        here.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn a_scraper_gets_the_format_that_it_asks_for() {
        let reply = asked("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
        assert!(reply.ends_with("\r\n\r\nPrometheus\n"), "{reply}");
        assert!(reply.contains("Content-Length: 11\r\n"), "{reply}");
        let accept = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        let reply = asked(&format!("GET /metrics?a=b HTTP/1.1\r\n{accept}\r\n\r\n"));
        assert!(reply.ends_with("OpenMetrics\n"), "{reply}");
        assert!(reply.contains("version=1.0.0"), "{reply}");
        assert!(asked("HEAD / HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
    }

    #[test]
    fn other_requests_are_refused() {
        for (request, status) in [
            ("GET /other HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("nonsense\r\n\r\n", "400"),
            ("GET /metrics SPDY/3\r\n\r\n", "400"),
        ] {
            let reply = asked(request);
            assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
        }
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let nothing = |_: Format| -> Result<String, Failure> { panic!("nothing was asked") };
        std::thread::spawn(move || {
            // It is left before all of this is sent.
            let _sent = here.write_all(&[b'a'; 64 << 10]);
        });
        answer(&mut there, || (), &nothing).unwrap_err();
    }

    /// Each connection that sent nothing kept all others waiting for five seconds.
    #[test]
    fn silent_clients_do_not_delay_others() {
        const SILENT: usize = 3 * CLIENTS_MAX;
        let (silent, accepted): (Vec<_>, Vec<_>) =
            (0..SILENT).map(|_| UnixStream::pair().unwrap()).unzip();
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        // What is accepted next, and the end when the answer is there.
        let (sender, streams) = std::sync::mpsc::channel();
        for stream in accepted.into_iter().chain([there]) {
            sender.send(Ok(stream)).unwrap();
        }
        let server = std::thread::spawn(move || {
            talk_to_all(streams.into_iter(), &|_| Ok("the figures\n".to_owned()));
        });
        let mut reply = String::new();
        here.read_to_string(&mut reply).unwrap();
        assert!(reply.ends_with("the figures\n"), "{reply}");
        // Those that came first have been left for others, and as many stay as may.
        let is_left = |mut stream: &UnixStream| {
            stream.set_nonblocking(true).unwrap();
            stream.read(&mut [0]).is_ok_and(|read| read == 0)
        };
        let left: Vec<bool> = silent.iter().map(is_left).collect();
        assert_eq!(
            left,
            [
                vec![true; SILENT + 1 - CLIENTS_MAX],
                vec![false; CLIENTS_MAX - 1]
            ]
            .concat()
        );
        drop((silent, sender));
        server.join().unwrap();
    }
}
