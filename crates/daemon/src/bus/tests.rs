//! A real bus (`dbus-daemon`), on which the tests play logind and UPower.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::Connection;
use super::logind;
use super::message::{Kind, Message};
use super::service::PROPERTIES;
use super::upower;
use super::wire::Value;
use super::{BusListener, BusOptions, BusWatcher};

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
            mobifs_skip::skip("there is no dbus-daemon here (Debian: dbus-daemon)");
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
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Ends of the inhibitors that logind gave away.
type Inhibitors = Arc<Mutex<Vec<OwnedFd>>>;

/// Reports to a test what the watcher reported.
struct ReportingListener {
    sender: Mutex<Sender<String>>,
    inhibitors: Inhibitors,
    /// Whether a commit takes for ever.
    is_stuck: bool,
}

impl ReportingListener {
    fn report(&self, news: String) {
        // A test that has ended does not listen.
        let _sent = self.sender.lock().unwrap().send(news);
    }
}

impl BusListener for ReportingListener {
    fn user_event(&self) {
        self.report("user".into());
    }

    fn user_left(&self) {
        self.report("left".into());
    }

    fn set_battery_low(&self, is_low: bool) {
        self.report(format!("battery low: {is_low}"));
    }

    fn set_screen(&self, is_on: bool) {
        self.report(format!("screen: {is_on}"));
    }

    fn falls_asleep(&self) {
        let held = held(&self.inhibitors);
        self.report(format!("falls asleep, machine waits: {}", held > 0));
    }

    fn is_awake(&self) {
        self.report("awake".into());
    }

    fn power_goes(&self) {
        let held = held(&self.inhibitors);
        self.report(format!("commit, machine waits: {}", held > 0));
        if self.is_stuck {
            // Nothing releases it.
            loop {
                std::thread::park();
            }
        }
    }
}

/// How many inhibitors the clients still hold.
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

/// A bus, and its watcher, and the reports.
struct Scene {
    bus: Bus,
    inhibitors: Inhibitors,
    /// Whether a commit takes for ever.
    is_stuck: bool,
    reports: Option<Receiver<String>>,
}

impl Scene {
    /// Without a bus yet. None where there is no `dbus-daemon`.
    fn dark() -> Option<Self> {
        Some(Self {
            bus: Bus::new()?,
            inhibitors: Arc::default(),
            is_stuck: false,
            reports: None,
        })
    }

    /// With a bus that has no services.
    fn new() -> Option<Self> {
        let mut scene = Self::dark()?;
        scene.bus.start();
        Some(scene)
    }

    /// A service with a name and properties appears.
    fn play(&self, name: &str, properties: Properties) -> Service {
        Service::start(&self.bus, name, properties, &self.inhibitors)
    }

    /// A listener is registered.
    fn watch(&mut self) -> BusWatcher {
        let options = BusOptions {
            address: self.bus.address(),
            is_user_watched: true,
            battery_low_percent: 10,
        };
        let (sender, receiver) = channel();
        self.reports = Some(receiver);
        let listener = ReportingListener {
            sender: Mutex::new(sender),
            inhibitors: Arc::clone(&self.inhibitors),
            is_stuck: self.is_stuck,
        };
        BusWatcher::start(Arc::new(listener), &options).unwrap()
    }

    /// Ends when so many inhibitors are held.
    fn wait_for_inhibitors(&self, count: usize) {
        wait_until(|| held(&self.inhibitors) == count);
    }

    /// The next report to the listener; if it never is, the runner's limit ends us.
    fn news(&self) -> String {
        self.reports.as_ref().unwrap().recv().unwrap()
    }

    fn is_quiet(&self) -> bool {
        self.reports.as_ref().unwrap().try_recv().is_err()
    }
}

type Properties = BTreeMap<(&'static str, &'static str), Value>;

enum Order {
    Set(&'static str, &'static str, Value),
    /// logind's manager sends a signal, with an argument.
    Say(&'static str, bool),
    Leave,
}

/// A service with properties, which takes orders from a test.
struct Service {
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    fn start(bus: &Bus, name: &str, properties: Properties, inhibitors: &Inhibitors) -> Self {
        let connection = Connection::open(&bus.address()).unwrap();
        let request = vec![text(name), Value::U32(4)];
        connection.ask_bus("RequestName", request).unwrap();
        let (sender, orders) = channel();
        let acting = Acting {
            connection,
            properties,
            inhibitors: Arc::clone(inhibitors),
        };
        Self {
            orders: sender,
            thread: Some(std::thread::spawn(move || acting.run(&orders))),
        }
    }

    fn order(&self, order: Order) {
        self.orders.send(order).unwrap();
    }

    fn say(&self, member: &'static str, word: bool) {
        self.order(Order::Say(member, word));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have lost its bus.
        let _sent = self.orders.send(Order::Leave);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))));
    }
}

struct Acting {
    connection: Connection,
    properties: Properties,
    inhibitors: Inhibitors,
}

impl Acting {
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            match orders.try_recv() {
                Ok(Order::Set(interface, name, value)) => self.set(interface, name, value),
                Ok(Order::Say(member, word)) => {
                    let word = vec![Value::Bool(word)];
                    self.report(&Message::signal(LOGIND_PATH, MANAGER, member, word));
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
        let changed = Value::Map(vec![(name.to_owned(), value)]);
        let body = vec![text(interface), changed, Value::Texts(Vec::new())];
        self.report(&Message::signal(
            path,
            PROPERTIES,
            "PropertiesChanged",
            body,
        ));
    }

    fn report(&self, signal: &Message) {
        // The bus may be gone.
        let _sent = self.connection.send_message(signal);
    }

    fn answer(&self, call: &Message) {
        if call.kind != Kind::Call {
            return;
        }
        let mut descriptors = Vec::new();
        let words: Vec<&str> = call.body.iter().filter_map(Value::as_text).collect();
        let answer = match (call.member.as_deref().unwrap(), &words[..]) {
            ("GetAll", [interface]) => {
                let all = self.properties.iter();
                let found = all.filter(|((of, _), _)| of == interface);
                let found = found.map(|((_, name), value)| ((*name).to_owned(), value.clone()));
                Value::Map(found.collect())
            }
            ("Get", [interface, name]) => {
                let mut all = self.properties.iter();
                let found = all.find(|(known, _)| **known == (*interface, *name));
                Value::Variant(Box::new(found.unwrap().1.clone()))
            }
            ("Inhibit", [what, _, _, mode]) => {
                assert_eq!((*what, *mode), ("sleep:shutdown", "delay"));
                let (ours, theirs) = rustix::pipe::pipe().unwrap();
                self.inhibitors.lock().unwrap().push(ours);
                descriptors.push(theirs);
                Value::Descriptor(0)
            }
            other => panic!("no client should call {other:?}"),
        };
        let mut reply = Message::reply(call, vec![answer]);
        reply.descriptors = descriptors;
        self.connection.send_message(&reply).unwrap();
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
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
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let logind = scene.play(logind::NAME, manager(false, LONG_MS));
    let watcher = scene.watch();
    scene.wait_for_inhibitors(1);
    for member in ["PrepareForSleep", "PrepareForShutdown"] {
        logind.say(member, true);
        assert_eq!(scene.news(), "commit, machine waits: true");
        if member == "PrepareForSleep" {
            assert_eq!(scene.news(), "falls asleep, machine waits: true");
        }
        scene.wait_for_inhibitors(0);
        logind.say(member, false);
        if member == "PrepareForSleep" {
            assert_eq!(scene.news(), "awake");
        }
        scene.wait_for_inhibitors(1);
    }
    drop(watcher);
    scene.wait_for_inhibitors(0);
    assert!(scene.is_quiet());
}

#[test]
fn a_commit_that_does_not_end_keeps_no_machine_awake() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let logind = scene.play(logind::NAME, manager(false, 50));
    scene.is_stuck = true;
    let _watcher = scene.watch();
    scene.wait_for_inhibitors(1);
    logind.say("PrepareForShutdown", true);
    assert_eq!(scene.news(), "commit, machine waits: true");
    scene.wait_for_inhibitors(0);
    // The same commit is waited for, and no other begun.
    logind.say("PrepareForShutdown", false);
    scene.wait_for_inhibitors(1);
    logind.say("PrepareForShutdown", true);
    scene.wait_for_inhibitors(0);
    assert!(scene.is_quiet());
}

#[test]
fn sessions_that_are_no_longer_idle_have_a_user() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let logind = scene.play(logind::NAME, manager(false, LONG_MS));
    let _watcher = scene.watch();
    scene.wait_for_inhibitors(1);
    let idle = |is_idle| logind.order(Order::Set(MANAGER, "IdleHint", Value::Bool(is_idle)));
    idle(false);
    idle(true);
    assert_eq!(scene.news(), "left", "that it is not idle was no news");
    idle(false);
    assert_eq!(scene.news(), "user");
    idle(true);
    assert_eq!(scene.news(), "left");
}

#[test]
fn messages_of_another_sender_than_the_service_are_ignored() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let logind = scene.play(logind::NAME, manager(false, LONG_MS));
    let _watcher = scene.watch();
    scene.wait_for_inhibitors(1);
    let other = Connection::open(&scene.bus.address()).unwrap();
    // Unicast, so that no match rule filters it: the watcher is one of these connections.
    for number in 0..20 {
        let body = vec![Value::Bool(true)];
        let mut forged = Message::signal(LOGIND_PATH, MANAGER, "PrepareForSleep", body);
        forged.destination = Some(format!(":1.{number}"));
        other.send_message(&forged).unwrap();
    }
    // The bus has delivered them when it answers.
    other.ask_bus("GetId", Vec::new()).unwrap();
    logind.say("PrepareForShutdown", true);
    assert_eq!(scene.news(), "commit, machine waits: true");
    logind.say("PrepareForShutdown", false);
    scene.wait_for_inhibitors(1);
    assert!(scene.is_quiet());
}

#[test]
fn a_battery_is_low_when_upower_warns_or_little_is_left() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let upower = scene.play(upower::NAME, battery(60.0));
    let _watcher = scene.watch();
    let level = |level| upower.order(Order::Set(DEVICE, "WarningLevel", Value::U32(level)));
    let percent = |percent| upower.order(Order::Set(DEVICE, "Percentage", Value::Double(percent)));
    level(3);
    assert_eq!(scene.news(), "battery low: true");
    level(4);
    level(1);
    assert_eq!(scene.news(), "battery low: false");
    percent(10.0);
    assert_eq!(scene.news(), "battery low: true");
    percent(14.0);
    percent(15.5);
    assert_eq!(scene.news(), "battery low: false");
    percent(5.0);
    assert_eq!(scene.news(), "battery low: true");
    upower.order(Order::Set(upower::NAME, "OnBattery", Value::Bool(false)));
    assert_eq!(scene.news(), "battery low: false");
}

#[test]
fn a_closed_lid_is_a_screen_that_is_off_unless_there_are_others() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let logind = scene.play(logind::NAME, manager(false, LONG_MS));
    let upower = scene.play(upower::NAME, battery(60.0));
    let _watcher = scene.watch();
    scene.wait_for_inhibitors(1);
    let close = |is| upower.order(Order::Set(upower::NAME, "LidIsClosed", Value::Bool(is)));
    close(true);
    assert_eq!(scene.news(), "screen: false");
    close(false);
    assert_eq!(scene.news(), "screen: true");
    logind.order(Order::Set(MANAGER, "Docked", Value::Bool(true)));
    logind.order(Order::Set(MANAGER, "IdleHint", Value::Bool(true)));
    assert_eq!(scene.news(), "left");
    close(true);
    close(false);
    logind.order(Order::Set(MANAGER, "IdleHint", Value::Bool(false)));
    assert_eq!(scene.news(), "user");
}

#[test]
fn services_and_the_bus_itself_may_come_later_and_go() {
    let Some(mut scene) = Scene::dark() else {
        return;
    };
    let watcher = scene.watch();
    // Where there is none yet, one is found.
    scene.bus.start();
    let logind = scene.play(logind::NAME, manager(true, LONG_MS));
    scene.wait_for_inhibitors(1);
    assert_eq!(scene.news(), "left");
    // It is started anew.
    drop(logind);
    scene.wait_for_inhibitors(0);
    let logind = scene.play(logind::NAME, manager(false, LONG_MS));
    scene.wait_for_inhibitors(1);
    // The bus goes.
    scene.bus.stop();
    scene.wait_for_inhibitors(0);
    drop(logind);
    scene.bus.start();
    let _logind = scene.play(logind::NAME, manager(false, LONG_MS));
    scene.wait_for_inhibitors(1);
    drop(watcher);
}

#[test]
fn a_machine_without_a_bus_is_left_alone() {
    let Some(mut scene) = Scene::dark() else {
        return;
    };
    drop(scene.watch());
    assert!(scene.is_quiet());
}
