//! Clients that mean no good, and the others, who notice nothing.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, Error};
use kube_apiserver::pki::Pair;
use kube_apiserver::serve::Bounds;
use kube_apiserver::serve::fairness::{self, Fairness, Limits};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::served::Served;

impl Served {
    fn address(&self) -> &str {
        self.url.trim_start_matches("https://")
    }

    /// A connection of nobody in particular.
    async fn stranger(&self, protocol: &str) -> TlsStream<TcpStream> {
        self.connect(protocol, None).await
    }

    /// A connection with the administrator's certificate.
    pub(crate) async fn administrator(&self) -> TlsStream<TcpStream> {
        let pair = self.server.edges().pki.admin().unwrap();
        self.connect("http/1.1", Some(&pair)).await
    }

    async fn connect(&self, protocol: &str, pair: Option<&Pair>) -> TlsStream<TcpStream> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut roots = rustls::RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(self.server.edges().pki.ca_pem().as_bytes()) {
            roots.add(ca.unwrap()).unwrap();
        }
        let config = rustls::ClientConfig::builder().with_root_certificates(roots);
        let mut config = match pair {
            None => config.with_no_client_auth(),
            Some(pair) => {
                let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(self.address()).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    async fn admin(&self) -> Client {
        self.with_certificate(&self.server.edges().pki.admin().unwrap()).await
    }
}

async fn is_served(client: &Client) {
    let namespaces = Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    assert!(!namespaces.items.is_empty());
}

/// Waits until the other side has ended the connection.
pub(crate) async fn ended(mut stream: impl AsyncReadExt + Unpin) -> Vec<u8> {
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said).await;
    said
}

#[tokio::test]
async fn connections_that_say_nothing_keep_nobody_out() {
    let served = Served::start_within(Bounds { strangers: 8, ..Bounds::default() }).await;
    let early = served.admin().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(early.clone());
    let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(served.address()).await.unwrap());
    }
    // The oldest are shown out; who comes late is served; who came early still is.
    for stream in silent.drain(..20) {
        assert!(ended(stream).await.is_empty());
    }
    is_served(&served.admin().await).await;
    let map = serde_json::from_value(json!({"metadata": {"name": "m"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    while let Some(event) = events.next().await {
        if matches!(event.unwrap(), WatchEvent::Added(map) if map.metadata.name.as_deref() == Some("m")) {
            return;
        }
    }
    panic!("the watch ended");
}

#[tokio::test]
async fn an_idle_connection_ends_and_one_in_use_does_not() {
    let quick = Duration::from_millis(200);
    let served = Served::start_within(Bounds { patience: quick, idle: quick, ..Bounds::default() }).await;
    let admin = served.admin().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(admin);
    let mut events = maps.watch(&WatchParams::default().timeout(2), "0").await.unwrap().boxed();
    for protocol in ["h2", "http/1.1"] {
        ended(served.stranger(protocol).await).await;
    }
    // The watch lasts as long as it was to last.
    let map = serde_json::from_value(json!({"metadata": {"name": "m"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let mut seen = 0;
    while let Some(event) = events.next().await {
        event.unwrap();
        seen += 1;
    }
    assert!(seen >= 1);
}

#[tokio::test]
async fn a_flood_of_headers_is_cut_off() {
    let served = Served::start().await;
    let mut stream = served.stranger("http/1.1").await;
    stream.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    let line = format!("x-flood: {}\r\n", "y".repeat(8000));
    for _ in 0..1000 {
        if stream.write_all(line.as_bytes()).await.is_err() {
            break;
        }
    }
    let answer = String::from_utf8_lossy(&ended(stream).await).into_owned();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(served.stranger("h2").await))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let mut request = http::Request::get(format!("{}/version", served.url)).body(Empty::<bytes::Bytes>::new()).unwrap();
    for n in 0..20 {
        let name = http::HeaderName::try_from(format!("x-flood-{n}")).unwrap();
        request.headers_mut().insert(name, "y".repeat(8000).parse().unwrap());
    }
    match sender.send_request(request).await {
        Ok(response) => assert_eq!(response.status(), 431),
        Err(error) => assert!(!error.is_timeout(), "{error}"),
    }
    connection.abort();
    is_served(&served.admin().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_cancelled_requests_starves_nobody() {
    let served = Served::start().await;
    let admin = served.admin().await;
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(served.stranger("h2").await))
        .await
        .unwrap();
    let mut connection = tokio::spawn(connection);
    let flood = async {
        loop {
            if sender.ready().await.is_err() {
                return;
            }
            let mut asked = tokio::task::JoinSet::new();
            for _ in 0..100 {
                let request = http::Request::get(format!("{}/version", served.url));
                asked.spawn(sender.send_request(request.body(Empty::<bytes::Bytes>::new()).unwrap()));
            }
            tokio::task::yield_now().await;
            asked.abort_all();
        }
    };
    let others = async {
        for _ in 0..5 {
            is_served(&admin).await;
        }
    };
    tokio::select! {
        () = others => {}
        () = async { drop(tokio::join!(flood, &mut connection)); } => is_served(&admin).await,
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_with_its_limit() {
    let served = Served::start().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(served.admin().await);
    let map = json!({"metadata": {"name": "m"}, "data": {"k": "x".repeat(4 << 20)}});
    let Err(Error::Api(status)) = maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await
    else {
        panic!("a refusal is expected")
    };
    assert_eq!((status.code, status.reason.as_str()), (413, "RequestEntityTooLarge"));
    assert_eq!(status.message, "Request entity too large: limit is 3145728");
}

#[tokio::test]
async fn readers_who_do_not_read_hold_up_nobody() {
    let served = Served::start().await;
    let admin = served.admin().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(admin.clone());
    for n in 0..20 {
        let map = json!({"metadata": {"name": format!("m{n}")}, "data": {"k": "x".repeat(500_000)}});
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    }
    // Somebody asks for more than he is served at once, watches as well, and reads nothing of it.
    let pki = &served.server.edges().pki;
    let reader = served.with_certificate(&pki.client("greedy", "greedy", "system:masters").unwrap()).await;
    let mut unread = tokio::task::JoinSet::new();
    for n in 0..100 {
        let reader = reader.clone();
        unread.spawn(async move {
            let watch = if n % 2 == 0 { "?watch=true" } else { "" };
            let request = http::Request::get(format!("/api/v1/namespaces/default/configmaps{watch}"));
            reader.send(request.body(kube::client::Body::empty()).unwrap()).await
        });
    }
    // All of his watches have begun, and as many lists as he may have.
    let mut answers = Vec::new();
    while answers.len() < 50 + 30 {
        answers.push(unread.join_next().await.unwrap().unwrap().unwrap());
    }
    is_served(&admin).await;
    let map = serde_json::from_value(json!({"metadata": {"name": "new"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
}

/// Begins a request and reads the first line of the answer.
pub(crate) async fn begin(stream: &mut TlsStream<TcpStream>, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned()
}

/// A server of two routes within limits: `/talk` upgrades and listens until the client ends, `/swallow` reads a body.
async fn limited(limits: Limits) -> Served {
    use axum::extract::Request;
    use axum::routing::{get, post};
    let talk = |mut request: Request| async move {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move { ended(TokioIo::new(upgrade.await.unwrap())).await });
        (http::StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "talk")])
    };
    let swallow = |body: bytes::Bytes| async move { format!("{} bytes", body.len()) };
    let layer = axum::middleware::from_fn_with_state(Fairness::new(limits), fairness::layer);
    let router = axum::Router::new().route("/talk", get(talk)).route("/swallow", post(swallow)).layer(layer);
    Served::start_router(Bounds::default(), super::server().await, router).await
}

#[tokio::test]
async fn an_upgraded_stream_counts_until_it_ends() {
    let served = limited(Limits { streams: 2, ..Limits::default() }).await;
    let talk = "GET /talk HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: talk\r\n\r\n";
    let mut talking = Vec::new();
    for _ in 0..2 {
        let mut stream = served.stranger("http/1.1").await;
        assert_eq!(begin(&mut stream, talk).await, "HTTP/1.1 101 Switching Protocols");
        talking.push(stream);
    }
    let refused = begin(&mut served.stranger("http/1.1").await, talk).await;
    assert_eq!(refused, "HTTP/1.1 429 Too Many Requests");
    talking.pop();
    // Soon its place is free.
    let again = async {
        while begin(&mut served.stranger("http/1.1").await, talk).await != "HTTP/1.1 101 Switching Protocols" {}
    };
    tokio::time::timeout(Duration::from_secs(30), again).await.unwrap();
}

#[tokio::test]
async fn a_body_that_does_not_come_ends_with_its_time() {
    let brief = Duration::from_millis(500);
    let served = limited(Limits { per_user: 1, total: 1, request: brief, ..Limits::default() }).await;
    let post = "POST /swallow HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n";
    let mut slow = served.stranger("http/1.1").await;
    slow.write_all(post.as_bytes()).await.unwrap();
    slow.write_all(b"a").await.unwrap();
    // Others come to their turn, and the one who is slow is told.
    let mut other = served.stranger("http/1.1").await;
    assert_eq!(begin(&mut other, &format!("{post}123456789")).await, "HTTP/1.1 200 OK");
    let said = String::from_utf8_lossy(&ended(slow).await).into_owned();
    assert!(said.starts_with("HTTP/1.1 504 Gateway Timeout"), "{said}");
}
