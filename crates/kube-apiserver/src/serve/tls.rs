//! The server's TLS configuration: client certificates optional, ALPN h2 and http/1.1, files re-read when they change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Why TLS cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Not PEM, or not what was expected.
    #[error("malformed PEM in the {0}")]
    Pem(&'static str),
    /// Refused by the TLS library.
    #[error("unusable certificate or key")]
    Config(#[from] rustls::Error),
    /// The client CA is of no use.
    #[error("unusable client certificate authority")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: PathBuf,
}

struct Loaded {
    config: Arc<rustls::ServerConfig>,
    stamp: Option<SystemTime>,
    checked: Instant,
}

/// A configuration that follows its files.
pub struct Tls {
    files: Option<Files>,
    loaded: ArcSwap<Loaded>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// From PEM texts; never reloaded.
    ///
    /// # Errors
    /// When something is malformed.
    pub fn from_pem(certificate: &str, key: &str, client_ca: &str) -> Result<Self, TlsError> {
        let config = config(certificate.as_bytes(), key.as_bytes(), client_ca.as_bytes())?;
        Ok(Self {
            files: None,
            loaded: ArcSwap::from_pointee(Loaded { config: Arc::new(config), stamp: None, checked: Instant::now() }),
        })
    }

    /// From files, which are looked at again every few seconds of traffic.
    ///
    /// # Errors
    /// When something cannot be read or is malformed.
    pub fn from_files(certificate: PathBuf, key: PathBuf, client_ca: PathBuf) -> Result<Self, TlsError> {
        let files = Files { certificate, key, client_ca };
        let loaded = files.load()?;
        Ok(Self { files: Some(files), loaded: ArcSwap::from_pointee(loaded) })
    }

    /// The configuration for the next connection.
    #[must_use]
    pub fn current(&self) -> Arc<rustls::ServerConfig> {
        let loaded = self.loaded.load();
        if let Some(files) = &self.files
            && loaded.checked.elapsed() > Duration::from_secs(5)
        {
            return self.refresh(files, &loaded);
        }
        loaded.config.clone()
    }

    fn refresh(&self, files: &Files, old: &Loaded) -> Arc<rustls::ServerConfig> {
        let unchanged = Loaded { config: old.config.clone(), stamp: old.stamp, checked: Instant::now() };
        let next = if files.stamp() == old.stamp {
            unchanged
        } else {
            match files.load() {
                Ok(loaded) => {
                    tracing::info!(certificate = %files.certificate.display(), "serving certificate reloaded");
                    loaded
                }
                Err(error) => {
                    tracing::warn!(%error, "new serving certificate is unusable, the old one stays");
                    unchanged
                }
            }
        };
        let config = next.config.clone();
        self.loaded.store(Arc::new(next));
        config
    }
}

/// What a listener follows.
pub(super) struct Followed(pub(super) Arc<Tls>);

impl kit::tls::Configuration for Followed {
    fn current(&self) -> Arc<rustls::ServerConfig> {
        self.0.current()
    }
}

impl Files {
    fn stamp(&self) -> Option<SystemTime> {
        let time = |path: &PathBuf| std::fs::metadata(path).and_then(|m| m.modified()).ok();
        [&self.certificate, &self.key, &self.client_ca].into_iter().filter_map(time).max()
    }
    fn load(&self) -> Result<Loaded, TlsError> {
        let read = |path: &PathBuf| std::fs::read(path).map_err(|source| TlsError::File { path: path.clone(), source });
        let stamp = self.stamp();
        let config = config(&read(&self.certificate)?, &read(&self.key)?, &read(&self.client_ca)?)?;
        Ok(Loaded { config: Arc::new(config), stamp, checked: Instant::now() })
    }
}

/// The one crypto provider of the process.
#[must_use]
pub fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// All certificates of a PEM text.
///
/// # Errors
/// When it is malformed or holds none.
pub fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let list: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| TlsError::Pem(what))?;
    if list.is_empty() { Err(TlsError::Pem(what)) } else { Ok(list) }
}

/// A root store of a PEM bundle.
///
/// # Errors
/// When it is malformed or holds nothing usable.
pub fn roots(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    let (added, _) = store.add_parsable_certificates(certificates(pem, "CA bundle")?);
    if added == 0 { Err(TlsError::Pem("CA bundle")) } else { Ok(store) }
}

/// The private key of a PEM text.
///
/// # Errors
/// When there is none.
pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| TlsError::Pem("private key"))
}

fn config(certificate: &[u8], key: &[u8], client_ca: &[u8]) -> Result<rustls::ServerConfig, TlsError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(client_ca)?), provider())
        .allow_unauthenticated()
        .build()?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(certificate, "certificate")?, private_key(key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
