//! What the store must do, in a few lines: keys with a revision and bytes, and the log of what happened.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::super::writer::Change;
use super::super::{Body, EventKind, Key, WriteError};

pub(super) const RESOURCES: [&str; 2] = ["pods", "leases.coordination.k8s.io"];
const NAMES: usize = 9;

/// What a client asks for.
#[derive(Clone, Debug)]
pub(super) enum Wish {
    Create(Value),
    Update(Value, u64),
    Delete(u64),
}

impl Wish {
    pub(super) fn change(&self) -> Change {
        match self {
            Self::Create(object) => Change::Create(Body::new(object.clone())),
            Self::Update(object, seen) => Change::Update(Body::new(object.clone()), *seen),
            Self::Delete(seen) => Change::Delete(*seen),
        }
    }
}

/// One change that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) revision: u64,
    pub(super) kind: EventKind,
    pub(super) key: Key,
    pub(super) json: Vec<u8>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) revision: u64,
    pub(super) objects: BTreeMap<Key, (u64, Vec<u8>)>,
    /// Without the revision, which a removal replaces.
    contents: BTreeMap<Key, String>,
    pub(super) log: Vec<Step>,
}

impl Model {
    pub(super) fn new(revision: u64) -> Self {
        Self { revision, objects: BTreeMap::new(), contents: BTreeMap::new(), log: Vec::new() }
    }

    pub(super) fn apply(&mut self, key: &Key, wish: &Wish) -> Result<u64, WriteError> {
        let now = self.objects.get(key).map(|(revision, _)| *revision);
        let (kind, content) = match (wish, now) {
            (Wish::Create(_), Some(_)) => return Err(WriteError::Exists),
            (Wish::Update(..) | Wish::Delete(_), None) => return Err(WriteError::Missing),
            (Wish::Update(_, seen) | Wish::Delete(seen), Some(now)) if *seen != now => return Err(WriteError::Changed),
            (Wish::Create(object), None) => (EventKind::Added, object.to_string()),
            (Wish::Update(object, _), Some(_)) => (EventKind::Modified, object.to_string()),
            (Wish::Delete(_), Some(_)) => (EventKind::Deleted, self.contents[key].clone()),
        };
        self.revision += 1;
        let mut object: Value = serde_json::from_str(&content).unwrap();
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let json = object.to_string().into_bytes();
        if kind == EventKind::Deleted {
            self.objects.remove(key);
            self.contents.remove(key);
        } else {
            self.objects.insert(key.clone(), (self.revision, json.clone()));
            self.contents.insert(key.clone(), content);
        }
        self.log.push(Step { revision: self.revision, kind, key: key.clone(), json });
        Ok(self.revision)
    }

    /// Something a client may ask for next, usually sensible.
    pub(super) fn wish(&self, rng: &mut StdRng) -> (Key, Wish) {
        let resource = RESOURCES[rng.random_range(0..RESOURCES.len())];
        let name = format!("o{}", rng.random_range(0..NAMES));
        let key = Key::new(resource, "default", &name);
        // Small ones share a page, large ones take several.
        let length = if rng.random_bool(0.1) { rng.random_range(0..20_000) } else { rng.random_range(0..600) };
        let object = json!({"metadata": {"labels": {"n": rng.random_range(0..3).to_string()}, "name": name},
            "n": rng.random::<u32>(), "text": "x".repeat(length)});
        let stale = rng.random_bool(0.05);
        let seen = self.objects.get(&key).map(|(revision, _)| revision - u64::from(stale));
        let wish = match seen {
            Some(_) if rng.random_bool(0.05) => Wish::Create(object),
            Some(seen) if rng.random_bool(0.3) => Wish::Delete(seen),
            Some(seen) => Wish::Update(object, seen),
            None if rng.random_bool(0.05) => Wish::Delete(1),
            None => Wish::Create(object),
        };
        (key, wish)
    }
}
