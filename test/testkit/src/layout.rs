//! Which directories are apps in a test, and which of these are durable.

use mobifs_base::FileKind;

/// The app of everything that lies in no other.
pub const ROOT_APP: &str = ".";

/// Apps of a mount: what its configuration says, and the same for the oracles.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The configuration of the mount.
    pub config: &'static str,
    /// Whether there are apps below the top.
    pub has_nested_apps: bool,
    /// Whether a directory at this path is an app.
    is_app: fn(&str) -> bool,
    /// Whether a directory at this path, below the root, may have apps as entries.
    hosts_apps: fn(&str) -> bool,
    /// Whether the app at this path is durable.
    is_durable: fn(&str) -> bool,
}

impl Layout {
    /// The app that the object at a path belongs to.
    pub fn app_of(&self, path: &str, kind: FileKind) -> String {
        let ends = path.match_indices('/').map(|(at, _)| at);
        let whole = (kind == FileKind::Directory && !path.is_empty()).then_some(path.len());
        let directories = ends.chain(whole).map(|end| &path[..end]);
        let mut apps = directories.filter(|directory| (self.is_app)(directory));
        apps.next_back().unwrap_or(ROOT_APP).to_owned()
    }

    /// Whether a directory may have entries that belong to other apps than itself: its times
    /// and its number of links change with these.
    pub fn hosts_apps(&self, path: &str) -> bool {
        path.is_empty() || (self.hosts_apps)(path)
    }

    /// Whether an `fsync` in this app waits.
    pub fn is_durable(&self, app: &str) -> bool {
        (self.is_durable)(app)
    }
}

fn is_top_level(path: &str) -> bool {
    !path.contains('/')
}

/// `apps = ["*", "*/a", "*/b", "*/a/c"]`.
fn is_nested_app(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts[..], [_] | [_, "a" | "b"] | [_, "a", "c"])
}

fn hosts_nested_apps(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts[..], [_] | [_, "a"])
}

/// The default: every top-level directory is an app; `gamma` is durable.
pub const TOP_LEVEL: Layout = Layout {
    config: "[[app]]\nmatch = \"gamma\"\nclass = \"durable\"\n",
    has_nested_apps: false,
    is_app: is_top_level,
    hosts_apps: |_| false,
    is_durable: |app| app == "gamma",
};

/// Every top-level directory is an app; none is durable.
pub const RELAXED: Layout = Layout {
    config: "",
    is_durable: |_| false,
    ..TOP_LEVEL
};

/// `gamma` and what lies in no app are durable.
pub const DURABLE_ROOT: Layout = Layout {
    config: "[[app]]\nmatch = \".\"\nclass = \"durable\"\n\
             [[app]]\nmatch = \"gamma\"\nclass = \"durable\"\n",
    is_durable: |app| app == "gamma" || app == ROOT_APP,
    ..TOP_LEVEL
};

/// Apps within apps; durable and relaxed ones lie in each other.
pub const NESTED: Layout = Layout {
    config: "apps = [\"*\", \"*/a\", \"*/b\", \"*/a/c\"]\n\
             [[app]]\nmatch = \".\"\nclass = \"durable\"\n\
             [[app]]\nmatch = \"gamma\"\nclass = \"durable\"\n\
             [[app]]\nmatch = \"*/a\"\nclass = \"durable\"\n",
    has_nested_apps: true,
    is_app: is_nested_app,
    hosts_apps: hosts_nested_apps,
    is_durable: |app| {
        let parts: Vec<&str> = app.split('/').collect();
        matches!(parts[..], ["." | "gamma"] | [_, "a"])
    },
};

/// Apps within apps, all durable.
pub const NESTED_DURABLE: Layout = Layout {
    config: "apps = [\"*\", \"*/a\", \"*/b\", \"*/a/c\"]\n[defaults]\nclass = \"durable\"\n",
    is_durable: |_| true,
    ..NESTED
};

/// All of them.
pub const ALL: [Layout; 5] = [TOP_LEVEL, RELAXED, DURABLE_ROOT, NESTED, NESTED_DURABLE];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mobifs_engine::{AppRules as _, Class};
    use mobifs_volume::Config;

    use super::*;

    #[test]
    fn the_oracles_know_what_the_configurations_say() {
        let paths = [
            "alpha", "gamma", "a", "gamma/a", "alpha/a", "alpha/b", "alpha/c", "a/a/c", "a/a/a/c",
            "b/b/c",
        ];
        for layout in ALL {
            let config = Config::parse(layout.config, Path::new("test.toml")).unwrap();
            for path in paths {
                let is_app = layout.app_of(path, FileKind::Directory) == path;
                assert_eq!(is_app, config.rules.is_app(path.as_bytes()), "{path}");
                let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                assert!(!is_app || layout.hosts_apps(parent), "{path}");
            }
            for path in paths.into_iter().chain([ROOT_APP]) {
                let class = config.rules.policy(path.as_bytes()).class;
                assert_eq!(layout.is_durable(path), class == Class::Durable, "{path}");
            }
        }
    }

    #[test]
    fn the_nearest_app_above_counts() {
        let app_of = |path| NESTED.app_of(path, FileKind::Regular);
        assert_eq!(app_of("file"), ROOT_APP);
        assert_eq!(app_of("alpha/a"), "alpha");
        assert_eq!(app_of("alpha/a/x"), "alpha/a");
        assert_eq!(app_of("alpha/a/c/x/y"), "alpha/a/c");
        assert_eq!(app_of("alpha/c/a/x"), "alpha");
        assert_eq!(NESTED.app_of("", FileKind::Directory), ROOT_APP);
        assert_eq!(NESTED.app_of("alpha/b", FileKind::Directory), "alpha/b");
    }
}
