//! Which owners are trusted: the content of a store's own directory is acted on with the process's
//! rights.

use crate::StoreError;

/// Refuses what a store relies on, such as its own directory, if it belongs to an untrusted user:
/// in a directory that all users may write to, any of them could have made it. Root trusts root
/// only. Others trust root and the owner of the directory `around` it, which can change all that is
/// in there anyway. `what` is its name.
///
/// # Errors
/// [`StoreError::Unsuitable`].
pub fn check_owner(what: &str, owner: u32, around: u32) -> Result<(), StoreError> {
    let user = rustix::process::geteuid().as_raw();
    if is_trusted(user, owner, around) {
        return Ok(());
    }
    let (whose, remedy) = if user == 0 {
        (
            "root's",
            "use the store as that user, or, if you trust what it holds, give it to root",
        )
    } else {
        (
            "your",
            "remove it, or, if you trust what it holds, have it given to you",
        )
    };
    Err(StoreError::Unsuitable(format!(
        "{what} in the store belongs to the user with id {owner}, which could have forged what \
         would \
         be done in {whose} name; {remedy}, with all that is in it"
    )))
}

fn is_trusted(user: u32, owner: u32, around: u32) -> bool {
    owner == user || (user != 0 && (owner == 0 || owner == around))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_are_not_trusted() {
        let (root, user, other, third) = (0, 1000, 1001, 1002);
        for (by, owner, around, trusted) in [
            (root, root, root, true),
            (root, root, user, true),
            (root, user, user, false),
            (user, user, root, true),
            (user, user, other, true),
            (user, root, root, true),
            // The directory is another user's, and so is all in it.
            (user, other, other, true),
            // In `/tmp`, for one.
            (user, other, root, false),
            (user, other, third, false),
            (user, other, user, false),
        ] {
            assert_eq!(
                is_trusted(by, owner, around),
                trusted,
                "{by} {owner} {around}"
            );
        }
    }
}
