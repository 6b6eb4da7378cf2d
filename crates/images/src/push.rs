//! Pushing the same images to a registry, so that a real cluster can pull them.

use std::fs;

use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::OciDistributionError;
use oci_client::manifest::OciImageManifest;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};

use crate::Error;
use crate::layout::Layout;

/// Pushes every image of the store below `registry` (`host[:port][/path]`), under its short name and tag; returns the
/// references. Blobs that the registry has are not sent again. `plain_http` is for registries on loopback or in a lab.
pub async fn push(
    layout: &Layout,
    registry: &str,
    auth: Option<(String, String)>,
    plain_http: bool,
    say: &mut (dyn FnMut(&str) + Send),
) -> Result<Vec<String>, Error> {
    target(registry, "any")?;
    let protocol = if plain_http { ClientProtocol::Http } else { ClientProtocol::Https };
    let client = Client::new(ClientConfig { protocol, ..ClientConfig::default() });
    let named = auth.is_some();
    let auth = auth.map_or(RegistryAuth::Anonymous, |(user, password)| RegistryAuth::Basic(user, password));
    let mut pushed = Vec::new();
    let images = layout.list()?;
    if images.is_empty() {
        return Err(Error::NothingBuilt);
    }
    for image in images {
        let full = target(registry, &image.name)?;
        let reference: Reference = full.parse().map_err(|_| Error::Reference(registry.to_owned()))?;
        say(&format!("pushing {full}"));
        let failed = |source| failure(&full, named, source);
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

/// What a registry's refusal means to a user, who gave a name and a password or did not.
fn failure(reference: &str, named: bool, source: OciDistributionError) -> Error {
    let reference = reference.to_owned();
    let status = match &source {
        OciDistributionError::ServerError { code, .. } => *code,
        OciDistributionError::UnauthorizedError { .. } | OciDistributionError::AuthenticationFailure(_) => 401,
        _ => 0,
    };
    let causes = std::iter::successors(Some(&source as &dyn std::error::Error), |error| error.source());
    // What a TLS client says of an answer that is not TLS.
    let plain = causes.map(ToString::to_string).any(|text| text.contains("InvalidContentType"));
    match (status, named) {
        (401, false) => Error::NeedsUser { reference },
        (401 | 403, _) => Error::Denied { reference },
        _ if plain => Error::NoTls { reference },
        _ => Error::Push { reference, source: Box::new(source) },
    }
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
    fn refusals_are_told_apart() {
        let check = |code, named, expect: &str, hint: bool| {
            let (url, message) = ("http://r/v2/".to_owned(), "{}".to_owned());
            let error = failure("r/x:1", named, OciDistributionError::ServerError { code, url, message });
            assert_eq!((error.to_string().as_str(), error.hint().is_some()), (expect, hint));
        };
        check(401, false, "push r/x:1: the registry asks for a user name and a password", true);
        check(401, true, "push r/x:1: the registry refuses this user name and password", false);
        check(403, true, "push r/x:1: the registry refuses this user name and password", false);
        check(500, true, "push r/x:1", false);
        let unauthorized = OciDistributionError::UnauthorizedError { url: "u".into() };
        assert!(matches!(failure("r/x:1", false, unauthorized), Error::NeedsUser { .. }));
    }

    #[test]
    fn targets() {
        assert_eq!(target("127.0.0.1:5000", "ferrovirt.local/pause:v1").unwrap(), "127.0.0.1:5000/pause:v1");
        assert_eq!(target("r.example/team/", "ferrovirt.local/pause:v1").unwrap(), "r.example/team/pause:v1");
        assert!(target("https://r.example", "x:1").is_err());
        assert!(target("", "x:1").is_err());
    }
}
