//! Tests of the engine through its interface, as one program.

mod deep;
mod kept_memory;
mod observed;
mod prediction;
mod rarities;
mod room;
mod room_contract;
mod saved;
mod schedule;
mod standby;
mod starved;
mod super_journals;
mod support;
mod transactioning;
mod transactions;
mod trim;
