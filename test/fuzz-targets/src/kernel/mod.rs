//! Requests of a kernel that need not be a kernel.

mod adapter;
mod layout;
mod request;

pub use adapter::FUSE_ADAPTER;
pub use request::FUSE_REQUEST;
