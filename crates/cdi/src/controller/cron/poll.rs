//! What a cron's source is now: the digest of an image, asked of its registry.
//!
//! The controller asks itself, by one HEAD request, where others start a job for it: a job that is scheduled, pulls its image and ends
//! costs seconds of a node and asks no better.

use std::{future::Future, pin::Pin};

use kit::Chain;
use oci_client::{
    Client, Reference,
    client::{Certificate, CertificateEncoding, ClientConfig, ClientProtocol},
    secrets::RegistryAuth,
};

/// An image, and how its registry is spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// `docker://host/name:tag`.
    pub url: String,
    /// User and password.
    pub login: Option<(String, String)>,
    /// Certificates to trust beside the system's, in PEM.
    pub certificates: Vec<String>,
    /// No certificate is checked, and none needs to be there.
    pub insecure: bool,
    /// The proxies on the way, as imports go: for http, for https, and for what there is none.
    pub proxies: [Option<String>; 3],
}

/// Asks what images are now.
pub trait Digests: Send + Sync {
    /// The digest of `image`, or why it is not known.
    fn of(&self, image: Image) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send + '_>>;
}

/// Asks registries.
#[derive(Debug)]
pub struct Registries;

impl Digests for Registries {
    fn of(&self, image: Image) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send + '_>> {
        Box::pin(async move {
            let name = image.url.strip_prefix("docker://").unwrap_or(&image.url);
            let reference: Reference =
                name.parse().map_err(|error| format!("{} is not the name of an image: {error}", image.url))?;
            let auth =
                image.login.map_or(RegistryAuth::Anonymous, |(user, password)| RegistryAuth::Basic(user, password));
            let certificates = image.certificates.into_iter();
            let certificates = certificates
                .map(|pem| Certificate { encoding: CertificateEncoding::Pem, data: pem.into_bytes() })
                .collect();
            let config = |protocol| ClientConfig {
                protocol,
                accept_invalid_certificates: image.insecure,
                http_proxy: image.proxies[0].clone(),
                https_proxy: image.proxies[1].clone(),
                no_proxy: image.proxies[2].clone(),
                connect_timeout: Some(std::time::Duration::from_secs(15)),
                read_timeout: Some(std::time::Duration::from_secs(30)),
                ..ClientConfig::default()
            };
            let secure = ClientConfig { extra_root_certificates: certificates, ..config(ClientProtocol::Https) };
            let answer = Client::new(secure).fetch_manifest_digest(&reference, &auth).await;
            let answer = match answer {
                Err(error) if image.insecure => {
                    tracing::debug!(image = image.url, error = %Chain(&error), "not by https, trying http");
                    Client::new(config(ClientProtocol::Http)).fetch_manifest_digest(&reference, &auth).await
                }
                answer => answer,
            };
            answer.map_err(|error| format!("the registry of {} does not say what it is: {}", image.url, Chain(&error)))
        })
    }
}
