//! An export of a disk and of a directory.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;
use virt_export::server::{Export, Volume, router};

pub(crate) const SIZE: usize = 5 << 20;

pub(crate) struct Scene {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) router: Router,
    /// What is on the disk.
    pub(crate) disk: Vec<u8>,
}

pub(crate) fn scene() -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    for name in ["disk", "files/sub", "manifests"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    let file = std::fs::File::create_new(at("disk/disk.img")).unwrap();
    file.set_len(SIZE as u64).unwrap();
    file.write_all_at(b"in the middle", (SIZE / 2) as u64).unwrap();
    let disk = std::fs::read(at("disk/disk.img")).unwrap();
    std::fs::write(at("files/sub/file"), "content").unwrap();
    std::fs::write(at("token"), "t0ken\n").unwrap();
    let put = |name: &str, text: &str| std::fs::write(at("manifests").join(name), text).unwrap();
    put("internal_host", "virt-export-e.ns.svc");
    put("internal_ca_cm", &json!({ "metadata": { "name": "export-ca-cm-e" } }).to_string());
    put("virtualmachine-manifest", &json!({ "metadata": { "name": "vm" }, "spec": {} }).to_string());
    let volume = |name: &str, path: PathBuf| Volume {
        path,
        raw: format!("/volumes/{name}/disk.img"),
        gzip: format!("/volumes/{name}/disk.img.gz"),
        ..Volume::default()
    };
    let files = Volume {
        path: at("files"),
        dir: "/volumes/files/dir/".into(),
        archive: "/volumes/files/disk.tar.gz".into(),
        ..Volume::default()
    };
    let router = router(Export {
        volumes: vec![volume("disk", at("disk")), volume("empty", at("files")), files],
        token: at("token"),
        name: "e".into(),
        machine: Some("/manifests/all".into()),
        secret: Some("/manifests/secret".into()),
        manifests: at("manifests"),
        backup: None,
    });
    Scene { disk, router, dir }
}

impl Scene {
    pub(crate) async fn send(&self, request: Request<Body>) -> (StatusCode, HeaderMap, Vec<u8>) {
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        (parts.status, parts.headers, body.collect().await.unwrap().to_bytes().to_vec())
    }

    /// What somebody with the token gets.
    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, Vec<u8>) {
        self.ask("GET", path, headers).await
    }

    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> (StatusCode, HeaderMap, Vec<u8>) {
        let mut request = Request::builder().method(method).uri(path).header("x-kubevirt-export-token", "t0ken");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::empty()).unwrap()).await
    }
}

pub(crate) fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).unwrap();
    out
}
