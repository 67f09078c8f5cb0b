//! A restart-state sink that keeps its records.

use std::collections::BTreeMap;

use mobifs_base::ObjectId;
use mobifs_store::{Intent, KnownObject, RestartSink, RestartState};
use parking_lot::Mutex;

/// Called after every report.
type Hook = Box<dyn FnMut() + Send>;

/// What survives a killed process, as a plain map.
#[derive(Default)]
pub(super) struct RecordingSink {
    recorded: Mutex<Recorded>,
    hook: Mutex<Option<Hook>>,
}

#[derive(Default)]
struct Recorded {
    objects: BTreeMap<ObjectId, KnownObject>,
    intent: Option<Intent>,
}

impl RecordingSink {
    /// A sink that has this state already.
    pub(super) fn of(saved: &RestartState) -> Self {
        let recorded = Recorded {
            objects: saved.objects.iter().cloned().collect(),
            intent: saved.intent.clone(),
        };
        Self {
            recorded: Mutex::new(recorded),
            hook: Mutex::new(None),
        }
    }

    pub(super) fn saved(&self) -> RestartState {
        let recorded = self.recorded.lock();
        let objects = recorded.objects.iter();
        RestartState {
            objects: objects.map(|(id, known)| (*id, known.clone())).collect(),
            intent: recorded.intent.clone(),
            ids_above: 0,
        }
    }

    pub(super) fn set_hook(&self, hook: Hook) {
        *self.hook.lock() = Some(hook);
    }

    /// Ends [`RecordingSink::set_hook`].
    pub(super) fn clear_hook(&self) {
        *self.hook.lock() = None;
    }

    fn reported(&self) {
        // Taken out meanwhile, because what it does may be slow.
        let hook = self.hook.lock().take();
        if let Some(mut hook) = hook {
            hook();
            *self.hook.lock() = Some(hook);
        }
    }
}

impl RestartSink for RecordingSink {
    fn object(&self, id: ObjectId, known: Option<&KnownObject>) {
        match known {
            Some(known) => self.recorded.lock().objects.insert(id, known.clone()),
            None => self.recorded.lock().objects.remove(&id),
        };
        self.reported();
    }

    fn intent(&self, intent: Option<Intent>) {
        self.recorded.lock().intent = intent;
        self.reported();
    }
}
