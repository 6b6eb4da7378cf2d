//! An engine of ours that lends disks as oVirt's does.

use disk::source::{EngineDisk, imageio};

use super::server::{Reply, Server};
use super::{connection, pattern};

fn asked(server: &Server) -> EngineDisk {
    EngineDisk {
        url: server.url("/ovirt-engine/api"),
        disk: "disk-1".into(),
        snapshot: None,
        login: Some(("admin@internal".into(), "secret".into())),
    }
}

#[tokio::test]
async fn a_disk_is_lent_read_and_given_back() {
    let host = Server::start(|request| match request.target.as_str() {
        "/images/ticket-1" => Reply::file(request, &pattern(5000)),
        "/images/ticket-1/extents" => Reply::new(
            200,
            r#"[{"start": 0, "length": 4000, "zero": false}, {"start": 4000, "length": 1000, "zero": true}]"#,
        ),
        _ => Reply::new(404, ""),
    })
    .await;
    let place = host.url("/images/ticket-1");
    let server = Server::start(move |request| {
        if request.header("authorization") != "Basic YWRtaW5AaW50ZXJuYWw6c2VjcmV0" {
            return Reply::new(401, "");
        }
        let ticket = |phase: &str| {
            // The host that is named first cannot be reached.
            let text = serde_json::json!({"id": "t1", "phase": phase, "transfer_url": "http://127.0.0.1:1/x", "proxy_url": place});
            Reply::new(200, text.to_string())
        };
        match (request.method.as_str(), request.target.as_str(), request.number) {
            // Locked at first.
            ("POST", "/ovirt-engine/api/imagetransfers", 0) => Reply::new(409, ""),
            ("POST", "/ovirt-engine/api/imagetransfers", _) => ticket("initializing"),
            ("GET", "/ovirt-engine/api/imagetransfers/t1", 2) => ticket("initializing"),
            ("GET", "/ovirt-engine/api/imagetransfers/t1", _) => ticket("transferring"),
            ("POST", "/ovirt-engine/api/imagetransfers/t1/finalize", _) => Reply::new(200, "{}"),
            _ => Reply::new(404, ""),
        }
    })
    .await;
    let transfer = imageio(&asked(&server), &connection()).await.unwrap();
    let bytes = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut disk::Source::open(&transfer, 0).unwrap(), &mut bytes).unwrap();
        (transfer, bytes)
    });
    let (transfer, bytes) = bytes.await.unwrap();
    assert_eq!(bytes, pattern(5000));
    assert_eq!(disk::Source::data(&transfer).as_deref(), Some(std::slice::from_ref(&(0..4000))));
    transfer.finish(true).await;
    let seen = server.seen();
    let wanted: serde_json::Value = serde_json::from_str(&seen[1].body).unwrap();
    assert_eq!(
        (&wanted["disk"]["id"], &wanted["direction"], &wanted["format"]),
        (&"disk-1".into(), &"download".into(), &"raw".into())
    );
    assert!(seen.last().unwrap().target.ends_with("/t1/finalize"));
}

#[tokio::test]
async fn a_snapshot_of_a_disk_is_lent() {
    let host = Server::start(|request| Reply::file(request, &pattern(3000))).await;
    let place = host.url("/images/ticket-1");
    let server = Server::start(move |request| match request.target.as_str() {
        "/ovirt-engine/api/imagetransfers" => {
            let text = serde_json::json!({"id": "t1", "phase": "transferring", "transfer_url": place});
            Reply::new(201, text.to_string())
        }
        _ => Reply::new(404, ""),
    })
    .await;
    let asked = EngineDisk { snapshot: Some("before".into()), ..asked(&server) };
    let transfer = imageio(&asked, &connection()).await.unwrap();
    assert_eq!(disk::Source::size(&transfer), Some(3000));
    let wanted: serde_json::Value = serde_json::from_str(&server.seen()[0].body).unwrap();
    assert_eq!((&wanted["snapshot"]["id"], &wanted["disk"]), (&"before".into(), &serde_json::Value::Null));
}

#[tokio::test]
async fn a_transfer_that_fails_is_cancelled() {
    let server = Server::start(|request| match request.target.as_str() {
        "/ovirt-engine/api/imagetransfers" => Reply::new(201, r#"{"id": "t1", "phase": "paused_system"}"#),
        "/ovirt-engine/api/imagetransfers/t1/cancel" => Reply::new(200, "{}"),
        _ => Reply::new(404, ""),
    })
    .await;
    let error = imageio(&asked(&server), &connection()).await.err().unwrap().to_string();
    assert!(error.contains("phase \"paused_system\" and will not begin"), "{error}");
    assert!(server.seen().last().unwrap().target.ends_with("/cancel"));
    let server = Server::start(|_| Reply::new(401, "")).await;
    let error = imageio(&asked(&server), &connection()).await.err().unwrap().to_string();
    assert_eq!(error, "expected status code 200, got 401. Status: 401 Unauthorized");
}
