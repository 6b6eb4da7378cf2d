//! Streams to processes of one role on known nodes: TLS 1.3, where each side shows its role, and who is dialled its node.
//!
//! Whoever has a certificate of another role, an expired one or one of a foreign authority gets no stream; whoever is on
//! another node than expected neither.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::certs::{self, Identity};
use crate::tls::{self, Clients, Material, Trust};

const HANDSHAKE: Duration = Duration::from_secs(10);

/// No stream came to be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// TLS cannot be set up at all.
    #[error("cannot configure TLS")]
    Configure(#[from] tls::Error),
    /// The other side, or this one, refused.
    #[error("TLS was refused")]
    Handshake(#[source] io::Error),
    /// The other side said nothing for too long.
    #[error("TLS did not come about within {0:?}")]
    Late(Duration),
    /// The certificate is good, and somebody else's.
    #[error("the certificate is that of node {found:?}, expected {expected:?}")]
    Node {
        /// Whom this side wanted.
        expected: String,
        /// Who answered; empty when the certificate names no node.
        found: String,
    },
}

/// How processes of one role are recognised, by each other and by those who dial them.
#[derive(Clone, Debug)]
pub struct Peers {
    role: String,
    material: Arc<Material>,
    trust: Arc<Trust>,
}

impl Peers {
    /// Those who carry `role`. This side shows `material`, and checks against `trust`.
    pub fn new(role: &str, material: Arc<Material>, trust: Arc<Trust>) -> Self {
        Self { role: role.to_owned(), material, trust }
    }

    /// The other side's stream, once it has shown that it has the role, and who it is.
    ///
    /// # Errors
    /// When it has not.
    pub async fn accept(&self, stream: TcpStream) -> Result<(TlsStream<TcpStream>, Identity), Error> {
        let clients = Clients::Roles(self.trust.clone(), vec![self.role.clone()]);
        let acceptor = TlsAcceptor::from(tls::stream_server(self.material.clone(), clients)?);
        let stream = in_time(acceptor.accept(stream)).await?;
        let identity = stream.get_ref().1.peer_certificates().and_then(leaf).unwrap_or_default();
        Ok((stream.into(), identity))
    }

    /// A stream to the process of this role on `node`, to whose address `stream` leads.
    ///
    /// # Errors
    /// When somebody else is there.
    pub async fn connect(&self, stream: TcpStream, node: &str) -> Result<TlsStream<TcpStream>, Error> {
        let config = tls::stream_client(self.material.clone(), self.trust.clone(), &self.role)?;
        let address = stream.peer_addr().map_err(Error::Handshake)?;
        // The certificate is checked by role and node, not by name.
        let name = ServerName::IpAddress(address.ip().into());
        let stream = in_time(TlsConnector::from(config).connect(name, stream)).await?;
        let found = stream.get_ref().1.peer_certificates().and_then(leaf).unwrap_or_default();
        check_node(&found, node)?;
        Ok(stream.into())
    }
}

/// Whether a certificate is bound to `node`.
///
/// # Errors
/// When it is not, with whom it names.
pub fn check_node(identity: &Identity, node: &str) -> Result<(), Error> {
    match identity.node.as_deref() {
        Some(found) if found == node => Ok(()),
        found => Err(Error::Node { expected: node.to_owned(), found: found.unwrap_or_default().to_owned() }),
    }
}

fn leaf(chain: &[CertificateDer<'_>]) -> Option<Identity> {
    certs::identity(chain.first()?)
}

async fn in_time<T>(handshake: impl Future<Output = io::Result<T>>) -> Result<T, Error> {
    timeout(HANDSHAKE, handshake).await.map_err(|_| Error::Late(HANDSHAKE))?.map_err(Error::Handshake)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::Chain;
    use crate::certs::{Authority, Leaf};

    const HOUR: Duration = Duration::from_secs(3600);

    struct Shown {
        role: &'static str,
        node: Option<&'static str>,
        /// Signed by an authority that nobody trusts.
        foreign: bool,
        expired: bool,
    }

    const GOOD: Shown = Shown { role: "agent", node: Some("n1"), foreign: false, expired: false };

    fn peers(authority: &Authority, shown: &Shown) -> Peers {
        let now = crate::clock::now();
        let other = Authority::generate("other", now, HOUR * 48).unwrap();
        let leaf = Leaf {
            name: "a".into(),
            role: shown.role.into(),
            node: shown.node.map(str::to_owned),
            ..Default::default()
        };
        let made = if shown.expired { now - jiff::SignedDuration::from_hours(3) } else { now };
        let pair = if shown.foreign { &other } else { authority }.issue(&leaf, made, HOUR).unwrap();
        let (material, trust) = (Material::new(), Trust::new());
        material.set(&pair).unwrap();
        trust.set(&authority.pair().certificate).unwrap();
        Peers::new("agent", material, trust)
    }

    /// What `client` gets of a good server on n1 that it believes on `expected`: an echo, or each side's refusal.
    async fn meet(client: &Shown, expected: &str) -> Result<Identity, String> {
        let authority = Authority::generate("test", crate::clock::now(), HOUR * 48).unwrap();
        let (server, client) = (peers(&authority, &GOOD), peers(&authority, client));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let serve = async {
            let (mut stream, identity) = server.accept(listener.accept().await.unwrap().0).await?;
            let _ = stream.write_all(b"x").await;
            let _ = stream.shutdown().await;
            Ok::<_, Error>(identity)
        };
        let ask = async {
            let mut stream = client.connect(TcpStream::connect(to).await.unwrap(), expected).await?;
            let mut got = Vec::new();
            // A client whose certificate is refused hears of it with the first read.
            stream.read_to_end(&mut got).await.map_err(Error::Handshake)?;
            assert_eq!(got, b"x");
            Ok::<_, Error>(())
        };
        let (served, asked) = tokio::join!(serve, ask);
        asked.and(served).map_err(|error| Chain(&error).to_string())
    }

    #[tokio::test]
    async fn only_the_same_role_on_the_expected_node_is_met() {
        let met = meet(&Shown { node: Some("n2"), ..GOOD }, "n1").await.unwrap();
        assert_eq!((met.role.as_str(), met.node.as_deref()), ("agent", Some("n2")));
        let refused = meet(&GOOD, "n9").await.unwrap_err();
        assert_eq!(refused, "the certificate is that of node \"n1\", expected \"n9\"");
        for wrong in [Shown { role: "other", ..GOOD }, Shown { foreign: true, ..GOOD }, Shown { expired: true, ..GOOD }]
        {
            let refused = meet(&wrong, "n1").await.unwrap_err();
            assert!(refused.starts_with("TLS was refused"), "{refused}");
        }
    }

    #[test]
    fn a_certificate_without_a_node_is_nobodys() {
        let error = check_node(&Identity::default(), "n1").unwrap_err();
        assert_eq!(error.to_string(), "the certificate is that of node \"\", expected \"n1\"");
    }
}
