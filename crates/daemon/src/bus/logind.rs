//! systemd-logind: sleep and shutdown, which wait for us, and whether the sessions are idle.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::BusListener;
use super::connection::Connection;
use super::error::BusError;
use super::message::Message;
use super::service::{PROPERTIES, properties, property};
use super::wire::Value;

pub(super) const NAME: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

/// The daemon delays sleep and shutdown for no longer than this, whatever logind allows.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// What logind allows if it does not report it.
const DELAY_DEFAULT: Duration = Duration::from_secs(5);

/// The connection's use of logind while the service is there.
pub(super) struct Logind {
    listener: Arc<dyn BusListener>,
    /// While it is open, logind delays sleep and shutdown, within a limit.
    inhibitor: Option<OwnedFd>,
    delay_max: Duration,
    /// Whether the idle state of sessions counts as an event of the user.
    is_user_watched: bool,
    is_idle: Option<bool>,
    /// A commit that was not complete in time goes on, and signals here when it is complete.
    commit: Option<Receiver<()>>,
}

impl Logind {
    pub(super) const fn new(listener: Arc<dyn BusListener>, is_user_watched: bool) -> Self {
        Self {
            listener,
            inhibitor: None,
            delay_max: DELAY_DEFAULT,
            is_user_watched,
            is_idle: None,
            commit: None,
        }
    }

    /// The signals to subscribe to.
    pub(super) fn match_rules() -> Vec<String> {
        vec![format!("type='signal',sender='{NAME}',path='{PATH}'")]
    }

    /// logind is there.
    pub(super) fn appeared(&mut self, connection: &Connection) -> Result<(), BusError> {
        let manager = properties(connection, NAME, PATH, MANAGER)?;
        let delay_max = manager.property("InhibitDelayMaxUSec");
        if let Some(microseconds) = delay_max.and_then(Value::as_u64) {
            self.delay_max = Duration::from_micros(microseconds);
        }
        if let Some(is_idle) = idle_hint(&manager) {
            self.set_idle(is_idle);
        }
        self.inhibit(connection)
    }

    /// logind is gone, and with it the inhibitor.
    pub(super) fn vanished(&mut self) {
        self.inhibitor = None;
        self.is_idle = None;
    }

    /// logind sent a signal.
    pub(super) fn signal(
        &mut self,
        connection: &Connection,
        signal: &Message,
    ) -> Result<(), BusError> {
        if signal.path.as_deref() != Some(PATH) {
            return Ok(());
        }
        match (signal.interface.as_deref(), signal.member.as_deref()) {
            (Some(MANAGER), Some(member @ ("PrepareForSleep" | "PrepareForShutdown"))) => {
                let is_sleep = member == "PrepareForSleep";
                match signal.first().and_then(Value::as_bool) {
                    Some(true) => self.power_goes(is_sleep),
                    // Awake again, or it was called off.
                    Some(false) => {
                        if is_sleep {
                            self.listener.is_awake();
                        }
                        self.inhibit(connection)?;
                    }
                    None => {}
                }
            }
            (Some(PROPERTIES), Some("PropertiesChanged")) => {
                if let [of, changed, ..] = &signal.body[..]
                    && of.as_text() == Some(MANAGER)
                    && let Some(is_idle) = idle_hint(changed)
                {
                    self.set_idle(is_idle);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a closed lid leaves no screen on; none if logind does not know.
    pub(super) fn is_docked(connection: &Connection) -> Result<Option<bool>, BusError> {
        match property(connection, NAME, PATH, MANAGER, "Docked") {
            Ok(is_docked) => Ok(is_docked.as_bool()),
            Err(error) if error.is_of_one_call() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn inhibit(&mut self, connection: &Connection) -> Result<(), BusError> {
        if self.inhibitor.is_some() {
            return Ok(());
        }
        let body = [
            "sleep:shutdown",
            "MobiFS",
            "Uncommitted changes are written",
            "delay",
        ];
        let body = body.map(|text| Value::Text(text.to_owned())).into();
        let mut answer = connection.ask(&Message::call(NAME, PATH, MANAGER, "Inhibit", body))?;
        self.inhibitor = Some(answer.descriptors.pop().ok_or(BusError::Type)?);
        Ok(())
    }

    /// Commits everything, as far as there is time, then closes the inhibitor.
    fn power_goes(&mut self, is_sleep: bool) {
        let commit = self.commit.take().or_else(|| self.begin_commit());
        let time = self.delay_max.min(DELAY_MAX);
        if let Some(commit) = commit
            && commit.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
        {
            tracing::warn!(
                ?time,
                "the daemon could not commit everything before the machine sleeps or shuts down"
            );
            self.commit = Some(commit);
        }
        if is_sleep {
            self.listener.falls_asleep();
        }
        self.inhibitor = None;
    }

    /// In a thread of its own, which may be stuck for longer than the machine waits.
    fn begin_commit(&self) -> Option<Receiver<()>> {
        let (done, commit) = channel();
        let listener = Arc::clone(&self.listener);
        let thread = std::thread::Builder::new().name("last commit".into());
        let started = thread.spawn(move || {
            listener.power_goes();
            // The receiver is dropped when the wait was too long.
            let _heard = done.send(());
        });
        match started {
            Ok(_) => Some(commit),
            Err(error) => {
                tracing::error!(
                    %error,
                    "cannot start a thread: the daemon commits nothing before the machine sleeps"
                );
                None
            }
        }
    }

    /// Only changes count: while the machine says "not idle", a user may operate it all
    /// the time or not for minutes.
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

fn idle_hint(manager: &Value) -> Option<bool> {
    manager.property("IdleHint").and_then(Value::as_bool)
}
