//! What goes over the control socket: one JSON object a line, requests one way, replies
//! the other.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::keep::Keep;

/// A copy that a host is about to make within a device: whole pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemapPair {
    /// Where the content is, in bytes.
    pub from: u64,
    /// Where it will be written.
    pub to: u64,
    /// How much.
    pub bytes: u64,
}

/// What a served device can be asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Tell what was counted.
    Stats,
    /// Take the power away.
    Cut {
        /// What that leaves.
        keep: Keep,
    },
    /// Give the power back.
    PowerOn,
    /// Expect these copies, besides those that it expects already. The next write to each page, if
    /// it brings what the source holds, shares its content instead of being programmed.
    Remap {
        /// At most a few hundred; a request is a line of 64 KiB.
        pairs: Vec<RemapPair>,
    },
    /// Expect no copies any more.
    RemapEnd,
}

/// Why a request failed, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request makes no sense, now or ever.
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
    /// The answer to [`Request::Stats`].
    Stats {
        /// The document.
        stats: Value,
    },
    /// The power is off.
    Cut {
        /// What that did.
        report: Value,
    },
    /// The power is on and the device ready.
    PoweredOn {
        /// What the device found.
        report: Value,
        /// The loop device for this power cycle, if there is one: not the same as before.
        loop_device: Option<PathBuf>,
    },
    /// The copies are expected.
    RemapExpected,
    /// No copies are expected any more.
    RemapEnded {
        /// Pages whose copies had not arrived.
        pages_forgotten: u64,
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
    /// A failure.
    pub(crate) fn error(kind: ErrorKind, message: impl Into<String>) -> Self {
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
        let pairs = [
            (Request::Stats, r#"{"command":"stats"}"#),
            (
                Request::Cut { keep: Keep::None },
                r#"{"command":"cut","keep":"none"}"#,
            ),
            (
                Request::Cut {
                    keep: Keep::Random { seed: 5 },
                },
                r#"{"command":"cut","keep":{"random":{"seed":5}}}"#,
            ),
            (Request::PowerOn, r#"{"command":"power-on"}"#),
            (
                Request::Remap {
                    pairs: vec![RemapPair {
                        from: 4096,
                        to: 0,
                        bytes: 4096,
                    }],
                },
                r#"{"command":"remap","pairs":[{"from":4096,"to":0,"bytes":4096}]}"#,
            ),
            (Request::RemapEnd, r#"{"command":"remap-end"}"#),
        ];
        for (request, text) in pairs {
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        }
        assert!(serde_json::from_str::<Request>(r#"{"command":"explode"}"#).is_err());
    }
}
