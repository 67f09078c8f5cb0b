//! Characterisations and comparisons as text and as a page.

mod characterisation;
mod html;
mod overview;

pub use characterisation::{section, text};
pub use html::{Section, page};
pub use overview::overview;
