//! What observes events around a mount, besides the one that they are for.

/// What a user did, as far as it is distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UserInput {
    /// Something else, or unknown.
    Other,
    /// Pressed a key.
    Key,
    /// Touched a screen or a pad, or clicked.
    Touch,
}

/// Observes what happens around a mount, besides the [`EventTarget`](super::EventTarget).
pub(crate) trait EventObserver: Send + Sync {
    /// The user used an input device, or is no longer idle.
    fn user_acted(&self, what: UserInput);
    /// The battery became low, or is no longer so.
    fn battery_changed(&self, is_low: bool);
    /// The screen was switched on or off.
    fn screen_changed(&self, is_on: bool);
}
