//! What would have been flushed, when, and at what risk: traces under different policies.
//!
//! [`sim`] runs a trace under a policy in virtual time, [`figures`] draws what comes out of it
//! with the published values beside it. `docs/SIMULATION.md` says what is modelled.

pub mod figures;
pub mod sim;
