//! The thread that listens to the bus.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::BusListener;
use super::address;
use super::connection::{BUS, Connection};
use super::error::BusError;
use super::logind::{self, Logind};
use super::message::{Kind, Message};
use super::upower::{self, Upower};
use super::wire::Value;

/// A bus that is not there is looked for again after this delay, which doubles each time, because a
/// machine without one should sleep.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The longest delay.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// What is listened to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BusOptions {
    /// Address of the bus, as D-Bus writes it; several with `;` between.
    pub address: String,
    /// Whether changes of the sessions' idle state count as events of the user.
    pub is_user_watched: bool,
    /// Charge, in percent, at which a battery is low; 0: batteries are not looked at.
    pub battery_low_percent: u8,
}

impl BusOptions {
    /// The system bus, where the environment or the convention says it is.
    pub(crate) fn system(is_user_watched: bool, battery_low_percent: u8) -> Self {
        Self {
            address: address::system(),
            is_user_watched,
            battery_low_percent,
        }
    }
}

/// Passes the signals of the bus on to a listener, until it is dropped.
#[derive(Debug)]
pub(crate) struct BusWatcher {
    /// Closed to end the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl BusWatcher {
    /// Starts to listen, whether there is a bus or not.
    ///
    /// # Errors
    /// If a thread or a pipe cannot be made.
    pub(crate) fn start(listener: Arc<dyn BusListener>, options: &BusOptions) -> io::Result<Self> {
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let watch = Watch {
            stopped,
            address: options.address.clone(),
            logind: Logind::new(Arc::clone(&listener), options.is_user_watched),
            upower: Upower::new(listener, options.battery_low_percent),
            owners: [None, None],
        };
        let thread = std::thread::Builder::new()
            .name("bus".into())
            .spawn(move || watch.run())?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for BusWatcher {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the thread that listens to the system bus has panicked");
        }
    }
}

/// The services that are listened to, in the order of [`Watch::owners`].
const SERVICES: [&str; 2] = [logind::NAME, upower::NAME];
const LOGIND: usize = 0;
const UPOWER: usize = 1;

/// What the thread has.
struct Watch {
    /// Hangs up when the thread is to end.
    stopped: OwnedFd,
    address: String,
    logind: Logind,
    upower: Upower,
    /// The owner of each service's name. Any process may send us a signal that looks like one of
    /// theirs; only what comes from the owner counts.
    owners: [Option<String>; 2],
}

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    Stop,
    Other,
}

impl Watch {
    fn run(mut self) {
        let mut retry = RETRY_MIN;
        loop {
            match self.serve() {
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(%error, "cannot connect to the system bus; trying again later")
                }
            }
            if self.owners.iter().any(Option::is_some) {
                // It was there a moment ago.
                retry = RETRY_MIN;
            }
            self.owners = [None, None];
            self.logind.vanished();
            match self.wait(None, Some(retry)) {
                Ok(Woken::Stop) => return,
                Ok(Woken::Other) => retry = (retry * 2).min(RETRY_MAX),
                Err(error) => {
                    tracing::warn!(%error, "no longer listening to the system bus");
                    return;
                }
            }
        }
    }

    /// Listens as long as the bus is there; ends well when the watcher is dropped.
    fn serve(&mut self) -> Result<(), BusError> {
        let connection = &Connection::open(&self.address)?;
        // First of all, so that no change of owner between the question and the answer is missed.
        for name in SERVICES {
            add_match(
                connection,
                &format!("type='signal',sender='{BUS}',member='NameOwnerChanged',arg0='{name}'"),
            )?;
        }
        let rules = Logind::match_rules().into_iter();
        for rule in rules.chain(Upower::match_rules()) {
            add_match(connection, &rule)?;
        }
        for (service, name) in SERVICES.into_iter().enumerate() {
            match connection.ask_bus("GetNameOwner", vec![Value::Text(name.to_owned())]) {
                Ok(answer) => {
                    let owner = answer.first().and_then(Value::as_text);
                    self.set_owner(connection, service, owner.unwrap_or_default())?;
                }
                // The name has no owner.
                Err(error) if error.is_of_one_call() => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            while let Some(message) = connection.next()? {
                let handled = self.handle(connection, &message);
                passed_over(handled)?;
            }
            if self.wait(Some(connection), None)? == Woken::Stop {
                return Ok(());
            }
        }
    }

    fn handle(&mut self, connection: &Connection, message: &Message) -> Result<(), BusError> {
        if message.kind != Kind::Signal {
            return Ok(());
        }
        let sender = message.sender.as_deref();
        if sender == Some(BUS) && message.member.as_deref() == Some("NameOwnerChanged") {
            let [Value::Text(name), _, Value::Text(owner)] = &message.body[..] else {
                return Err(BusError::Type);
            };
            return match SERVICES.iter().position(|known| known == name) {
                Some(service) => self.set_owner(connection, service, owner),
                None => Ok(()),
            };
        }
        let is_from =
            |service: usize| sender.is_some() && self.owners[service].as_deref() == sender;
        if is_from(LOGIND) {
            self.logind.signal(connection, message)
        } else if is_from(UPOWER) && Upower::concerns(message) {
            self.upower.look(connection)
        } else {
            Ok(())
        }
    }

    /// A service has come, or (without an owner) gone.
    fn set_owner(
        &mut self,
        connection: &Connection,
        service: usize,
        owner: &str,
    ) -> Result<(), BusError> {
        let owner = (!owner.is_empty()).then(|| owner.to_owned());
        if self.owners[service] == owner {
            return Ok(());
        }
        tracing::debug!(
            service = SERVICES[service],
            ?owner,
            "the owner of a service on the system bus changed"
        );
        let is_there = owner.is_some();
        self.owners[service] = owner;
        let looked = match service {
            LOGIND => {
                // What the previous owner gave is not valid any more.
                self.logind.vanished();
                if is_there {
                    self.logind.appeared(connection)
                } else {
                    Ok(())
                }
            }
            _ if is_there => self.upower.look(connection),
            _ => Ok(()),
        };
        passed_over(looked)
    }

    /// Waits for a message, the deadline, or the request to end.
    fn wait(
        &self,
        connection: Option<&Connection>,
        timeout: Option<Duration>,
    ) -> Result<Woken, BusError> {
        let mut waited = vec![PollFd::new(&self.stopped, PollFlags::IN)];
        let bus = connection.map(Connection::descriptor);
        waited.extend(bus.as_ref().map(|bus| PollFd::new(bus, PollFlags::IN)));
        let timeout = timeout.map(Timespec::try_from).transpose();
        match poll(&mut waited, timeout.map_err(io::Error::other)?.as_ref()) {
            Err(Errno::INTR) => Ok(Woken::Other),
            Err(errno) => Err(io::Error::from(errno).into()),
            Ok(_) if !waited[0].revents().is_empty() => Ok(Woken::Stop),
            Ok(_) => Ok(Woken::Other),
        }
    }
}

fn add_match(connection: &Connection, rule: &str) -> Result<(), BusError> {
    let body = vec![Value::Text(rule.to_owned())];
    connection.ask_bus("AddMatch", body).map(drop)
}

/// A call that a service refuses or does not answer affects nothing else.
fn passed_over(result: Result<(), BusError>) -> Result<(), BusError> {
    match result {
        Err(error) if error.is_of_one_call() => {
            tracing::debug!(%error, "ignored an invalid message of the system bus");
            Ok(())
        }
        other => other,
    }
}
