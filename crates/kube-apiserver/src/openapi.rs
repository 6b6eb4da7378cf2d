//! OpenAPI documents of everything served, derived from the registry.
//!
//! ```text
//! Registry ──> Parts (components + paths of one group version) ──> /openapi/v3/…
//!                     └── all of them, in the older dialect ──────> /openapi/v2 (JSON or protobuf)
//! what extension servers say of themselves ───────────────────────────┘ and /openapi/v3/apis/GROUP/VERSION
//! ```
//!
//! Documents are built when asked for and not kept: clients cache them by hash. Only the hashes are remembered, for as
//! long as the registry stays the same.

mod component;
pub(crate) mod descriptions;
pub mod extension;
mod paths;
mod protobuf;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

pub use component::Dialect;
pub(crate) use descriptions::Descriptions;
use extension::Part;
pub use protobuf::encode as encode_v2;

use crate::registry::{Registry, Resource};

/// The media type of the protobuf form. Clients ask for it with an `@` in place of the second dot, which no parser of
/// media types accepts in an answer.
pub const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Hashes of the documents of the latest registry.
#[derive(Debug, Default)]
pub struct Cache {
    latest: Mutex<Option<(Arc<Registry>, Arc<Hashes>)>>,
}

/// Hash by document path (`api/v1`, `apis/apps/v1`).
type Hashes = BTreeMap<String, String>;

impl Cache {
    /// `/openapi/v3`: the documents, and those of extension servers, with a hash in each address, so that clients may keep them
    /// for ever.
    pub fn index<'a>(
        &self,
        registry: &Arc<Registry>,
        extensions: impl IntoIterator<Item = (&'a str, &'a str, &'a Part)>,
    ) -> Value {
        let entry = |path: &str, hash: &str| json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")});
        let hashes = self.hashes(registry);
        let mut paths: Map<String, Value> =
            hashes.iter().map(|(path, hash)| (path.clone(), entry(path, hash))).collect();
        for (group, version, part) in extensions {
            let path = path(group, version);
            paths.entry(&path).or_insert_with(|| entry(&path, &part.hash));
        }
        json!({"paths": paths})
    }

    /// Hash of one v3 document, for its `ETag`.
    pub fn hash(&self, registry: &Arc<Registry>, group: &str, version: &str) -> Option<String> {
        self.hashes(registry).get(&path(group, version)).cloned()
    }

    /// Hash that changes whenever any document does, the `ETag` of `/openapi/v2`.
    pub fn hash_of_all(&self, registry: &Arc<Registry>, extensions: &[Part]) -> String {
        let hashes = self.hashes(registry);
        let all: Vec<&str> =
            hashes.values().chain(extensions.iter().map(|part| &part.hash)).map(String::as_str).collect();
        digest(all.concat().as_bytes())
    }

    fn hashes(&self, registry: &Arc<Registry>) -> Arc<Hashes> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, hashes)) = &*latest
            && Arc::ptr_eq(of, registry)
        {
            return hashes.clone();
        }
        let versions: BTreeSet<(&str, &str)> =
            registry.resources.iter().map(|r| (r.group.as_str(), r.version.as_str())).collect();
        // Descriptions are the same in all of them, so they count as a whole.
        let (none, words) = (Descriptions::default(), digest(descriptions::source()));
        let hash = |(group, version): (&str, &str)| {
            let document = document(registry, group, version, &none)?;
            Some((path(group, version), digest(format!("{words}{document}").as_bytes())))
        };
        let hashes: Arc<Hashes> = Arc::new(versions.into_iter().filter_map(hash).collect());
        *latest = Some((registry.clone(), hashes.clone()));
        hashes
    }
}

/// `/openapi/v3/{api,apis}/…`: the document of one group version; None when this server does not serve it.
pub fn v3(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    document(registry, group, version, &Descriptions::load())
}

fn document(registry: &Registry, group: &str, version: &str, descriptions: &Descriptions) -> Option<Value> {
    let of = |r: &&Arc<Resource>| r.group == group && r.version == version;
    let resources: Vec<&Resource> = registry.resources.iter().filter(of).map(|r| &**r).collect();
    if resources.is_empty() {
        return None;
    }
    let mut components = component::Components::new(Dialect::V3, descriptions);
    let mut all = Map::new();
    for resource in resources {
        components.add(resource);
        paths::add(resource, Dialect::V3, &mut all);
    }
    Some(json!({"openapi": "3.0.0", "info": info(), "paths": all, "components": {"schemas": components.finish()}}))
}

/// `/openapi/v2`: everything in one document, with the parts of extension servers.
pub fn v2(registry: &Registry, extensions: &[Part]) -> Value {
    let descriptions = Descriptions::load();
    let mut components = component::Components::new(Dialect::V2, &descriptions);
    let mut all = Map::new();
    for resource in &registry.resources {
        components.add(resource);
        paths::add(resource, Dialect::V2, &mut all);
    }
    let mut document = json!({"swagger": "2.0", "info": info(), "paths": all, "definitions": components.finish()});
    extensions.iter().for_each(|part| extension::join(&mut document, part));
    document
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": "v1.33.0"})
}

fn path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

fn digest(bytes: &[u8]) -> String {
    use std::fmt::Write;
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02X}");
        text
    })
}

#[cfg(test)]
mod tests;
