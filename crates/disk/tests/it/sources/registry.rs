//! Registries, and images in archives.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use disk::Source;
use disk::source::{Connection, ContainerImage, ImageDisk, image};
use sha2::{Digest, Sha256};

use super::server::{Reply, Request, Server};
use super::{chain, connection, pattern, read};

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect::<String>())
}

fn tarball(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, data) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o444);
        builder.append_data(&mut header, path, *data).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Everything a registry has, by path below `/v2/vm/disk/`.
type Content = BTreeMap<String, Vec<u8>>;

/// An image with these layers, as the tag `latest`.
fn pushed(layers: &[Vec<u8>]) -> Content {
    let config = br#"{"architecture": "amd64", "config": {"Env": ["PATH=/bin", "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small"]}}"#;
    const DOCKER: &str = "application/vnd.docker";
    let descriptor = |kind: &str, bytes: &[u8]| serde_json::json!({"mediaType": format!("{DOCKER}.{kind}"), "digest": digest(bytes), "size": bytes.len()});
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": format!("{DOCKER}.distribution.manifest.v2+json"),
        "config": descriptor("container.image.v1+json", config),
        "layers": layers.iter().map(|layer| descriptor("image.rootfs.diff.tar.gzip", layer)).collect::<Vec<_>>(),
    });
    let manifest = manifest.to_string().into_bytes();
    let mut entry = descriptor("distribution.manifest.v2+json", &manifest);
    entry["platform"] = serde_json::json!({"architecture": "amd64", "os": "linux"});
    let kind = format!("{DOCKER}.distribution.manifest.list.v2+json");
    let index = serde_json::json!({"schemaVersion": 2, "mediaType": kind, "manifests": [entry]});
    let mut content = Content::from([
        ("manifests/latest".to_owned(), index.to_string().into_bytes()),
        (format!("manifests/{}", digest(&manifest)), manifest),
        (format!("blobs/{}", digest(config)), config.to_vec()),
    ]);
    content.extend(layers.iter().map(|layer| (format!("blobs/{}", digest(layer)), layer.clone())));
    content
}

fn serve(content: &Content, request: &Request) -> Reply {
    let path = request.target.strip_prefix("/v2/vm/disk/").unwrap_or_default();
    content.get(path).map_or_else(|| Reply::new(404, ""), |bytes| Reply::file(request, bytes))
}

fn asked(server: &Server) -> ContainerImage {
    let url = format!("docker://127.0.0.1:{}/vm/disk:latest", server.port);
    ContainerImage { url, architecture: Some("amd64".into()), login: None }
}

/// Plain http is spoken only when the connection need not be secure.
fn insecure() -> Connection {
    Connection { insecure: true, ..connection() }
}

async fn disk(content: Content) -> Result<ImageDisk, String> {
    let server = Server::start(move |request| serve(&content, request)).await;
    image(&asked(&server), &insecure()).await.map_err(|e| chain(&e))
}

#[tokio::test]
async fn the_disk_is_found_in_the_topmost_layer_that_has_one() {
    let bytes = pattern(100_000);
    let with = tarball(&[("etc/passwd", b"root"), ("disk/", b""), ("./disk/vm.img", &bytes), ("disk/more", b"more")]);
    let below = tarball(&[("disk/old.img", b"old")]);
    let above = tarball(&[("disk/.wh.gone", b""), ("diskette/x", b"x")]);
    for layer in [with.clone(), gz(&with), zstd::encode_all(&with[..], 3).unwrap()] {
        let content = pushed(&[below.clone(), layer, gz(&above)]);
        let server = Server::start(move |request| serve(&content, request)).await;
        let found = image(&asked(&server), &insecure()).await.unwrap();
        assert_eq!((found.size(), found.ranged()), (Some(100_000), false));
        assert!(found.environment().iter().any(|line| line.ends_with("DEFAULT_INSTANCETYPE=u1.small")));
        let (found, content) = tokio::task::spawn_blocking(move || {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut found.open(0).unwrap(), &mut bytes).unwrap();
            found.confirm().unwrap();
            (found, bytes)
        })
        .await
        .unwrap();
        assert_eq!(content, bytes);
        assert_eq!(read(found, 99_000).await.unwrap(), bytes[99_000..]);
    }
}

#[tokio::test]
async fn an_image_without_disk_or_architecture_is_refused_by_name() {
    let error = disk(pushed(&[tarball(&[("etc/passwd", b"root")])])).await.unwrap_err();
    assert!(error.starts_with("Failed to find VM disk image file in the container image"), "{error}");

    let content = pushed(&[tarball(&[("disk/a", b"x")])]);
    let server = Server::start(move |request| serve(&content, request)).await;
    let other = ContainerImage { architecture: Some("arm64".into()), ..asked(&server) };
    let error = image(&other, &insecure()).await.unwrap_err().to_string();
    let known = "Error retrieving image: choosing image instance: no image found in image index for architecture \"arm64\", variant \"\", OS \"linux\"";
    assert_eq!(error, format!("{known}: it is there for amd64"));
    let other = ContainerImage { url: asked(&server).url.replace("latest", "other"), ..asked(&server) };
    let error = image(&other, &insecure()).await.unwrap_err().to_string();
    assert_eq!(error, "expected status code 200, got 404. Status: 404 Not Found");
    for (url, expect) in
        [("vm/disk", "an image is docker://host/name:tag"), ("docker://UPPER/x:y:z", "cannot be imported")]
    {
        let other = ContainerImage { url: url.into(), ..ContainerImage::default() };
        let error = image(&other, &insecure()).await.unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }
}

#[tokio::test]
async fn bytes_that_are_not_their_digest_are_refused() {
    let layer = gz(&tarball(&[("disk/a", &pattern(10_000)), ("trailer", &pattern(10_000))]));
    let name = format!("blobs/{}", digest(&layer));
    // Another layer of the same shape under the name of the first, and one that differs only behind the disk.
    let others = [
        gz(&tarball(&[("disk/a", &pattern(10_001)), ("trailer", &pattern(10_000))])),
        gz(&tarball(&[("disk/a", &pattern(10_000)), ("trailer", &pattern(10_001))])),
    ];
    for other in others {
        let mut content = pushed(std::slice::from_ref(&layer));
        content.insert(name.clone(), other);
        let found = disk(content.clone()).await;
        // The server is gone by now, but what it promised is known.
        drop(found.unwrap());
        let server = Server::start(move |request| serve(&content, request)).await;
        let found = image(&asked(&server), &insecure()).await.unwrap();
        let error = tokio::task::spawn_blocking(move || {
            let early = found.confirm().unwrap_err().to_string();
            let mut sink = Vec::new();
            // A small layer is read to its end when it is opened.
            let read = found.open(0).and_then(|mut disk| std::io::Read::read_to_end(&mut disk, &mut sink));
            let late = read.unwrap_err().to_string();
            assert_eq!(early, late);
            late
        });
        let error = error.await.unwrap();
        assert!(
            error.starts_with("the image's layer has the digest sha256:") && error.contains(", not sha256:"),
            "{error}"
        );
    }
    let mut content = pushed(&[layer]);
    let manifest = content.keys().find(|key| key.starts_with("manifests/sha256")).unwrap().clone();
    content.get_mut(&manifest).unwrap().push(b' ');
    let error = disk(content).await.unwrap_err();
    assert!(error.starts_with("the image's manifest has the digest"), "{error}");
}

#[tokio::test]
async fn a_layer_that_breaks_off_is_continued() {
    let bytes = pattern(50_000);
    let layer = gz(&tarball(&[("disk/a", &bytes)]));
    let content = pushed(std::slice::from_ref(&layer));
    let name = digest(&layer);
    let length = layer.len();
    let server = Server::start(move |request| {
        let reply = serve(&content, request);
        // Each answer with the layer ends after a third of what is left.
        match request.target.ends_with(&name) {
            true => reply.cut((length - request.from().unwrap_or(0)).div_ceil(3).max(1000)),
            false => reply,
        }
    })
    .await;
    let patience = disk::source::Patience { attempts: 100, ..connection().patience };
    let found = image(&asked(&server), &Connection { patience, insecure: true, ..connection() }).await.unwrap();
    assert_eq!(read(found, 0).await.unwrap(), bytes);
}

#[tokio::test]
async fn tokens_are_got_where_the_registry_says() {
    let bytes = pattern(5000);
    let content = pushed(&[gz(&tarball(&[("disk/a", &bytes)]))]);
    let desk = Server::start(|request| match request.header("authorization") {
        // me:secret
        "Basic bWU6c2VjcmV0" => Reply::new(200, format!(r#"{{"token": "t{}", "expires_in": 60}}"#, request.number)),
        _ => Reply::new(401, ""),
    })
    .await;
    let realm = desk.url("/token");
    // A token is good for the first document; the next request finds it expired.
    let server = Server::start(move |request| {
        let challenge = format!("Bearer realm=\"{realm}\",service=\"registry\"");
        match (request.number, request.header("authorization")) {
            (_, "") | (4, _) => Reply::new(401, "").header("www-authenticate", challenge),
            _ => serve(&content, request),
        }
    })
    .await;
    let known = ContainerImage { login: Some(("me".into(), "secret".into())), ..asked(&server) };
    let found = image(&known, &insecure()).await.unwrap();
    assert_eq!(read(found, 0).await.unwrap(), bytes);
    let tokens = desk.seen();
    assert_eq!(tokens.len(), 2);
    assert_eq!(tokens[0].target, "/token?service=registry&scope=repository%3Avm%2Fdisk%3Apull");

    let error = image(&asked(&server), &insecure()).await.unwrap_err().to_string();
    assert!(error.contains("check the name and password of the secret"), "{error}");
}

#[tokio::test]
async fn registries_with_passwords_are_shown_them() {
    let content = pushed(&[tarball(&[("disk/a", b"content")])]);
    let server = Server::start(move |request| match request.header("authorization") {
        "Basic bWU6c2VjcmV0" => serve(&content, request),
        _ => Reply::new(401, "").header("www-authenticate", "Basic realm=\"registry\""),
    })
    .await;
    let known = ContainerImage { login: Some(("me".into(), "secret".into())), ..asked(&server) };
    assert_eq!(read(image(&known, &insecure()).await.unwrap(), 0).await.unwrap(), b"content");
    for login in [None, Some(("me".to_owned(), "wrong".to_owned()))] {
        let error = image(&ContainerImage { login, ..known.clone() }, &insecure()).await.unwrap_err().to_string();
        assert_eq!(error, "expected status code 200, got 401. Status: 401 Unauthorized");
    }
}

fn layout(path: &Path, content: &Content) {
    let blobs = content.iter().map(|(name, bytes)| {
        let name = name.rsplit('/').next().unwrap();
        let place = match name {
            "latest" => "index.json".to_owned(),
            digest => format!("blobs/{}", digest.replacen(':', "/", 1)),
        };
        (place, bytes.as_slice())
    });
    let blobs: Vec<_> = blobs.collect();
    let files: Vec<_> = blobs.iter().map(|(place, bytes)| (place.as_str(), *bytes)).collect();
    std::fs::write(path, tarball(&files)).unwrap();
}

#[tokio::test]
async fn archives_of_images_are_read_where_they_lie() {
    let bytes = pattern(70_000);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.tar");
    layout(&path, &pushed(&[gz(&tarball(&[("disk/a", &bytes)]))]));
    for url in [format!("oci-archive://{}", path.display()), format!("oci-archive:{}:latest", path.display())] {
        let asked = ContainerImage { url, architecture: Some("amd64".into()), login: None };
        assert_eq!(read(image(&asked, &connection()).await.unwrap(), 0).await.unwrap(), bytes);
    }
    std::fs::write(&path, tarball(&[("manifest.json", b"[]")])).unwrap();
    let asked = ContainerImage { url: format!("oci-archive://{}", path.display()), ..ContainerImage::default() };
    let error = image(&asked, &connection()).await.unwrap_err().to_string();
    assert!(
        error.ends_with("image.tar has no index.json: it is not an archive of an image in the OCI layout"),
        "{error}"
    );
}

/// Debian's registry, which was not written for this test.
struct Docker {
    process: std::process::Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Docker {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // A port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = dir.path().join("config.yml");
        let storage = dir.path().display();
        let text = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {storage}\nhttp:\n  addr: 127.0.0.1:{port}\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = std::process::Command::new("docker-registry");
        command.arg("serve").arg(&config).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let process = command.spawn().expect("docker-registry is there: `make deps` installs it");
        let started = Self { process, port, _dir: dir };
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            assert!(tokio::time::Instant::now() < deadline, "the registry never listened");
            tokio::task::yield_now().await;
        }
        started
    }

    /// Puts an image there, documents last: the registry refuses those whose parts are missing.
    async fn push(&self, content: &Content) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let base = format!("http://127.0.0.1:{}/v2/vm/disk", self.port);
        for (name, bytes) in content.iter().filter(|(name, _)| name.starts_with("blobs/")) {
            let begun = client.post(format!("{base}/blobs/uploads/")).body("").send().await.unwrap();
            let place = begun.headers()["location"].to_str().unwrap().to_owned();
            let join = if place.contains('?') { '&' } else { '?' };
            let digest = name.strip_prefix("blobs/").unwrap();
            let put = client.put(format!("{place}{join}digest={digest}")).body(bytes.clone()).send().await.unwrap();
            assert_eq!(put.status(), 201);
        }
        let mut documents: Vec<_> = content.iter().filter(|(name, _)| name.starts_with("manifests/")).collect();
        documents.sort_by_key(|(name, _)| name.ends_with("latest"));
        for (name, bytes) in documents {
            let kind = match name.ends_with("latest") {
                true => "application/vnd.docker.distribution.manifest.list.v2+json",
                false => "application/vnd.docker.distribution.manifest.v2+json",
            };
            let put = client.put(format!("{base}/{name}")).header("content-type", kind).body(bytes.clone());
            let put = put.send().await.unwrap();
            assert_eq!(put.status(), 201, "{name}: {}", put.text().await.unwrap());
        }
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_disk_comes_out_of_a_real_registry() {
    let bytes = pattern(300_000);
    let registry = Docker::start().await;
    registry.push(&pushed(&[gz(&tarball(&[("disk/vm.img", &bytes)]))])).await;
    let url = format!("docker://127.0.0.1:{}/vm/disk:latest", registry.port);
    let asked = ContainerImage { url, architecture: Some("amd64".into()), login: None };
    let found = image(&asked, &insecure()).await.unwrap();
    assert_eq!(read(found, 0).await.unwrap(), bytes);
}
