//! The saved state of a killed daemon's mount, and the store's restart state.

use std::collections::HashMap;

use mobifs_base::codec::{Reader, Writer};
use mobifs_base::{ByteRange, FileKind, Name, ObjectId, ObjectInfo, Page};
use mobifs_engine::persist::{Key, Kind};
use mobifs_engine::{Engine, EngineConfig};
use mobifs_store::{Intent, KnownLocation, KnownObject, RestartSink, RestartState};

use super::Arena;
use super::errors::ArenaError;
use super::records::{RawKey, layout_of};
use crate::{PolicyChange, PolicySettings};

/// Kinds of the store's records.
pub(super) const STORE_OBJECT: u8 = 80;
pub(super) const STORE_INTENT: u8 = 81;
/// What `mobifs set` has changed since the mount.
const SETTINGS: u8 = 82;

const DAMAGED: ArenaError = ArenaError::Damaged("the saved state of the store cannot be read");

/// The state of a mount between two operations.
#[derive(Debug)]
pub(crate) struct SavedMount {
    engine: Vec<(Key, Vec<u8>)>,
    /// What `mobifs set` has changed since the mount: app and change, in order.
    pub(crate) settings: Vec<(Vec<u8>, PolicyChange)>,
    /// The store's restart state.
    pub(crate) store: RestartState,
}

impl Arena {
    /// The saved state of a killed daemon; none if no mount was ever served here.
    ///
    /// # Errors
    /// [`ArenaError::Damaged`].
    pub(crate) fn saved(&self) -> Result<Option<SavedMount>, ArenaError> {
        let records = self.shared.records.lock();
        let mut saved = SavedMount {
            engine: Vec::new(),
            settings: Vec::new(),
            store: RestartState::default(),
        };
        for (key, value) in records.all() {
            match key.kind {
                STORE_OBJECT => {
                    let known = read_object(&mut Reader::new(&value)).ok_or(DAMAGED)?;
                    saved.store.objects.push((ObjectId(key.first), known));
                }
                STORE_INTENT => {
                    let intent = read_intent(&mut Reader::new(&value)).ok_or(DAMAGED)?;
                    saved.store.intent = Some(intent);
                }
                SETTINGS => saved.settings = read_settings(&value).ok_or(DAMAGED)?,
                kind => {
                    // Requests' records are looked at one by one, later.
                    let Some(kind) = Kind::of(kind) else { continue };
                    let (first, second) = (key.first, key.second);
                    let key = Key {
                        kind,
                        first,
                        second,
                    };
                    let named = mobifs_engine::persist::named_in(key, &value);
                    let above = &mut saved.store.ids_above;
                    *above = named.map_or(*above, |id| id.0.max(*above));
                    saved.engine.push((key, value));
                }
            }
        }
        Ok((!saved.engine.is_empty()).then_some(saved))
    }
}

impl SavedMount {
    /// Whether it has this transaction, closed and not known to be committed.
    pub(crate) fn has_closed(&self, transaction: u64) -> bool {
        let mut keys = self.engine.iter().map(|(key, _)| key);
        keys.any(|key| key.kind == Kind::Closed && key.first == transaction)
    }

    /// The engine in its saved state.
    ///
    /// # Errors
    /// [`ArenaError::Damaged`].
    pub(crate) fn restore(
        &self,
        arena: &Arena,
        config: EngineConfig,
        root: &ObjectInfo,
    ) -> Result<Engine, ArenaError> {
        let mut pages: HashMap<usize, Page> = HashMap::new();
        let size = arena.shared.region.mapped_bytes();
        let chunks_at = layout_of(&arena.shared.region).chunks_at;
        let mut page_at = |place: u64, length: usize| {
            let offset = usize::try_from(place)
                .ok()
                .filter(|&offset| offset >= chunks_at && offset.saturating_add(length) <= size)?;
            let page = pages
                .entry(offset)
                .or_insert_with(|| arena.page_at(offset, length));
            (page.stored_bytes() == length).then(|| page.clone())
        };
        let spilled = self.store.objects.iter();
        let spilled = spilled.filter(|(_, known)| !known.spilled.is_empty());
        let spilled: Vec<ObjectId> = spilled.map(|(id, _)| *id).collect();
        let mut records = self.engine.iter().map(|(key, value)| (*key, &value[..]));
        let restored = Engine::restore(config, root, &mut records, &mut page_at, &spilled);
        let places = pages.keys().copied().collect();
        let engine = restored.map_err(|error| {
            tracing::error!(%error, "cannot read the killed daemon's state");
            ArenaError::Damaged(error.0)
        });
        // Before any page is dropped, which would release its slot.
        arena.shared.records.lock().claim_content(places)?;
        engine
    }
}

impl Arena {
    /// Keeps what `mobifs set` has changed since the mount.
    pub(crate) fn keep_settings(&self, settings: &[(Vec<u8>, PolicyChange)]) {
        let key = RawKey {
            kind: SETTINGS,
            first: 0,
            second: 0,
        };
        let mut out = Writer::default();
        for (path, change) in settings {
            match serde_json::to_vec(change.settings()) {
                Ok(settings) => {
                    out.long_bytes(path);
                    out.long_bytes(&settings);
                }
                // Integers and texts can always be written.
                Err(error) => tracing::error!(%error, "settings are lost if this process dies"),
            }
        }
        self.change_record(key, Some(out.as_bytes()));
    }

    /// The keys of all records but those of entries, whose cookies differ each time; in order.
    #[cfg(test)]
    pub(crate) fn record_keys(&self) -> Vec<(u8, u64, u64)> {
        let records = self.shared.records.lock();
        let keys = records
            .all()
            .map(|(key, _)| (key.kind, key.first, key.second));
        let mut keys: Vec<_> = keys.filter(|key| key.0 != Kind::Dentry as u8).collect();
        keys.sort_unstable();
        keys
    }

    /// Loses a record; for tests.
    #[cfg(test)]
    pub(crate) fn lose_record(&self, (kind, first, second): (u8, u64, u64)) {
        let key = RawKey {
            kind,
            first,
            second,
        };
        self.change_record(key, None);
    }

    fn change_record(&self, key: RawKey, value: Option<&[u8]>) {
        let mut records = self.shared.records.lock();
        match value {
            Some(value) => records.put(key, value),
            None => records.remove(key),
        }
        records.commit(Vec::new());
    }
}

impl RestartSink for Arena {
    fn object(&self, id: ObjectId, known: Option<&KnownObject>) {
        let key = RawKey {
            kind: STORE_OBJECT,
            first: id.0,
            second: 0,
        };
        let value = known.map(|known| {
            let mut out = Writer::default();
            write_object(&mut out, known);
            out.into_bytes()
        });
        self.change_record(key, value.as_deref());
    }

    fn intent(&self, intent: Option<Intent>) {
        let key = RawKey {
            kind: STORE_INTENT,
            first: 0,
            second: 0,
        };
        let value = intent.map(|intent| {
            let mut out = Writer::default();
            write_intent(&mut out, &intent);
            out.into_bytes()
        });
        self.change_record(key, value.as_deref());
    }
}

pub(super) fn write_object(out: &mut Writer, known: &KnownObject) {
    out.u8(u8::from(known.is_pinned));
    out.u64(known.spilled.len() as u64);
    for range in &known.spilled {
        out.u64(range.start);
        out.u64(range.end);
    }
    let Some(location) = &known.location else {
        return;
    };
    out.u64(location.inode);
    out.u8((location.kind.mode_bits() >> 12) as u8);
    out.u8(u8::from(location.in_limbo));
    out.u8(u8::from(location.in_stage));
    for (parent, name) in &location.names {
        out.u64(parent.0);
        out.long_bytes(name.as_bytes());
    }
}

pub(super) fn read_object(from: &mut Reader<'_>) -> Option<KnownObject> {
    let mut known = KnownObject {
        is_pinned: from.u8().ok()? != 0,
        ..KnownObject::default()
    };
    for _ in 0..from.u64().ok()? {
        let (start, end) = (from.u64().ok()?, from.u64().ok()?);
        known.spilled.push(ByteRange { start, end });
    }
    let Ok(inode) = from.u64() else {
        return Some(known);
    };
    let mut location = KnownLocation {
        inode,
        kind: FileKind::from_mode(u32::from(from.u8().ok()?) << 12)?,
        names: Vec::new(),
        in_limbo: from.u8().ok()? != 0,
        in_stage: from.u8().ok()? != 0,
    };
    while let Ok(parent) = from.u64() {
        let name = Name::new(from.long_bytes().ok()?).ok()?;
        location.names.push((ObjectId(parent), name));
    }
    known.location = Some(location);
    Some(known)
}

fn read_settings(bytes: &[u8]) -> Option<Vec<(Vec<u8>, PolicyChange)>> {
    let mut from = Reader::new(bytes);
    let mut settings = Vec::new();
    while let Ok(path) = from.long_bytes() {
        let written: PolicySettings = serde_json::from_slice(from.long_bytes().ok()?).ok()?;
        let change = written.change().ok()?;
        settings.push((path.to_vec(), change));
    }
    Some(settings)
}

pub(super) fn write_intent(out: &mut Writer, intent: &Intent) {
    out.list(intent.tags.iter(), |out, tag| out.u64(*tag));
    out.u64(intent.epoch);
    out.u64(intent.sequence);
}

pub(super) fn read_intent(from: &mut Reader<'_>) -> Option<Intent> {
    Some(Intent {
        tags: from.list(Reader::u64).ok()?,
        epoch: from.u64().ok()?,
        sequence: from.u64().ok()?,
    })
}
