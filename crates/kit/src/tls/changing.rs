//! A server's configuration that an administrator may change while it serves.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use rustls::ServerConfig;

use super::{Clients, Error, Material, Policy, with_policy};

/// What a server shows and checks, for the next handshake.
pub trait Configuration: Send + Sync + 'static {
    /// As it is now.
    fn current(&self) -> Arc<ServerConfig>;
}

impl Configuration for Arc<ServerConfig> {
    fn current(&self) -> Arc<ServerConfig> {
        self.clone()
    }
}

/// A configuration that obeys the [`Policy`] it was told last.
#[derive(Debug)]
pub struct Changing {
    material: Arc<Material>,
    clients: Option<Clients>,
    policy: Mutex<Policy>,
    now: ArcSwap<ServerConfig>,
}

impl Changing {
    /// As [`super::server`], until told otherwise.
    ///
    /// # Errors
    /// When the provider lacks a protocol version.
    pub fn new(material: Arc<Material>, clients: Option<Clients>) -> Result<Arc<Self>, Error> {
        let policy = Policy::default();
        let now = ArcSwap::new(with_policy(material.clone(), clients.clone(), &policy)?);
        Ok(Arc::new(Self { material, clients, policy: Mutex::new(policy), now }))
    }

    /// Offers what `policy` says from the next handshake on. True when that is something else than before.
    ///
    /// # Errors
    /// When rustls refuses the policy; then the one before stays.
    pub fn obey(&self, policy: &Policy) -> Result<bool, Error> {
        let mut held = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        if *held == *policy {
            return Ok(false);
        }
        self.now.store(with_policy(self.material.clone(), self.clients.clone(), policy)?);
        held.clone_from(policy);
        Ok(true)
    }
}

impl Configuration for Arc<Changing> {
    fn current(&self) -> Arc<ServerConfig> {
        self.now.load_full()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::ServerName;
    use rustls::version::{TLS12, TLS13};
    use rustls::{ClientConfig, SupportedProtocolVersion};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::super::{RoleVerifier, Trust, provider};
    use super::*;
    use crate::{certs, clock};

    const ROLE: &str = "tested";

    async fn connects(server: &Arc<Changing>, trust: &Arc<Trust>, version: &'static SupportedProtocolVersion) -> bool {
        let verifier = RoleVerifier { trust: trust.clone(), role: ROLE.into(), node: None, provider: provider() };
        let client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        let (near, far) = tokio::io::duplex(1 << 16);
        let accepting = TlsAcceptor::from(server.current()).accept(far);
        let connecting = TlsConnector::from(Arc::new(client)).connect(ServerName::try_from(ROLE).unwrap(), near);
        let (accepted, connected) = tokio::join!(accepting, connecting);
        accepted.is_ok() && connected.is_ok()
    }

    #[tokio::test]
    async fn a_policy_counts_from_the_next_handshake_on() {
        let hour = Duration::from_secs(3600);
        let authority = certs::Authority::generate(ROLE, clock::now(), hour).unwrap();
        let leaf = certs::Leaf { name: ROLE.into(), role: ROLE.into(), ..certs::Leaf::default() };
        let material = Material::new();
        material.set(&authority.issue(&leaf, clock::now(), hour).unwrap()).unwrap();
        let trust = Trust::new();
        trust.set(&authority.pair().certificate).unwrap();
        let server = Changing::new(material, None).unwrap();
        assert!(connects(&server, &trust, &TLS12).await && connects(&server, &trust, &TLS13).await);
        let (modern, _) = Policy::new("VersionTLS13", &[]);
        assert!(server.obey(&modern).unwrap() && !server.obey(&modern).unwrap());
        assert!(!connects(&server, &trust, &TLS12).await && connects(&server, &trust, &TLS13).await);
        server.obey(&Policy::default()).unwrap();
        assert!(connects(&server, &trust, &TLS12).await);
    }
}
