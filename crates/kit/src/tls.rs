//! TLS whose certificates and trust change while connections are served.
//!
//! ```text
//! Secret mounted as files -> Identity files -> Material (arc-swap) <- resolver and verifiers read it per handshake
//! ```

mod changing;
mod follow;
mod policy;
mod unchecked;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use changing::{Changing, Configuration};
pub use follow::{Asked, follow, follow_optional, obey};
pub use policy::Policy;
pub use unchecked::unchecked_client;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme};

use crate::{Chain, Task, certs};

/// Setting TLS up failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// PEM that is not what it should be.
    #[error("cannot use the {what}")]
    Pem {
        /// Which part.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// rustls refused.
    #[error("cannot configure TLS")]
    Rustls(#[source] rustls::Error),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A certificate with its key, replaceable at any time; new handshakes use the newest.
#[derive(Debug, Default)]
pub struct Material(ArcSwapOption<CertifiedKey>);

impl Material {
    /// Empty material: handshakes fail until [`Material::set`].
    pub fn new() -> Arc<Self> {
        Arc::new(Material::default())
    }

    /// A certificate of `program`'s own making, for the kubelet's probes and for who reads the metrics, who look at no authority. It
    /// is valid for as long as any process lives.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn of_its_own(program: &str) -> Result<Arc<Self>, Error> {
        let made = |source: certs::Error| Error::Pem { what: "certificate", source: source.into() };
        let (now, lifetime) = (crate::clock::now(), Duration::from_secs(10 * 365 * 24 * 3600));
        let authority = certs::Authority::generate(program, now, lifetime).map_err(made)?;
        let leaf = certs::Leaf { name: program.into(), role: program.into(), ..Default::default() };
        let material = Material::new();
        material.set(&authority.issue(&leaf, now, lifetime).map_err(made)?)?;
        Ok(material)
    }

    /// Uses `pair` from the next handshake on.
    ///
    /// # Errors
    /// When the PEM is not a chain and its key.
    pub fn set(&self, pair: &certs::Pair) -> Result<(), Error> {
        let pem = |what| move |e: rustls::pki_types::pem::Error| Error::Pem { what, source: e.into() };
        let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(pem("certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(pem("key"))?;
        let key = ring::sign::any_supported_type(&key).map_err(Error::Rustls)?;
        let pair = CertifiedKey::new(chain, key);
        // Read while they were replaced, one may be the old and one the new: no handshake would succeed.
        pair.keys_match().map_err(Error::Rustls)?;
        self.0.store(Some(Arc::new(pair)));
        Ok(())
    }

    /// True once a certificate is there.
    pub fn is_set(&self) -> bool {
        self.0.load().is_some()
    }
}

impl ResolvesServerCert for Material {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}

impl ResolvesClientCert for Material {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }

    fn has_certs(&self) -> bool {
        self.is_set()
    }
}

/// A set of trusted authorities, replaceable at any time.
#[derive(Debug)]
pub struct Trust(ArcSwap<RootCertStore>);

impl Trust {
    /// Trusts nobody until [`Trust::set`].
    pub fn new() -> Arc<Self> {
        Arc::new(Trust(ArcSwap::from_pointee(RootCertStore::empty())))
    }

    /// Trusts exactly the certificates of this bundle from the next handshake on.
    ///
    /// # Errors
    /// When the bundle is not PEM certificates.
    pub fn set(&self, bundle: &str) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            let certificate = certificate.map_err(|e| Error::Pem { what: "trust bundle", source: e.into() })?;
            roots.add(certificate).map_err(Error::Rustls)?;
        }
        self.0.store(Arc::new(roots));
        Ok(())
    }

    /// Whether a server that shows this certificate under its role is trusted at that moment.
    pub fn vouches(&self, certificate: &str, at: Timestamp) -> bool {
        let verifier = WebPkiServerVerifier::builder_with_provider(self.0.load_full(), provider()).build();
        let (Ok(verifier), Ok(leaf)) = (verifier, CertificateDer::from_pem_slice(certificate.as_bytes())) else {
            return false;
        };
        let name = ServerName::try_from(certs::identity(&leaf).unwrap_or_default().role);
        let at = u64::try_from(at.as_second()).map(Duration::from_secs).map(UnixTime::since_unix_epoch);
        let (Ok(name), Ok(at)) = (name, at) else { return false };
        verifier.verify_server_cert(&leaf, &[], &name, &[], at).is_ok()
    }
}

/// Who may connect to a server.
#[derive(Clone, Debug)]
pub enum Clients {
    /// Certificates signed by these authorities; none at all is fine too, the handlers decide by [`crate::server::Peer`].
    Optional(Arc<Trust>),
    /// Only certificates signed by these authorities that carry one of these roles.
    Roles(Arc<Trust>, Vec<String>),
}

#[derive(Debug)]
struct ClientVerifier {
    clients: Clients,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        matches!(self.clients, Clients::Roles(..))
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let (trust, roles) = match &self.clients {
            Clients::Optional(trust) => (trust, None),
            Clients::Roles(trust, roles) => (trust, Some(roles)),
        };
        let verifier = WebPkiClientVerifier::builder_with_provider(trust.0.load_full(), self.provider.clone())
            .build()
            .map_err(|e| rustls::Error::General(e.to_string()))?;
        let verified = verifier.verify_client_cert(end_entity, intermediates, now)?;
        if let Some(roles) = roles {
            let role = certs::identity(end_entity).map(|identity| identity.role).unwrap_or_default();
            if !roles.contains(&role) {
                return Err(rustls::Error::General(format!("role {role:?} may not connect here")));
            }
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A server's configuration: `material` to show, `clients` to check. HTTP/2 and HTTP/1.1 are offered.
///
/// # Errors
/// When the provider lacks a protocol version.
pub fn server(material: Arc<Material>, clients: Option<Clients>) -> Result<Arc<ServerConfig>, Error> {
    with_policy(material, clients, &Policy::default())
}

fn with_policy(material: Arc<Material>, clients: Option<Clients>, policy: &Policy) -> Result<Arc<ServerConfig>, Error> {
    let builder = ServerConfig::builder_with_provider(policy.provider())
        .with_protocol_versions(policy.versions())
        .map_err(Error::Rustls)?;
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(Arc::new(ClientVerifier { clients, provider: provider() })),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(material);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Accepts servers by role (and node), not by host name: pods are dialled by address.
#[derive(Debug)]
struct RoleVerifier {
    trust: Arc<Trust>,
    role: String,
    node: Option<String>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for RoleVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verifier = WebPkiServerVerifier::builder_with_provider(self.trust.0.load_full(), self.provider.clone())
            .build()
            .map_err(|e| rustls::Error::General(e.to_string()))?;
        // The role is a DNS name of every leaf; webpki has no way to check a chain without a name.
        let name = ServerName::try_from(self.role.clone()).map_err(|e| rustls::Error::General(e.to_string()))?;
        let verified = verifier.verify_server_cert(end_entity, intermediates, &name, ocsp, now)?;
        let identity = certs::identity(end_entity).unwrap_or_default();
        if identity.role != self.role {
            return Err(rustls::Error::General(format!("expected {}, found role {:?}", self.role, identity.role)));
        }
        if let (Some(expected), Some(found)) = (&self.node, &identity.node)
            && expected != found
        {
            return Err(rustls::Error::General(format!("expected node {expected}, found {found}")));
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A client's configuration towards a component of `role` (on `node`, if its certificates are bound to nodes).
/// HTTP/1.1 only, because these connections carry websockets.
///
/// # Errors
/// When the provider lacks a protocol version.
pub fn client(
    material: Arc<Material>,
    trust: Arc<Trust>,
    role: &str,
    node: Option<&str>,
) -> Result<Arc<ClientConfig>, Error> {
    let verifier = RoleVerifier { trust, role: role.to_owned(), node: node.map(str::to_owned), provider: provider() };
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(Error::Rustls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(material);
    Ok(Arc::new(config))
}

/// The accepting end of streams between processes that are both ours: TLS 1.3, and no protocol to agree on.
///
/// # Errors
/// When the provider lacks TLS 1.3.
pub(crate) fn stream_server(material: Arc<Material>, clients: Clients) -> Result<Arc<ServerConfig>, Error> {
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(Error::Rustls)?
        .with_client_cert_verifier(Arc::new(ClientVerifier { clients, provider: provider() }))
        .with_cert_resolver(material);
    Ok(Arc::new(config))
}

/// The connecting end of such a stream. The node in the certificate is for the caller to check.
///
/// # Errors
/// When the provider lacks TLS 1.3.
pub(crate) fn stream_client(
    material: Arc<Material>,
    trust: Arc<Trust>,
    role: &str,
) -> Result<Arc<ClientConfig>, Error> {
    let verifier = RoleVerifier { trust, role: role.to_owned(), node: None, provider: provider() };
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(Error::Rustls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(material);
    Ok(Arc::new(config))
}

/// Where a component's certificate lies: a Secret mounted as a directory (`tls.crt`, `tls.key`), and a trust bundle.
#[derive(Clone, Debug)]
pub struct Files {
    /// The directory with `tls.crt` and `tls.key`.
    pub pair: PathBuf,
    /// The file with the trust bundle.
    pub bundle: PathBuf,
}

/// Loads `files` now, and again whenever they change, for as long as the task is held.
///
/// # Errors
/// When they cannot be read the first time; later failures keep what was loaded and are logged.
pub async fn load(files: Files, material: Arc<Material>, trust: Arc<Trust>) -> Result<Task<()>, Error> {
    let mut seen = read(&files).await?;
    material.set(&seen.0)?;
    trust.set(&seen.1)?;
    Ok(crate::spawn("certificates", async move {
        loop {
            tokio::time::sleep(look_again(&seen.0.certificate)).await;
            let now = match read(&files).await {
                Ok(now) => now,
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "certificates not reloaded");
                    continue;
                }
            };
            if now == seen {
                continue;
            }
            match material.set(&now.0).and_then(|()| trust.set(&now.1)) {
                Ok(()) => tracing::info!("certificates reloaded"),
                Err(error) => tracing::warn!(error = %Chain(&error), "certificates not reloaded"),
            }
            seen = now;
        }
    }))
}

/// When files are looked at again: the shorter their certificate lives, the sooner another is there.
pub fn look_again(certificate: &str) -> Duration {
    const OFTEN: Duration = Duration::from_secs(1);
    const LOOK: Duration = Duration::from_secs(30);
    let life = certs::life(certificate).map(|(made, until)| until.duration_since(made));
    let life = life.and_then(|life| Duration::try_from(life).ok()).unwrap_or(LOOK);
    (life / 30).clamp(OFTEN, LOOK)
}

async fn read(files: &Files) -> Result<(certs::Pair, String), Error> {
    Ok((pair(&files.pair).await?, text(files.bundle.clone()).await?))
}

/// The certificate and the key in a directory that a Secret is mounted at, of the same time: a kubelet may replace both in between.
///
/// # Errors
/// When they cannot be read.
pub async fn pair(directory: &Path) -> Result<certs::Pair, Error> {
    let certificate = async || text(directory.join("tls.crt")).await;
    let mut before = certificate().await?;
    loop {
        let key = text(directory.join("tls.key")).await?;
        let after = certificate().await?;
        if after == before {
            return Ok(certs::Pair { certificate: after, key });
        }
        before = after;
    }
}

async fn text(path: PathBuf) -> Result<String, Error> {
    match tokio::fs::read_to_string(&path).await {
        Ok(text) => Ok(text),
        Err(source) => Err(Error::File { path, source }),
    }
}
