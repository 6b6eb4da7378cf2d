//! What registries say about an image: indexes by platform, manifests, configurations, and the digests that name them.

use ring::digest;
use serde::Deserialize;

use crate::source::Error;
use crate::source::sigv4::hex;

/// Either document, as it stands in the store.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    config: Option<Layer>,
    layers: Option<Vec<Layer>>,
    manifests: Option<Vec<Entry>>,
    #[serde(rename = "schemaVersion")]
    version: Option<u32>,
}

/// One of the two.
#[derive(Debug)]
pub(super) enum Kind {
    Image(Manifest),
    Index(Vec<Entry>),
}

/// The parts of one image.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) config: Layer,
    pub(super) layers: Vec<Layer>,
}

/// A blob, by its name.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Layer {
    pub(super) digest: String,
}

/// One image of several.
#[derive(Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) digest: String,
    platform: Option<Platform>,
}

#[derive(Debug, Deserialize)]
struct Platform {
    architecture: String,
    #[serde(default)]
    os: String,
}

/// What an image says to those who run it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Config {
    config: Option<Runtime>,
}

#[derive(Debug, Default, Deserialize)]
struct Runtime {
    #[serde(rename = "Env")]
    env: Option<Vec<String>>,
}

impl Config {
    pub(super) fn environment(self) -> Vec<String> {
        self.config.unwrap_or_default().env.unwrap_or_default()
    }
}

impl Document {
    pub(super) fn kind(self) -> Result<Kind, String> {
        match (self.manifests, self.layers) {
            (Some(entries), None) => Ok(Kind::Index(entries)),
            (None, Some(layers)) => Ok(Kind::Image(Manifest { config: self.config.unwrap_or_default(), layers })),
            _ if self.version == Some(1) => {
                Err("the image has a manifest of schema 1, which is no longer read; push it anew".into())
            }
            _ => Err("the image's manifest has neither layers nor a list of manifests".into()),
        }
    }
}

/// The image of this architecture. A single one that says nothing of platforms is taken as it is.
pub(super) fn select<'a>(entries: &'a [Entry], architecture: &str) -> Result<&'a Entry, String> {
    if let [entry @ Entry { platform: None, .. }] = entries {
        return Ok(entry);
    }
    let fits = |entry: &&Entry| {
        entry.platform.as_ref().is_some_and(|platform| {
            platform.architecture == architecture && matches!(platform.os.as_str(), "linux" | "")
        })
    };
    entries.iter().find(fits).ok_or_else(|| {
        let mut there: Vec<_> =
            entries.iter().filter_map(|e| e.platform.as_ref()).map(|p| p.architecture.as_str()).collect();
        there.retain(|name| *name != "unknown");
        there.sort_unstable();
        there.dedup();
        // The first half is what clients of the API know this by.
        let only = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        format!(
            "Error retrieving image: choosing image instance: no image found in image index for architecture {architecture:?}, variant \"\", OS \"linux\": it is there for {only}"
        )
    })
}

/// What a digest is made with.
pub(super) fn algorithm(digest: &str) -> Result<&'static digest::Algorithm, Error> {
    match digest.split_once(':') {
        Some(("sha256", hex)) if hex.len() == 64 => Ok(&digest::SHA256),
        Some(("sha512", hex)) if hex.len() == 128 => Ok(&digest::SHA512),
        _ => {
            let shown: String = digest.chars().take(80).collect();
            Err(Error::Image(format!("the image names a part {shown:?}, which is not a sha256 or sha512 digest")))
        }
    }
}

/// Whether these are the bytes that the digest names.
pub(super) fn verify(what: &str, digest: &str, bytes: &[u8]) -> Result<(), Error> {
    compare(what, digest, digest::digest(algorithm(digest)?, bytes))
}

pub(super) fn compare(what: &str, expected: &str, found: digest::Digest) -> Result<(), Error> {
    let (name, hash) = expected.split_once(':').unwrap_or_default();
    let found = hex(found.as_ref());
    if found.eq_ignore_ascii_case(hash) {
        return Ok(());
    }
    Err(Error::Digest { what: what.to_owned(), expected: expected.to_owned(), found: format!("{name}:{found}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, architecture: &str, expect: &str) {
        let document: Document = serde_json::from_str(json).unwrap();
        let found = match document.kind() {
            Ok(Kind::Image(manifest)) => format!("{} layers", manifest.layers.len()),
            Ok(Kind::Index(entries)) => match select(&entries, architecture) {
                Ok(entry) => entry.digest.clone(),
                Err(error) => error,
            },
            Err(error) => error,
        };
        assert!(found.contains(expect), "{json}: {found}");
    }

    #[test]
    fn the_image_of_the_architecture_is_taken() {
        let list = r#"{"manifests": [
            {"digest": "sha256:w", "platform": {"architecture": "amd64", "os": "windows"}},
            {"digest": "sha256:a", "platform": {"architecture": "amd64", "os": "linux"}},
            {"digest": "sha256:b", "platform": {"architecture": "arm64", "os": "linux", "variant": "v8"}},
            {"digest": "sha256:c", "platform": {"architecture": "unknown", "os": "unknown"}}]}"#;
        check(list, "amd64", "sha256:a");
        check(list, "arm64", "sha256:b");
        check(list, "s390x", "for architecture \"s390x\", variant \"\", OS \"linux\": it is there for amd64, arm64");
        check(r#"{"manifests": [{"digest": "sha256:x"}]}"#, "amd64", "sha256:x");
        check(r#"{"manifests": []}"#, "amd64", "it is there for none");
        check(
            r#"{"schemaVersion": 2, "config": {"digest": "sha256:c"}, "layers": [{"digest": "sha256:l"}]}"#,
            "",
            "1 layers",
        );
        check(r#"{"schemaVersion": 1, "fsLayers": []}"#, "amd64", "schema 1");
        check("{}", "amd64", "neither layers nor");
    }

    #[test]
    fn digests_are_compared() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        verify("nothing", empty, b"").unwrap();
        let error = verify("the layer", empty, b"x").unwrap_err().to_string();
        assert!(error.starts_with("the layer has the digest sha256:2d71"), "{error}");
        for bad in ["sha256:", "md5:d41d8cd98f00b204e9800998ecf8427e", "latest", "../../etc"] {
            assert!(verify("x", bad, b"").unwrap_err().to_string().contains("not a sha256 or sha512"), "{bad}");
        }
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    fn document() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("null".to_owned()),
            any::<i32>().prop_map(|n| n.to_string()),
            "[a-z0-9:]{0,80}".prop_map(|t| format!("{t:?}"))
        ];
        let name = prop::sample::select(vec![
            "manifests",
            "layers",
            "config",
            "digest",
            "platform",
            "architecture",
            "os",
            "schemaVersion",
            "Env",
            "other",
        ]);
        leaf.prop_recursive(5, 64, 6, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(|items| format!("[{}]", items.join(","))),
                proptest::collection::btree_map(name.clone(), inner, 0..6).prop_map(|members| {
                    let members: Vec<String> =
                        members.iter().map(|(name, value)| format!("{name:?}:{value}")).collect();
                    format!("{{{}}}", members.join(","))
                }),
            ]
        })
    }

    proptest! {
        /// A manifest is read, or refused with a sentence; a part is verified by its digest alone.
        #[test]
        fn any_manifest_is_parsed_or_refused(text in document(), bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(config) = serde_json::from_str::<Config>(&text) {
                let _ = config.environment();
            }
            let Ok(document) = serde_json::from_str::<Document>(&text) else { return Ok(()) };
            match document.kind() {
                Ok(Kind::Index(entries)) => match select(&entries, "amd64") {
                    Ok(entry) => prop_assert!(verify("the image's manifest", &entry.digest, &bytes).is_err()),
                    Err(why) => prop_assert!(why.contains("amd64")),
                },
                Ok(Kind::Image(manifest)) => {
                    for layer in manifest.layers.iter().chain([&manifest.config]) {
                        prop_assert!(verify("a layer", &layer.digest, &bytes).is_err());
                    }
                }
                Err(why) => prop_assert!(!why.is_empty()),
            }
        }
    }
}
