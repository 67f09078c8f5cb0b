//! What became of the answer to a request.

/// Where the answer to a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Not sent yet.
    Pending,
    /// The kernel has it, or the connection has ended.
    Delivered,
    /// The kernel did not wait for it: the request has been answered before.
    NotAwaited,
    /// Another thread sends it.
    Deferred,
}
