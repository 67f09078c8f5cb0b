//! The filter that passes calls to the supervisor.

use crate::calls::{ANONYMOUS, ARCHITECTURES, Condition, Kind, PROBE, Rule, SHARED};

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_BITS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Where things lie in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// `SECCOMP_RET_…`.
const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000;
const FAIL: u32 = 0x0005_0000;

/// What the filter does with certain calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilterOptions {
    /// io_uring cannot be used.
    pub(crate) refuses_rings: bool,
    /// `sync` returns at once, without a supervisor.
    pub(crate) skips_everything: bool,
}

/// The instructions.
pub(crate) fn program(options: FilterOptions) -> Vec<libc::sock_filter> {
    let mut program = vec![instruction(LOAD, ARCHITECTURE)];
    for architecture in ARCHITECTURES {
        let mut body = vec![instruction(LOAD, NUMBER)];
        for rule in architecture.rules {
            let action = action_of(rule, options);
            if action.is_empty() {
                continue;
            }
            body.push(jump(IF_EQUAL, rule.number, 0, action.len()));
            body.extend(action);
        }
        body.push(instruction(RETURN, ALLOW));
        // A jump goes no further than 255 instructions: one without a condition skips the rest.
        program.push(jump(IF_EQUAL, architecture.audit, 1, 0));
        program.push(instruction(ALWAYS, body.len() as u32));
        program.extend(body);
    }
    program.push(instruction(RETURN, ALLOW));
    program
}

const ALWAYS: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;

/// What follows when the number is that of the rule; ends with a return in any case.
fn action_of(rule: &Rule, options: FilterOptions) -> Vec<libc::sock_filter> {
    match rule.kind {
        Kind::Rings if !options.refuses_rings => return Vec::new(),
        Kind::Rings => return vec![instruction(RETURN, FAIL | libc::ENOSYS as u32)],
        // Only where no order is kept msync returns at once, and mappings need not be known.
        Kind::Memory if !options.skips_everything => return Vec::new(),
        Kind::Map | Kind::OldMap if options.skips_everything => return Vec::new(),
        Kind::Everything if options.skips_everything => return vec![instruction(RETURN, FAIL)],
        _ => {}
    }
    let notify = instruction(RETURN, NOTIFY);
    let allow = instruction(RETURN, ALLOW);
    match rule.condition {
        Condition::Always => vec![notify],
        Condition::Bits { argument, mask } => vec![
            instruction(LOAD, low(argument)),
            jump(IF_BITS, mask, 0, 1),
            notify,
            allow,
        ],
        Condition::SharedFile { argument } => vec![
            instruction(LOAD, low(argument)),
            jump(IF_BITS, SHARED, 0, 2),
            jump(IF_BITS, ANONYMOUS, 1, 0),
            notify,
            allow,
        ],
        Condition::IsNoProbe => {
            let mut action = Vec::new();
            let halves = PROBE.iter().flat_map(|&(argument, value)| {
                [
                    (low(argument), value as u32),
                    (high(argument), (value >> 32) as u32),
                ]
            });
            let halves: Vec<(u32, u32)> = halves.collect();
            for (at, &(place, value)) in halves.iter().enumerate() {
                action.push(instruction(LOAD, place));
                // To the last instruction but one.
                let rest = 2 * (halves.len() - at - 1);
                action.push(jump(IF_EQUAL, value, 0, rest + 1));
            }
            action.extend([allow, notify]);
            action
        }
    }
}

const fn low(argument: u32) -> u32 {
    ARGUMENTS + 8 * argument + if cfg!(target_endian = "little") { 0 } else { 4 }
}

const fn high(argument: u32) -> u32 {
    ARGUMENTS + 8 * argument + if cfg!(target_endian = "little") { 4 } else { 0 }
}

const fn instruction(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Skips so many instructions if it is so, or not.
fn jump(code: u16, k: u32, if_so: usize, if_not: usize) -> libc::sock_filter {
    debug_assert!(if_so <= 255 && if_not <= 255, "no jump goes that far");
    libc::sock_filter {
        code,
        jt: if_so as u8,
        jf: if_not as u8,
        k,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{DURABLE_WRITE, SYNCHRONOUS};

    /// Runs the program as the kernel does.
    fn outcome(options: FilterOptions, audit: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(number.to_ne_bytes());
        data.extend(audit.to_ne_bytes());
        data.extend([0; 8]);
        arguments
            .iter()
            .for_each(|word| data.extend(word.to_ne_bytes()));
        let program = program(options);
        let (mut at, mut held) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            let place = step.k as usize;
            match step.code {
                LOAD => {
                    held = u32::from_ne_bytes(data[place..place + 4].try_into().unwrap());
                }
                ALWAYS => at += place,
                RETURN => return step.k,
                code => {
                    let is_so = match code {
                        IF_EQUAL => held == step.k,
                        IF_BITS => held & step.k != 0,
                        other => panic!("instruction {other}"),
                    };
                    at += usize::from(if is_so { step.jt } else { step.jf });
                }
            }
        }
    }

    const SAFE: FilterOptions = FilterOptions {
        refuses_rings: true,
        skips_everything: false,
    };

    #[test]
    fn only_calls_for_durability_are_passed_on() {
        let native = ARCHITECTURES[0].audit;
        let ask = |number: libc::c_long, arguments| outcome(SAFE, native, number as u32, arguments);
        assert_eq!(ask(libc::SYS_fsync, [3, 0, 0, 0, 0, 0]), NOTIFY);
        assert_eq!(ask(libc::SYS_sync, [0; 6]), NOTIFY);
        assert_eq!(ask(libc::SYS_read, [0; 6]), ALLOW);
        let created = (libc::O_CREAT | libc::O_RDWR) as u64;
        assert_eq!(ask(libc::SYS_openat, [0, 0, created, 0, 0, 0]), ALLOW);
        for bit in [libc::O_DSYNC, libc::O_SYNC] {
            let flags = created | bit as u64;
            assert_eq!(ask(libc::SYS_openat, [0, 0, flags, 0, 0, 0]), NOTIFY);
        }
        assert_eq!(ask(libc::SYS_msync, [0, 0, 4, 0, 0, 0]), ALLOW);
        let (shared, private) = (libc::MAP_SHARED as u64, libc::MAP_PRIVATE as u64);
        assert_eq!(ask(libc::SYS_mmap, [0, 0, 0, shared, 3, 0]), NOTIFY);
        assert_eq!(ask(libc::SYS_mmap, [0, 0, 0, private, 3, 0]), ALLOW);
        // No file can be changed through it.
        let anonymous = shared | libc::MAP_ANONYMOUS as u64;
        assert_eq!(ask(libc::SYS_mmap, [0, 0, 0, anonymous, 3, 0]), ALLOW);
        assert_eq!(
            ask(libc::SYS_mmap, [0, 0, 0, anonymous ^ shared, 3, 0]),
            ALLOW
        );
        let durable = u64::from(DURABLE_WRITE & DURABLE_WRITE.wrapping_neg());
        assert_eq!(ask(libc::SYS_pwritev2, [0, 0, 0, 0, 0, durable]), NOTIFY);
        assert_eq!(ask(libc::SYS_pwritev2, [0, 0, 0, 0, 0, 1]), ALLOW);
        assert_eq!(ask(425, [0; 6]), FAIL | libc::ENOSYS as u32);
        assert_ne!(SYNCHRONOUS & libc::O_DSYNC as u32, 0);
        assert_eq!(outcome(SAFE, 1, libc::SYS_fsync as u32, [0; 6]), ALLOW);
    }

    #[test]
    fn the_question_for_errors_is_not_passed_on() {
        let native = ARCHITECTURES[0].audit;
        let ask = |arguments| outcome(SAFE, native, libc::SYS_sync_file_range as u32, arguments);
        let [(_, offset), (_, bytes), (_, flags)] = PROBE;
        assert_eq!(ask([9, offset, bytes, flags, 0, 0]), ALLOW);
        assert_eq!(ask([9, offset + (1 << 40), bytes, flags, 0, 0]), NOTIFY);
        assert_eq!(ask([9, 0, bytes, flags, 0, 0]), NOTIFY);
        assert_eq!(ask([9, offset, bytes, flags | 2, 0, 0]), NOTIFY);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn programs_of_32_bits_are_looked_at_too() {
        assert_eq!(outcome(SAFE, 0x4000_0003, 118, [3, 0, 0, 0, 0, 0]), NOTIFY);
        // write
        assert_eq!(outcome(SAFE, 0x4000_0003, 4, [0; 6]), ALLOW);
        assert_eq!(outcome(SAFE, 0xC000_003E, 0x4000_0000 | 74, [0; 6]), NOTIFY);
    }

    #[test]
    fn options_are_heeded() {
        let unsafe_one = FilterOptions {
            refuses_rings: false,
            skips_everything: true,
        };
        let native = ARCHITECTURES[0].audit;
        assert_eq!(outcome(unsafe_one, native, 425, [0; 6]), ALLOW);
        let sync = libc::SYS_sync as u32;
        assert_eq!(outcome(unsafe_one, native, sync, [0; 6]), FAIL);
        let ask =
            |number: libc::c_long, arguments| outcome(unsafe_one, native, number as u32, arguments);
        let asynchronous = libc::MS_ASYNC as u64;
        assert_eq!(ask(libc::SYS_msync, [0, 0, asynchronous, 0, 0, 0]), ALLOW);
        assert_eq!(ask(libc::SYS_msync, [0, 0, 4, 0, 0, 0]), NOTIFY);
        assert_eq!(ask(libc::SYS_mmap, [0, 0, 0, 1, 3, 0]), ALLOW);
    }
}
