//! The store as text, one object a line, and a store made of such lines: what a backup holds.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::disk::{self, Disk};
use super::medium::{Medium, Place};
use super::{Body, EventKind, FILE, Key, Object, OpenError, PROMISES, Store};

/// Everything at one revision.
#[derive(Clone, Debug)]
pub struct Archive {
    /// The last one assigned.
    pub revision: u64,
    /// In order of their keys.
    pub objects: Vec<Arc<Object>>,
}

/// A line that holds no object.
#[derive(Debug, thiserror::Error)]
#[error("not an object of an archive")]
pub struct LineError(#[source] Option<serde_json::Error>);

impl Archive {
    /// A consistent view of a store that is in use.
    pub fn of(store: &Store) -> Self {
        loop {
            let revision = store.revision();
            let resources = store.resources();
            let objects: Result<Vec<_>, _> =
                resources.iter().map(|resource| store.list_at(resource, None, revision)).collect();
            // The history is short and the writers were many: at once again.
            let Ok(snapshots) = objects else { continue };
            return Self { revision, objects: snapshots.into_iter().flat_map(|snapshot| snapshot.objects).collect() };
        }
    }

    /// What the store in `dir` holds, while nobody uses it.
    ///
    /// # Errors
    /// As when it is opened; also when there is none.
    pub fn read(dir: &Path) -> Result<Self, OpenError> {
        let file = dir.join(FILE);
        file.metadata()
            .map_err(|source| OpenError::File { path: file.display().to_string(), source: source.into() })?;
        let (disk, objects) = Disk::open(dir)?;
        Ok(Self { revision: disk.revision(), objects: objects.into_iter().map(Arc::new).collect() })
    }

    /// Makes a store of it in `dir`, which must not have one.
    ///
    /// # Errors
    /// When it cannot be written, or there is one.
    pub fn write(&self, dir: &Path) -> Result<(), OpenError> {
        let place = Place::open(dir, |database| {
            disk::begin(&database, self.revision)?;
            disk::fill(&database, self.revision, &self.objects).map(drop)
        })?;
        place.promise(self.revision);
        drop(place);
        // What is there may be another store that was there before, or twice the same object.
        let found = Self::read(dir)?;
        if found.revision == self.revision && found.objects.len() == self.objects.len() {
            return Ok(());
        }
        Err(OpenError::damaged(&dir.join(FILE).display().to_string(), "it holds something else than was written"))
    }
}

/// The revision that was acknowledged last in `dir`, however damaged the store itself may be; 0 if that is not known.
pub fn acknowledged(dir: &Path) -> u64 {
    super::medium::read_promise(&dir.join(PROMISES))
}

/// One line, its end included.
pub fn line(object: &Object) -> Vec<u8> {
    let key = json!({"resource": *object.key.resource, "namespace": *object.key.namespace, "name": *object.key.name});
    let mut line = key.to_string().into_bytes();
    line.pop();
    line.extend_from_slice(b",\"object\":");
    line.extend_from_slice(&object.json);
    line.extend_from_slice(b"}\n");
    line
}

/// Reads a line back.
///
/// # Errors
/// When it holds anything else.
pub fn parse(line: &str) -> Result<Object, LineError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        resource: String,
        namespace: String,
        name: String,
        object: Value,
    }
    let line: Line = serde_json::from_str(line).map_err(|error| LineError(Some(error)))?;
    let revision = line.object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
    let words = [&line.resource, &line.namespace, &line.name];
    if line.resource.is_empty() || line.name.is_empty() || words.iter().any(|word| word.contains('\0')) {
        return Err(LineError(None));
    }
    let key = Key::new(&line.resource, &line.namespace, &line.name);
    Ok(Body::new(line.object).finish(key, revision.ok_or(LineError(None))?, EventKind::Added))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_comes_back_with_its_revisions() {
        let store = Store::open(None, 64).unwrap();
        for name in ["a", "b\"\\"] {
            let object = json!({"metadata": {"name": name, "labels": {"l": "m"}}, "data": {"text": "line\nbreak"}});
            store.create(Key::new("configmaps", "default", name), object).await.unwrap();
        }
        store.create(Key::new("nodes", "", "n"), json!({"metadata": {}})).await.unwrap();
        let archive = Archive::of(&store);
        let text: Vec<u8> = archive.objects.iter().flat_map(|object| line(object)).collect();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.lines().count(), 3);
        let objects = text.lines().map(|line| Arc::new(parse(line).unwrap())).collect();
        let dir = tempfile::tempdir().unwrap();
        Archive { revision: 900, objects }.write(dir.path()).unwrap();
        let again = Store::open(Some(dir.path()), 64).unwrap();
        assert_eq!((again.revision(), again.count("configmaps")), (900, 2));
        for object in archive.objects {
            let found = again.get(&object.key.resource, &object.key.namespace, &object.key.name).unwrap();
            assert_eq!((&found.json, found.revision, &found.labels), (&object.json, object.revision, &object.labels));
        }
        assert!(again.watch("configmaps", None, 899).is_err(), "what a client saw before is gone");
        assert!(Archive { revision: 1, objects: Vec::new() }.write(dir.path()).is_err(), "there is one, in use");
    }

    #[test]
    fn other_lines_are_refused() {
        for wrong in [
            "",
            "{}",
            r#"{"resource":"pods","namespace":"","name":"a","object":{}}"#,
            r#"{"resource":"pods","namespace":"","name":"","object":{"metadata":{"resourceVersion":"1"}}}"#,
            r#"{"resource":"pods","namespace":"","name":"a\u0000","object":{"metadata":{"resourceVersion":"1"}}}"#,
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
