//! The upload server with real TLS, and the cloner as one of its clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cdi::{cloner, uploadserver};
use kit::certs::{Authority, Leaf, Pair};
use kit::shutdown::CancellationToken;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const CLIENT: &str = "client.upload-proxy.cdi.kubevirt.io";
const CLONER: &str = "copy-to-uid";
const DAY: Duration = Duration::from_secs(86400);

/// Names and certificates of both ends.
pub(crate) struct Party {
    authority: Authority,
    pub(crate) client: Pair,
    cloner: Pair,
    pub(crate) dir: tempfile::TempDir,
}

impl Party {
    pub(crate) fn new(server: &str) -> Self {
        let authority = Authority::generate("uploads", kit::clock::now(), DAY).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        let leaf = Leaf { name: server.into(), role: "upload".into(), dns: vec![server.into()], ..Leaf::default() };
        let pair = authority.issue(&leaf, kit::clock::now(), DAY).unwrap();
        std::fs::write(dir.path().join("tls.crt"), pair.certificate).unwrap();
        std::fs::write(dir.path().join("tls.key"), pair.key).unwrap();
        std::fs::write(dir.path().join("clients.crt"), &authority.pair().certificate).unwrap();
        let client = Self::issue(&authority, CLIENT, "cdi-uploadproxy");
        let cloner = Self::issue(&authority, CLONER, "cdi-clone-source");
        Self { authority, client, cloner, dir }
    }

    fn issue(authority: &Authority, name: &str, role: &str) -> Pair {
        let leaf = Leaf { name: name.into(), role: role.into(), ..Leaf::default() };
        authority.issue(&leaf, kit::clock::now(), DAY).unwrap()
    }

    pub(crate) fn authorities(&self) -> &str {
        &self.authority.pair().certificate
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.dir.path().join("data/disk.img")
    }

    pub(crate) fn args(&self) -> uploadserver::Args {
        let at = |name: &str| self.dir.path().join(name);
        uploadserver::Args {
            tls_cert_file: at("tls.crt"),
            tls_key_file: at("tls.key"),
            client_cert_file: at("clients.crt"),
            client_name: CLIENT.into(),
            cloner_name: CLONER.into(),
            destination: self.disk(),
            image_size: "8Mi".into(),
            filesystem_overhead: String::new(),
            preallocation: String::new(),
            deadline: String::new(),
            listen_address: String::new(),
            listen_port: 0,
            health_port: 0,
            termination_log: at("termination"),
        }
    }

    pub(crate) fn said(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.dir.path().join("termination")).unwrap()).unwrap()
    }

    fn http(&self, pair: Option<&Pair>) -> reqwest::Client {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authorities().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let config = match pair {
            Some(pair) => {
                let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()];
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap())
            }
            .unwrap(),
            None => builder.with_no_client_auth(),
        };
        reqwest::Client::builder().tls_backend_preconfigured(config).no_proxy().build().unwrap()
    }
}

/// A running server.
pub(crate) struct Running {
    pub(crate) port: u16,
    pub(crate) ended: JoinHandle<Result<(), cdi::Error>>,
}

impl Running {
    pub(crate) async fn start(args: uploadserver::Args) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let ended = tokio::spawn(uploadserver::serve(args, listener, CancellationToken::new()));
        Self { port, ended }
    }

    fn url(&self, path: &str) -> String {
        format!("https://localhost:{}/v1beta1/{path}", self.port)
    }
}

fn image() -> Vec<u8> {
    (0..3 << 20).map(|i: u32| (i / 4096 % 251) as u8).collect()
}

fn stored(party: &Party) -> bool {
    let found = std::fs::read(party.disk()).unwrap();
    found.len() == 8 << 20 && found[..3 << 20] == image()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_upload_is_stored_and_the_server_ends() {
    for path in ["upload", "upload-async"] {
        let party = Party::new("localhost");
        let server = Running::start(party.args()).await;
        let client = party.http(Some(&party.client));
        let answer = client.post(server.url(path)).body(image()).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        server.ended.await.unwrap().unwrap();
        assert!(stored(&party), "{path}");
        assert_eq!(party.said()["message"], "Upload Complete");
    }
}

/// The early answer says that what came is an image, as far as its beginning tells.
#[tokio::test(flavor = "multi_thread")]
async fn an_early_answer_is_about_what_was_looked_at() {
    let party = Party::new("localhost");
    let server = Running::start(party.args()).await;
    let client = party.http(Some(&party.client));
    for _ in 0..10 {
        let page = "<!doctype html><title>404 Not Found";
        let answer = client.post(server.url("upload-async")).body(page).send().await.unwrap();
        assert_eq!(answer.status(), 400);
        let text = answer.text().await.unwrap();
        assert!(text.contains("the file is an HTML page, not a disk image"), "{text}");
    }
    let answer = client.post(server.url("upload-async")).body(image()).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    server.ended.await.unwrap().unwrap();
    assert!(stored(&party));
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_carry_uploads_too() {
    let party = Party::new("localhost");
    let server = Running::start(party.args()).await;
    let form = |name: &str| {
        let mut body = b"--limit\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nignored\r\n".to_vec();
        body.extend(
            format!("--limit\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"a\"\r\n\r\n").bytes(),
        );
        body.extend(image());
        body.extend(b"\r\n--limit--\r\n");
        let client = party.http(Some(&party.client));
        client.post(server.url("upload-form")).header("content-type", "multipart/form-data; boundary=limit").body(body)
    };
    let answer = form("wrong").send().await.unwrap();
    assert_eq!(answer.status(), 400);
    assert!(answer.text().await.unwrap().contains("no part named \"file\""));
    assert_eq!(form("file").send().await.unwrap().status(), 200);
    server.ended.await.unwrap().unwrap();
    assert!(stored(&party));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_expected_clients_and_methods_are_served() {
    let party = Party::new("localhost");
    let server = Running::start(party.args()).await;
    let stranger = Party::issue(&party.authority, "somebody", "cdi-uploadproxy");
    let nothing = Party::issue(&party.authority, CLIENT, "");
    // A tenant finds the certificate of a cloner beside the claim it copies.
    let elsewhere = Party::issue(&party.authority, "copy-to-another", "cdi-clone-source");
    let posing = Party::issue(&party.authority, CLIENT, "cdi-clone-source");
    for pair in [None, Some(&stranger), Some(&nothing), Some(&elsewhere), Some(&posing)] {
        for content in ["kubevirt", "filesystem-clone", "blockdevice-clone"] {
            let request = party.http(pair).post(server.url("upload")).header("x-cdi-content-type", content);
            assert_eq!(request.body("x").send().await.unwrap().status(), 401);
        }
    }
    // Each sends what it is for.
    for (pair, content) in [(&party.cloner, "kubevirt"), (&party.client, "blockdevice-clone")] {
        let request = party.http(Some(pair)).post(server.url("upload")).header("x-cdi-content-type", content);
        assert_eq!(request.body("x").send().await.unwrap().status(), 403);
    }
    let client = party.http(Some(&party.client));
    assert_eq!(client.get(server.url("upload")).send().await.unwrap().status(), 404);
    assert_eq!(client.post(server.url("other")).send().await.unwrap().status(), 404);
    assert_eq!(client.head(server.url("upload-async")).send().await.unwrap().status(), 200);
    assert_eq!(client.head(server.url("upload")).send().await.unwrap().status(), 404);
    let clone = client.post(server.url("upload-async")).header("x-cdi-content-type", "filesystem-clone");
    assert_eq!(clone.send().await.unwrap().status(), 400);
    server.ended.abort();
}

/// A body that stays open until the sender is dropped, or breaks when it sends an error.
fn open_body() -> (tokio::sync::mpsc::Sender<std::io::Result<Vec<u8>>>, reqwest::Body) {
    let (sender, mut receiver) = tokio::sync::mpsc::channel(4);
    (sender, reqwest::Body::wrap_stream(futures::stream::poll_fn(move |cx| receiver.poll_recv(cx))))
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_are_taken_one_at_a_time_and_a_failed_one_makes_room() {
    let party = Party::new("localhost");
    let server = Running::start(party.args()).await;
    let client = party.http(Some(&party.client));
    let (sender, body) = open_body();
    let first = tokio::spawn(client.post(server.url("upload")).body(body).send());
    sender.send(Ok(vec![7; 1 << 20])).await.unwrap();
    // The first upload is there once another is refused.
    let post = || client.post(server.url("upload")).body(vec![7; 16 << 20]).send();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let mut refused = 0;
    while refused != 503 {
        refused = post().await.unwrap().status().as_u16();
        assert!(tokio::time::Instant::now() < deadline, "the second upload was answered {refused}");
    }
    sender.send(Err(std::io::Error::other("gone"))).await.unwrap();
    drop(sender);
    assert!(first.await.unwrap().is_err());
    // Its end makes room, and what is too large is refused with the reason.
    let (status, text) = loop {
        let answer = post().await.unwrap();
        match answer.status().as_u16() {
            503 => assert!(answer.text().await.unwrap().contains("another upload into this volume is going on")),
            status => break (status, answer.text().await.unwrap()),
        }
        assert!(tokio::time::Instant::now() < deadline);
    };
    assert!(status == 400 && text.contains("A larger PVC is required"), "{status} {text}");
    let answer = client.post(server.url("upload")).body(image()).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    server.ended.await.unwrap().unwrap();
    assert!(stored(&party));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_with_a_name_is_continued_where_it_broke_off() {
    let party = Party::new("localhost");
    let server = Running::start(party.args()).await;
    let client = party.http(Some(&party.client));
    let named = |request: reqwest::RequestBuilder| request.header("x-cdi-upload-id", "mine");
    let (sender, body) = open_body();
    let first = tokio::spawn(named(client.post(server.url("upload"))).body(body).send());
    sender.send(Ok(image()[..1_000_000].to_vec())).await.unwrap();
    sender.send(Err(std::io::Error::other("gone"))).await.unwrap();
    drop(sender);
    assert!(first.await.unwrap().is_err());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let offset = loop {
        let answer = named(client.head(server.url("upload"))).send().await.unwrap();
        if answer.status() == 200 {
            break answer.headers()["upload-offset"].to_str().unwrap().parse::<usize>().unwrap();
        }
        assert!(tokio::time::Instant::now() < deadline);
    };
    assert!(offset <= 1_000_000);
    let other = client.post(server.url("upload")).body("x").send().await.unwrap();
    assert_eq!(other.status(), 503, "it is kept for its client");
    let wrong = named(client.post(server.url("upload"))).header("upload-offset", "7").body("x").send().await.unwrap();
    assert_eq!(wrong.status(), 409);
    assert_eq!(wrong.headers()["upload-offset"].to_str().unwrap(), offset.to_string());
    let rest = image()[offset..].to_vec();
    let rest = named(client.post(server.url("upload"))).header("upload-offset", offset.to_string()).body(rest);
    assert_eq!(rest.send().await.unwrap().status(), 200);
    server.ended.await.unwrap().unwrap();
    assert!(stored(&party));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_nobody_comes_to_ends_at_its_deadline() {
    let party = Party::new("localhost");
    let args = uploadserver::Args { deadline: "2020-01-01T00:00:00Z".into(), ..party.args() };
    Running::start(args).await.ended.await.unwrap().unwrap();
    assert_eq!(party.said(), serde_json::json!({ "deadlinePassed": true, "message": "Deadline Passed" }));
}

fn cloner(party: &Party, server: &Running, content: &str, mount: &Path) -> cloner::Args {
    cloner::Args {
        content_type: content.into(),
        mount: mount.to_owned(),
        upload_bytes: 0,
        client_key: party.cloner.key.clone(),
        client_cert: party.cloner.certificate.clone(),
        server_ca_cert: party.authorities().to_owned(),
        upload_url: server.url("upload"),
        preallocation: "false".into(),
        owner_uid: "uid".into(),
        termination_log: mount.with_extension("termination"),
        metrics_port: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_are_cloned_by_their_files_and_by_their_bytes() {
    let source = tempfile::tempdir().unwrap();
    let mount = source.path().join("mount");
    std::fs::create_dir_all(mount.join("lost+found")).unwrap();
    let disk = std::fs::File::create(mount.join("disk.img")).unwrap();
    disk.set_len(8 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&disk, &image(), 0).unwrap();
    std::fs::write(mount.join("beside"), "more").unwrap();

    let party = Party::new("localhost");
    std::fs::write(party.dir.path().join("data/left"), "over").unwrap();
    let server = Running::start(party.args()).await;
    cloner::run(cloner(&party, &server, "filesystem-clone", &mount)).await.unwrap();
    server.ended.await.unwrap().unwrap();
    assert!(stored(&party));
    assert_eq!(std::fs::read(party.dir.path().join("data/beside")).unwrap(), b"more");
    assert!(!party.dir.path().join("data/left").exists());
    assert_eq!(party.said()["message"], "Clone Complete");

    let party = Party::new("localhost");
    let server = Running::start(party.args()).await;
    cloner::run(cloner(&party, &server, "blockdevice-clone", &mount.join("disk.img"))).await.unwrap();
    server.ended.await.unwrap().unwrap();
    assert!(stored(&party));

    let party = Party::new("localhost");
    let server = Running::start(party.args()).await;
    let missing = cloner::run(cloner(&party, &server, "filesystem-clone", &mount.join("missing"))).await;
    assert!(missing.is_err());
    server.ended.abort();
}
