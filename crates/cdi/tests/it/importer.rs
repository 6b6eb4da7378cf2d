//! The importer, from its environment to its last words, against a web server of ours.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use cdi::importer::{Args, run};
use futures::StreamExt;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A server with `bytes` at `/disk.img`, for whoever shows the right header.
async fn server(bytes: Vec<u8>) -> String {
    let handler = move |request: Request| async move {
        match request.headers().get("x-key").map(|value| value.as_bytes()) {
            Some(b"wrong") => StatusCode::FORBIDDEN.into_response(),
            _ => bytes.into_response(),
        }
    };
    let router = Router::new().route("/disk.img", get(handler));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/disk.img", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

fn args(dir: &Path, url: &str) -> Args {
    std::fs::create_dir_all(dir.join("data")).unwrap();
    Args {
        source: "http".into(),
        endpoint: url.into(),
        image_size: "8Mi".into(),
        data: dir.join("data"),
        block_device: dir.join("no-device"),
        secret_headers_dir: dir.join("no-headers"),
        termination_log: dir.join("termination"),
        ..Args::default()
    }
}

/// Runs an import and returns what it said, and whether it ended well.
async fn import(args: Args) -> (String, bool) {
    let log = args.termination_log.clone();
    let ended = run(args).await.is_ok();
    let said: Value = serde_json::from_slice(&std::fs::read(log).unwrap()).unwrap();
    (said["message"].as_str().unwrap().to_owned(), ended)
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn image() -> Vec<u8> {
    (0..3 << 20).map(|i: u32| (i / 4096 % 251) as u8).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_becomes_a_disk_of_the_size_of_its_volume() {
    for bytes in [image(), gz(&image())] {
        let dir = tempfile::tempdir().unwrap();
        let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let url = server(bytes).await;
        let args =
            Args { checksum: format!("sha256:{sum}"), filesystem_overhead: "0.06".into(), ..args(dir.path(), &url) };
        assert_eq!(import(args).await, ("Import Complete".to_owned(), true));
        let disk = dir.path().join("data/disk.img");
        let found = std::fs::read(&disk).unwrap();
        assert_eq!(found.len(), 7 << 20);
        assert!(found[..3 << 20] == image() && found[3 << 20..].iter().all(|byte| *byte == 0));
        assert_eq!(disk.metadata().unwrap().mode() & 0o777, 0o660);
        assert_eq!(std::fs::read_dir(dir.path().join("data")).unwrap().count(), 1, "nothing is left beside the disk");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_checksum_leaves_nothing_and_is_no_reason_to_try_again() {
    let dir = tempfile::tempdir().unwrap();
    let url = server(image()).await;
    let wrong = format!("md5:{}", "0".repeat(32));
    let (said, ended) = import(Args { checksum: wrong.clone(), ..args(dir.path(), &url) }).await;
    assert!(said.contains("checksum mismatch") && said.contains(&wrong) && ended, "{said}");
    assert_eq!(dir.path().join("data/disk.img").metadata().unwrap().blocks(), 0);
    let archived = Args { checksum: wrong, content_type: "archive".into(), ..args(dir.path(), &url) };
    let (said, ended) = import(Args { endpoint: server(tarball()).await, ..archived }).await;
    assert!(said.contains("checksum mismatch") && ended, "{said}");
    assert_eq!(std::fs::read_dir(dir.path().join("data")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checksum_that_is_none_is_no_reason_to_try_again() {
    let dir = tempfile::tempdir().unwrap();
    let args = Args { checksum: "sha256:abc".into(), ..args(dir.path(), "http://127.0.0.1:1/disk.img") };
    let expect = "Unable to process data: invalid checksum: a checksum of sha256 has 64 hexadecimal digits, \
                  this one has 3 characters";
    assert_eq!(import(args).await, (expect.to_owned(), true));
}

/// Where an earlier pod was killed for its memory, the next one writes past the page cache.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_written_past_the_page_cache_when_asked() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let url = server(image()).await;
    let args = Args { cache_mode: "TRYNONE".into(), ..args(dir.path(), &url) };
    assert_eq!(import(args).await, ("Import Complete".to_owned(), true));
    assert!(std::fs::read(dir.path().join("data/disk.img")).unwrap()[..3 << 20] == image());
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_imports_are_reported_and_retried() {
    let dir = tempfile::tempdir().unwrap();
    let url = server(image()).await;
    let check = async |args: Args, expect: &str| {
        let (said, ended) = import(args).await;
        assert!(said.starts_with(expect) && !ended, "{said}");
    };
    let missing = Args { endpoint: format!("{url}.missing"), ..args(dir.path(), &url) };
    let expect = "Unable to connect to http data source: expected status code 200, got 404. Status: 404 Not Found";
    check(missing, expect).await;
    let key = Args { extra_headers: vec!["X-Key: wrong".into()], ..args(dir.path(), &url) };
    check(key, "Unable to connect to http data source: expected status code 200, got 403").await;
    let small = Args { image_size: "2Mi".into(), ..args(dir.path(), &url) };
    let expect = "Unable to process data: Virtual image size is larger than the reported available storage. \
                  A larger PVC is required";
    check(small, expect).await;
    let vddk = Args { source: "vddk".into(), ..args(dir.path(), &url) };
    check(vddk, "Unable to process data: a vddk source is read by VMware's VDDK library").await;
    let size = Args { image_size: "big".into(), ..args(dir.path(), &url) };
    check(size, "Unable to process data: the size \"big\" is not a quantity").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_can_be_blank() {
    let dir = tempfile::tempdir().unwrap();
    let blank = Args { source: "none".into(), ..args(dir.path(), "") };
    assert_eq!(import(blank.clone()).await, ("Import Complete".to_owned(), true));
    let disk = dir.path().join("data/disk.img").metadata().unwrap();
    assert_eq!((disk.len(), disk.blocks()), (8 << 20, 0));
    let log = dir.path().join("termination");
    let claimed = Args { preallocation: "true".into(), ..blank.clone() };
    assert_eq!(import(claimed).await.0, "Import Complete");
    let said: Value = serde_json::from_slice(&std::fs::read(log).unwrap()).unwrap();
    assert_eq!(said["preallocationApplied"], true);
    assert!(dir.path().join("data/disk.img").metadata().unwrap().blocks() * 512 >= 8 << 20);
    let archive = Args { content_type: "archive".into(), ..blank };
    assert_eq!(import(archive).await, ("Cannot create empty disk with content type archive".to_owned(), false));
}

fn tarball() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(5);
    header.set_mode(0o644);
    builder.append_data(&mut header, "dir/file", &b"hello"[..]).unwrap();
    builder.into_inner().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_becomes_the_files_of_a_volume() {
    let dir = tempfile::tempdir().unwrap();
    let url = server(gz(&tarball())).await;
    let args = Args { content_type: "archive".into(), ..args(dir.path(), &url) };
    assert_eq!(import(args).await, ("Import Complete".to_owned(), true));
    assert_eq!(std::fs::read(dir.path().join("data/dir/file")).unwrap(), b"hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_the_node_is_waited_for_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let url = server(image()).await;
    let (ready, done) = (dir.path().join("ready"), dir.path().join("done"));
    let args = Args {
        ready_file: ready.display().to_string(),
        done_file: done.display().to_string(),
        ..args(dir.path(), &url)
    };
    let importing = tokio::spawn(import(args));
    std::fs::write(&ready, "").unwrap();
    assert_eq!(importing.await.unwrap(), ("Import Complete".to_owned(), true));
    assert!(done.exists());
}

/// Serves ranges of `bytes` until it has given `allowance` of them, then nobody may have more. `asked` gets where each begins.
async fn ranged(bytes: Vec<u8>, allowance: Arc<AtomicI64>, asked: Arc<Mutex<Vec<usize>>>) -> String {
    let handler = move |request: Request| async move {
        let range = request.headers().get("range").and_then(|range| range.to_str().ok());
        let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        let (first, last) = (from.unwrap_or(0), bytes.len() - 1);
        asked.lock().unwrap().push(first);
        let left = allowance.load(Ordering::Relaxed);
        if left <= 0 {
            return StatusCode::FORBIDDEN.into_response();
        }
        let (content_range, length) = (format!("bytes {first}-{last}/{}", bytes.len()), bytes.len() - first);
        let pieces: Vec<_> = bytes[first..].chunks(64 << 10).map(<[u8]>::to_vec).collect();
        let counted = futures::stream::iter(pieces).map(move |piece| {
            let left = allowance.fetch_sub(piece.len() as i64, Ordering::Relaxed);
            if left > 0 { Ok(piece) } else { Err(std::io::Error::other("no more")) }
        });
        let headers =
            [("content-range", content_range), ("etag", "\"1\"".into()), ("content-length", length.to_string())];
        (StatusCode::PARTIAL_CONTENT, headers, axum::body::Body::from_stream(counted)).into_response()
    };
    let router = Router::new().route("/disk.img", get(handler));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/disk.img", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// A loop device, which needs root.
struct Device {
    backing: std::fs::File,
    path: PathBuf,
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = sys::loop_device::detach(&self.backing, Path::new("/dev"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_goes_on_where_the_one_before_was_on_a_device_too() {
    const SIZE: usize = 64 << 20;
    let dir = tempfile::tempdir().unwrap();
    let disk: Vec<u8> = (0..SIZE).map(|at| (at / 512 % 251) as u8 + 1).collect();
    let backing = std::fs::File::options().read(true).write(true).create_new(true).open(dir.path().join("backing"));
    let backing = backing.unwrap();
    backing.set_len(SIZE as u64).unwrap();
    let path = sys::loop_device::attach(&backing, Path::new("/dev")).unwrap();
    let device = Device { backing, path };
    let allowance = Arc::new(AtomicI64::new(SIZE as i64 / 4 * 3));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let url = ranged(disk.clone(), allowance.clone(), asked.clone()).await;
    let args = Args { block_device: device.path.clone(), owner_uid: "uid".into(), ..args(dir.path(), &url) };
    let (said, ended) = import(args.clone()).await;
    assert!(said.starts_with("Unable to process data: cannot read the source at byte ") && !ended, "{said}");
    allowance.store(i64::MAX, Ordering::Relaxed);
    asked.lock().unwrap().clear();
    assert_eq!(import(args).await, ("Import Complete".to_owned(), true));
    assert!(std::fs::read(&device.path).unwrap() == disk);
    // An import that begins anew asks for the beginning, the end and each quarter. One that goes on asks for the rest of a
    // quarter, or for none of it.
    let asked = asked.lock().unwrap();
    let goes_on = |from: &usize| !from.is_multiple_of(SIZE / 4) && *from < SIZE - 512;
    let is_whole = |quarter: usize| !asked.contains(&(quarter * SIZE / 4));
    assert!(asked.iter().any(goes_on) || (1..4).any(is_whole), "{asked:?}");
}
