//! systemd-logind: sleep and shutdown, which wait for us, and whether the sessions are idle.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::BusListener;
use crate::connection::{BusError, Connection};
use crate::message::Message;
use crate::service::{PROPERTIES, properties, property};
use crate::value::Value;

pub(crate) const NAME: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

/// Sleep and shutdown are never held up for longer than this by us, whatever logind allows.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// What logind allows if it does not say.
const DELAY_DEFAULT: Duration = Duration::from_secs(5);

/// What there is to do with logind while it is there.
pub(crate) struct Logind {
    listener: Arc<dyn BusListener>,
    /// As long as it is open, sleep and shutdown wait, within a limit.
    inhibitor: Option<OwnedFd>,
    delay_max: Duration,
    /// Whether idle sessions say something of the user.
    is_user_watched: bool,
    is_idle: Option<bool>,
    /// A commit that was not done in time goes on; it says here when it is.
    commit: Option<Receiver<()>>,
}

impl Logind {
    pub(crate) const fn new(listener: Arc<dyn BusListener>, is_user_watched: bool) -> Self {
        Self {
            listener,
            inhibitor: None,
            delay_max: DELAY_DEFAULT,
            is_user_watched,
            is_idle: None,
            commit: None,
        }
    }

    /// What is to be heard of it.
    pub(crate) fn match_rules() -> Vec<String> {
        vec![format!("type='signal',sender='{NAME}',path='{PATH}'")]
    }

    /// It is there.
    pub(crate) fn appeared(&mut self, connection: &mut Connection) -> Result<(), BusError> {
        let manager = properties(connection, NAME, PATH, MANAGER)?;
        if let Some(Value::U64(microseconds)) = manager.get("InhibitDelayMaxUSec") {
            self.delay_max = Duration::from_micros(*microseconds);
        }
        if let Some(Value::Bool(is_idle)) = manager.get("IdleHint") {
            self.set_idle(*is_idle);
        }
        self.inhibit(connection)
    }

    /// It is gone, and with it whatever waited for us.
    pub(crate) fn vanished(&mut self) {
        self.inhibitor = None;
        self.is_idle = None;
    }

    /// It says something.
    pub(crate) fn signal(
        &mut self,
        connection: &mut Connection,
        signal: &Message,
    ) -> Result<(), BusError> {
        if signal.path != PATH {
            return Ok(());
        }
        let member = (signal.interface.as_str(), signal.member.as_str());
        match (member, &signal.body[..]) {
            ((MANAGER, "PrepareForSleep" | "PrepareForShutdown"), [Value::Bool(true)]) => {
                self.power_goes();
                Ok(())
            }
            // Awake again, or it was called off.
            ((MANAGER, "PrepareForSleep" | "PrepareForShutdown"), [Value::Bool(false)]) => {
                self.inhibit(connection)
            }
            ((PROPERTIES, "PropertiesChanged"), [interface, changed, ..])
                if interface.as_text() == Some(MANAGER) =>
            {
                if let Some(Value::Bool(is_idle)) = changed.get("IdleHint") {
                    self.set_idle(*is_idle);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether a closed lid leaves no screen on; none if logind does not know.
    pub(crate) fn is_docked(connection: &mut Connection) -> Result<Option<bool>, BusError> {
        match property(connection, NAME, PATH, MANAGER, "Docked") {
            Ok(Value::Bool(is_docked)) => Ok(Some(is_docked)),
            Ok(_) => Ok(None),
            Err(error) if error.is_of_one_call() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn inhibit(&mut self, connection: &mut Connection) -> Result<(), BusError> {
        if self.inhibitor.is_some() {
            return Ok(());
        }
        let arguments = [
            "sleep:shutdown",
            "MobiFS",
            "Files are brought to the disk",
            "delay",
        ];
        let arguments = arguments.map(|argument| Value::Text(argument.into()));
        let call = Message::call(NAME, PATH, MANAGER, "Inhibit").with(arguments.to_vec());
        self.inhibitor = connection.ask(call)?.descriptors.pop();
        Ok(())
    }

    /// Commits everything, as far as there is time, and lets the machine go on.
    fn power_goes(&mut self) {
        let commit = self.commit.take().or_else(|| self.begin_commit());
        let time = self.delay_max.min(DELAY_MAX);
        if let Some(commit) = commit
            && commit.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
        {
            tracing::warn!(
                ?time,
                "not everything was committed before the machine sleeps or goes off"
            );
            self.commit = Some(commit);
        }
        self.inhibitor = None;
    }

    /// In a thread of its own, which may be stuck for longer than anybody waits.
    fn begin_commit(&self) -> Option<Receiver<()>> {
        let (done, commit) = channel();
        let listener = Arc::clone(&self.listener);
        let thread = std::thread::Builder::new().name("last commit".into());
        let started = thread.spawn(move || {
            listener.power_goes();
            // Who has waited for too long does not listen any more.
            let _heard = done.send(());
        });
        match started {
            Ok(_) => Some(commit),
            Err(error) => {
                tracing::error!(%error, "nothing is committed before the machine sleeps");
                None
            }
        }
    }

    /// Only changes say something: somebody may well operate the machine all the time while
    /// it says "not idle", and nobody for minutes.
    fn set_idle(&mut self, is_idle: bool) {
        if !self.is_user_watched {
            return;
        }
        match (self.is_idle.replace(is_idle), is_idle) {
            (Some(true), false) => self.listener.user_event(),
            (Some(false) | None, true) => self.listener.user_left(),
            _ => {}
        }
    }
}
