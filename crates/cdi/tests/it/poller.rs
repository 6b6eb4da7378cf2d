//! The poller, from its environment to its last words, against registries of ours and of others.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::Redirect;
use axum::routing::get;
use cdi::poller::{Args, run};
use kit::certs::{Authority, Leaf, Pair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

const MANIFEST: &str = r#"{"schemaVersion":2,"manifests":[]}"#;
/// What no condition may show.
const PRIVATE: &str = "the words of a neighbour";

async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn args(dir: &Path, endpoint: &str) -> Args {
    Args {
        endpoint: endpoint.to_owned(),
        insecure_tls: "true".into(),
        termination_log: dir.join("termination"),
        ..Args::default()
    }
}

/// The last words of a poller, and whether it ended well.
async fn said(change: impl FnOnce(&Path) -> Args) -> (String, bool) {
    let dir = tempfile::tempdir().unwrap();
    let ended = run(change(dir.path())).await;
    let said = std::fs::read_to_string(dir.path().join("termination")).unwrap();
    let shown = format!("{said} {ended:?}");
    assert!(!shown.contains(PRIVATE), "{shown}");
    (said, ended.is_ok())
}

fn digest() -> String {
    let digits: String = Sha256::digest(MANIFEST).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// One without TLS, which many are that nobody but their owners reach.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_without_tls_says_what_an_image_is() {
    // What it says of itself is not what counts: an import is held against what was found.
    let answer = [("docker-content-digest", format!("sha256:{}", "0".repeat(64)))];
    let router = Router::new()
        .route("/v2/", get(|| async { "{}" }))
        .route("/v2/gold/manifests/1", get(move || async move { (answer, MANIFEST) }));
    let host = serve(router).await;
    let url = format!("docker://{host}/gold:1");
    assert_eq!(said(|dir| args(dir, &url)).await, (digest(), true));
    let secure = said(|dir| Args { insecure_tls: "false".into(), ..args(dir, &url) }).await;
    assert_eq!(secure, ("Connect".to_owned(), false));
}

/// A registry with this certificate, which answers any question with the manifest.
async fn secure(pair: &Pair) -> String {
    let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = format!("localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            let length = MANIFEST.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{MANIFEST}");
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_is_known_by_the_authorities_that_the_cron_names() {
    let (now, hour) = (kit::clock::now(), Duration::from_secs(3600));
    let authority = Authority::generate("registry-ca", now, hour).unwrap();
    let leaf = Leaf { name: "registry".into(), role: "registry".into(), node: None, dns: vec!["localhost".into()] };
    let host = secure(&authority.issue(&leaf, now, hour).unwrap()).await;
    let trusting = |dir: &Path, certificate: Option<&str>| {
        let authorities = dir.join("authorities");
        std::fs::create_dir(&authorities).unwrap();
        if let Some(certificate) = certificate {
            std::fs::write(authorities.join("ca.pem"), certificate).unwrap();
        }
        Args {
            insecure_tls: "false".into(),
            cert_dir: authorities.to_str().unwrap().to_owned(),
            ..args(dir, &format!("docker://{host}/gold:1"))
        }
    };
    let known = authority.pair().certificate.clone();
    assert_eq!(said(|dir| trusting(dir, Some(&known))).await, (digest(), true));
    assert_eq!(said(|dir| trusting(dir, None)).await, ("Certificate".to_owned(), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_registry_answers_is_repeated() {
    let endless =
        || async { Body::from_stream(futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(PRIVATE)))) };
    let router = Router::new()
        .route("/v2/", get(|| async { "{}" }))
        .route("/v2/closed/manifests/1", get(|| async { (StatusCode::FORBIDDEN, PRIVATE) }))
        .route("/v2/large/manifests/1", get(|| async { vec![b' '; 5 << 20] }))
        .route("/v2/endless/manifests/1", get(endless))
        .route("/v2/round/manifests/1", get(|| async { Redirect::temporary("/v2/round/manifests/1") }))
        .route("/v2/away/manifests/1", get(|| async { Redirect::temporary("file:///etc/passwd") }));
    let host = serve(router).await;
    for (name, expect) in [
        ("closed", "Status 403"),
        ("large", "Large"),
        ("endless", "Large"),
        ("round", "Redirects"),
        ("away", "Redirects"),
    ] {
        let found = said(|dir| args(dir, &format!("docker://{host}/{name}:1"))).await;
        assert_eq!(found, (expect.to_owned(), false), "{name}");
    }
}

/// A registry says who gives tokens: that may be anybody.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_strange_token_service_answers_is_repeated() {
    let desk = serve(Router::new().route("/token", get(|| async { (StatusCode::UNAUTHORIZED, PRIVATE) }))).await;
    let challenge = |realm: String| {
        let refused =
            (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, format!("Bearer realm=\"{realm}\""))], PRIVATE);
        get(move || async move { refused })
    };
    let router = Router::new()
        .route("/v2/", get(|| async { "{}" }))
        .route("/v2/strange/manifests/1", challenge(format!("http://{desk}/token")))
        .route("/v2/none/manifests/1", challenge(format!("gopher://{PRIVATE}")));
    let host = serve(router).await;
    for (name, expect) in [("strange", "Credentials"), ("none", "Address")] {
        let with_login = |dir: &Path| Args {
            access_key: "me".into(),
            secret_key: "secret".into(),
            ..args(dir, &format!("docker://{host}/{name}:1"))
        };
        assert_eq!(said(with_login).await, (expect.to_owned(), false), "{name}");
    }
}

#[tokio::test]
async fn only_registry_images_are_polled() {
    for endpoint in
        ["oci-archive:///etc/passwd", "docker://", "docker://127.0.0.1:1/UPPER", "docker://127.0.0.1:1/a:b:c"]
    {
        assert_eq!(said(|dir| args(dir, endpoint)).await, ("Address".to_owned(), false), "{endpoint}");
    }
    let refused = said(|dir| Args { insecure_tls: "perhaps".into(), ..args(dir, "docker://host/gold:1") }).await;
    assert_eq!(refused, ("Setup".to_owned(), false));
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_says_nothing_is_left() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let begun = tokio::time::Instant::now();
    let found = said(|dir| args(dir, &format!("docker://{}/gold:1", listener.local_addr().unwrap()))).await;
    assert!(matches!(found.0.as_str(), "Silent" | "Late") && !found.1, "{found:?}");
    assert!(begun.elapsed().as_secs() <= 31);
}
