//! POSIX access control lists, as far as a filesystem deals with them: what a new
//! object inherits, and how the list and the permission bits follow each other
//! (acl(5)). Checking access is the kernel's job.

use alloc::sync::Arc;
use alloc::vec::Vec;

/// Extended attribute with an object's ACL.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Extended attribute with what a directory's new entries inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const TAG_USER_OBJ: u16 = 0x01;
const TAG_USER: u16 = 0x02;
const TAG_GROUP_OBJ: u16 = 0x04;
const TAG_GROUP: u16 = 0x08;
const TAG_MASK: u16 = 0x10;
const TAG_OTHER: u16 = 0x20;

/// One ACL entry as `struct posix_acl_xattr_entry` (linux/posix_acl_xattr.h) has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A valid ACL: exactly one owner, owning group and other entry, a mask if there are
/// named entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<AclEntry>);

impl Acl {
    /// Reads the kernel's on-disk form; none if it is malformed.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (version, rest) = value.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION || rest.len() % 8 != 0 {
            return None;
        }
        let entries: Vec<AclEntry> = rest
            .chunks_exact(8)
            .map(|raw| AclEntry {
                tag: u16::from_le_bytes([raw[0], raw[1]]),
                permissions: u16::from_le_bytes([raw[2], raw[3]]),
                id: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
            })
            .collect();
        let acl = Self(entries);
        acl.is_valid().then_some(acl)
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|e| e.tag == tag).count();
        let known = TAG_USER_OBJ | TAG_USER | TAG_GROUP_OBJ | TAG_GROUP | TAG_MASK | TAG_OTHER;
        let named = count(TAG_USER) + count(TAG_GROUP) > 0;
        self.0
            .iter()
            .all(|e| e.tag.is_power_of_two() && e.tag & known != 0 && e.permissions & !0o7 == 0)
            && count(TAG_USER_OBJ) == 1
            && count(TAG_GROUP_OBJ) == 1
            && count(TAG_OTHER) == 1
            && count(TAG_MASK) <= 1
            && (!named || count(TAG_MASK) == 1)
    }

    pub(crate) fn to_bytes(&self) -> Arc<[u8]> {
        let mut bytes = Vec::with_capacity(4 + 8 * self.0.len());
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.0 {
            bytes.extend_from_slice(&entry.tag.to_le_bytes());
            bytes.extend_from_slice(&entry.permissions.to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        bytes.into()
    }

    /// The nine permission bits that the list amounts to: the mask, where there is
    /// one, stands for the group.
    pub(crate) fn permission_bits(&self) -> u16 {
        let of = |tag| self.0.iter().find(|e| e.tag == tag).map(|e| e.permissions);
        let group = of(TAG_MASK).or_else(|| of(TAG_GROUP_OBJ)).unwrap_or(0);
        of(TAG_USER_OBJ).unwrap_or(0) << 6 | group << 3 | of(TAG_OTHER).unwrap_or(0)
    }

    /// Whether the permission bits say all that the list says.
    pub(crate) fn is_equivalent_to_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// Follows a `chmod`.
    pub(crate) fn set_permission_bits(&mut self, mode: u16) {
        let has_mask = self.0.iter().any(|e| e.tag == TAG_MASK);
        for entry in &mut self.0 {
            entry.permissions = match entry.tag {
                TAG_USER_OBJ => mode >> 6 & 0o7,
                TAG_GROUP_OBJ if !has_mask => mode >> 3 & 0o7,
                TAG_MASK => mode >> 3 & 0o7,
                TAG_OTHER => mode & 0o7,
                _ => continue,
            };
        }
    }

    /// What a new object gets from its directory's default ACL: the list, limited by
    /// the mode that the creator asked for; returns the resulting permission bits.
    pub(crate) fn inherit(&mut self, mode: u16) -> u16 {
        let allowed = self.permission_bits() & mode;
        self.set_permission_bits(allowed);
        allowed & 0o777
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries
            .iter()
            .map(|&(tag, permissions, id)| AclEntry {
                tag,
                permissions,
                id,
            })
            .collect())
    }

    #[test]
    fn malformed_lists_are_refused() {
        assert!(Acl::parse(b"").is_none());
        assert!(Acl::parse(&[1, 0, 0, 0]).is_none());
        assert!(
            Acl::parse(&acl(&[(1, 7, 0), (4, 5, 0)]).to_bytes()).is_none(),
            "no other entry"
        );
        let unmasked = acl(&[(1, 7, 0), (2, 7, 5), (4, 5, 0), (0x20, 0, 0)]);
        assert!(
            Acl::parse(&unmasked.to_bytes()).is_none(),
            "a named user needs a mask"
        );
        let good = acl(&[(1, 7, 0), (2, 7, 5), (4, 5, 0), (0x10, 5, 0), (0x20, 0, 0)]);
        assert_eq!(Acl::parse(&good.to_bytes()), Some(good));
    }

    #[test]
    fn mode_and_list_follow_each_other() {
        let mut list = acl(&[(1, 7, 0), (2, 7, 5), (4, 5, 0), (0x10, 7, 0), (0x20, 5, 0)]);
        assert_eq!(list.permission_bits(), 0o775);
        list.set_permission_bits(0o640);
        assert_eq!(list.permission_bits(), 0o640);
        assert_eq!(
            list.0[2].permissions, 5,
            "with a mask, the owning group stays"
        );
        let mut default = acl(&[(1, 7, 0), (4, 5, 0), (0x20, 5, 0)]);
        assert_eq!(default.inherit(0o666), 0o644);
        assert!(default.is_equivalent_to_mode());
    }
}
