//! The port over a device with simple rules and a clock that tests can foresee.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use serde_json::json;

use super::*;
use crate::clock::Scale;
use crate::journal::{BoundaryKind, Journal};

const SIZE_BYTES: usize = 64 << 10;
/// Longer than any test runs: what takes this long is under way until the cut.
const HOUR_NS: u64 = 3_600_000_000_000;

/// Writes go to a cache that a cut empties; a write of ones takes an hour.
struct Simple {
    durable: Vec<u8>,
    cached: Vec<u8>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Device for Simple {
    fn read(&mut self, at: VirtualNs, offset: u64, out: &mut [u8]) -> Result<VirtualNs, Refusal> {
        out.copy_from_slice(&self.cached[offset as usize..][..out.len()]);
        Ok(at.plus_ns(10))
    }

    fn write(
        &mut self,
        at: VirtualNs,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<VirtualNs, Refusal> {
        self.log
            .lock()
            .push(format!("write {offset}+{}", data.len()));
        self.cached[offset as usize..][..data.len()].copy_from_slice(data);
        if durable {
            self.durable[offset as usize..][..data.len()].copy_from_slice(data);
        }
        Ok(at.plus_ns(if data[0] == 1 { HOUR_NS } else { 10 }))
    }

    fn share(
        &mut self,
        at: VirtualNs,
        from: u64,
        to: u64,
        data: &[u8],
    ) -> Result<Option<VirtualNs>, Refusal> {
        if self.cached[from as usize..][..data.len()] != *data {
            return Ok(None);
        }
        let shared = format!("share {from}>{to}+{}", data.len());
        self.log.lock().push(shared);
        self.cached[to as usize..][..data.len()].copy_from_slice(data);
        Ok(Some(at.plus_ns(10)))
    }

    fn flush(&mut self, at: VirtualNs) -> Result<VirtualNs, Refusal> {
        self.log.lock().push("flush".to_owned());
        self.durable.clone_from(&self.cached);
        Ok(at.plus_ns(10))
    }

    fn discard(&mut self, at: VirtualNs, offset: u64, bytes: u64) -> Result<VirtualNs, Refusal> {
        self.log.lock().push(format!("discard {offset}+{bytes}"));
        self.cached[offset as usize..][..bytes as usize].fill(0);
        Ok(at.plus_ns(10))
    }

    fn cut(&mut self, _: VirtualNs, _: Keep) -> Result<Value, Refusal> {
        self.cached.clone_from(&self.durable);
        Ok(json!("cut"))
    }

    fn power_on(&mut self, at: VirtualNs) -> (VirtualNs, Value) {
        (at, json!("on"))
    }

    fn peek(&self, offset: u64, out: &mut [u8]) -> Result<(), Refusal> {
        out.copy_from_slice(&self.durable[offset as usize..][..out.len()]);
        Ok(())
    }

    fn stats(&mut self, _: VirtualNs) -> Result<Value, Refusal> {
        Ok(Value::Null)
    }

    fn save(&mut self) -> Result<Vec<u8>, Refusal> {
        Ok(b"state".to_vec())
    }
}

struct Fixture {
    port: Port,
    log: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    fn new(scale: Scale, journal: Option<JournalWriter>) -> Self {
        let log = Arc::new(Mutex::new(Vec::new()));
        let device = Simple {
            durable: vec![9; SIZE_BYTES],
            cached: vec![9; SIZE_BYTES],
            log: Arc::clone(&log),
        };
        let clock = Clock::start(scale);
        let cycle = PowerCycle(4);
        let port = Port::start(Box::new(device), SIZE_BYTES as u64, clock, cycle, journal);
        Self {
            port: port.unwrap(),
            log,
        }
    }

    fn submit(&self, cycle: u64, request: Request<'_>) -> Receiver<Result<Vec<u8>, Refusal>> {
        let (send, receive) = channel();
        let completion = move |result| send.send(result).unwrap();
        self.port
            .submit(PowerCycle(cycle), request, Box::new(completion));
        receive
    }

    fn write(&self, cycle: u64, offset: u64, fill: u8) -> Receiver<Result<Vec<u8>, Refusal>> {
        let request = Request::Write {
            offset,
            data: &[fill; 512],
            durable: false,
        };
        self.submit(cycle, request)
    }

    fn read(&self, cycle: u64, offset: u64) -> Result<Vec<u8>, Refusal> {
        let request = Request::Read { offset, bytes: 512 };
        self.submit(cycle, request).recv().unwrap()
    }
}

#[test]
fn a_cut_refuses_what_is_under_way_and_everything_until_power_on() {
    let fixture = Fixture::new(Scale::REAL, None);
    let slow = fixture.write(4, 0, 1);
    // Not held up by the slow one.
    fixture.write(4, 512, 2).recv().unwrap().unwrap();
    assert_eq!(fixture.read(4, 512).unwrap(), [2; 512]);
    assert_eq!(fixture.port.under_way(), 1);
    assert_eq!(fixture.port.cut(Keep::None).unwrap(), "cut");
    assert_eq!(slow.recv().unwrap(), Err(Refusal::NoPower));
    assert!(matches!(
        fixture.port.cut(Keep::None),
        Err(PowerError::AlreadyOff)
    ));
    assert_eq!(fixture.read(4, 0), Err(Refusal::NoPower));
    assert_eq!(fixture.port.power_on().unwrap(), "on");
    assert!(matches!(
        fixture.port.power_on(),
        Err(PowerError::AlreadyOn)
    ));
    // Clients from before the cut must connect again.
    assert_eq!(fixture.read(4, 0), Err(Refusal::Stale));
    assert_eq!(fixture.port.power_cycle(), PowerCycle(5));
    assert_eq!(fixture.read(5, 512).unwrap(), [9; 512]);
}

#[test]
fn at_scale_zero_requests_do_not_wait_and_time_has_passed() {
    let fixture = Fixture::new(Scale::COUNT_ONLY, None);
    fixture.write(4, 0, 1).try_recv().unwrap().unwrap();
    assert!(fixture.port.clock.now().0 >= HOUR_NS);
}

#[test]
fn a_discard_gives_up_whole_pages_and_zeroes_the_rest() {
    let fixture = Fixture::new(Scale::COUNT_ONLY, None);
    let discard = |offset, bytes, durable| {
        let request = Request::Discard {
            offset,
            bytes,
            durable,
        };
        fixture.submit(4, request).recv().unwrap().unwrap();
        std::mem::take(&mut *fixture.log.lock())
    };
    let expected = ["discard 4096+8192", "write 3584+512", "write 12288+1024"];
    assert_eq!(discard(3584, 9728, false), expected);
    assert_eq!(discard(512, 1024, false), ["write 512+1024"]);
    assert_eq!(discard(0, 4096, true), ["discard 0+4096"]);
    assert_eq!(fixture.read(4, 3584).unwrap(), [0; 512]);
    assert_eq!(fixture.read(4, 12288 + 1024).unwrap(), [9; 512]);
}

#[test]
fn copies_that_were_announced_are_shared_once_if_they_are_copies() {
    let fixture = Fixture::new(Scale::COUNT_ONLY, None);
    let write = |offset, data: &[u8], durable| {
        let request = Request::Write {
            offset,
            data,
            durable,
        };
        fixture.submit(4, request).recv().unwrap().unwrap();
        std::mem::take(&mut *fixture.log.lock())
    };
    let pair = |from: u64, to: u64, pages: u64| RemapPair {
        from: from * 4096,
        to: to * 4096,
        bytes: pages * 4096,
    };
    let page = |byte: u8| [byte; 4096];
    for byte in 2..6 {
        write(u64::from(byte) * 4096, &page(byte), false);
    }
    let all = [page(2), page(3), page(5), page(7)].concat();
    // Three of the four pages of the write, from two places; the last has changed since.
    let pairs = [pair(2, 10, 2), pair(5, 12, 2)];
    fixture.port.expect_copies(&pairs).unwrap();
    assert_eq!(fixture.port.copies()["pages_announced"], 4);
    let expected = [
        "share 8192>40960+8192",
        "share 20480>49152+4096",
        "write 53248+4096",
    ];
    assert_eq!(write(40960, &all, false), expected);
    assert_eq!(write(40960, &all, false), ["write 40960+16384"], "one shot");
    let figures = json!({"pages_announced": 0, "pages_shared": 3, "pages_written": 1});
    assert_eq!(fixture.port.copies(), figures);
    // A durable write is one, and so is a part of a page.
    fixture.port.expect_copies(&[pair(2, 10, 1)]).unwrap();
    assert_eq!(write(40960, &page(2), true), ["write 40960+4096"]);
    assert_eq!(write(40960, &[2; 512], false), ["write 40960+512"]);
    assert_eq!(write(40960, &page(2), false), ["write 40960+4096"]);
    fixture.port.expect_copies(&[pair(2, 10, 2)]).unwrap();
    assert_eq!(fixture.port.forget_copies(), 2);
    for wrong in [pair(2, 3, 2), pair(2, 15, 2), pair(2, 4, 0)] {
        let refused = fixture.port.expect_copies(&[pair(2, 10, 1), wrong]);
        assert!(matches!(refused, Err(RemapError::Misplaced(_))));
    }
    let odd = RemapPair {
        from: 512,
        to: 8192,
        bytes: 4096,
    };
    assert!(fixture.port.expect_copies(&[odd]).is_err());
    assert_eq!(fixture.port.copies()["pages_announced"], 0);
    fixture.port.expect_copies(&[pair(2, 10, 1)]).unwrap();
    fixture.port.cut(Keep::None).unwrap();
    assert_eq!(
        fixture.port.copies()["pages_announced"],
        0,
        "a cut forgets them"
    );
}

#[test]
fn zeros_are_written_in_pieces() {
    let fixture = Fixture::new(Scale::COUNT_ONLY, None);
    let request = Request::Zero {
        offset: 512,
        bytes: 4096,
        durable: false,
    };
    fixture.submit(4, request).recv().unwrap().unwrap();
    assert_eq!(*fixture.log.lock(), ["write 512+4096"]);
    assert_eq!(fixture.read(4, 512).unwrap(), [0; 512]);
}

#[test]
fn the_journal_has_what_a_cut_left() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let journal = JournalWriter::create(&path, SIZE_BYTES as u64).unwrap();
    let fixture = Fixture::new(Scale::COUNT_ONLY, Some(journal));
    fixture.write(4, 0, 2).recv().unwrap().unwrap();
    fixture.submit(4, Request::Flush).recv().unwrap().unwrap();
    fixture.write(4, 0, 3).recv().unwrap().unwrap();
    fixture.port.cut(Keep::None).unwrap();
    fixture.port.power_on().unwrap();
    fixture.write(5, 512, 4).recv().unwrap().unwrap();
    assert_eq!(fixture.port.finish().unwrap(), b"state");
    let journal = Journal::open(&path).unwrap();
    let kinds: Vec<_> = journal.intervals().iter().map(|i| i.begins_with).collect();
    let expected = [
        BoundaryKind::Start,
        BoundaryKind::Flush,
        BoundaryKind::Cut,
        BoundaryKind::Flush,
    ];
    assert_eq!(kinds, expected);
    let base = directory.path().join("base");
    std::fs::write(&base, vec![9; SIZE_BYTES]).unwrap();
    for (state, found) in [("1:all", [3, 9]), ("2", [2, 9]), ("3", [2, 4])] {
        let output = directory.path().join(state);
        let state = state.parse().unwrap();
        crate::materialise(&journal, &base, state, &output).unwrap();
        let image = std::fs::read(&output).unwrap();
        assert_eq!([image[0], image[512]], found);
    }
}
