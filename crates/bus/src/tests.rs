//! A real bus (`dbus-daemon`), on which the tests play logind and UPower.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::connection::Connection;
use crate::logind;
use crate::message::{Kind, Message};
use crate::service::PROPERTIES;
use crate::upower;
use crate::value::Value;
use crate::{BusListener, BusOptions, BusWatcher};

const LOGIND_PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const UPOWER_PATH: &str = "/org/freedesktop/UPower";
const DISPLAY_PATH: &str = "/org/freedesktop/UPower/devices/DisplayDevice";
const DEVICE: &str = "org.freedesktop.UPower.Device";

/// Everybody may do everything on it.
const CONFIG: &str = "<busconfig><type>session</type><listen>ADDRESS</listen>\
    <auth>EXTERNAL</auth><policy context=\"default\"><allow send_destination=\"*\"/>\
    <allow receive_sender=\"*\"/><allow own=\"*\"/><allow user=\"*\"/></policy></busconfig>";

struct Bus {
    directory: tempfile::TempDir,
    daemon: Option<Child>,
}

impl Bus {
    /// None (and a line that says so) where there is no `dbus-daemon`.
    fn new() -> Option<Self> {
        let found = Command::new("dbus-daemon").arg("--version").output();
        if found.is_err() {
            println!("SKIPPED: there is no dbus-daemon here (Debian: dbus-daemon)");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        Some(Self {
            directory,
            daemon: None,
        })
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn address(&self) -> String {
        format!("unix:path={}", self.path("bus").display())
    }

    fn start(&mut self) {
        let config = self.path("config");
        std::fs::write(&config, CONFIG.replace("ADDRESS", &self.address())).unwrap();
        let mut daemon = Command::new("dbus-daemon");
        daemon.args(["--nofork", "--nopidfile", "--nosyslog"]);
        daemon.arg(format!("--config-file={}", config.display()));
        self.daemon = Some(daemon.stderr(Stdio::null()).spawn().unwrap());
        while Connection::open(&self.address()).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
            std::fs::remove_file(self.path("bus")).unwrap();
        }
    }

    fn watch(&self, listener: &Arc<Heard>) -> BusWatcher {
        let options = BusOptions {
            address: self.address(),
            is_user_watched: true,
            battery_low_percent: 10,
        };
        BusWatcher::start(Arc::clone(listener) as Arc<_>, &options).unwrap()
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the listener was told, in order.
struct Heard {
    sender: Mutex<Sender<String>>,
    /// Ends of the inhibitors that logind holds.
    inhibitors: Arc<Mutex<Vec<OwnedFd>>>,
    /// Whether a commit takes for ever.
    is_stuck: bool,
}

impl Heard {
    fn new(inhibitors: &Arc<Mutex<Vec<OwnedFd>>>, is_stuck: bool) -> (Arc<Self>, News) {
        let (sender, receiver) = channel();
        let heard = Self {
            sender: Mutex::new(sender),
            inhibitors: Arc::clone(inhibitors),
            is_stuck,
        };
        (Arc::new(heard), News(receiver))
    }

    fn tell(&self, news: String) {
        // A test that has ended does not listen.
        let _heard = self.sender.lock().unwrap().send(news);
    }
}

impl BusListener for Heard {
    fn user_event(&self) {
        self.tell("user".into());
    }

    fn user_left(&self) {
        self.tell("left".into());
    }

    fn set_battery_low(&self, is_low: bool) {
        self.tell(format!("battery low: {is_low}"));
    }

    fn set_screen(&self, is_on: bool) {
        self.tell(format!("screen: {is_on}"));
    }

    fn power_goes(&self) {
        let held = held(&self.inhibitors);
        self.tell(format!("commit, machine waits: {}", held > 0));
        if self.is_stuck {
            // Nobody lets go of it.
            loop {
                std::thread::park();
            }
        }
    }
}

struct News(Receiver<String>);

impl News {
    /// Ends when there is news; if there never is, the runner's limit ends us.
    fn next(&self) -> String {
        self.0.recv().unwrap()
    }

    fn is_empty(&self) -> bool {
        self.0.try_recv().is_err()
    }
}

/// How many inhibitors whoever took them still has.
fn held(inhibitors: &Mutex<Vec<OwnedFd>>) -> usize {
    let inhibitors = inhibitors.lock().unwrap();
    let open = inhibitors.iter().filter(|end| {
        let mut polled = [PollFd::new(*end, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default())).unwrap();
        polled[0].revents().is_empty()
    });
    open.count()
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

type Properties = BTreeMap<(&'static str, &'static str), Value>;

enum Order {
    Set(&'static str, &'static str, Value),
    Signal(&'static str, &'static str, &'static str, Vec<Value>),
    Leave,
}

/// A service with properties, which takes orders from a test.
struct Service {
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    fn start(
        bus: &Bus,
        name: &str,
        properties: Properties,
        inhibitors: &Arc<Mutex<Vec<OwnedFd>>>,
    ) -> Self {
        let mut connection = Connection::open(&bus.address()).unwrap();
        let name = [Value::Text(name.into()), Value::U32(4)];
        connection.ask_bus("RequestName", name.to_vec()).unwrap();
        let (sender, orders) = channel();
        let acting = Acting {
            connection,
            properties,
            inhibitors: Arc::clone(inhibitors),
            answers: 0,
        };
        Self {
            orders: sender,
            thread: Some(std::thread::spawn(move || acting.run(&orders))),
        }
    }

    fn order(&self, order: Order) {
        self.orders.send(order).unwrap();
    }

    fn signal(&self, member: &'static str, body: Vec<Value>) {
        self.order(Order::Signal(LOGIND_PATH, MANAGER, member, body));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have lost its bus.
        let _told = self.orders.send(Order::Leave);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))));
    }
}

struct Acting {
    connection: Connection,
    properties: Properties,
    inhibitors: Arc<Mutex<Vec<OwnedFd>>>,
    answers: u32,
}

impl Acting {
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            match orders.try_recv() {
                Ok(Order::Set(interface, name, value)) => self.set(interface, name, value),
                Ok(Order::Signal(path, interface, member, body)) => {
                    self.signal(path, interface, member, body);
                }
                Ok(Order::Leave) => return,
                Err(_) => {}
            }
            loop {
                match self.connection.next() {
                    Ok(Some(message)) => self.answer(&message),
                    Ok(None) => break,
                    // The bus is gone.
                    Err(_) => return,
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn set(&mut self, interface: &'static str, name: &'static str, value: Value) {
        self.properties.insert((interface, name), value.clone());
        let path = match interface {
            MANAGER => LOGIND_PATH,
            DEVICE => DISPLAY_PATH,
            _ => UPOWER_PATH,
        };
        let body = vec![
            Value::Text(interface.into()),
            entries(&[(name, value)]),
            Value::Array {
                of: "s".into(),
                items: Vec::new(),
            },
        ];
        self.signal(path, PROPERTIES, "PropertiesChanged", body);
    }

    fn signal(&mut self, path: &str, interface: &str, member: &str, body: Vec<Value>) {
        let signal = Message {
            kind: Kind::Signal,
            ..Message::call("", path, interface, member)
        };
        // The bus may be gone.
        let _sent = self.connection.send(signal.with(body));
    }

    fn answer(&mut self, call: &Message) {
        if call.kind != Kind::Call {
            return;
        }
        let interface = call.body.first().and_then(Value::as_text);
        let name = call.body.get(1).and_then(Value::as_text);
        let all = self.properties.iter();
        let of_interface = all.filter(|((of, _), _)| Some(*of) == interface);
        let found: Vec<(&str, Value)> = of_interface
            .map(|((_, name), value)| (*name, value.clone()))
            .collect();
        let body = match &*call.member {
            "GetAll" => entries(&found),
            "Get" => {
                let (_, value) = found.iter().find(|(of, _)| Some(*of) == name).unwrap();
                value.clone().into_variant()
            }
            "Inhibit" => {
                let asked: Vec<_> = call.body.iter().filter_map(Value::as_text).collect();
                assert_eq!((asked[0], asked[3]), ("sleep:shutdown", "delay"));
                Value::Descriptor(0)
            }
            other => panic!("nobody should call {other}"),
        };
        let answer = Message {
            kind: Kind::Return,
            reply_serial: call.serial,
            destination: call.sender.clone(),
            ..Message::default()
        };
        let answer = answer.with(vec![body]);
        if call.member == "Inhibit" {
            self.answer_with_inhibitor(answer);
        } else {
            self.connection.send(answer).unwrap();
        }
    }

    fn answer_with_inhibitor(&mut self, mut answer: Message) {
        let (ours, theirs) = rustix::pipe::pipe().unwrap();
        self.inhibitors.lock().unwrap().push(ours);
        self.answers += 1;
        answer.serial = (1 << 20) + self.answers;
        answer.descriptors_count = 1;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [theirs.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let bytes = answer.encode();
        let sent = sendmsg(
            &self.connection,
            &[IoSlice::new(&bytes)],
            &mut ancillary,
            SendFlags::empty(),
        );
        assert_eq!(sent.unwrap(), bytes.len());
    }
}

fn entries(properties: &[(&str, Value)]) -> Value {
    let items = properties.iter().map(|(name, value)| {
        let name = Value::Text((*name).into());
        Value::Entry(Box::new((name, value.clone().into_variant())))
    });
    Value::Array {
        of: "{sv}".into(),
        items: items.collect(),
    }
}

fn manager(is_idle: bool, delay_max_ms: u64) -> Properties {
    BTreeMap::from([
        ((MANAGER, "IdleHint"), Value::Bool(is_idle)),
        ((MANAGER, "Docked"), Value::Bool(false)),
        (
            (MANAGER, "InhibitDelayMaxUSec"),
            Value::U64(delay_max_ms * 1_000),
        ),
    ])
}

fn battery(percent: f64) -> Properties {
    BTreeMap::from([
        ((upower::NAME, "OnBattery"), Value::Bool(true)),
        ((upower::NAME, "LidIsPresent"), Value::Bool(true)),
        ((upower::NAME, "LidIsClosed"), Value::Bool(false)),
        ((DEVICE, "IsPresent"), Value::Bool(true)),
        ((DEVICE, "Percentage"), Value::Double(percent)),
        ((DEVICE, "WarningLevel"), Value::U32(1)),
    ])
}

/// As long as a test needs, and longer.
const LONG_MS: u64 = 3_600_000;

#[test]
fn sleep_waits_for_the_commit_and_not_for_longer() {
    let Some(mut bus) = Bus::new() else { return };
    bus.start();
    let inhibitors = Arc::default();
    let logind = Service::start(&bus, logind::NAME, manager(false, LONG_MS), &inhibitors);
    let (listener, news) = Heard::new(&inhibitors, false);
    let watcher = bus.watch(&listener);
    wait_until(|| held(&inhibitors) == 1);
    for member in ["PrepareForSleep", "PrepareForShutdown"] {
        logind.signal(member, vec![Value::Bool(true)]);
        assert_eq!(news.next(), "commit, machine waits: true");
        wait_until(|| held(&inhibitors) == 0);
        logind.signal(member, vec![Value::Bool(false)]);
        wait_until(|| held(&inhibitors) == 1);
    }
    drop(watcher);
    wait_until(|| held(&inhibitors) == 0);
    assert!(news.is_empty());
}

#[test]
fn a_commit_that_does_not_end_keeps_no_machine_awake() {
    let Some(mut bus) = Bus::new() else { return };
    bus.start();
    let inhibitors = Arc::default();
    let logind = Service::start(&bus, logind::NAME, manager(false, 50), &inhibitors);
    let (listener, news) = Heard::new(&inhibitors, true);
    let _watcher = bus.watch(&listener);
    wait_until(|| held(&inhibitors) == 1);
    logind.signal("PrepareForSleep", vec![Value::Bool(true)]);
    assert_eq!(news.next(), "commit, machine waits: true");
    wait_until(|| held(&inhibitors) == 0);
    // The same commit is waited for, and no other begun.
    logind.signal("PrepareForSleep", vec![Value::Bool(false)]);
    wait_until(|| held(&inhibitors) == 1);
    logind.signal("PrepareForSleep", vec![Value::Bool(true)]);
    wait_until(|| held(&inhibitors) == 0);
    assert!(news.is_empty());
}

#[test]
fn sessions_that_are_no_longer_idle_have_a_user() {
    let Some(mut bus) = Bus::new() else { return };
    bus.start();
    let inhibitors = Arc::default();
    let logind = Service::start(&bus, logind::NAME, manager(false, LONG_MS), &inhibitors);
    let (listener, news) = Heard::new(&inhibitors, false);
    let _watcher = bus.watch(&listener);
    wait_until(|| held(&inhibitors) == 1);
    let idle = |is_idle| logind.order(Order::Set(MANAGER, "IdleHint", Value::Bool(is_idle)));
    idle(false);
    idle(true);
    assert_eq!(news.next(), "left", "that it is not idle was no news");
    idle(false);
    assert_eq!(news.next(), "user");
    idle(true);
    assert_eq!(news.next(), "left");
}

#[test]
fn nobody_else_can_speak_for_a_service() {
    let Some(mut bus) = Bus::new() else { return };
    bus.start();
    let inhibitors = Arc::default();
    let logind = Service::start(&bus, logind::NAME, manager(false, LONG_MS), &inhibitors);
    let (listener, news) = Heard::new(&inhibitors, false);
    let _watcher = bus.watch(&listener);
    wait_until(|| held(&inhibitors) == 1);
    let mut other = Connection::open(&bus.address()).unwrap();
    // Unicast, so that no match rule keeps it away: the watcher is one of these.
    for number in 0..20 {
        let forged = Message {
            kind: Kind::Signal,
            ..Message::call(
                &format!(":1.{number}"),
                LOGIND_PATH,
                MANAGER,
                "PrepareForSleep",
            )
        };
        other.send(forged.with(vec![Value::Bool(true)])).unwrap();
    }
    // The bus has delivered them when it answers.
    other.ask_bus("GetId", Vec::new()).unwrap();
    logind.signal("PrepareForSleep", vec![Value::Bool(true)]);
    assert_eq!(news.next(), "commit, machine waits: true");
    logind.signal("PrepareForSleep", vec![Value::Bool(false)]);
    wait_until(|| held(&inhibitors) == 1);
    assert!(news.is_empty());
}

#[test]
fn a_battery_is_low_when_upower_warns_or_little_is_left() {
    let Some(mut bus) = Bus::new() else { return };
    bus.start();
    let inhibitors = Arc::default();
    let upower = Service::start(&bus, upower::NAME, battery(60.0), &inhibitors);
    let (listener, news) = Heard::new(&inhibitors, false);
    let _watcher = bus.watch(&listener);
    let level = |level| upower.order(Order::Set(DEVICE, "WarningLevel", Value::U32(level)));
    let percent = |percent| upower.order(Order::Set(DEVICE, "Percentage", Value::Double(percent)));
    level(3);
    assert_eq!(news.next(), "battery low: true");
    level(4);
    level(1);
    assert_eq!(news.next(), "battery low: false");
    percent(10.0);
    assert_eq!(news.next(), "battery low: true");
    percent(14.0);
    percent(15.5);
    assert_eq!(news.next(), "battery low: false");
    percent(5.0);
    assert_eq!(news.next(), "battery low: true");
    upower.order(Order::Set(upower::NAME, "OnBattery", Value::Bool(false)));
    assert_eq!(news.next(), "battery low: false");
}

#[test]
fn a_closed_lid_is_a_screen_that_is_off_unless_there_are_others() {
    let Some(mut bus) = Bus::new() else { return };
    bus.start();
    let inhibitors = Arc::default();
    let logind = Service::start(&bus, logind::NAME, manager(false, LONG_MS), &inhibitors);
    let upower = Service::start(&bus, upower::NAME, battery(60.0), &inhibitors);
    let (listener, news) = Heard::new(&inhibitors, false);
    let _watcher = bus.watch(&listener);
    wait_until(|| held(&inhibitors) == 1);
    let close = |is| upower.order(Order::Set(upower::NAME, "LidIsClosed", Value::Bool(is)));
    close(true);
    assert_eq!(news.next(), "screen: false");
    close(false);
    assert_eq!(news.next(), "screen: true");
    logind.order(Order::Set(MANAGER, "Docked", Value::Bool(true)));
    logind.order(Order::Set(MANAGER, "IdleHint", Value::Bool(true)));
    assert_eq!(news.next(), "left");
    close(true);
    close(false);
    logind.order(Order::Set(MANAGER, "IdleHint", Value::Bool(false)));
    assert_eq!(news.next(), "user");
}

#[test]
fn services_and_the_bus_itself_may_come_later_and_go() {
    let Some(mut bus) = Bus::new() else { return };
    let inhibitors = Arc::default();
    let (listener, news) = Heard::new(&inhibitors, false);
    let watcher = bus.watch(&listener);
    // Where there is none yet, one is found.
    bus.start();
    let logind = Service::start(&bus, logind::NAME, manager(true, LONG_MS), &inhibitors);
    wait_until(|| held(&inhibitors) == 1);
    assert_eq!(news.next(), "left");
    // It is started anew.
    drop(logind);
    wait_until(|| held(&inhibitors) == 0);
    let logind = Service::start(&bus, logind::NAME, manager(false, LONG_MS), &inhibitors);
    wait_until(|| held(&inhibitors) == 1);
    // The bus goes.
    bus.stop();
    wait_until(|| held(&inhibitors) == 0);
    drop(logind);
    bus.start();
    let _logind = Service::start(&bus, logind::NAME, manager(false, LONG_MS), &inhibitors);
    wait_until(|| held(&inhibitors) == 1);
    drop(watcher);
}

#[test]
fn a_machine_without_a_bus_is_left_alone() {
    let options = BusOptions {
        address: format!("unix:path={}", Path::new("/nonexistent/bus").display()),
        is_user_watched: true,
        battery_low_percent: 10,
    };
    let (listener, news) = Heard::new(&Arc::default(), false);
    drop(BusWatcher::start(listener, &options).unwrap());
    assert!(news.is_empty());
}
