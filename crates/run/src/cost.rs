//! What a call costs that the supervisor answers, and how much of that is the kernel's way to another
//! process and back: no supervisor can be faster.
//!
//! `cargo test --release -p mobifs-run -- --ignored --nocapture what_a_notification_costs`
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::time::Instant;

use mobifs_steered::Decisions;

use crate::launch::{begin, receive};
use crate::ledger::Ledger;
use crate::listener::{Answer, Listener, Next};
use crate::target::{Found, MountTable, Threads};
use crate::{priority, supervised};

const TEST: &str = "cost::what_a_notification_costs";
const CALLS: usize = 20_000;
const ROUNDS: usize = 5;

/// How the supervisor comes to its answer.
#[derive(Clone, Copy, Debug)]
enum By {
    /// The supervisor answers whatever comes.
    Nothing,
    /// The supervisor looks at the descriptor, as it has to.
    Look,
}

#[test]
#[ignore = "a measurement"]
fn what_a_notification_costs() {
    if supervised::to_do().is_some() {
        return call();
    }
    for _ in 0..ROUNDS {
        for by in [By::Nothing, By::Look] {
            println!("{by:?}: {}", measured(by));
        }
    }
}

fn measured(by: By) -> String {
    let (ours, mut caller) = supervised::start(TEST, "calls");
    let said = BufReader::new(caller.stdout.take().unwrap());
    // The nice value of a thread stays with it.
    std::thread::spawn(move || answer_all(&ours, by))
        .join()
        .unwrap();
    assert!(caller.wait().unwrap().success());
    let mut lines = said.lines().map_while(Result::ok);
    lines.find(|line| line.contains("µs")).unwrap()
}

fn answer_all(socket: &OwnedFd, by: By) {
    let (listener, ..) = receive(socket).unwrap();
    begin(socket, "-");
    let listener = Listener::new(listener, Ledger::create().unwrap());
    let (decisions, mut threads) = (Decisions::for_all(), Threads::default());
    priority::raise();
    while let Next::Call(call) = listener.next(None, || ()).unwrap() {
        let answer = match by {
            _ if call.number != libc::SYS_fdatasync as u32 => Answer::Continue,
            By::Nothing => Answer::Value(0),
            By::Look => {
                let found = threads.descriptor(call.thread, call.arguments[0] as i32);
                let Some(Found::Same(file)) = found else {
                    panic!("{found:?}");
                };
                let table = MountTable::of(call.thread);
                assert_eq!(decisions.answer(&file, table.path()), Some(Ok(())));
                Answer::Value(0)
            }
        };
        listener.answer(&call, answer);
    }
}

/// The process that makes the calls.
fn call() {
    let file = tempfile::tempfile().unwrap();
    supervised::begin();
    let mut took_us: Vec<f64> = (0..CALLS)
        .map(|_| {
            let started = Instant::now();
            rustix::fs::fdatasync(&file).unwrap();
            started.elapsed().as_nanos() as f64 / 1e3
        })
        .collect();
    took_us.sort_by(f64::total_cmp);
    let at = |percent: usize| took_us[CALLS * percent / 100];
    println!(
        "least {:.1} µs, one in twenty up to {:.1} µs, median {:.1} µs",
        at(0),
        at(5),
        at(50)
    );
}
