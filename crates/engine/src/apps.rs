//! The apps that a mount has seen.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use mobifs_base::{AppId, TransactionId};

use crate::FsError;
use crate::app::{AppPolicy, AppRules, Class};
use crate::persist::RestartImageError;
use crate::persist::dirty_tracking::UnsavedKeys;
use crate::transactions::ClosedTransaction;

/// The app of everything that lies in no app directory.
pub(crate) const ROOT_APP: AppId = AppId(0);
/// A restart image names an app that it does not have.
pub(crate) const NO_APP: RestartImageError =
    RestartImageError("an item refers to an app that does not exist");
/// Path of [`ROOT_APP`].
const ROOT_PATH: &[u8] = b".";

/// One app of a mount.
#[derive(Debug, Default)]
pub(crate) struct App {
    /// Path of its directory, relative to the mount.
    pub(crate) path: Vec<u8>,
    pub(crate) policy: AppPolicy,
    /// The transaction that accepts this app's changes; none while nothing changed.
    pub(crate) open: Option<TransactionId>,
    /// A commit failed: no changes until one succeeds; requests for one are refused with this.
    pub(crate) refusal: Option<FsError>,
    /// Bytes that write calls brought, in closed transactions.
    pub(crate) written_bytes: u64,
    /// Bytes of these that were committed.
    pub(crate) committed_bytes: u64,
    pub(crate) committed_transactions: u64,
    /// Pages written and overwritten in committed transactions.
    pub(crate) committed_written_pages: u64,
    pub(crate) committed_overwritten_pages: u64,
}

impl App {
    fn new(path: Vec<u8>, policy: AppPolicy) -> Self {
        Self {
            path,
            policy,
            ..Self::default()
        }
    }
}

/// The apps by number and by path, their policies, and the rules that say what is an app. An app
/// is never removed: its number means the same as long as the mount lives.
pub(crate) struct Apps {
    rules: Box<dyn AppRules>,
    list: Vec<App>,
    by_path: BTreeMap<Vec<u8>, AppId>,
    /// Some app is durable: its `fsync` waits for the commits of others.
    has_durable: bool,
    unsaved: UnsavedKeys<AppId>,
}

impl Apps {
    /// The root's app alone.
    pub(crate) fn new(rules: Box<dyn AppRules>, is_tracked: bool) -> Self {
        let mut apps = Self {
            rules,
            list: Vec::new(),
            by_path: BTreeMap::new(),
            has_durable: false,
            unsaved: UnsavedKeys::new(is_tracked),
        };
        let root = apps.at(ROOT_PATH.to_vec());
        debug_assert_eq!(root, ROOT_APP, "the root's app is the first");
        apps
    }

    /// An app; numbers come only from this type, so it exists.
    pub(crate) fn get(&self, id: AppId) -> &App {
        &self.list[id.0 as usize]
    }

    fn get_mut(&mut self, id: AppId) -> &mut App {
        &mut self.list[id.0 as usize]
    }

    /// Whether there is an app of this number.
    pub(crate) fn has(&self, id: AppId) -> bool {
        (id.0 as usize) < self.list.len()
    }

    /// All apps, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &App> {
        self.list.iter()
    }

    /// The rules that say what is an app.
    pub(crate) fn rules(&self) -> &dyn AppRules {
        &*self.rules
    }

    /// Whether a path of so many names can be an app's.
    pub(crate) fn is_app_depth(&self, names: usize) -> bool {
        self.rules.depth_max().is_none_or(|max| names <= max)
    }

    /// The app with this path, if there is one.
    pub(crate) fn find(&self, path: &[u8]) -> Option<AppId> {
        self.by_path.get(path).copied()
    }

    /// The app with this path, made if it is new.
    pub(crate) fn at(&mut self, path: Vec<u8>) -> AppId {
        if let Some(app) = self.find(&path) {
            return app;
        }
        let id = AppId(u32::try_from(self.list.len()).unwrap_or(u32::MAX));
        assert!(id.0 < u32::MAX, "numbers of apps are used up");
        let policy = self.rules.policy(&path);
        self.has_durable |= policy.class == Class::Durable;
        self.list.push(App::new(path.clone(), policy));
        self.unsaved.mark(id);
        self.by_path.insert(path, id);
        id
    }

    /// The apps whose paths begin with this.
    pub(crate) fn with_prefix(&self, prefix: Vec<u8>) -> Vec<AppId> {
        let from = self.by_path.range(prefix.clone()..);
        from.take_while(|(path, _)| path.starts_with(&prefix))
            .map(|(_, &app)| app)
            .collect()
    }

    /// Sets other rules. An app stays one.
    pub(crate) fn set_rules(&mut self, rules: Box<dyn AppRules>) {
        self.rules = rules;
        for app in &mut self.list {
            app.policy = self.rules.policy(&app.path);
        }
        let mut apps = self.list.iter();
        self.has_durable = apps.any(|app| app.policy.class == Class::Durable);
    }

    /// The policies of some apps.
    pub(crate) fn policies<'a>(
        &'a self,
        apps: &'a [AppId],
    ) -> impl Iterator<Item = &'a AppPolicy> + 'a {
        apps.iter().map(|app| &self.get(*app).policy)
    }

    /// Whether some app's `fsync` waits.
    pub(crate) const fn has_durable(&self) -> bool {
        self.has_durable
    }

    /// The open transaction of an app.
    pub(crate) fn open_of(&self, id: AppId) -> Option<TransactionId> {
        self.get(id).open
    }

    /// The open transaction of these apps is this one from now on.
    pub(crate) fn set_open(&mut self, apps: &[AppId], open: TransactionId) {
        for &app in apps {
            self.get_mut(app).open = Some(open);
        }
    }

    /// A write outside transactions.
    pub(crate) fn written(&mut self, id: AppId, bytes: u64) {
        self.get_mut(id).written_bytes += bytes;
        self.unsaved.mark(id);
    }

    /// The open transaction of these apps closes, to which writes brought so many bytes. They count for the first app:
    /// sums over apps have them once.
    pub(crate) fn closed(&mut self, apps: &[AppId], open: TransactionId, written_bytes: u64) {
        for &id in apps {
            let app = self.get_mut(id);
            debug_assert_eq!(app.open, Some(open), "an app has one open transaction");
            app.open = None;
            if apps.first() == Some(&id) {
                app.written_bytes += written_bytes;
            }
            self.unsaved.mark(id);
        }
    }

    /// A transaction was committed with so many bytes that were written, which count as in [`Self::closed`];
    /// `refusal` says for each app whether another one of it failed.
    pub(crate) fn committed(
        &mut self,
        closed: &ClosedTransaction,
        sent_bytes: u64,
        refusal: impl Fn(AppId) -> Option<FsError>,
    ) {
        for &id in &closed.apps {
            let app = self.get_mut(id);
            app.refusal = refusal(id);
            app.committed_transactions += 1;
            if closed.apps.first() == Some(&id) {
                // What was merged, or got a link, may have been written in the name of another app.
                let sent_bytes = app.committed_bytes + sent_bytes;
                app.committed_bytes = sent_bytes.min(app.written_bytes);
            }
            app.committed_written_pages += closed.efficiency.written_pages();
            app.committed_overwritten_pages += closed.efficiency.overwritten_pages();
            self.unsaved.mark(id);
        }
    }

    /// These apps accept no changes, and refuse them with this.
    pub(crate) fn refuse(&mut self, apps: &[AppId], refusal: FsError) {
        for &app in apps {
            self.get_mut(app).refusal = Some(refusal);
        }
    }
}

/// Restoring and saving.
impl Apps {
    /// Puts back an app of a restart image, with the policy that it has now.
    pub(crate) fn restore(&mut self, number: u64, mut app: App) -> Result<(), RestartImageError> {
        app.policy = self.rules.policy(&app.path);
        self.has_durable |= app.policy.class == Class::Durable;
        let id = AppId(u32::try_from(number).map_err(|_| NO_APP)?);
        self.by_path.insert(app.path.clone(), id);
        if let Some(known) = self.list.get_mut(id.0 as usize) {
            // The root's app is always there.
            *known = app;
        } else if self.list.len() as u64 == number {
            self.list.push(app);
        } else {
            return Err(NO_APP);
        }
        Ok(())
    }

    /// Puts back which transaction these apps have open.
    pub(crate) fn restore_open(
        &mut self,
        apps: &[AppId],
        open: TransactionId,
    ) -> Result<(), RestartImageError> {
        for app in apps {
            let app = self.list.get_mut(app.0 as usize).ok_or(NO_APP)?;
            if app.open.replace(open).is_some() {
                return Err(RestartImageError("an app has several open transactions"));
            }
        }
        Ok(())
    }

    /// Whether something of them is not saved.
    pub(crate) fn is_unsaved(&self) -> bool {
        !self.unsaved.is_empty()
    }

    /// Hands out each app that is not saved.
    pub(crate) fn take_unsaved(&mut self, mut save: impl FnMut(AppId, &App)) {
        let ids = self.unsaved.take();
        for &id in &ids {
            save(id, self.get(id));
        }
        self.unsaved.recycle(ids);
    }

    /// Marks everything as unsaved.
    pub(crate) fn mark_all_unsaved(&mut self) {
        for number in 0..self.list.len() {
            self.unsaved.mark(AppId(number as u32));
        }
    }
}
