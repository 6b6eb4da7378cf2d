//! What is at which path.

use axum::body::Body;
use http::{Request, StatusCode};
use serde_json::Value;

use crate::scene::{SIZE, scene, unpacked};

#[tokio::test]
async fn nothing_is_shown_without_the_token() {
    let scene = scene();
    let status = async |path: &str, token: Option<&str>| {
        let mut request = Request::get(path);
        if let Some(token) = token {
            request = request.header("x-kubevirt-export-token", token);
        }
        scene.send(request.body(Body::empty()).unwrap()).await.0
    };
    let disk = "/volumes/disk/disk.img";
    assert_eq!(status(disk, None).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(disk, Some("wrong")).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status("/nothing", Some("wrong")).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(disk, Some("t0ken")).await, StatusCode::OK);
    assert_eq!(status(&format!("{disk}?x-kubevirt-export-token=t0ken"), None).await, StatusCode::OK);
    assert_eq!(status("/exportready", None).await, StatusCode::OK);
    std::fs::write(scene.dir.path().join("token"), "").unwrap();
    assert_eq!(status(disk, Some("")).await, StatusCode::UNAUTHORIZED);
    std::fs::write(scene.dir.path().join("token"), "another").unwrap();
    assert_eq!(status(disk, Some("another")).await, StatusCode::OK);
}

#[tokio::test]
async fn a_disk_is_fetched_whole_in_parts_and_compressed() {
    let scene = scene();
    let path = "/volumes/disk/disk.img";
    let (status, headers, body) = scene.get(path, &[]).await;
    assert_eq!((status, headers["content-length"].to_str().unwrap()), (StatusCode::OK, SIZE.to_string().as_str()));
    assert!(body == scene.disk);
    let (status, headers, body) = scene.ask("HEAD", path, &[]).await;
    assert_eq!((status, headers["content-length"].to_str().unwrap()), (StatusCode::OK, SIZE.to_string().as_str()));
    assert!(body.is_empty() && headers["accept-ranges"] == "bytes");
    let tag = headers["etag"].to_str().unwrap().to_owned();
    let half = SIZE / 2;
    let range = format!("bytes={half}-{}", half + 12);
    let (status, headers, body) = scene.get(path, &[("range", &range), ("if-range", &tag)]).await;
    assert_eq!((status, body.as_slice()), (StatusCode::PARTIAL_CONTENT, &b"in the middle"[..]));
    assert_eq!(headers["content-range"], format!("bytes {half}-{}/{SIZE}", half + 12));
    let (status, _, body) = scene.get(path, &[("range", &range), ("if-range", "\"of another disk\"")]).await;
    assert_eq!((status, body.len()), (StatusCode::OK, SIZE));
    let (status, headers, _) = scene.get(path, &[("range", "bytes=99999999-")]).await;
    assert_eq!(
        (status, headers["content-range"].to_str().unwrap()),
        (StatusCode::RANGE_NOT_SATISFIABLE, format!("bytes */{SIZE}").as_str())
    );
    let (status, _, body) = scene.get("/volumes/disk/disk.img.gz", &[]).await;
    assert!(status == StatusCode::OK && unpacked(&body) == scene.disk && body.len() < SIZE / 50, "{}", body.len());
    assert_eq!(scene.ask("HEAD", "/volumes/disk/disk.img.gz", &[]).await.0, StatusCode::OK);
    assert_eq!(scene.ask("POST", path, &[]).await.0, StatusCode::METHOD_NOT_ALLOWED);
    for absent in ["/volumes/empty/disk.img", "/volumes/empty/disk.img.gz", "/volumes/other/disk.img", "/"] {
        assert_eq!(scene.get(absent, &[]).await.0, StatusCode::NOT_FOUND, "{absent}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_listed_fetched_and_packed() {
    let scene = scene();
    let (status, headers, _) = scene.get("/volumes/files/dir", &[]).await;
    assert_eq!((status, headers["location"].to_str().unwrap()), (StatusCode::MOVED_PERMANENTLY, "dir/"));
    let (status, _, body) = scene.get("/volumes/files/dir/", &[]).await;
    assert!(status == StatusCode::OK && String::from_utf8(body).unwrap().contains("<a href=\"sub/\">sub/</a>"));
    let (status, headers, _) = scene.get("/volumes/files/dir/sub", &[]).await;
    assert_eq!((status, headers["location"].to_str().unwrap()), (StatusCode::MOVED_PERMANENTLY, "sub/"));
    let (status, _, body) = scene.get("/volumes/files/dir/sub/file", &[("range", "bytes=3-")]).await;
    assert_eq!((status, body.as_slice()), (StatusCode::PARTIAL_CONTENT, &b"tent"[..]));
    assert_eq!(scene.get("/volumes/files/dir/../../token", &[]).await.0, StatusCode::NOT_FOUND);
    let (status, _, body) = scene.get("/volumes/files/disk.tar.gz", &[]).await;
    let archive = unpacked(&body);
    assert_eq!(status, StatusCode::OK);
    assert!(
        archive.windows(8).any(|window| window == b"sub/file") && archive.windows(7).any(|window| window == b"content")
    );
}

#[tokio::test]
async fn manifests_come_in_both_forms() {
    let scene = scene();
    let (status, headers, body) = scene.get("/internal/manifests/all", &[]).await;
    assert_eq!((status, headers["content-type"].to_str().unwrap()), (StatusCode::OK, "application/json"));
    let list: Value = serde_json::from_slice(&body).unwrap();
    let kinds: Vec<_> = list["items"].as_array().unwrap().iter().map(|item| item["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ConfigMap", "VirtualMachine"]);
    let (_, _, body) = scene.get("/internal/manifests/secret", &[("accept", "application/yaml")]).await;
    let text = String::from_utf8(body).unwrap();
    assert!(text.contains("x-kubevirt-export-token:t0ken") && text.ends_with("---\n"), "{text}");
    // Nobody has said how it is reached from outside.
    assert_eq!(scene.get("/external/manifests/all", &[]).await.0, StatusCode::NOT_FOUND);
}
