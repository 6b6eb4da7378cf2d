//! A push to a registry that is no more than what a push calls, without TLS.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tokio::net::TcpListener;

use super::*;

/// What was pushed, by digest or tag.
#[derive(Default)]
struct Held {
    all: BTreeMap<String, Vec<u8>>,
    upload: Vec<u8>,
}

fn answer(held: &Mutex<Held>, method: &Method, at: &str, body: &Bytes) -> Response {
    let mut held = held.lock().unwrap();
    let moved = |status: StatusCode| (status, [(header::LOCATION, "/v2/disks/a/blobs/uploads/1")]).into_response();
    match (method.as_str(), at) {
        ("GET", "/v2/") => StatusCode::OK.into_response(),
        ("HEAD", _) => StatusCode::NOT_FOUND.into_response(),
        ("POST", _) => moved(StatusCode::ACCEPTED),
        ("PATCH", _) => {
            held.upload.extend(body);
            moved(StatusCode::ACCEPTED)
        }
        ("PUT", at) if at.contains("/manifests/") => {
            held.all.insert(at.rsplit('/').next().unwrap().to_owned(), body.to_vec());
            moved(StatusCode::CREATED)
        }
        ("PUT", at) => {
            let digest = at.rsplit_once("digest=").unwrap().1.replace("%3A", ":");
            let mut bytes = std::mem::take(&mut held.upload);
            bytes.extend(body);
            held.all.insert(digest, bytes);
            moved(StatusCode::CREATED)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_image_is_pushed_without_tls_where_that_is_asked_for() {
    // Another test may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let held = Arc::new(Mutex::new(Held::default()));
    let registry = Router::new().fallback({
        let held = held.clone();
        move |request: Request| async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            answer(&held, &parts.method, &parts.uri.to_string(), &body)
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let reference: Reference = format!("{}/disks/a:v1", listener.local_addr().unwrap()).parse().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, registry).await });
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk.img.gz");
    let mut pressed = GzEncoder::new(std::fs::File::create(&disk).unwrap(), Compression::fast());
    pressed.write_all(&[7; 5000]).unwrap();
    pressed.finish().unwrap();
    let facts = Facts { variables: vec!["A=b".to_owned()], architecture: "s390x".to_owned() };
    let auth = auth(|name| Some(if name == "SECRET_KEY" { "word" } else { "me" }.to_owned()));
    let digest = push(&reference, ClientProtocol::Http, &auth, &disk, &facts).await.unwrap();
    serving.abort();
    // With TLS nobody answers there.
    let failed = push(&reference, ClientProtocol::Https, &auth, &disk, &facts).await;
    assert!(failed.unwrap_err().to_string().starts_with("cannot push"));
    let held = held.lock().unwrap();
    let manifest = &held.all["v1"];
    assert_eq!(digest, format!("sha256:{}", hex(&Sha256::digest(manifest))));
    let manifest: Value = serde_json::from_slice(manifest).unwrap();
    let blob = |of: &Value| &held.all[of["digest"].as_str().unwrap()];
    let config: Value = serde_json::from_slice(blob(&manifest["config"])).unwrap();
    assert_eq!((&config["architecture"], &config["config"]["Env"][0]), (&"s390x".into(), &"A=b".into()));
    let layer = blob(&manifest["layers"][0]);
    assert_eq!(layer.len() as u64, manifest["layers"][0]["size"].as_u64().unwrap());
}

#[test]
fn a_registry_is_told_who_pushes_where_the_secret_says_it() {
    assert_eq!(auth(|_| Some(" ".to_owned())), RegistryAuth::Anonymous);
    assert_eq!(auth(|_| Some("a".to_owned())), RegistryAuth::Basic("a".to_owned(), "a".to_owned()));
}
