//! Which directories are apps, and which limits each has.

use std::sync::Arc;

use mobifs_engine::policy::transactioning::Transactioning as _;
use mobifs_engine::{AppPolicy, AppRules, Class};

use super::glob::Glob;
use super::settings::PolicyChange;

/// A glob over app paths: `*` and `?` stay within one directory, `**` does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppGlob {
    whole: Glob,
    /// One for each component of a path that it matches; none where components cannot be separated.
    components: Option<Vec<Glob>>,
}

impl AppGlob {
    pub(crate) fn new(glob: &str) -> Result<Self, String> {
        if glob.is_empty() || glob.starts_with('/') || glob.ends_with('/') {
            return Err(format!(
                "\"{glob}\" is not a path relative to the mount: leave out the outer slashes"
            ));
        }
        let whole =
            Glob::new(glob).map_err(|error| format!("\"{glob}\" is not a valid glob: {error}"))?;
        let is_plain = !glob.contains("**") && !glob.contains(['{', '[', '\\']);
        let components = is_plain.then(|| glob.split('/').map(Glob::new).collect());
        Ok(Self {
            whole,
            components: components.and_then(Result::ok),
        })
    }

    /// A glob of a configuration, which must be able to match the path of an app.
    pub(crate) fn of_apps(glob: &str) -> Result<Self, String> {
        let compiled = Self::new(glob)?;
        let nothing = |name: &str| matches!(name, "" | "." | "..");
        if glob.split('/').any(nothing) {
            return Err(format!(
                "\"{glob}\" matches no app: a path in the mount has no empty name, no \".\" and no \
                 \"..\""
            ));
        }
        Ok(compiled)
    }

    pub(crate) fn matches(&self, path: &[u8]) -> bool {
        self.whole.matches(path)
    }

    /// Whether it may match a path under this one.
    fn may_match_below(&self, path: &[u8]) -> bool {
        let Some(components) = &self.components else {
            return true;
        };
        let names = || path.split(|&byte| byte == b'/');
        let pairs = components.iter().zip(names());
        let mut matches = pairs.map(|(component, name)| component.matches(name));
        components.len() > names().count() && matches.all(|does_match| does_match)
    }

    /// How many names the path of an app can have at most; none: any number.
    pub(super) fn depth_max_of(apps: &[Self]) -> Option<usize> {
        let mut depths = apps.iter().map(Self::depth_max);
        depths.try_fold(0, |max, depth| depth.map(|depth| max.max(depth)))
    }

    /// How many names every path that it matches has; none: that is not known.
    pub(super) fn depth(&self) -> Option<usize> {
        self.components.as_ref().map(Vec::len)
    }

    /// How many names a path that it matches can have at most; none: any number.
    fn depth_max(&self) -> Option<usize> {
        let glob = self.whole.text();
        // A negated class matches a slash, too.
        let slashes = glob.bytes().filter(|byte| matches!(byte, b'/' | b'['));
        (!glob.contains("**")).then(|| slashes.count() + 1)
    }
}

/// The app rules of a configuration, with what was changed while mounted on top.
/// Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    pub(crate) apps: Arc<[AppGlob]>,
    /// See [`AppRules::depth_max`].
    apps_depth_max: Option<usize>,
    pub(crate) defaults: AppPolicy,
    pub(crate) matched: Arc<[(AppGlob, PolicyChange)]>,
    /// Changes made while mounted, by exact path; later ones win.
    overrides: Vec<(Vec<u8>, PolicyChange)>,
    /// Every app is durable for now, whatever its settings.
    all_durable: bool,
}

impl Rules {
    pub(crate) fn new(
        apps: Vec<AppGlob>,
        defaults: AppPolicy,
        matched: Vec<(AppGlob, PolicyChange)>,
    ) -> Self {
        Self {
            apps_depth_max: AppGlob::depth_max_of(&apps),
            apps: apps.into(),
            defaults,
            matched: matched.into(),
            overrides: Vec::new(),
            all_durable: false,
        }
    }

    /// Which directories are apps: the globs over paths relative to the mount, as written.
    pub fn app_globs(&self) -> Vec<String> {
        let globs = self.apps.iter();
        globs.map(|glob| glob.whole.text().to_owned()).collect()
    }

    /// Changes settings of one app until the configuration is loaded again.
    pub fn set_app(&mut self, path: &[u8], change: PolicyChange) {
        self.overrides.push((path.to_vec(), change));
    }

    /// Makes every app durable for now, or each as its settings say.
    pub const fn set_all_durable(&mut self, all_durable: bool) {
        self.all_durable = all_durable;
    }

    /// Whether every app is durable for now.
    pub const fn all_durable(&self) -> bool {
        self.all_durable
    }

    /// What was changed by [`Rules::set_app`], in order.
    pub fn changes(&self) -> &[(Vec<u8>, PolicyChange)] {
        &self.overrides
    }

    /// Shortest age, in milliseconds, at which a transaction of some app closes.
    pub fn due_age_ms_min(&self) -> u64 {
        let ages = self.policies().map(|policy| policy.due_age_ms());
        ages.min().unwrap_or(u64::MAX)
    }

    /// The policy of a store that has no apps, because everything in it is committed together: that
    /// of what lies in no app, within the limits of every app, whichever it may be that changes
    /// something; durable if any app is.
    pub fn policy_of_all(&self) -> AppPolicy {
        let ages = self.policies().map(|policy| policy.age_max_ms);
        let sizes = self.policies().map(|policy| policy.staleness_max_pages);
        let of_all = self.policy(b".");
        AppPolicy {
            age_max_ms: ages.min().unwrap_or(of_all.age_max_ms),
            staleness_max_pages: sizes.min().unwrap_or(of_all.staleness_max_pages),
            class: if self.has_durable() {
                Class::Durable
            } else {
                of_all.class
            },
            ..of_all
        }
    }

    /// Whether some app can be durable under these rules.
    pub fn has_durable(&self) -> bool {
        self.policies().any(|policy| policy.class == Class::Durable)
    }

    /// Whether an `fsync` means something for some app under these rules.
    pub fn needs_fsync(&self) -> bool {
        let closes = |policy: AppPolicy| policy.transactioning.begin().closes_at_fsync();
        self.has_durable() || self.policies().any(closes)
    }

    /// The policies of all apps.
    fn policies(&self) -> impl Iterator<Item = AppPolicy> {
        let matched = self.matched.iter();
        let matched = matched.map(|(_, change)| change.apply(self.defaults));
        let exact = self.overrides.iter().map(|(path, _)| self.policy(path));
        [self.defaults].into_iter().chain(matched).chain(exact)
    }
}

impl AppRules for Rules {
    fn is_app(&self, path: &[u8]) -> bool {
        self.apps.iter().any(|glob| glob.matches(path))
    }

    fn has_apps_below(&self, path: &[u8]) -> bool {
        self.apps.iter().any(|glob| glob.may_match_below(path))
    }

    fn depth_max(&self) -> Option<usize> {
        self.apps_depth_max
    }

    fn policy(&self, path: &[u8]) -> AppPolicy {
        let matched = self.matched.iter().find(|(glob, _)| glob.matches(path));
        let mut policy = matched.map_or(self.defaults, |(_, change)| change.apply(self.defaults));
        for (_, change) in self.overrides.iter().filter(|(exact, _)| exact == path) {
            policy = change.apply(policy);
        }
        if self.all_durable {
            policy.class = Class::Durable;
        }
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        let durable = PolicyChange::parse("class = \"durable\"");
        let slow = PolicyChange::parse("age_max_ms = 5");
        Rules::new(
            vec![AppGlob::new("*").unwrap(), AppGlob::new("home/*").unwrap()],
            AppPolicy::default(),
            vec![
                (AppGlob::new("bank-*").unwrap(), durable),
                (AppGlob::new("*").unwrap(), slow),
            ],
        )
    }

    #[test]
    fn a_star_stays_within_one_directory() {
        let rules = rules();
        assert!(rules.is_app(b"mail") && rules.is_app(b"home/ann"));
        assert!(!rules.is_app(b"mail/inbox") && !rules.is_app(b"home/ann/mail"));
        assert!(rules.is_app(b"\xff\xfe"), "names need not be UTF-8");
    }

    #[test]
    fn where_apps_may_be_below_is_known() {
        let below = |globs: &[&str], path: &str| {
            let globs = globs.iter().map(|glob| AppGlob::new(glob).unwrap());
            let rules = Rules::new(globs.collect(), AppPolicy::default(), Vec::new());
            rules.has_apps_below(path.as_bytes())
        };
        assert!(!below(&["*"], "mail"));
        assert!(below(&["*", "home/*"], "home"));
        assert!(!below(&["*", "home/*"], "homes") && !below(&["*", "home/*"], "home/ann"));
        assert!(below(&["*/data/*"], "x") && below(&["*/data/*"], "x/data"));
        assert!(!below(&["*/data/*"], "x/other") && !below(&["*/data/*"], "x/data/y"));
        assert!(below(&["a/**"], "z/y"), "it cannot be excluded");
        assert!(below(&["{a,b/c}"], "b"));
    }

    #[test]
    fn no_app_lies_deeper_than_the_rules_say() {
        let depth_max = |globs: &[&str]| {
            let globs = globs.iter().map(|glob| AppGlob::new(glob).unwrap());
            Rules::new(globs.collect(), AppPolicy::default(), Vec::new()).depth_max()
        };
        assert_eq!(depth_max(&["*"]), Some(1));
        assert_eq!(depth_max(&["*", "home/*"]), Some(2));
        assert_eq!(depth_max(&["*", "home/**"]), None);
        assert_eq!(depth_max(&[]), Some(0));
        for glob in ["a[!b]c", "{a,b/c}", "a/?/[a-z]", r"a\/b", "?[!x]?[!x]?"] {
            let max = depth_max(&[glob]).unwrap();
            let rule = AppGlob::new(glob).unwrap();
            let paths = [
                "a/c",
                "b/c",
                "a/b",
                "a/b/c",
                "a/b/c/d",
                "a/b/c/d/e",
                "a/b/c/d/e/f",
            ];
            for path in paths
                .into_iter()
                .filter(|path| rule.matches(path.as_bytes()))
            {
                assert!(path.split('/').count() <= max, "{glob} matches {path}");
            }
        }
    }

    #[test]
    fn the_first_match_decides_and_a_change_while_mounted_wins() {
        let mut rules = rules();
        assert_eq!(rules.policy(b"bank-one").class, Class::Durable);
        assert_eq!(
            rules.policy(b"bank-one").age_max_ms,
            AppPolicy::default().age_max_ms
        );
        assert_eq!(rules.policy(b"mail").age_max_ms, 5);
        assert_eq!(rules.policy(b"home/ann"), AppPolicy::default());
        let durable = PolicyChange::parse("class = \"durable\"");
        rules.set_app(b"mail", durable);
        assert_eq!(rules.policy(b"mail").class, Class::Durable);
        assert_eq!(rules.policy(b"mail").age_max_ms, 5);
    }

    #[test]
    fn what_is_committed_together_keeps_to_the_limits_of_every_app() {
        let mut rules = rules();
        assert_eq!(rules.policy_of_all().age_max_ms, 5);
        rules.set_app(b".", PolicyChange::parse("policy = \"quiet\""));
        let of_all = rules.policy_of_all();
        assert_eq!(of_all.age_max_ms, 5);
        assert_eq!(of_all.transactioning, rules.policy(b".").transactioning);
        let staleness_max_pages = AppPolicy::default().staleness_max_pages;
        assert_eq!(of_all.staleness_max_pages, staleness_max_pages);
    }

    #[test]
    fn bad_globs_are_refused() {
        assert!(AppGlob::new("/abs").unwrap_err().contains("outer slashes"));
        assert!(AppGlob::new("a[").unwrap_err().contains("not a valid glob"));
    }
}
