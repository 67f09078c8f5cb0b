//! Messages of the system bus.

use mobifs_daemon::fuzzing::{bus_message_seeds, read_bus_message};

use crate::{Target, Verdict};

/// A message of the system bus.
pub const BUS_MESSAGE: Target = Target {
    name: "bus_message",
    run: |input| {
        if read_bus_message(input) {
            Verdict::Taken
        } else {
            Verdict::Refused
        }
    },
    seeds: bus_message_seeds,
};
