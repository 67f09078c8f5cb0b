//! A socket on which a process answers requests, one line each: what the control sockets
//! of mounts and of other servers have in common.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use crate::peer::Peer;
use crate::runtime_directory::DirectoryLock;

/// Longest request.
const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// How long the end of the daemon waits for replies under way.
const LAST_REPLIES_SECONDS: u64 = 5;

/// What answers requests; called from several threads.
pub trait LineHandler: Send + Sync + 'static {
    /// Answers one line with one line, both without what ends them.
    fn answer(&self, line: &[u8], client: &Client<'_>) -> Vec<u8>;
}

/// Who has asked.
#[derive(Debug)]
pub struct Client<'a> {
    stream: &'a UnixStream,
    is_permitted: bool,
}

impl Client<'_> {
    /// Whether it is root or the user of this process; others are to be refused.
    pub const fn is_permitted(&self) -> bool {
        self.is_permitted
    }

    /// Whether it has closed the connection, and so waits for no answer any more: it has said that the request
    /// failed, or was ended. One that only sends nothing more still waits.
    pub fn has_gone(&self) -> bool {
        let mut looked_at = [PollFd::new(self.stream, PollFlags::empty())];
        let at_once = rustix::time::Timespec::default();
        let found = poll(&mut looked_at, Some(&at_once));
        found.is_ok() && looked_at[0].revents().contains(PollFlags::HUP)
    }
}

/// Connections that wait for a reply.
#[derive(Default)]
struct Active {
    count: Mutex<usize>,
    changed: Condvar,
}

/// A socket that is served. Dropping removes it.
pub struct LineServer {
    /// None once it has been removed.
    place: Mutex<Option<Place>>,
    /// It was made by this process.
    is_made: bool,
    handler: Arc<dyn LineHandler>,
    active: Arc<Active>,
}

/// A socket and where it lies.
struct Place {
    path: PathBuf,
    /// Distinguishes our socket from one that another process has put in its place.
    identity: Identity,
    listening: Arc<Listening>,
}

/// Device and inode of a socket's name.
type Identity = (u64, u64);

struct Listening {
    listener: UnixListener,
    /// Another socket has taken its place: it is served no longer.
    is_replaced: AtomicBool,
}

impl std::fmt::Debug for LineServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineServer")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}

impl LineServer {
    /// Listens at `path`. What is there already is of a process that has ended; the caller
    /// guarantees that the path is its own.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn start(path: PathBuf, handler: Arc<dyn LineHandler>) -> io::Result<Self> {
        let (listener, identity) = bind(&path)?;
        Self::serve(path, identity, listener, true, handler)
    }

    /// Goes on with the socket of a process that has ended: a client that connected meanwhile is
    /// answered. If another socket has been put in its place, or it was removed, a new one is made
    /// where `otherwise` says, which the caller guarantees to be its own place.
    ///
    /// # Errors
    /// If the socket cannot be used; that of `otherwise`.
    pub fn resume(
        listener: UnixListener,
        otherwise: impl FnOnce() -> io::Result<PathBuf>,
        handler: Arc<dyn LineHandler>,
    ) -> io::Result<Self> {
        if let Some((path, identity)) = place_of(&listener)? {
            return Self::serve(path, identity, listener, false, handler);
        }
        Self::start(otherwise()?, handler)
    }

    fn serve(
        path: PathBuf,
        identity: Identity,
        listener: UnixListener,
        is_made: bool,
        handler: Arc<dyn LineHandler>,
    ) -> io::Result<Self> {
        let active = Arc::default();
        let place = Place::serve(path, identity, listener, &handler, &active)?;
        Ok(Self {
            place: Mutex::new(Some(place)),
            is_made,
            handler,
            active,
        })
    }

    /// Makes the socket anew if it has been removed, as with its whole directory: in the directory that
    /// `directory` says, which makes it if it is missing. Another process's socket that lies under the name
    /// keeps it. Whether it was made.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn make_again_if_gone(
        &self,
        directory: impl FnOnce() -> io::Result<PathBuf>,
    ) -> io::Result<bool> {
        let mut place = self.place.lock();
        let Some(gone) = place.as_ref().filter(|place| place.found().is_none()) else {
            return Ok(false);
        };
        let name = gone.path.file_name().ok_or(io::ErrorKind::NotFound)?;
        let (path, listener, identity) = bind_beside(directory()?.join(name))?;
        let made = Place::serve(path, identity, listener, &self.handler, &self.active)?;
        gone.listening.is_replaced.store(true, Ordering::SeqCst);
        // Its thread wakes up and ends. It fails for a socket that is shut down already.
        let _woken = rustix::net::shutdown(&gone.listening.listener, Shutdown::Both);
        *place = Some(made);
        Ok(true)
    }

    /// The socket itself, for a successor; none if that cannot be had.
    pub fn listener(&self) -> Option<UnixListener> {
        self.place
            .lock()
            .as_ref()?
            .listening
            .listener
            .try_clone()
            .ok()
    }

    /// Whether this process has made the socket, instead of having it from a predecessor.
    pub const fn is_made(&self) -> bool {
        self.is_made
    }

    /// Lets the members of a group connect, beside the user of this process and root. They are
    /// answered as not permitted, so it is the handler that decides what they may know.
    ///
    /// # Errors
    /// If this user may not give the socket to the group.
    pub fn admit(&self, group: u32) -> io::Result<()> {
        let path = self.path();
        chown(&path, None, Some(group))?;
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode(0o660))?;
        // They find the socket by its name, and nothing else in the directory.
        match path.parent() {
            Some(directory) => std::fs::set_permissions(directory, mode(0o711)),
            None => Ok(()),
        }
    }

    /// Where the socket lies; empty once it has been removed.
    pub fn path(&self) -> PathBuf {
        let place = self.place.lock();
        place
            .as_ref()
            .map(|place| place.path.clone())
            .unwrap_or_default()
    }

    /// Removes the socket; it is not made again.
    pub fn remove(&self) {
        let Some(place) = self.place.lock().take() else {
            return;
        };
        // The device number was free as soon as the mount had gone, so another daemon
        // may have put its socket there since, and have displaced this one.
        let Ok(_alone) = lock_directory(&place.path) else {
            return;
        };
        if let Some(path) = place.found() {
            // Nothing depends on its being gone.
            let _gone = std::fs::remove_file(path);
        }
    }

    /// Waits until the requests under way are answered, at most for a limited time.
    pub fn wait_for_replies(&self) {
        let mut count = self.active.count.lock();
        while *count > 0 {
            let timeout = Duration::from_secs(LAST_REPLIES_SECONDS);
            if self
                .active
                .changed
                .wait_for(&mut count, timeout)
                .timed_out()
            {
                return;
            }
        }
    }
}

impl Drop for LineServer {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Place {
    fn serve(
        path: PathBuf,
        identity: Identity,
        listener: UnixListener,
        handler: &Arc<dyn LineHandler>,
        active: &Arc<Active>,
    ) -> io::Result<Self> {
        let listening = Arc::new(Listening {
            listener,
            is_replaced: AtomicBool::new(false),
        });
        let place = Self {
            path,
            identity,
            listening: Arc::clone(&listening),
        };
        let (handler, active) = (Arc::clone(handler), Arc::clone(active));
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept(&listening, &handler, &active))?;
        Ok(place)
    }

    /// The name by which our socket is reached now; none if it has been removed.
    fn found(&self) -> Option<PathBuf> {
        let maker = Peer::of(&self.listening.listener).ok();
        let elsewhere = maker
            .and_then(|peer| peer.pid)
            .map(|pid| displaced(&self.path, pid));
        let is_ours = |path: &PathBuf| {
            let about = path.symlink_metadata();
            about.is_ok_and(|about| identity_of(&about) == self.identity)
        };
        [Some(self.path.clone()), elsewhere]
            .into_iter()
            .flatten()
            .find(is_ours)
    }
}

fn identity_of(about: &std::fs::Metadata) -> Identity {
    (about.dev(), about.ino())
}

/// Makes the socket in place of what is there. The socket of a process that still answers gets
/// another name, by which it can be reached: see [`displaced`].
fn bind(path: &Path) -> io::Result<(UnixListener, Identity)> {
    let _alone = lock_directory(path)?;
    let removed = match maker_at(path) {
        Some(pid) => std::fs::rename(path, displaced(path, pid)),
        None => std::fs::remove_file(path),
    };
    make(path, removed)
}

/// Makes the socket at `path`, or, if another process answers there, under the name that it would have if that one
/// had displaced it.
fn bind_beside(path: PathBuf) -> io::Result<(PathBuf, UnixListener, Identity)> {
    let _alone = lock_directory(&path)?;
    let path = match maker_at(&path) {
        Some(_) => displaced(&path, std::process::id()),
        None => path,
    };
    let removed = std::fs::remove_file(&path);
    let (listener, identity) = make(&path, removed)?;
    Ok((path, listener, identity))
}

/// Makes a socket where nothing is left, if that could be removed.
fn make(path: &Path, removed: io::Result<()>) -> io::Result<(UnixListener, Identity)> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok((listener, identity_of(&path.symlink_metadata()?)))
}

/// The process that made the socket at a path, if one answers there.
fn maker_at(path: &Path) -> Option<u32> {
    Peer::of(&connect_at_once(path).ok()?).ok()?.pid
}

/// The name of a socket in whose place another process has put its own: `NAME.sock` of process 12 is
/// `NAME.12.sock`.
pub fn displaced(path: &Path, pid: u32) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().as_bytes();
    // It may have such a name already.
    let name = stem.split(|&byte| byte == b'.').next().unwrap_or_default();
    let mut name = OsStr::from_bytes(name).to_owned();
    name.push(format!(".{pid}.sock"));
    path.with_file_name(name)
}

/// Where this socket lies, and its inode there; none if it is not there any more. The name alone
/// does not say so: when a mount has ended, another may have its device number, and with it the
/// name. So the process that made the socket is compared with that of the one which answers there.
fn place_of(listener: &UnixListener) -> io::Result<Option<(PathBuf, Identity)>> {
    let address = listener.local_addr()?;
    let Some(path) = address.as_pathname() else {
        return Ok(None);
    };
    let _alone = match lock_directory(path) {
        // The directory has been removed, and the socket with it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        locked => locked?,
    };
    let own = Peer::of(listener)?;
    let elsewhere = own.pid.map(|pid| displaced(path, pid));
    for path in [Some(path), elsewhere.as_deref()].into_iter().flatten() {
        let Ok(about) = path.symlink_metadata() else {
            continue;
        };
        let is_own = match connect_at_once(path) {
            Ok(stream) => own.pid.is_some() && Peer::of(&stream)? == own,
            // Its queue is full; so this one's has clients if it is the same.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => has_clients(listener)?,
            Err(_) => false,
        };
        if is_own {
            return Ok(Some((path.to_owned(), identity_of(&about))));
        }
    }
    Ok(None)
}

/// Whether clients wait for being accepted.
fn has_clients(listener: &UnixListener) -> io::Result<bool> {
    let mut waited = [PollFd::new(listener, PollFlags::IN)];
    let at_once = rustix::time::Timespec::default();
    Ok(poll(&mut waited, Some(&at_once))? > 0)
}

/// Connects to the socket at `path`, whose queue of clients may be full.
///
/// # Errors
/// Also if that is so: [`io::ErrorKind::WouldBlock`].
pub fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Keeps other daemons from changing the sockets beside `path` until it is dropped.
fn lock_directory(path: &Path) -> io::Result<DirectoryLock> {
    DirectoryLock::acquire(path.parent().ok_or(io::ErrorKind::NotFound)?)
}

/// Ends with the process, or when another socket has taken this one's place.
fn accept(listening: &Listening, handler: &Arc<dyn LineHandler>, active: &Arc<Active>) {
    for stream in listening.listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(_) if listening.is_replaced.load(Ordering::SeqCst) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control connection");
                // Out of descriptors, most likely: do not spin.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let stream = Arc::new(stream);
        let serve_it = {
            let (stream, handler, active) =
                (Arc::clone(&stream), Arc::clone(handler), Arc::clone(active));
            move || {
                if let Err(error) = serve(&stream, handler.as_ref(), &active) {
                    tracing::debug!(%error, "a control connection failed");
                }
            }
        };
        let thread = std::thread::Builder::new().name("control".into());
        if let Err(error) = thread.spawn(serve_it.clone()) {
            // Threads may be limited. Other commands wait until this one is answered.
            tracing::warn!(%error, "cannot start a thread for a control connection: this one serves it");
            serve_it();
        }
    }
}

fn serve(stream: &UnixStream, handler: &dyn LineHandler, active: &Active) -> io::Result<()> {
    let peer = Peer::of(stream)?;
    let client = Client {
        stream,
        is_permitted: [0, rustix::process::geteuid().as_raw()].contains(&peer.user),
    };
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        (&mut reader)
            .take(REQUEST_BYTES_MAX)
            .read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        // Its rest would be taken for requests of their own, so nothing more is read.
        if line.len() as u64 == REQUEST_BYTES_MAX && !line.ends_with(b"\n") {
            let why = format!("a request has more than {REQUEST_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        // It gave up while this process stood still, or had no thread for it.
        if client.has_gone() {
            return Ok(());
        }
        *active.count.lock() += 1;
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        let mut answer = handler.answer(line, &client);
        answer.push(b'\n');
        let sent = { stream }.write_all(&answer);
        *active.count.lock() -= 1;
        active.changed.notify_all();
        sent?;
    }
}

/// Sends a line and waits for the line that answers it, both without what ends them.
///
/// # Errors
/// If the connection fails or ends.
pub fn exchange_line(mut stream: &UnixStream, line: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(&[line, b"\n"].concat())?;
    let mut answer = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut answer)?;
    if answer.pop().is_none() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended"));
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers nothing.
    struct Silent;

    impl LineHandler for Silent {
        fn answer(&self, _line: &[u8], _client: &Client<'_>) -> Vec<u8> {
            Vec::new()
        }
    }

    /// Repeats each line, and notes it.
    #[derive(Default)]
    struct Noting(Mutex<Vec<Vec<u8>>>);

    impl LineHandler for Noting {
        fn answer(&self, line: &[u8], _client: &Client<'_>) -> Vec<u8> {
            self.0.lock().push(line.to_vec());
            line.to_vec()
        }
    }

    /// The rest of a request that was too long was carried out as others.
    #[test]
    fn a_request_that_is_too_long_ends_the_connection() {
        let handler = Noting::default();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sender = std::thread::spawn(move || {
            let long = vec![b'x'; REQUEST_BYTES_MAX as usize];
            // The other side may have closed it.
            let _sent = { &ours }.write_all(&long);
            let _sent = { &ours }.write_all(b"\nhidden\n");
        });
        let ended = super::serve(&theirs, &handler, &Active::default());
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(theirs);
        sender.join().unwrap();
        assert!(handler.0.lock().is_empty());
    }

    /// Found by strangers: a command that had said that there was no answer was carried out later all the same.
    #[test]
    fn a_request_whose_client_has_gone_is_dropped() {
        let handler = Noting::default();
        let serve = |theirs: UnixStream| {
            let _ended = super::serve(&theirs, &handler, &Active::default());
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        { &ours }.write_all(b"given up\n").unwrap();
        drop(ours);
        serve(theirs);
        assert!(handler.0.lock().is_empty());
        // One that sends nothing more, and waits.
        let (ours, theirs) = UnixStream::pair().unwrap();
        { &ours }.write_all(b"waits\n").unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        serve(theirs);
        assert_eq!(*handler.0.lock(), [b"waits"]);
        let mut answer = String::new();
        { &ours }.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "waits\n");
    }

    /// Set for the process that a test starts to make a socket in another's place.
    const PLACE_VARIABLE: &str = "MOBIFS_TEST_SOCKET_PLACE";

    /// Makes a socket and listens until its standard input ends.
    fn make_socket(path: &Path) {
        let _listening = bind(path).unwrap();
        println!("made");
        let _end = io::stdin().read(&mut [0]);
    }

    /// Found by CI: a successor that finished what was left of a mount out of the tree took the
    /// socket of the mount that had its device number by then for its own, and removed it at its
    /// end, so that no command reached that mount any more.
    #[test]
    fn a_successor_leaves_the_socket_that_another_process_has_put_in_its_place() {
        const NAME: &str = "line_server::tests::a_successor_leaves_the_socket_that_another_process_has_put_in_its_place";
        if let Some(path) = std::env::var_os(PLACE_VARIABLE) {
            return make_socket(Path::new(&path));
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("7-2.sock");
        let (listener, _) = bind(&path).unwrap();
        let own = listener.try_clone().unwrap();
        assert!(place_of(&own).unwrap().is_some());
        // Also with clients that fill its queue.
        rustix::net::listen(&own, 1).unwrap();
        let clients: Vec<_> = std::iter::from_fn(|| connect_at_once(&path).ok()).collect();
        assert!(!clients.is_empty() && place_of(&own).unwrap().is_some());
        let mut other = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(PLACE_VARIABLE, &path)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(other.stdout.take().unwrap()).lines();
        assert!(
            said.by_ref()
                .map_while(Result::ok)
                .any(|line| line.ends_with("made"))
        );
        let inode = path.symlink_metadata().unwrap().ino();
        let nowhere = || Err(io::ErrorKind::NotFound.into());
        let refused = LineServer::resume(own, nowhere, Arc::new(Silent)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
        let elsewhere = directory.path().join("7-3.sock");
        let place = || Ok(elsewhere.clone());
        let resumed = LineServer::resume(listener, place, Arc::new(Silent)).unwrap();
        assert_eq!(resumed.path(), elsewhere);
        drop(resumed);
        assert_eq!(path.symlink_metadata().unwrap().ino(), inode);
        UnixStream::connect(&path).unwrap();
        drop(other.stdin.take());
        assert!(other.wait().unwrap().success());
    }

    #[test]
    fn a_socket_that_another_daemon_put_there_stays() {
        // Regression: a daemon that ended took away the socket of a mount made since,
        // which had got its device number.
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("7-2.sock");
        let start = || LineServer::start(path.clone(), Arc::new(Silent)).unwrap();
        let ending = start();
        let living = start();
        // The first one is reached by another name until it ends.
        let moved = displaced(&path, std::process::id());
        UnixStream::connect(&moved).unwrap();
        drop(ending);
        UnixStream::connect(&path).unwrap();
        UnixStream::connect(&moved).unwrap_err();
        drop(living);
        assert!(!path.exists());
    }
    /// Found by strangers: after a logout, which removes the runtime directory, no command reached the daemon.
    #[test]
    fn a_socket_that_was_removed_with_its_directory_is_made_again() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("runtime");
        let make_directory = || {
            std::fs::create_dir_all(&directory)?;
            Ok(directory.clone())
        };
        make_directory().unwrap();
        let path = directory.join("7-2.sock");
        let server = LineServer::start(path.clone(), Arc::new(Noting::default())).unwrap();
        assert!(!server.make_again_if_gone(make_directory).unwrap());
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(server.make_again_if_gone(make_directory).unwrap());
        assert!(!server.make_again_if_gone(make_directory).unwrap());
        let client = UnixStream::connect(&path).unwrap();
        assert_eq!(exchange_line(&client, b"here").unwrap(), b"here");
        // A successor has only the socket.
        let listener = server.listener().unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        let place = || Ok(make_directory()?.join("7-2.sock"));
        let next = LineServer::resume(listener, place, Arc::new(Silent)).unwrap();
        assert!(next.is_made() && path.exists());
        // The one of another process keeps its name.
        assert!(server.make_again_if_gone(make_directory).unwrap());
        assert_eq!(server.path(), displaced(&path, std::process::id()));
        drop(server);
        assert!(path.exists());
        drop(next);
        assert!(!path.exists());
    }
}
