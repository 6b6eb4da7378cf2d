//! The programs that fill claims of Forklift's populators, against an engine and a cloud of ours.

use std::path::Path;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use cdi::importer::populators::{OpenStackArgs, OvirtArgs, Secret, Volumed, openstack_with, ovirt_with};
use serde_json::{Value, json};
use tokio::net::TcpListener;

const SIZE: usize = 1 << 20;

/// A disk that is no image of any format.
fn disk() -> Vec<u8> {
    (0..SIZE).map(|i| (i / 4096 % 251) as u8 + 1).collect()
}

async fn serve(router: impl FnOnce(&str) -> Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = router(&url);
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

fn volume(dir: &Path) -> Volumed {
    Volumed {
        volume_path: dir.join("disk.img"),
        secret_name: "login".into(),
        owner_uid: "uid".into(),
        pvc_size: 2 << 20,
        termination_log: dir.join("said"),
        metrics_port: 0,
    }
}

fn secret(keys: &[(&str, &str)]) -> Secret {
    keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn said(dir: &Path) -> String {
    let said: Value = serde_json::from_slice(&std::fs::read(dir.join("said")).unwrap()).unwrap();
    said["message"].as_str().unwrap().to_owned()
}

fn is_filled(dir: &Path) -> bool {
    let found = std::fs::read(dir.join("disk.img")).unwrap();
    found.len() == 2 << 20 && found[..SIZE] == disk() && found[SIZE..].iter().all(|byte| *byte == 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_a_cloud_fills_a_volume() {
    let cloud = serve(|url| {
        let place = json!({ "interface": "public", "region": "one", "url": url });
        let granted = json!({ "token": { "catalog": [{ "type": "image", "endpoints": [place] }] } });
        let tokens = post(move |Json(wanted): Json<Value>| async move {
            match wanted["auth"]["identity"]["password"]["user"]["password"].as_str() {
                Some("secret") => Ok(([("x-subject-token", "token")], Json(granted))),
                _ => Err(StatusCode::UNAUTHORIZED),
            }
        });
        let image = get(|headers: HeaderMap| async move {
            let known = headers.get("x-auth-token").is_some_and(|token| token == "token");
            if known { Ok(Bytes::from(disk())) } else { Err(StatusCode::UNAUTHORIZED) }
        });
        Router::new().route("/v3/auth/tokens", tokens).route("/v2/images/gold/file", image)
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let args = OpenStackArgs { endpoint: format!("{cloud}/v3"), image_id: "gold".into(), volume: volume(dir.path()) };
    let wrong = secret(&[("username", "me"), ("password", "guessed")]);
    assert!(openstack_with(args.clone(), wrong).await.is_err());
    let why = said(dir.path());
    assert!(why.starts_with("Unable to connect to openstack data source: ") && why.contains("got 401"), "{why}");
    openstack_with(args, secret(&[("username", "me"), ("password", "secret")])).await.unwrap();
    assert!(is_filled(dir.path()));
    assert_eq!(said(dir.path()), "Import Complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_of_an_engine_fills_a_volume() {
    let engine = serve(|url| {
        let ticket = json!({ "id": "t", "phase": "transferring", "transfer_url": format!("{url}/images/t") });
        let begin = post(move |headers: HeaderMap| async move {
            let known = headers.get("authorization").is_some_and(|login| login == "Basic bWU6c2VjcmV0");
            if known { Ok(Json(ticket)) } else { Err(StatusCode::UNAUTHORIZED) }
        });
        Router::new()
            .route("/ovirt-engine/api/imagetransfers", begin)
            .route("/ovirt-engine/api/imagetransfers/t/finalize", post(|| async { Json(json!({})) }))
            .route("/images/t", get(|| async { Bytes::from(disk()) }))
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let args = OvirtArgs { engine_url: engine, disk_id: "d".into(), volume: volume(dir.path()) };
    ovirt_with(args.clone(), &secret(&[("user", "me"), ("password", "secret")])).await.unwrap();
    assert!(is_filled(dir.path()));
    let unclear = secret(&[("user", "me"), ("password", "secret"), ("insecureSkipVerify", "maybe")]);
    let why = ovirt_with(args, &unclear).await.unwrap_err().to_string();
    assert!(why.contains("insecureSkipVerify is \"maybe\""), "{why}");
}
