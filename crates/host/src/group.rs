//! Groups of users by their names.

use std::io;
use std::path::Path;

/// A group that cannot be meant.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// There is none of this name.
    #[error(
        "there is no group \"{name}\" in {GROUPS}; make it (`groupadd --system {name}`), or name another"
    )]
    None {
        /// The name.
        name: String,
    },
    /// The list of groups cannot be read.
    #[error("cannot read {GROUPS}: {0}")]
    Unreadable(io::Error),
}

/// The list of groups. Others (LDAP and the like) are not asked: the program is linked statically
/// in places, and groups of services are there.
const GROUPS: &str = "/etc/group";

/// The id of a group by its name, or by the id itself.
///
/// # Errors
/// [`GroupError`].
pub fn group_id(name: &str) -> Result<u32, GroupError> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    let text = std::fs::read(Path::new(GROUPS)).map_err(GroupError::Unreadable)?;
    find(&String::from_utf8_lossy(&text), name).ok_or_else(|| GroupError::None {
        name: name.to_owned(),
    })
}

fn find(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_meant = fields.next() == Some(name) && !name.is_empty();
        fields.nth(1).filter(|_| is_meant)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_and_by_number() {
        let text = "root:x:0:\nprometheus:x:997:node,mobifs\nbad:x:many:\n";
        assert_eq!(find(text, "prometheus"), Some(997));
        assert_eq!(find(text, "root"), Some(0));
        for absent in ["", "node", "bad", "x"] {
            assert_eq!(find(text, absent), None, "{absent}");
        }
        assert_eq!(group_id("12").unwrap(), 12);
        let error = group_id("no-such-group-here").unwrap_err().to_string();
        assert!(error.contains("groupadd"), "{error}");
    }
}
