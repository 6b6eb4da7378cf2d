//! How servers are reached: whom to trust, through which proxy, and for how long to wait.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::version::TLS13;
use rustls::{ClientConfig, DEFAULT_VERSIONS, RootCertStore, SupportedProtocolVersion};
use tls_verify::ServerVerifier;

use super::Error;

static MODERN: &[&SupportedProtocolVersion] = &[&TLS13];

/// What an importer knows about the way to a server.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// Directories with PEM files of authorities that are trusted beside the system's own, or of servers' own certificates. One that is
    /// missing holds none.
    pub authorities: Vec<PathBuf>,
    /// PEM of authorities that are trusted, too.
    pub certificates: Vec<String>,
    /// Trust any certificate.
    pub insecure: bool,
    /// Speak to no server that knows nothing newer than TLS 1.2.
    pub modern: bool,
    /// Proxies, by the scheme of what is fetched.
    pub proxies: Proxies,
    /// How long to wait and how often to try.
    pub patience: Patience,
}

/// Proxies as the environment variables of the same names give them.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// For http addresses.
    pub http: Option<String>,
    /// For https addresses.
    pub https: Option<String>,
    /// Hosts, domains and networks that are reached without one, separated by commas.
    pub none: Option<String>,
}

/// Bounds on waiting.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// To connect, with TLS.
    pub connect: Duration,
    /// Until the headers of an answer.
    pub answer: Duration,
    /// Between two pieces of a body.
    pub idle: Duration,
    /// The pause after the first failure; it doubles with each that follows.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// Failures in a row, without progress between them, that are forgiven.
    pub attempts: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(20),
            answer: Duration::from_secs(60),
            idle: Duration::from_secs(60),
            first: Duration::from_millis(500),
            longest: Duration::from_secs(15),
            attempts: 6,
        }
    }
}

impl Connection {
    /// A client that follows no redirection, decodes nothing and takes nothing from the environment.
    pub(super) fn client(&self) -> Result<reqwest::Client, Error> {
        let setup = |what| move |e: reqwest::Error| Error::Setup { what, source: e.into() };
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .http1_only()
            .no_proxy()
            .connect_timeout(self.patience.connect)
            .read_timeout(self.patience.idle)
            .tls_backend_preconfigured(self.tls()?);
        let none = self.proxies.none.as_deref().and_then(reqwest::NoProxy::from_string);
        if let Some(proxy) = set(self.proxies.http.as_ref()) {
            let proxy = reqwest::Proxy::http(proxy).map_err(setup("the proxy of HTTP_PROXY"))?;
            builder = builder.proxy(proxy.no_proxy(none.clone()));
        }
        if let Some(proxy) = set(self.proxies.https.as_ref()) {
            let proxy = reqwest::Proxy::https(proxy).map_err(setup("the proxy of HTTPS_PROXY"))?;
            builder = builder.proxy(proxy.no_proxy(none));
        }
        builder.build().map_err(setup("the HTTP client"))
    }

    fn tls(&self) -> Result<ClientConfig, Error> {
        let provider = Arc::new(ring::default_provider());
        let versions = if self.modern { MODERN } else { DEFAULT_VERSIONS };
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(|e| Error::Setup { what: "TLS", source: e.into() })?;
        if self.insecure {
            let verifier = Arc::new(ServerVerifier::anybody(provider));
            return Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth());
        }
        let mut roots = RootCertStore::empty();
        // An image without a system bundle is fine as long as nothing needs it; what does need it fails by its name.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let mut known = Vec::new();
        for directory in &self.authorities {
            for certificate in authorities(directory)? {
                known.push(certificate.clone());
                roots.add(certificate).map_err(|e| Error::Content {
                    path: directory.clone(),
                    what: "a directory of PEM certificates",
                    source: e.into(),
                })?;
            }
        }
        for text in &self.certificates {
            for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
                let unusable = |e: Box<dyn std::error::Error + Send + Sync>| Error::Setup {
                    what: "the certificates of its authority",
                    source: e,
                };
                let certificate = certificate.map_err(|e| unusable(e.into()))?;
                known.push(certificate.clone());
                roots.add(certificate).map_err(|e| unusable(e.into()))?;
            }
        }
        let verifier = ServerVerifier::known(roots, known, provider);
        Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
    }
}

fn set(value: Option<&String>) -> Option<&String> {
    value.filter(|text| !text.is_empty())
}

/// The certificates in the files of a directory, as a ConfigMap or Secret is mounted: hidden files are its machinery.
fn authorities(directory: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file(directory)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(file(directory))?;
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with('.') || !path.is_file() {
            continue;
        }
        let text = std::fs::read(&path).map_err(file(&path))?;
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|e| Error::Content {
                path: path.clone(),
                what: "a file of PEM certificates",
                source: e.into(),
            })?;
            found.push(certificate.into_owned());
        }
    }
    Ok(found)
}
