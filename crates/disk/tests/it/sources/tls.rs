//! Servers with certificates: of an authority in a file, of nobody we know, and of nobody who matters.

use std::sync::Arc;

use disk::source::{Connection, Web, web};
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use tokio_rustls::TlsAcceptor;

use super::server::{Reply, Server};
use super::{chain, connection, read};

/// A server with a certificate of a new authority, whose PEM comes with it.
async fn server(versions: &[&'static SupportedProtocolVersion]) -> (Server, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap().signed_by(&key, &authority).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let server = Server::over(|request| Reply::file(request, b"secured"), Some(acceptor)).await;
    (server, authority.pem())
}

#[tokio::test]
async fn certificates_are_checked_against_the_authorities_of_the_import() {
    let (server, authority) = server(rustls::DEFAULT_VERSIONS).await;
    let asked = Web { url: format!("https://127.0.0.1:{}/disk.img", server.port), ..Web::default() };
    let error = web(&asked, &connection()).await.err().unwrap();
    assert!(chain(&error).to_lowercase().contains("certificate"), "{}", chain(&error));
    assert_eq!(server.seen().len(), 0);

    let insecure = Connection { insecure: true, ..connection() };
    assert_eq!(read(web(&asked, &insecure).await.unwrap(), 0).await.unwrap(), b"secured");

    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ca.pem"), authority).unwrap();
    std::fs::create_dir(dir.path().join("..data")).unwrap();
    let missing = dir.path().join("missing");
    let trusting = Connection { authorities: vec![missing, dir.path().to_owned()], ..connection() };
    assert_eq!(read(web(&asked, &trusting).await.unwrap(), 0).await.unwrap(), b"secured");

    std::fs::write(dir.path().join("ca.pem"), "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----").unwrap();
    let error = web(&asked, &trusting).await.err().unwrap().to_string();
    assert!(error.ends_with("ca.pem is not a file of PEM certificates"), "{error}");
}

#[tokio::test]
async fn a_server_that_signed_its_own_certificate_is_known_by_it() {
    let issue = |name: &str| {
        let mut params = CertificateParams::new(vec![name.into()]).unwrap();
        // As `openssl req -x509` makes them.
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap(), key)
    };
    for (name, works) in [("127.0.0.1", true), ("elsewhere.example", false)] {
        let (own, key) = issue(name);
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(rustls::DEFAULT_VERSIONS)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let server = Server::over(|request| Reply::file(request, b"secured"), Some(acceptor)).await;
        let asked = Web { url: format!("https://127.0.0.1:{}/disk.img", server.port), ..Web::default() };
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), own.pem()).unwrap();
        let trusting = Connection { authorities: vec![dir.path().to_owned()], ..connection() };
        assert_eq!(web(&asked, &trusting).await.is_ok(), works, "{name}");
        // Another's certificate of the same name is not it.
        std::fs::write(dir.path().join("ca.pem"), issue(name).0.pem()).unwrap();
        assert!(web(&asked, &trusting).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn old_servers_are_not_spoken_to_when_that_is_asked() {
    for (version, modern, works) in [(&TLS12, false, true), (&TLS12, true, false), (&TLS13, true, true)] {
        let (server, _) = server(&[version]).await;
        let asked = Web { url: format!("https://127.0.0.1:{}/disk.img", server.port), ..Web::default() };
        let connection = Connection { insecure: true, modern, ..connection() };
        assert_eq!(web(&asked, &connection).await.is_ok(), works, "{version:?}");
        assert_eq!(server.seen().is_empty(), !works);
    }
}
