//! What goes over the control socket: one JSON object a line, requests one way,
//! replies the other.

use serde::{Deserialize, Serialize};

use crate::totals::DayTotals;
use mobifs_volume::{AppName, AppSelection, CalibrationReport, PolicySettings, Status};

/// What a mount can be asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Report the status.
    Status {
        /// In which apps.
        #[serde(default, skip_serializing_if = "is_all")]
        select: AppSelection,
    },
    /// Commit.
    Sync {
        /// One app by its path relative to the mount; none: all.
        app: Option<AppName>,
        /// Also bring everything to its final place.
        apply: bool,
    },
    /// Commit and apply everything, then end the mount.
    Unmount {
        /// Take the mount out of the tree although it is in use, and end when the last
        /// user leaves.
        lazy: bool,
        /// The kernel's number of the mount that is meant: of one filesystem there may be several
        /// mounts, and the daemon ends only its own. None: that one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mount_id: Option<u64>,
    },
    /// Stop to steer the filesystem, and restore its mount options.
    StopSteering,
    /// End the mount as a power cut would.
    PowerCut,
    /// Load the configuration again.
    Reload {
        /// Another file than the one given at mount.
        config: Option<String>,
    },
    /// The user is active.
    Touch,
    /// The screen was switched on or off.
    Screen {
        /// On.
        on: bool,
    },
    /// Report what was written and saved, day by day.
    Totals,
    /// Measure the device below the store again.
    Calibrate,
    /// Change settings of one app until the configuration is loaded again.
    Set {
        /// The app, by its path relative to the mount.
        app: AppName,
        /// What is to change.
        settings: Box<PolicySettings>,
    },
}

fn is_all(selection: &AppSelection) -> bool {
    *selection == AppSelection::default()
}

/// Why a request failed, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The mount is in use.
    Busy,
    /// The request makes no sense.
    Usage,
    /// The requester may not.
    NotPermitted,
    /// Anything else.
    Failed,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// Done.
    Done,
    /// There was nothing to do: the answer to [`Request::Reload`] of what is in force already.
    Unchanged,
    /// The answer to [`Request::Reload`] where some keys have changed that only the next mount takes over.
    Waits {
        /// Whether anything has changed at once.
        has_changed: bool,
        /// The names of the keys.
        keys: Vec<String>,
    },
    /// Done; the mount is out of the tree, and its daemon ends with its last user.
    Detached {
        /// What keeps the filesystem in use although no program had anything open in the mount:
        /// bind mounts, copies in other mount namespaces. Empty where that cannot be seen.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        used_by: Vec<String>,
    },
    /// Not done, because the mount that is meant is another one of this daemon's filesystem: a
    /// bind mount, or a copy in another mount namespace. The requester can unmount it.
    AnotherMount,
    /// The answer to [`Request::Status`].
    Status {
        /// The state.
        status: Box<Status>,
    },
    /// The answer to [`Request::Totals`].
    Totals {
        /// The days on which anything happened, the oldest first.
        days: Vec<DayTotals>,
    },
    /// The answer to [`Request::Calibrate`].
    Calibration {
        /// What was measured.
        calibration: CalibrationReport,
    },
    /// It could not be done.
    Error {
        /// Why, for programs.
        kind: ErrorKind,
        /// Why, for people.
        message: String,
    },
}

impl Reply {
    /// What a reload has come to: whether anything has changed at once, and the keys that wait for the next mount.
    #[must_use]
    pub fn reloaded(has_changed: bool, waiting: &[&str]) -> Self {
        match (has_changed, waiting) {
            (true, []) => Self::Done,
            (false, []) => Self::Unchanged,
            (has_changed, waiting) => Self::Waits {
                has_changed,
                keys: waiting.iter().map(|&key| key.to_owned()).collect(),
            },
        }
    }

    /// A failure.
    pub fn error(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Error {
            kind,
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_keep_their_form() {
        let text = r#"{"command":"sync","app":"mail","apply":true}"#;
        let request = Request::Sync {
            app: Some("mail".into()),
            apply: true,
        };
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        let text = r#"{"command":"set","app":"a","settings":{"class":"durable","interval_ms":5}}"#;
        let request = Request::Set {
            app: "a".into(),
            settings: Box::new(PolicySettings {
                class: Some("durable".into()),
                interval_ms: Some(5),
                ..PolicySettings::default()
            }),
        };
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        let request = Request::Status {
            select: AppSelection::default(),
        };
        let text = r#"{"command":"status"}"#;
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        let text = r#"{"command":"screen","on":false}"#;
        let request = Request::Screen { on: false };
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        let text = r#"{"command":"unmount","lazy":true}"#;
        let request = Request::Unmount {
            lazy: true,
            mount_id: None,
        };
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        let text = serde_json::to_string(&Request::PowerCut).unwrap();
        assert_eq!(text, r#"{"command":"power-cut"}"#);
        assert!(serde_json::from_str::<Request>(r#"{"command":"explode"}"#).is_err());
        let text = r#"{"reply":"detached"}"#;
        let reply = Reply::Detached { used_by: vec![] };
        assert_eq!(serde_json::to_string(&reply).unwrap(), text);
        assert_eq!(serde_json::from_str::<Reply>(text).unwrap(), reply);
    }
}
