//! A restart-state sink that keeps its records.

use std::collections::BTreeMap;

use mobifs_base::ObjectId;
use mobifs_store::{Intent, KnownObject, RestartSink, RestartState};
use parking_lot::Mutex;

/// Called after every report.
type Hook = Box<dyn FnMut() + Send>;

/// What survives a killed process, as a plain map.
#[derive(Default)]
pub(super) struct Book {
    heard: Mutex<Heard>,
    hook: Mutex<Option<Hook>>,
}

#[derive(Default)]
struct Heard {
    objects: BTreeMap<ObjectId, KnownObject>,
    intent: Option<Intent>,
}

impl Book {
    /// A sink that has this state already.
    pub(super) fn of(saved: &RestartState) -> Self {
        let heard = Heard {
            objects: saved.objects.iter().cloned().collect(),
            intent: saved.intent,
        };
        Self {
            heard: Mutex::new(heard),
            hook: Mutex::new(None),
        }
    }

    pub(super) fn saved(&self) -> RestartState {
        let heard = self.heard.lock();
        let objects = heard.objects.iter();
        RestartState {
            objects: objects.map(|(id, known)| (*id, known.clone())).collect(),
            intent: heard.intent,
            ids_above: 0,
        }
    }

    pub(super) fn set_hook(&self, hook: Hook) {
        *self.hook.lock() = Some(hook);
    }

    /// Ends [`Book::set_hook`].
    pub(super) fn clear_hook(&self) {
        *self.hook.lock() = None;
    }

    fn heard(&self) {
        // Taken out meanwhile, because what it does may be slow.
        let hook = self.hook.lock().take();
        if let Some(mut hook) = hook {
            hook();
            *self.hook.lock() = Some(hook);
        }
    }
}

impl RestartSink for Book {
    fn object(&self, id: ObjectId, known: Option<&KnownObject>) {
        match known {
            Some(known) => self.heard.lock().objects.insert(id, known.clone()),
            None => self.heard.lock().objects.remove(&id),
        };
        self.heard();
    }

    fn intent(&self, intent: Option<Intent>) {
        self.heard.lock().intent = intent;
        self.heard();
    }
}
