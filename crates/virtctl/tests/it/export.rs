//! Downloads of exports over a link that breaks: the real server, behind something that cuts connections.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::routing::get;
use axum::{Json, Router};
use kit::certs::{Authority, Leaf};
use kit::shutdown::CancellationToken;
use kit::tls::{self, Material};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use virt_export::server::{Export, Volume};

use crate::cluster::{program, said};

const SIZE: usize = 3 << 20;
const TOKEN: &str = "t0ken";

/// What happens to a connection.
#[derive(Clone, Copy)]
enum Fate {
    /// It is cut when so many bytes have come back.
    Cut(u64),
    /// Before it, the disk is written.
    Write,
    Whole,
}
use Fate::{Cut, Whole, Write};

struct Scene {
    dir: TempDir,
    /// Where the link begins.
    link: SocketAddr,
    /// How many connections there were, and what came back on them.
    connections: Arc<AtomicUsize>,
    bytes: Arc<AtomicU64>,
    /// The certificate that the server shows.
    own: String,
}

/// Bytes that cannot be made smaller.
fn noise() -> Vec<u8> {
    let mut state = 1_u32;
    let next = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()
    });
    next.flatten().take(SIZE).collect()
}

/// A cluster with one export, whose connections have these fates, one after the other; those after them are whole.
async fn scene(fates: &'static [Fate]) -> Scene {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("disk")).unwrap();
    std::fs::write(dir.path().join("disk/disk.img"), noise()).unwrap();
    std::fs::write(dir.path().join("token"), TOKEN).unwrap();
    let authority = server(dir.path()).await;
    let (connections, bytes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let link = listener.local_addr().unwrap();
    let (counted, taken, disk) = (connections.clone(), bytes.clone(), dir.path().join("disk/disk.img"));
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let fate = fates.get(counted.fetch_add(1, Ordering::SeqCst)).copied().unwrap_or(Whole);
            if let Write = fate {
                std::fs::write(&disk, vec![7; SIZE]).unwrap();
            }
            tokio::spawn(carry(near, authority.server, fate, taken.clone()));
        }
    });
    cluster(dir.path(), &authority.certificate).await;
    Scene { dir, link, connections, bytes, own: authority.own }
}

async fn carry(near: TcpStream, server: SocketAddr, fate: Fate, taken: Arc<AtomicU64>) {
    let far = TcpStream::connect(server).await.unwrap();
    let ((mut near_read, mut near_write), (mut far_read, mut far_write)) = (near.into_split(), far.into_split());
    tokio::spawn(async move { tokio::io::copy(&mut near_read, &mut far_write).await });
    let mut left = if let Cut(after) = fate { after } else { u64::MAX };
    let mut buffer = vec![0; 16 << 10];
    while left > 0 {
        let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let Ok(found @ 1..) = far_read.read(&mut buffer[..room]).await else { return };
        if near_write.write_all(&buffer[..found]).await.is_err() {
            return;
        }
        taken.fetch_add(found as u64, Ordering::SeqCst);
        left -= found as u64;
    }
}

struct Shown {
    server: SocketAddr,
    /// The authority's certificate, and its own.
    certificate: String,
    own: String,
}

/// The export's server.
async fn server(dir: &Path) -> Shown {
    let (now, day) = (kit::clock::now(), Duration::from_secs(24 * 3600));
    let authority = Authority::generate("exports", now, day).unwrap();
    let leaf = Leaf { name: "e".into(), role: "e".into(), dns: vec!["virt-export-e.here.svc".into()], node: None };
    let material = Material::new();
    let pair = authority.issue(&leaf, now, day).unwrap();
    material.set(&pair).unwrap();
    let disk = Volume {
        path: dir.join("disk"),
        raw: "/volumes/disk/disk.img".into(),
        gzip: "/volumes/disk/disk.img.gz".into(),
        ..Volume::default()
    };
    let export = Export { volumes: vec![disk], token: dir.join("token"), name: "e".into(), ..Export::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let router = virt_export::server::router(export);
    let config = tls::server(material, None).unwrap();
    tokio::spawn(kit::server::serve_tls(listener, config, router, CancellationToken::new()));
    Shown { server, certificate: authority.pair().certificate.clone(), own: pair.certificate }
}

/// The API server, as far as a download asks it, and the kubeconfig.
async fn cluster(dir: &Path, certificate: &str) {
    let url = |end: &str| format!("https://virt-export-e.here.svc/volumes/disk/{end}");
    let export = json!({
        "apiVersion": "export.kubevirt.io/v1", "kind": "VirtualMachineExport",
        "metadata": { "name": "e", "namespace": "here" },
        "spec": { "source": { "kind": "PersistentVolumeClaim", "name": "disk" } },
        "status": { "phase": "Ready", "tokenSecretRef": "token", "links": { "internal": {
            "cert": certificate,
            "volumes": [{ "name": "disk", "formats": [
                { "format": "raw", "url": url("disk.img") }, { "format": "gzip", "url": url("disk.img.gz") },
            ] }],
        } } },
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "token" }, "data": { "token": "dDBrZW4=" },
    });
    let answer = |object: Value| get(move || std::future::ready(Json(object.clone())));
    let router = Router::new()
        .route("/apis/export.kubevirt.io/v1/namespaces/here/virtualmachineexports/e", answer(export))
        .route("/api/v1/namespaces/here/secrets/token", answer(secret));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u, namespace: here}}}}]\n\
         users: [{{name: u, user: {{token: secret}}}}]\n"
    );
    std::fs::write(dir.join("kubeconfig"), kubeconfig).unwrap();
}

impl Scene {
    fn output(&self) -> PathBuf {
        self.dir.path().join("output")
    }

    /// What the program says when it downloads the volume into the output, with these words more.
    async fn download(&self, words: &[&str]) -> Output {
        let (link, output) = (self.link.to_string(), self.output().display().to_string());
        let mut all = vec!["vmexport", "download", "e", "--service-url", &link];
        if !words.contains(&"--output=-") {
            all.extend(["--output", &output]);
        }
        all.extend(words);
        let mut command = program(&all);
        command.env("KUBECONFIG", self.dir.path().join("kubeconfig"));
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_goes_on_where_it_broke_off() {
    // The first connection asks how large it is.
    let scene = scene(&[Whole, Cut(700_000), Cut(500_000), Cut(100)]).await;
    let output = scene.download(&["--format=raw"]).await;
    assert!(output.status.success(), "{}", said(&output));
    assert!(std::fs::read(scene.output()).unwrap() == noise());
    assert_eq!(scene.connections(), 5);
    let bytes = scene.bytes.load(Ordering::SeqCst);
    assert!(bytes < SIZE as u64 + (200 << 10), "{bytes} bytes for {SIZE}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_attempt_goes_on_too() {
    // So often that the attempt is given up; the next one asks for the size first.
    let fates = &[Whole, Cut(300_000), Cut(200_000), Cut(200_000), Cut(200_000), Cut(200_000), Cut(200_000)];
    let scene = scene(fates).await;
    let output = scene.download(&["--format=raw", "--retry=1"]).await;
    let text = said(&output);
    assert!(output.status.success() && text.contains("Retrying..."), "{text}");
    assert!(std::fs::read(scene.output()).unwrap() == noise());
    assert_eq!(scene.connections(), fates.len() + 2);
    let bytes = scene.bytes.load(Ordering::SeqCst);
    assert!(bytes < SIZE as u64 + (200 << 10), "{bytes} bytes for {SIZE}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_compressed_download_restarts() {
    let scene = scene(&[Cut(700_000), Cut(700_000)]).await;
    let output = scene.download(&[]).await;
    let text = said(&output);
    assert!(!output.status.success() && text.contains("broke off"), "{text}");
    let output = scene.download(&["--retry=1"]).await;
    assert!(output.status.success(), "{}", said(&output));
    let packed = std::fs::read(scene.output()).unwrap();
    let mut unpacked = Vec::new();
    std::io::copy(&mut flate2::read::GzDecoder::new(&packed[..]), &mut unpacked).unwrap();
    assert!(unpacked == noise());
    assert_eq!(scene.connections(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_to_standard_output_does_not_restart() {
    let scene = scene(&[Cut(700_000)]).await;
    let output = scene.download(&["--output=-", "--retry=1"]).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("the download cannot begin again"), "{errors}");
    assert_eq!(scene.connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_was_written_meanwhile_is_not_put_together() {
    let scene = scene(&[Whole, Cut(700_000), Write]).await;
    let output = scene.download(&["--format=raw"]).await;
    let text = said(&output);
    assert!(!output.status.success() && text.contains("the disk has changed meanwhile"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_known_by_its_own_certificate_too() {
    let scene = scene(&[]).await;
    // An Ingress may show a certificate whose authority nobody names.
    cluster(scene.dir.path(), &scene.own).await;
    let output = scene.download(&["--format=raw"]).await;
    assert!(output.status.success(), "{}", said(&output));
    let (now, hour) = (kit::clock::now(), Duration::from_secs(3600));
    let stranger = Authority::generate("stranger", now, hour).unwrap().pair().certificate.clone();
    cluster(scene.dir.path(), &stranger).await;
    let output = scene.download(&["--format=raw"]).await;
    let text = said(&output);
    assert!(!output.status.success() && text.contains("cannot reach the export's server"), "{text}");
    let output = scene.download(&["--format=raw", "--insecure"]).await;
    assert!(output.status.success(), "{}", said(&output));
}
