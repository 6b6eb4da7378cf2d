//! The local image store: one OCI image layout directory, blobs shared between images, `index.json` naming them.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::Error;

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// How a container of the image starts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    pub(crate) entrypoint: Vec<String>,
    pub(crate) user: String,
    pub(crate) env: Vec<String>,
}

/// An image of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Full name with tag.
    pub name: String,
    /// `sha256:…` of the manifest.
    pub digest: String,
    /// Sum of the layers, bytes.
    pub size: u64,
}

/// A file beside the images.
#[derive(Clone, Debug)]
pub enum Extra {
    /// With this content.
    Text(&'static str),
    /// As this one, which may be executed.
    Program(PathBuf),
}

/// Images in a directory.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(crate) fn at(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join("blobs/sha256")
    }

    pub(crate) fn blob(&self, digest: &str) -> PathBuf {
        self.blobs().join(digest.trim_start_matches("sha256:"))
    }

    fn index(&self) -> PathBuf {
        self.root.join("index.json")
    }

    /// Writes config and manifest of an image made of `layers` (digest, size) and enters it in the index. `inputs` is kept
    /// with it so that the next build can tell whether anything changed.
    pub(crate) fn add(&self, name: &str, layers: &[(String, u64)], start: &Start, inputs: &str) -> Result<(), Error> {
        let config = json!({
            "architecture": "amd64", "os": "linux",
            "config": {"Entrypoint": start.entrypoint, "User": start.user, "Env": start.env, "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|(d, _)| format!("sha256:{d}")).collect::<Vec<_>>()},
            "history": layers.iter().map(|_| json!({"created_by": "ferrovirt images build"})).collect::<Vec<_>>(),
        });
        let (config_digest, config_size) = self.put(&config)?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": format!("sha256:{config_digest}"), "size": config_size},
            "layers": layers.iter().map(|(digest, size)| json!({"mediaType": LAYER, "digest": format!("sha256:{digest}"), "size": size})).collect::<Vec<_>>(),
        });
        let (digest, size) = self.put(&manifest)?;
        let mut entries = self.entries()?;
        entries.retain(|e| name_of(e) != Some(name));
        entries.push(json!({"mediaType": MANIFEST, "digest": format!("sha256:{digest}"), "size": size,
            "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name, "dev.ferrovirt.inputs": inputs}}));
        self.write_index(&entries)
    }

    /// The inputs that `name` was made from, if it is complete.
    pub(crate) fn inputs(&self, name: &str) -> Option<String> {
        let entries = self.entries().ok()?;
        let entry = entries.iter().find(|e| name_of(e) == Some(name))?;
        let manifest = self.manifest(entry["digest"].as_str()?).ok()?;
        let complete =
            manifest["layers"].as_array()?.iter().all(|l| l["digest"].as_str().is_some_and(|d| self.blob(d).is_file()));
        complete.then(|| entry["annotations"]["dev.ferrovirt.inputs"].as_str().unwrap_or_default().to_owned())
    }

    /// The images, in the order in which they were made.
    ///
    /// # Errors
    /// When the directory is damaged.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        self.entries()?
            .iter()
            .map(|entry| {
                let damaged = || Error::Damaged { path: self.index() };
                let digest = entry["digest"].as_str().ok_or_else(damaged)?.to_owned();
                let layers = self.manifest(&digest)?["layers"].as_array().cloned().unwrap_or_default();
                let size = layers.iter().filter_map(|l| l["size"].as_u64()).sum();
                Ok(Listed { name: name_of(entry).ok_or_else(damaged)?.to_owned(), digest, size })
            })
            .collect()
    }

    pub(crate) fn manifest(&self, digest: &str) -> Result<Value, Error> {
        read_json(&self.blob(digest))
    }

    /// Streams the images called `names` as one archive that containerd imports, and `extra` behind them. Blobs that several share go
    /// once.
    pub(crate) fn export(&self, names: &[String], extra: &[(&str, Extra)], to: impl Write) -> Result<(), Error> {
        let entries = self.entries()?;
        let chosen: Vec<&Value> =
            entries.iter().filter(|e| name_of(e).is_some_and(|n| names.iter().any(|w| w == n))).collect();
        let mut blobs = std::collections::BTreeSet::new();
        for entry in &chosen {
            let digest = entry["digest"].as_str().unwrap_or_default();
            let manifest = self.manifest(digest)?;
            blobs.insert(digest.to_owned());
            blobs.extend(manifest["config"]["digest"].as_str().map(str::to_owned));
            blobs.extend(
                manifest["layers"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|l| l["digest"].as_str().map(str::to_owned)),
            );
        }
        let mut tar = tar::Builder::new(to);
        let written = |path: &Path| Error::io("archive", path.to_owned());
        let text = |tar: &mut tar::Builder<_>, path: &str, text: &str| -> Result<(), Error> {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, text.as_bytes()).map_err(written(Path::new(path)))
        };
        text(&mut tar, "oci-layout", &json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
        text(&mut tar, "index.json", &json!({"schemaVersion": 2, "manifests": chosen}).to_string())?;
        for digest in blobs {
            let path = self.blob(&digest);
            let name = Path::new("blobs/sha256").join(digest.trim_start_matches("sha256:"));
            tar.append_path_with_name(&path, name).map_err(written(&path))?;
        }
        for (name, extra) in extra {
            match extra {
                Extra::Text(content) => text(&mut tar, name, content)?,
                Extra::Program(path) => tar.append_path_with_name(path, name).map_err(written(path))?,
            }
        }
        tar.into_inner().and_then(|mut w| w.flush()).map_err(written(&self.root))
    }

    /// Removes blobs that no image names.
    pub(crate) fn sweep(&self) -> Result<(), Error> {
        let mut kept = std::collections::BTreeSet::new();
        for entry in self.entries()? {
            let digest = entry["digest"].as_str().unwrap_or_default().to_owned();
            let manifest = self.manifest(&digest)?;
            kept.extend(manifest["config"]["digest"].as_str().map(|d| d.replace("sha256:", "")));
            kept.extend(
                manifest["layers"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|l| l["digest"].as_str().map(|d| d.replace("sha256:", ""))),
            );
            kept.insert(digest.replace("sha256:", ""));
        }
        let dir = self.blobs();
        for entry in fs::read_dir(&dir).map_err(Error::io("read", &dir))?.flatten() {
            if !kept.contains(&*entry.file_name().to_string_lossy()) {
                fs::remove_file(entry.path()).map_err(Error::io("remove", entry.path()))?;
            }
        }
        Ok(())
    }

    fn entries(&self) -> Result<Vec<Value>, Error> {
        let path = self.index();
        if !path.exists() {
            return Ok(Vec::new());
        }
        read_json(&path)?["manifests"].as_array().cloned().ok_or(Error::Damaged { path })
    }

    fn write_index(&self, entries: &[Value]) -> Result<(), Error> {
        let path = self.index();
        let partial = self.root.join(".index.json");
        fs::write(self.root.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)
            .map_err(Error::io("write", &self.root))?;
        fs::write(&partial, json!({"schemaVersion": 2, "manifests": entries}).to_string())
            .map_err(Error::io("write", &partial))?;
        fs::rename(&partial, &path).map_err(Error::io("write", &path))
    }

    fn put(&self, value: &Value) -> Result<(String, u64), Error> {
        let bytes = value.to_string().into_bytes();
        let digest: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        let path = self.blobs().join(&digest);
        fs::write(&path, &bytes).map_err(Error::io("write", &path))?;
        Ok((digest, bytes.len() as u64))
    }
}

fn name_of(entry: &Value) -> Option<&str> {
    entry["annotations"]["io.containerd.image.name"].as_str()
}

fn read_json(path: &Path) -> Result<Value, Error> {
    let file = fs::File::open(path).map_err(Error::io("read", path))?;
    serde_json::from_reader(io::BufReader::new(file)).map_err(|_| Error::Damaged { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Layer;

    #[test]
    fn images_share_blobs_and_survive_a_sweep() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::at(dir.path().to_owned());
        let layer = |text: &str| {
            let mut layer = Layer::default();
            layer.bytes("etc/motd", text.as_bytes(), 0o644);
            layer.write(&layout.blobs()).unwrap()
        };
        let (shared, own) = (layer("shared"), layer("own"));
        layout.add("x/a:1", std::slice::from_ref(&shared), &Start::default(), "in-a").unwrap();
        layout.add("x/b:1", &[shared, own], &Start::default(), "in-b").unwrap();
        layer("nobody's");
        layout.sweep().unwrap();
        assert_eq!(layout.list().unwrap().iter().map(|l| l.name.as_str()).collect::<Vec<_>>(), ["x/a:1", "x/b:1"]);
        assert_eq!(layout.inputs("x/b:1").as_deref(), Some("in-b"));
        assert_eq!(layout.inputs("x/c:1"), None);
        let mut archive = Vec::new();
        layout.export(&["x/a:1".into(), "x/b:1".into()], &[], &mut archive).unwrap();
        let count = tar::Archive::new(&archive[..]).entries().unwrap().count();
        assert_eq!(count, 2 + 2 * 2 + 2, "layout, index, a manifest and a config for each, two layers in all");
    }
}
