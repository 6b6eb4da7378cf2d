//! A backup of a disk that QEMU serves, lent by an agent that is this test.

use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tower::ServiceExt as _;
use virt_export::server::{Backup, Export, Lender, Served, router};

const SIZE: u64 = 4 << 20;
const CLUSTER: u64 = 64 << 10;
const IDENTITY: &str = "u/b/2026-01-31T13:59:59Z";

/// QEMU's own server of one image; it ends with the test.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tool(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap();
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A disk of which two clusters hold data, one of them since the bitmap `c`, which also knows of a third that was cleared.
fn serve(home: &Path) -> (Qemu, PathBuf) {
    let (image, socket) = (home.join("disk.qcow2"), home.join("qemu"));
    let image = image.to_str().unwrap();
    tool("qemu-img", &["create", "-q", "-f", "qcow2", image, "4M"]);
    let write = |command: &str| tool("qemu-io", &["-f", "qcow2", "-c", command, image]);
    write("write -q -P 1 0 64k");
    write("write -q -P 3 128k 64k");
    tool("qemu-img", &["bitmap", "--add", "-g", "65536", image, "c"]);
    write("write -q -P 2 1M 64k");
    write("write -q -z 128k 64k");
    let mut command = Command::new("qemu-nbd");
    command.args(["--read-only", "--persistent", "--shared=8", "--bitmap=c", "--export-name=root", "--socket"]);
    let qemu = Qemu(command.arg(&socket).arg(image).stderr(Stdio::null()).spawn().unwrap());
    while UnixStream::connect(&socket).is_err() {
        std::thread::yield_now();
    }
    (qemu, socket)
}

/// What the agent of the guest's node does, until the server goes: its answer to the greeting.
fn lend(agents: &Path, qemu: &Path, identity: &str) -> Value {
    let stream = UnixStream::connect(agents).unwrap();
    sys::fdpass::send(&stream, format!("{}\n", json!({ "identity": identity })).as_bytes(), &[]).unwrap();
    let (answer, _) = sys::fdpass::receive_line(&stream, 4096).unwrap();
    let qemu = qemu.to_owned();
    std::thread::spawn(move || {
        while sys::fdpass::receive(&stream, 1).is_ok_and(|(asked, _)| asked == b"+") {
            let sent = match UnixStream::connect(&qemu) {
                Ok(connection) => sys::fdpass::send(&stream, b"{}\n", &[connection.as_fd()]),
                Err(_) => sys::fdpass::send(&stream, b"{\"refused\":\"the backup has ended\"}\n", &[]),
            };
            sent.unwrap();
        }
    });
    serde_json::from_str(&answer).unwrap()
}

async fn get(router: &Router, path: &str, range: Option<&str>) -> (StatusCode, HeaderMap, Vec<u8>) {
    let mut request = Request::get(path).header("x-kubevirt-export-token", "t0ken");
    if let Some(range) = range {
        request = request.header("range", range);
    }
    let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
    (parts.status, parts.headers, body)
}

async fn map(router: &Router, query: &str) -> Value {
    let (status, _, body) = get(router, &format!("/exports/root/map?{query}"), None).await;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
    serde_json::from_slice(&body).unwrap()
}

fn extent(cluster: u64, clusters: u64, kind: u32, description: &str) -> Value {
    json!({ "offset": cluster * CLUSTER, "length": clusters * CLUSTER, "type": kind, "description": description })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_pulled_out_of_qemu_by_its_map() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    std::fs::write(at("token"), "t0ken").unwrap();
    let (qemu, socket) = serve(home.path());
    let lender = Lender::new(IDENTITY);
    let backup = |bitmap: Option<&str>| {
        let volume = |name: &str| Served {
            volume: name.to_owned(),
            data: format!("/exports/{name}/data"),
            map: format!("/exports/{name}/map"),
        };
        let backup = Backup {
            volumes: vec![volume("root"), volume("other")],
            bitmap: bitmap.map(str::to_owned),
            lender: lender.clone(),
        };
        router(Export { backup: Some(backup), token: at("token"), ..Export::default() })
    };
    let (full, since) = (backup(None), backup(Some("c")));
    let agents = UnixListener::bind(at("agent")).unwrap();
    let _agents = kit::spawn("agents", lender.clone().take(agents));
    let status = async |path: &str| get(&full, path, None).await.0;
    assert_eq!(status("/exportready").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(status("/exports/root/data").await, StatusCode::SERVICE_UNAVAILABLE);
    let stranger = lend(&at("agent"), &socket, "another/b/2026-01-31T13:59:59Z");
    assert_eq!(stranger, json!({ "refused": "another backup is shown here" }));
    assert_eq!(status("/exportready").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(lend(&at("agent"), &socket, IDENTITY), json!({}));
    while !lender.is_there() {
        tokio::task::yield_now().await;
    }
    assert_eq!(status("/exportready").await, StatusCode::OK);

    let mut disk = vec![0; SIZE as usize];
    disk[..CLUSTER as usize].fill(1);
    disk[16 * CLUSTER as usize..17 * CLUSTER as usize].fill(2);
    let (found, headers, body) = get(&full, "/exports/root/data", None).await;
    assert_eq!((found, headers["content-length"].to_str().unwrap()), (StatusCode::OK, SIZE.to_string().as_str()));
    assert!(body == disk);
    let (found, _, body) = get(&full, "/exports/root/data?offset=65530&length=10", None).await;
    assert_eq!((found, body.as_slice()), (StatusCode::OK, &[1, 1, 1, 1, 1, 1, 0, 0, 0, 0][..]));
    let (found, headers, body) = get(&full, "/exports/root/data", Some("bytes=1048574-1048577")).await;
    assert_eq!((found, body.as_slice()), (StatusCode::PARTIAL_CONTENT, &[0, 0, 2, 2][..]));
    assert_eq!(headers["content-range"], format!("bytes 1048574-1048577/{SIZE}"));

    let whole = map(&full, "").await;
    let words: Vec<&str> =
        whole["extents"].as_array().unwrap().iter().map(|one| one["description"].as_str().unwrap()).collect();
    assert_eq!((words.first(), &whole["next_offset"]), (Some(&"data"), &Value::Null), "{whole}");
    assert!(words.contains(&"hole,zero"), "{whole}");
    let changed = [
        extent(0, 1, 0, "clean"),
        extent(1, 1, 2, "zero"),
        extent(2, 1, 3, "dirty,zero"),
        extent(3, 13, 2, "zero"),
        extent(16, 1, 1, "dirty"),
        extent(17, 47, 2, "zero"),
    ];
    assert_eq!(map(&since, "").await, json!({ "extents": changed, "next_offset": null }));
    let page = map(&since, "page_size=2&offset=65536").await;
    assert_eq!(page, json!({ "extents": changed[1..3], "next_offset": 3 * CLUSTER }));
    let part = map(&since, "offset=131072&length=65536").await;
    assert_eq!(part, json!({ "extents": [changed[2]], "next_offset": null }));

    for (path, expect) in [
        ("/exports/root/data?offset=4194304", StatusCode::RANGE_NOT_SATISFIABLE),
        ("/exports/root/map?offset=18446744073709551615&length=9", StatusCode::RANGE_NOT_SATISFIABLE),
        ("/exports/root/data?offset=x", StatusCode::BAD_REQUEST),
        ("/exports/root/map?page_size=-1", StatusCode::BAD_REQUEST),
        ("/exports/none/data", StatusCode::NOT_FOUND),
        // QEMU has no such volume.
        ("/exports/other/data", StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        assert_eq!(status(path).await, expect, "{path}");
    }
    let bare = Request::get("/exports/root/data").body(Body::empty()).unwrap();
    assert_eq!(full.clone().oneshot(bare).await.unwrap().status(), StatusCode::UNAUTHORIZED);

    // The backup has ended, and then its agent goes.
    drop(qemu);
    std::fs::remove_file(&socket).unwrap();
    assert_eq!(status("/exports/root/data").await, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_goes_is_missed_and_one_that_comes_back_is_taken() {
    let home = tempfile::tempdir().unwrap();
    let agents = home.path().join("agent");
    let disk = std::fs::File::create_new(home.path().join("disk")).unwrap();
    disk.write_all_at(b"x", 0).unwrap();
    let lender = Lender::new(IDENTITY);
    let _agents = kit::spawn("agents", lender.clone().take(UnixListener::bind(&agents).unwrap()));
    let greet = || {
        let stream = UnixStream::connect(&agents).unwrap();
        sys::fdpass::send(&stream, format!("{}\n", json!({ "identity": IDENTITY })).as_bytes(), &[]).unwrap();
        assert_eq!(sys::fdpass::receive_line(&stream, 4096).unwrap().0, "{}");
        stream
    };
    let until = async |there: bool| {
        while lender.is_there() != there {
            tokio::task::yield_now().await;
        }
    };
    let first = greet();
    until(true).await;
    drop(first);
    until(false).await;
    assert_eq!(lender.borrow().await.unwrap_err().kind(), std::io::ErrorKind::NotConnected);
    let second = greet();
    until(true).await;
    // One that answers with something else than a connection is not asked again.
    let answered = std::thread::spawn(move || {
        assert_eq!(sys::fdpass::receive(&second, 1).unwrap().0, b"+");
        sys::fdpass::send(&second, b"nonsense\n", &[disk.as_fd()]).unwrap();
        second
    });
    lender.borrow().await.unwrap_err();
    let _second = answered.join().unwrap();
    until(false).await;
}
