//! Which apps a status lists: a mount may have tens of thousands.

use serde::{Deserialize, Serialize};

use crate::config::AppGlob;
use crate::{AppName, Status};

/// How many apps are listed if nothing else is asked for.
const APPS_LISTED: u64 = 1000;

/// The apps that a status is to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppSelection {
    /// Only apps whose path this glob matches. A name that is not UTF-8 is no glob and selects only
    /// the app of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<AppName>,
    /// Only those after this name, for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<AppName>,
    /// No more than so many; none: 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

impl AppSelection {
    /// Takes the apps that are not asked for out of a status, and counts what would have been
    /// next.
    ///
    /// # Errors
    /// Why the glob is none.
    pub fn apply(&self, status: &mut Status) -> Result<(), String> {
        let text = self.glob.as_ref().and_then(AppName::as_text);
        let glob = text.map(AppGlob::new).transpose()?;
        let is_matched = |name: &AppName| match (&glob, &self.glob) {
            (Some(glob), _) => glob.matches(name.as_bytes()),
            (None, Some(exact)) => name == exact,
            (None, None) => true,
        };
        let is_wanted = |name: &AppName| {
            self.after.as_ref().is_none_or(|after| name > after) && is_matched(name)
        };
        status.apps.retain(|app| is_wanted(&app.full_name()));
        let limit = usize::try_from(self.limit.unwrap_or(APPS_LISTED)).unwrap_or(usize::MAX);
        let omitted = status.apps.len().saturating_sub(limit);
        status.apps.truncate(limit);
        status.apps_omitted = omitted as u64;
        Ok(())
    }
}
