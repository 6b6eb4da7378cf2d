//! Disks in container images: from a registry, or from an archive of one image in a file.
//!
//! ```text
//!  reference ─▶ index ─▶ manifest of the architecture ─▶ config: environment
//!                                                     └▶ layers, topmost first ─▶ the file under disk/ ─▶ a source
//! ```
//!
//! Whatever was named by a digest is compared with it: manifests and configs before they are read, a layer when its last
//! byte has passed, which is why whoever imported one asks [`ImageDisk::confirm`] at the end.

mod archive;
mod layer;
mod manifest;
mod token;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use oci_client::Reference;
use url::Url;

use self::archive::Archive;
pub use self::layer::ImageDisk;
use self::manifest::{Config, Document, Layer, Manifest, select};
use super::connection::Connection;
use super::origin::Origin;
use super::remote::Remote;
use super::sigv4::hex;
use super::{Error, Source};

/// No manifest or config that anybody made is as large.
const DOCUMENT_LIMIT: usize = 4 << 20;
const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, \
                      application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";
/// Indexes that name indexes are legal; nobody nests them deeper.
const NESTED: usize = 3;

/// What the API says about a disk in a container image.
#[derive(Clone, Debug, Default)]
pub struct ContainerImage {
    /// `docker://host/name:tag`, `docker://host/name@sha256:...` or `oci-archive://path`.
    pub url: String,
    /// Name and password at the registry.
    pub login: Option<(String, String)>,
    /// Of a list of images, the one for this; none takes the importer's own.
    pub architecture: Option<String>,
}

/// Finds the disk in an image. Call it within the runtime that is to do the work.
///
/// # Errors
/// When the image cannot be had, is not for the architecture, or holds no file under `/disk`.
pub async fn image(image: &ContainerImage, connection: &Connection) -> Result<ImageDisk, Error> {
    let store = Store::open(image, connection).await?;
    let architecture = image.architecture.as_deref().filter(|name| !name.is_empty()).unwrap_or(host());
    let manifest = store.manifest(architecture).await?;
    let config: Config = match store.named(&manifest.config.digest, "the image's configuration").await? {
        Some(text) => serde_json::from_slice(&text).map_err(|e| store.unreadable("an image's configuration", e))?,
        None => Config::default(),
    };
    for layer in manifest.layers.iter().rev() {
        let blob = store.blob(layer).await?;
        let digest = layer.digest.clone();
        let found = tokio::task::spawn_blocking(move || ImageDisk::find(blob, digest)).await;
        let found = found.map_err(|e| Error::Setup { what: "a thread to read the layer", source: e.into() })??;
        if let Some(disk) = found {
            return Ok(disk.with(config.environment()));
        }
    }
    Err(Error::Image(
        "Failed to find VM disk image file in the container image: none of its layers holds a file under /disk".into(),
    ))
}

/// What an image is now: the digest of the document that its name leads to, made of what the registry answers and not taken from what it says.
///
/// # Errors
/// When the document cannot be had.
pub async fn digest(image: &ContainerImage, connection: &Connection) -> Result<String, Error> {
    let store = Store::open(image, connection).await?;
    let text = store.first().await?;
    Ok(format!("sha256:{}", hex(ring::digest::digest(&ring::digest::SHA256, &text).as_ref())))
}

/// The architecture of this program, by the names of container images.
fn host() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Where the parts of the image come from.
#[expect(clippy::large_enum_variant, reason = "there is one, for the time of one import")]
enum Store {
    Registry { base: Origin, reference: Reference },
    Archive(Archive),
}

impl Store {
    async fn open(image: &ContainerImage, connection: &Connection) -> Result<Self, Error> {
        let refused = |why: String| Error::Address { url: image.url.clone(), why };
        if let Some(path) = image.url.strip_prefix("oci-archive:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            let path = Path::new(path.split_once(':').map_or(path, |(path, _)| path)).to_owned();
            let opened = tokio::task::spawn_blocking(move || Archive::open(&path)).await;
            let opened = opened.map_err(|e| Error::Setup { what: "a thread to read the archive", source: e.into() })?;
            return Ok(Self::Archive(opened?));
        }
        let name = image
            .url
            .strip_prefix("docker://")
            .ok_or_else(|| refused("an image is docker://host/name:tag or oci-archive://path".into()))?;
        let reference: Reference = name.parse().map_err(|e: oci_client::ParseError| refused(e.to_string()))?;
        let base = connect(&reference, image, connection).await?;
        Ok(Self::Registry { base, reference })
    }

    /// The manifest of the image for this architecture.
    async fn manifest(&self, architecture: &str) -> Result<Manifest, Error> {
        let mut text = self.first().await?;
        for _ in 0..NESTED {
            let document: Document =
                serde_json::from_slice(&text).map_err(|e| self.unreadable("an image's manifest", e))?;
            let entries = match document.kind().map_err(Error::Image)? {
                manifest::Kind::Image(manifest) => return Ok(manifest),
                manifest::Kind::Index(entries) => entries,
            };
            let entry = select(&entries, architecture).map_err(Error::Image)?;
            text = match self {
                Self::Registry { .. } => self.at(&format!("manifests/{}", entry.digest), "a manifest").await?,
                Self::Archive(archive) => archive.read(&entry.digest, DOCUMENT_LIMIT)?,
            };
            manifest::verify("the image's manifest", &entry.digest, &text)?;
        }
        Err(Error::Image(format!("the image's index leads to further indexes {NESTED} times, and to no image")))
    }

    async fn first(&self) -> Result<Bytes, Error> {
        match self {
            Self::Registry { reference, .. } => {
                let name = reference.digest().or(reference.tag()).unwrap_or("latest");
                let text = self.at(&format!("manifests/{name}"), "a manifest").await?;
                if let Some(digest) = reference.digest() {
                    manifest::verify("the image's manifest", digest, &text)?;
                }
                Ok(text)
            }
            Self::Archive(archive) => archive.index(DOCUMENT_LIMIT),
        }
    }

    /// A document that is named by its digest; none for the empty name of images that have no configuration.
    async fn named(&self, digest: &str, what: &'static str) -> Result<Option<Bytes>, Error> {
        if digest.is_empty() {
            return Ok(None);
        }
        let text = match self {
            Self::Registry { .. } => self.at(&format!("blobs/{digest}"), what).await?,
            Self::Archive(archive) => archive.read(digest, DOCUMENT_LIMIT)?,
        };
        manifest::verify(what, digest, &text)?;
        Ok(Some(text))
    }

    async fn blob(&self, layer: &Layer) -> Result<Arc<dyn Source>, Error> {
        match self {
            Self::Registry { base, reference } => {
                let origin = base.at(below(base, reference, &format!("blobs/{}", layer.digest))?);
                Ok(Arc::new(Remote::probe(origin.with(HeaderMap::new())).await?))
            }
            Self::Archive(archive) => Ok(Arc::new(archive.blob(&layer.digest)?)),
        }
    }

    async fn at(&self, path: &str, what: &'static str) -> Result<Bytes, Error> {
        let Self::Registry { base, reference } = self else { return Ok(Bytes::new()) };
        Ok(base.at(below(base, reference, path)?).document(what, DOCUMENT_LIMIT).await?.1)
    }

    fn unreadable(&self, what: &'static str, source: serde_json::Error) -> Error {
        let url = match self {
            Self::Registry { reference, .. } => reference.whole(),
            Self::Archive(archive) => archive.name(),
        };
        Error::Document { url, what, source: source.into() }
    }
}

fn below(base: &Origin, reference: &Reference, path: &str) -> Result<Url, Error> {
    let place = format!("/v2/{}/{path}", reference.repository());
    base.url.join(&place).map_err(|e| Error::Address { url: reference.whole(), why: e.to_string() })
}

/// The way to the registry: https, and plain http only when the connection need not be secure and nothing there speaks TLS.
async fn connect(reference: &Reference, image: &ContainerImage, connection: &Connection) -> Result<Origin, Error> {
    let host = reference.resolve_registry();
    let origin = |scheme: &str| {
        let url = Url::parse(&format!("{scheme}://{host}/v2/"))
            .map_err(|e| Error::Address { url: image.url.clone(), why: e.to_string() })?;
        let accept = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(ACCEPT))]);
        let scope = format!("repository:{}:pull", reference.repository());
        let token = token::Token::new(connection, image.login.clone(), scope);
        Origin::new(connection, url, accept, Arc::new(token))
    };
    let secure = origin("https")?;
    if !connection.insecure {
        return Ok(secure);
    }
    match secure.get(&Default::default()).await {
        Err(Error::Request { .. } | Error::Silent { .. }) => origin("http"),
        _ => Ok(secure),
    }
}
