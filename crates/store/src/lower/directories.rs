//! The store's own directory, `.mobifs`, and what lies in it.

use std::sync::Arc;

use mobifs_base::FileKind;

use crate::lower::{Create, Lower, OWN_DIRECTORY, found};
use crate::{StoreError, check_owner};

/// The ACL of a directory that everything made in it inherits.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Handles on `.mobifs` and what lies in it.
#[derive(Debug)]
pub(crate) struct Directories<H> {
    mobifs: Arc<H>,
    stage: Arc<H>,
    limbo: Arc<H>,
    lost: Arc<H>,
}

impl<H> Directories<H> {
    /// Opens (and makes, unless `read_only`) the store's own directories. Directories of untrusted
    /// users are refused if `demands_trust` is set: the store relies on their content.
    pub(crate) fn open(
        lower: &impl Lower<Handle = H>,
        read_only: bool,
        demands_trust: bool,
    ) -> Result<Option<Self>, StoreError> {
        let open = |parent: &H, name: &[u8]| -> Result<Option<H>, StoreError> {
            let shown = name.escape_ascii();
            if let Some(handle) = found(lower.open(parent, name, true))
                .map_err(StoreError::lower(format!("opening {shown}")))?
            {
                let stat = lower
                    .stat(&handle)
                    .map_err(StoreError::lower("looking at .mobifs"))?;
                if stat.kind != FileKind::Directory {
                    return Err(StoreError::Unsuitable(format!(
                        "{shown} in the store is not a directory; it does not belong to MobiFS"
                    )));
                }
                if demands_trust {
                    let around = lower.stat(parent);
                    let around = around.map_err(StoreError::lower("looking at the store"))?;
                    check_owner(&shown.to_string(), stat.uid, around.uid)?;
                }
                return Ok(Some(handle));
            }
            if read_only {
                return Ok(None);
            }
            lower
                .create(parent, name, Create::Directory)
                .and_then(|()| lower.open(parent, name, true))
                .map(Some)
                .map_err(StoreError::lower(format!("making the directory {shown}")))
        };
        let root = lower
            .root()
            .map_err(StoreError::lower("opening the store"))?;
        let Some(mobifs) = open(&root, OWN_DIRECTORY)? else {
            return Ok(None);
        };
        if !read_only {
            remove_default_acl(lower, &mobifs)?;
        }
        let (Some(stage), Some(limbo), Some(lost)) = (
            open(&mobifs, b"stage")?,
            open(&mobifs, b"limbo")?,
            open(&mobifs, b"lost")?,
        ) else {
            return Ok(None);
        };
        if !read_only {
            remove_default_acl(lower, &stage)?;
            // Also what was found may not be durable yet: these directories, or the journal's name,
            // if the mount that made them failed or was killed. What is committed from now on must
            // not be lost with them.
            lower
                .sync(&root)
                .and_then(|()| lower.sync(&mobifs))
                .map_err(StoreError::lower("making the store's directories durable"))?;
        }
        let [mobifs, stage, limbo, lost] = [mobifs, stage, limbo, lost].map(Arc::new);
        Ok(Some(Self {
            mobifs,
            stage,
            limbo,
            lost,
        }))
    }

    /// `.mobifs` itself: the journal and the reserve.
    pub(crate) const fn mobifs(&self) -> &Arc<H> {
        &self.mobifs
    }

    /// New objects that have no name yet, under their ids, and overflow files.
    pub(crate) const fn stage(&self) -> &Arc<H> {
        &self.stage
    }

    /// Objects on their way from one name to another, or to be deleted, under their inode numbers.
    pub(crate) const fn limbo(&self) -> &Arc<H> {
        &self.limbo
    }

    /// Deleted directories that other programs had put something into.
    pub(crate) const fn lost(&self) -> &Arc<H> {
        &self.lost
    }
}

/// Removes the default ACL that a directory has inherited from the root of the store. What is made in it
/// would inherit that in turn, and get a name elsewhere, where the mount shows no such ACL.
fn remove_default_acl<L: Lower>(lower: &L, directory: &L::Handle) -> Result<(), StoreError> {
    let xattrs = lower.xattrs(directory);
    let xattrs = xattrs.map_err(StoreError::lower("looking at .mobifs"))?;
    if xattrs.iter().all(|(name, _)| **name != *DEFAULT_ACL) {
        return Ok(());
    }
    lower
        .set_xattr(directory, DEFAULT_ACL, None)
        .map_err(StoreError::lower(
            "removing the default ACL that .mobifs has inherited",
        ))
}
