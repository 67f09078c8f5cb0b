//! Users that are generated, not recorded: moments of operations and nothing else.
//!
//! S0 has nine apps with five users each (Figures 8, 9), and its traces are not public. Here are as
//! many kinds of use, none of them fitted to the published values: a person goes through short and
//! long intervals in turn, both log-normal, at a pace of their own. Figures show them apart from
//! what was recorded.

use mobifs_numerics::Random;

/// Users of each kind, as in S0.
pub const USERS: u64 = 5;
/// How long each of them is watched, as in S0, in nanoseconds.
pub const SESSION_NS: u64 = 300_000_000_000;
/// No two operations of a person are closer, in seconds.
const CLOSEST_SECONDS: f64 = 0.15;
/// Spread of the users' paces (of the logarithm).
const PACE_SIGMA: f64 = 0.25;

/// A kind of use.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// What it is called.
    pub name: &'static str,
    /// Median of short intervals, in seconds, and spread of the logarithm.
    short: (f64, f64),
    /// Median and spread of long intervals.
    long: (f64, f64),
    /// How many of a hundred intervals after a short one are long.
    to_long_percent: u64,
    /// How many of a hundred intervals after a long one are long, too.
    stays_long_percent: u64,
}

const fn profile(
    name: &'static str,
    short: (f64, f64),
    long: (f64, f64),
    to_long_percent: u64,
    stays_long_percent: u64,
) -> Profile {
    Profile {
        name,
        short,
        long,
        to_long_percent,
        stays_long_percent,
    }
}

/// The kinds of use.
pub const PROFILES: [Profile; 9] = [
    profile("feed", (0.9, 0.5), (5.0, 0.6), 25, 20),
    profile("article", (0.7, 0.5), (12.0, 0.7), 30, 40),
    profile("chat", (0.35, 0.4), (6.0, 0.8), 8, 15),
    profile("game", (0.5, 0.6), (2.5, 0.5), 10, 10),
    profile("video", (0.8, 0.6), (45.0, 0.8), 35, 60),
    profile("map", (0.45, 0.5), (4.0, 0.7), 18, 30),
    profile("form", (0.3, 0.35), (2.0, 0.6), 12, 10),
    profile("search", (0.5, 0.5), (8.0, 0.9), 22, 35),
    profile("remote", (0.4, 0.7), (3.0, 0.9), 15, 45),
];

impl Profile {
    /// Moments of one user's operations, in nanoseconds; the same for the same number.
    pub fn operations(&self, user: u64) -> Vec<u64> {
        let name = self.name.bytes();
        let seed = name.fold(user, |seed, byte| {
            seed.wrapping_mul(257).wrapping_add(u64::from(byte))
        });
        let mut random = Random::new(seed);
        let pace = (PACE_SIGMA * normal(&mut random)).exp();
        let (mut operations, mut at, mut is_long) = (Vec::new(), 0, false);
        loop {
            operations.push(at);
            let percent = if is_long {
                self.stays_long_percent
            } else {
                self.to_long_percent
            };
            is_long = random.below(100) < percent;
            let (median, sigma) = if is_long { self.long } else { self.short };
            let seconds = pace * median * (sigma * normal(&mut random)).exp();
            // Whole milliseconds, so that no machine's rounding shows.
            let ms = (seconds.max(CLOSEST_SECONDS) * 1e3).round() as u64;
            at += ms * 1_000_000;
            if at > SESSION_NS {
                return operations;
            }
        }
    }
}

/// A number of the standard normal distribution (Box and Muller).
fn normal(random: &mut Random) -> f64 {
    let mut uniform = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let (radius, angle) = (1.0 - uniform(), uniform());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_differ_and_each_is_always_the_same() {
        for profile in PROFILES {
            let users: Vec<Vec<u64>> = (0..USERS).map(|user| profile.operations(user)).collect();
            for (number, operations) in users.iter().enumerate() {
                assert_eq!(*operations, profile.operations(number as u64));
                assert!(
                    operations.len() >= 5,
                    "{}: {}",
                    profile.name,
                    operations.len()
                );
                assert!(operations.iter().all(|&at| at <= SESSION_NS));
                let closest = operations.windows(2).map(|pair| pair[1] - pair[0]).min();
                assert!(closest.unwrap() >= 150_000_000, "{}", profile.name);
                assert!(users.iter().filter(|other| *other == operations).count() == 1);
            }
        }
    }
}
