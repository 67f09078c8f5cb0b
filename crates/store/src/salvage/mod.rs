//! Bringing a store whose journal is damaged to the recovery point.
//!
//! A mount refuses such a store, because what is damaged was committed once. A salvage says what is
//! certain and what is lost, keeps the damaged journal aside, and makes a new one of what is certain;
//! the next mount applies it as any other. `docs/DESIGN.md#a-damaged-journal-can-be-salvaged` has
//! what can be promised, and why a power cut at any step does no harm.

mod applied;
mod missing;
mod naming;
mod objects;
mod placing;
mod plan;
mod reading;
mod rebuild;
mod report;
mod traces;
mod tree;

use crate::lower::Lower;
use crate::salvage::plan::Plan;
use crate::{JournalOptions, StoreError};

pub use crate::log::DAMAGED_PREFIX;
pub use report::{LostChange, LostChanges, LostFile, Promise, RecoveryPoint, Salvaged, Survey};

/// Looks at a store that cannot be mounted, and says what a salvage would find; changes nothing.
/// `because` is why it cannot be mounted, where that is known: a store without any other damage is
/// salvaged for it.
///
/// # Errors
/// [`StoreError::NewerFormat`], [`StoreError::Unsuitable`] for what is no store, or no damaged one
/// but a copy that cannot be used; [`StoreError::Lower`].
pub fn survey<L: Lower>(lower: &L, because: Option<&StoreError>) -> Result<Survey, StoreError> {
    Ok(Plan::make(lower, because)?.survey)
}

/// Brings a damaged store to its recovery point. The next mount, or [`crate::JournalStore::open`],
/// applies what is certain. A store that is not damaged is not changed.
///
/// # Errors
/// As [`survey`]. The store is as it was then, or a salvage goes on from there.
pub fn salvage<L: Lower>(
    lower: &L,
    options: &JournalOptions,
    because: Option<&StoreError>,
) -> Result<Salvaged, StoreError> {
    let plan = Plan::make(lower, because)?;
    if plan.survey.damage.is_empty() {
        return Ok(Salvaged {
            survey: plan.survey,
            kept: None,
        });
    }
    let kept = rebuild::carry_out(lower, options, &plan)?;
    Ok(Salvaged {
        survey: plan.survey,
        kept,
    })
}
