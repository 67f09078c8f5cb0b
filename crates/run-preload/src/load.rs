//! What happens when the library is loaded.

use crate::{decisions, mappings, next};

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = set_up;

extern "C" fn set_up() {
    next::find_all();
    mappings::set_up();
    decisions::choose();
}
