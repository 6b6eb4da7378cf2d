//! Pushing the same images to a registry, so that a real cluster can pull them.

use std::fs;

use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::manifest::OciImageManifest;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};

use crate::{Error, Workshop};

/// Pushes every image of the store below `registry` (`host[:port][/path]`), under its short name and tag; returns the
/// references. Blobs that the registry has are not sent again. `plain_http` is for registries on loopback or in a lab.
pub async fn push(
    shop: &Workshop,
    registry: &str,
    auth: Option<(String, String)>,
    plain_http: bool,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<Vec<String>, Error> {
    let protocol = if plain_http { ClientProtocol::Http } else { ClientProtocol::Https };
    let client = Client::new(ClientConfig { protocol, ..ClientConfig::default() });
    let auth = auth.map_or(RegistryAuth::Anonymous, |(user, password)| RegistryAuth::Basic(user, password));
    let layout = shop.layout();
    let mut pushed = Vec::new();
    for image in layout.list()? {
        let full = target(registry, &image.name)?;
        let reference: Reference = full.parse().map_err(|_| Error::Reference(registry.to_owned()))?;
        say(&format!("pushing {full}"));
        let failed = |source| Error::Push { reference: full.clone(), source: Box::new(source) };
        client.auth(&reference, &auth, RegistryOperation::Push).await.map_err(failed)?;
        let manifest = layout.manifest(&image.digest)?;
        let manifest: OciImageManifest =
            serde_json::from_value(manifest).map_err(|_| Error::Damaged { path: layout.blob(&image.digest) })?;
        for blob in manifest.layers.iter().chain([&manifest.config]) {
            let path = layout.blob(&blob.digest);
            let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
            client.push_blob(&reference, bytes, &blob.digest).await.map_err(failed)?;
        }
        client.push_manifest(&reference, &manifest.into()).await.map_err(failed)?;
        pushed.push(full);
    }
    Ok(pushed)
}

/// `ferrovirt.local/launcher:v1` below `registry.example/team` is `registry.example/team/launcher:v1`.
fn target(registry: &str, name: &str) -> Result<String, Error> {
    let registry = registry.trim_end_matches('/');
    let short = name.rsplit('/').next().unwrap_or(name);
    if registry.is_empty() || registry.contains("://") || registry.contains(char::is_whitespace) {
        return Err(Error::Reference(registry.to_owned()));
    }
    Ok(format!("{registry}/{short}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        assert_eq!(target("127.0.0.1:5000", "ferrovirt.local/pause:v1").unwrap(), "127.0.0.1:5000/pause:v1");
        assert_eq!(target("r.example/team/", "ferrovirt.local/pause:v1").unwrap(), "r.example/team/pause:v1");
        assert!(target("https://r.example", "x:1").is_err());
        assert!(target("", "x:1").is_err());
    }
}
