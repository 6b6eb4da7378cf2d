//! Launchers that stall: what becomes of the other guests of the node.

mod fake_launcher;
mod reconcile;
mod test_node;

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::kubevirt::v1::VirtualMachineInstance;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request as HttpRequest, Response as HttpResponse};
use futures::Stream;
use kit::peer::Peers;
use kit::shutdown::CancellationToken;
use kit::store::Key;
use kit::tls;
use rpc::launcher::launcher_server::{Launcher as Calls, LauncherServer};
use rpc::launcher::*;
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{Context, Inner, incoming, work};
use crate::launcher::Pods;
use crate::migration::{Road, channel};

const STALLED: usize = 50;
const LIMIT: Duration = Duration::from_secs(30);

/// A launcher that tells its states and answers `sync`, if it does.
struct Played {
    states: watch::Receiver<DomainState>,
    answers: bool,
}

macro_rules! never_answered {
    ($($name:ident($asked:ty) -> $answer:ty;)*) => {
        #[tonic::async_trait]
        impl Calls for Played {
            type WatchStream = Pin<Box<dyn Stream<Item = Result<DomainState, Status>> + Send>>;

            async fn watch(&self, _: Request<Empty>) -> Result<Response<Self::WatchStream>, Status> {
                let mut states = self.states.clone();
                states.mark_changed();
                let next = |mut states: watch::Receiver<DomainState>| async move {
                    states.changed().await.ok()?;
                    let state = states.borrow_and_update().clone();
                    Some((Ok(state), states))
                };
                Ok(Response::new(Box::pin(futures::stream::unfold(states, next))))
            }

            async fn sync(&self, _: Request<SyncRequest>) -> Result<Response<Empty>, Status> {
                if self.answers { Ok(Response::new(Empty {})) } else { std::future::pending().await }
            }

            $(async fn $name(&self, _: Request<$asked>) -> Result<Response<$answer>, Status> {
                std::future::pending().await
            })*
        }
    };
}

never_answered! {
    pause(Empty) -> Empty;
    unpause(Empty) -> Empty;
    reset(Empty) -> Empty;
    soft_reboot(Empty) -> Empty;
    shutdown(Empty) -> Empty;
    kill(Empty) -> Empty;
    guest_info(Empty) -> Json;
    users(Empty) -> Json;
    filesystems(Empty) -> Json;
    screenshot(ScreenshotRequest) -> Blob;
    exec(ExecRequest) -> ExecReply;
    guest_ping(GuestPingRequest) -> Empty;
    stats(Empty) -> Json;
    freeze(FreezeRequest) -> Empty;
    unfreeze(Empty) -> Empty;
    expect(ExpectRequest) -> Empty;
    migrate(MigrateRequest) -> Empty;
    abort_migration(Empty) -> Empty;
    backup(BackupRequest) -> Empty;
    redefine_checkpoint(CheckpointRequest) -> Empty;
    dump_memory(MemoryDumpRequest) -> Empty;
}

/// The API server, as far as a node agent asks it: VMIs by name, and a signal at each change.
#[derive(Clone)]
struct Cluster {
    vmis: Arc<Mutex<BTreeMap<String, Value>>>,
    changed: watch::Sender<u64>,
}

impl Cluster {
    fn client(&self) -> kube::Client {
        let cluster = self.clone();
        let service = tower::service_fn(move |request: HttpRequest<kube::client::Body>| {
            let cluster = cluster.clone();
            async move { Ok::<_, std::io::Error>(cluster.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    async fn answer(&self, request: HttpRequest<kube::client::Body>) -> HttpResponse<Body> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let sent = to_bytes(Body::new(body), 1 << 20).await.unwrap();
        let answer = match (&parts.method, path.rsplit_once("/virtualmachineinstances/")) {
            (&Method::PATCH, Some((_, name))) => {
                let patch: Value = serde_json::from_slice(&sent).unwrap();
                let mut vmis = self.vmis.lock().unwrap();
                let vmi = vmis.get_mut(name).unwrap();
                for (field, value) in patch["status"].as_object().unwrap() {
                    vmi["status"][field] = value.clone();
                }
                vmi.clone()
            }
            (&Method::GET, _) => {
                json!({ "apiVersion": "kubevirt.io/v1", "kind": "KubeVirtList", "metadata": { "resourceVersion": "1" }, "items": [] })
            }
            _ => serde_json::from_slice(&sent).unwrap(),
        };
        self.changed.send_modify(|count| *count += 1);
        HttpResponse::new(Body::from(serde_json::to_vec(&answer).unwrap()))
    }

    fn status(&self, name: &str) -> Value {
        self.vmis.lock().unwrap()[name]["status"].clone()
    }

    /// Waits until the status is as it should be.
    async fn until(&self, name: &str, fits: impl Fn(&Value) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while !fits(&self.status(name)) {
                changed.changed().await.unwrap();
            }
        };
        let waited = tokio::time::timeout(LIMIT, waiting).await;
        assert!(waited.is_ok(), "{name} is left at {}", self.status(name));
    }
}

fn uid(of: usize) -> String {
    format!("00000000-0000-4000-8000-{of:012}")
}

/// Binds a socket of a pod's volume, under a short name at first: the path is longer than a socket's address may be.
fn bind(dir: &Path, pod: &str, place: &str, backlog: i32) -> Socket {
    let short = dir.join("s");
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    listener.bind(&SockAddr::unix(&short).unwrap()).unwrap();
    listener.listen(backlog).unwrap();
    listener.set_nonblocking(true).unwrap();
    let path = dir.join(pod).join("volumes/kubernetes.io~empty-dir").join(place);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::rename(short, path).unwrap();
    listener
}

/// As many connections as the listener lets wait.
fn fill(dir: &Path, pod: &str, place: &str) -> Vec<StdUnixStream> {
    let volumes = sys::beneath::Dir::open(&dir.join(pod).join("volumes/kubernetes.io~empty-dir")).unwrap();
    std::iter::from_fn(|| volumes.connect(place).ok()).collect()
}

struct Scene {
    dir: PathBuf,
    cluster: Cluster,
    context: Context,
    held: Vec<Box<dyn std::any::Any + Send>>,
}

impl Scene {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let cluster = Cluster { vmis: Arc::default(), changed: watch::Sender::new(0) };
        let road = Road {
            peers: Peers::new("virt-handler", tls::Material::new(), tls::Trust::new()),
            address: "192.0.2.1".into(),
            port: 1,
            namespace: "kubevirt".into(),
            client: cluster.client(),
        };
        let records = dir.join("records");
        let inner = Inner::new("node1".into(), Pods::played(dir.clone()), records, None, None, road);
        let context = Context(Arc::new(inner));
        let held = context.settings.start(&context.client, Vec::new());
        Self { dir, cluster, context, held: vec![Box::new(held)] }
    }

    /// A VMI that was scheduled here, with its launcher.
    fn guest(&mut self, number: usize, answers: bool) -> (String, watch::Sender<DomainState>) {
        let (name, uid) = (format!("vmi{number}"), uid(number));
        let vmi = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": { "name": name, "namespace": "n", "uid": uid, "resourceVersion": "1", "generation": 1 },
            "spec": { "domain": { "devices": {} } },
            "status": { "phase": "Scheduled", "nodeName": "node1", "activePods": { &uid: "node1" } },
        });
        let typed: VirtualMachineInstance = serde_json::from_value(vmi.clone()).unwrap();
        self.cluster.vmis.lock().unwrap().insert(name.clone(), vmi);
        self.context.vmis.put(&typed, Vec::new());
        let (told, states) = watch::channel(DomainState::default());
        let listener = bind(&self.dir, &uid, "sockets/launcher-sock", 16);
        let listener = UnixListener::from_std(listener.into()).unwrap();
        let serving = tonic::transport::Server::builder()
            .add_service(LauncherServer::new(Played { states, answers }))
            .serve_with_incoming(futures::stream::unfold(listener, |listener| async move {
                Some((listener.accept().await.map(|(stream, _)| stream), listener))
            }));
        self.held.push(Box::new(kit::spawn("launcher", async move { drop(serving.await) })));
        self.context.queue.add(Key::new("n", &name));
        (name, told)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_consoles_and_launchers_hold_up_no_other_guest() {
    let mut scene = Scene::new("stalled");
    let stop = CancellationToken::new();
    let working = kit::spawn("vmis", work(scene.context.clone(), stop.clone()));
    let mut stalled = Vec::new();
    for number in 0..STALLED {
        let (name, told) = scene.guest(number, false);
        for console in ["serial", "vnc"] {
            let place = format!("private/{}/{}", uid(number), socket(console));
            let listener = bind(&scene.dir, &uid(number), &place, 0);
            let waiting = fill(&scene.dir, &uid(number), &place);
            scene.held.push(Box::new((listener, waiting)));
        }
        stalled.push((name, told));
    }
    // All of them are asked to start, and never answer.
    for (name, _) in &stalled {
        let key = Key::new("n", name);
        while scene.context.guest(&key).is_none_or(|guest| guest.launcher().is_none()) {
            tokio::task::yield_now().await;
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = crate::server::router(scene.context.clone());
    let _serving = kit::spawn("consoles", async move { drop(axum::serve(listener, router).await) });
    let mut users = Vec::new();
    for (name, _) in &stalled {
        for (method, what) in [("GET", "console"), ("GET", "vnc"), ("PUT", "freeze")] {
            let mut user = TcpStream::connect(address).await.unwrap();
            let request = format!(
                "{method} /v1/namespaces/n/virtualmachineinstances/{name}/{what} HTTP/1.1\r\nHost: h\r\n\
                 Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nContent-Length: 0\r\n\r\n"
            );
            user.write_all(request.as_bytes()).await.unwrap();
            users.push(user);
        }
    }
    let (name, told) = scene.guest(STALLED, true);
    for (status, paused) in [("Running", false), ("Paused", true), ("Running", false)] {
        told.send_replace(DomainState { status: status.into(), ..DomainState::default() });
        let has = |status: &Value| status["conditions"].to_string().contains("\"Paused\"");
        scene.cluster.until(&name, |status| status["phase"] == "Running" && has(status) == paused).await;
    }
    drop((users, working));
}

fn socket(console: &str) -> &'static str {
    match console {
        "serial" => domain::console::SERIAL,
        _ => domain::console::VNC,
    }
}

#[tokio::test]
async fn a_launcher_that_floods_is_read_at_its_rate() {
    let mut scene = Scene::new("flood");
    let working = kit::spawn("vmis", work(scene.context.clone(), CancellationToken::new()));
    let (name, told) = scene.guest(1, true);
    told.send_replace(DomainState { status: "Running".into(), ..DomainState::default() });
    scene.cluster.until(&name, |status| status["phase"] == "Running").await;
    let before = *scene.cluster.changed.borrow();
    let began = tokio::time::Instant::now();
    let flood = kit::spawn("flood", async move {
        for turn in 0_u64.. {
            let status = if turn % 2 == 0 { "Paused" } else { "Running" };
            let guest = "x".repeat(256 << 10);
            told.send_replace(DomainState { sequence: turn, status: status.into(), guest, ..DomainState::default() });
            tokio::task::yield_now().await;
        }
    });
    let mut changed = scene.cluster.changed.subscribe();
    while began.elapsed() < Duration::from_secs(4) {
        let _ = tokio::time::timeout(Duration::from_millis(100), changed.changed()).await;
    }
    drop((flood, working));
    let writes = *scene.cluster.changed.borrow() - before;
    // Fifty at once, and five a second; an event may come with a write.
    assert!(writes <= 2 * (50 + 5 * 6), "{writes} requests for one guest");
}

/// The port on which guests come from other nodes, and where it is.
async fn migrations(scene: &Scene) -> (kit::Task<()>, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = incoming::serve(listener, scene.context.clone(), CancellationToken::new());
    (kit::spawn("migrations", serving), address)
}

/// Somebody who connects to it, says this, and then nothing.
async fn stranger(address: std::net::SocketAddr, says: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(says).await.unwrap();
    stream
}

/// Nothing, half a greeting, and half a handshake.
const SAID: [&[u8]; 3] = [b"", b"{", &[0x16, 3, 1]];
/// More than there are places for streams in all.
const STRANGERS: usize = 300;

#[tokio::test]
async fn strangers_who_say_nothing_keep_no_guest_from_coming() {
    let scene = Scene::new("strangers");
    let (_serving, address) = migrations(&scene).await;
    let mut strangers = Vec::new();
    for number in 0..STRANGERS {
        strangers.push(stranger(address, SAID[number % SAID.len()]).await);
    }
    let hello =
        channel::Hello { namespace: "n".into(), name: "vm".into(), migration: "m".into(), ..Default::default() };
    for _ in 0..3 {
        // A stream of a migration is read and answered, here with the word that the migration is not expected.
        let answered = tokio::time::timeout(Duration::from_secs(5), channel::open(None, "node1", address, &hello));
        match answered.await.expect("strangers are waited for") {
            Err(channel::Error::Refused { why, .. }) => assert_eq!(why, "migration m of n/vm is not expected here"),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("nothing is expected"),
        }
    }
    // Whoever came first has been shown out.
    let mut byte = [0];
    let shown_out = tokio::time::timeout(Duration::from_secs(5), strangers[0].read(&mut byte)).await;
    assert!(!matches!(shown_out, Ok(Ok(1..)) | Err(_)), "{shown_out:?}");
    let left = strangers[1..].iter().filter(
        |stream| matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
    );
    assert!(left.count() <= 64);
}

#[tokio::test(start_paused = true)]
async fn strangers_who_say_nothing_hold_no_place_for_ever() {
    let scene = Scene::new("silent");
    let (_serving, address) = migrations(&scene).await;
    for says in SAID {
        let mut stranger = stranger(address, says).await;
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(60), stranger.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "{says:?} is waited for");
        assert!(answer.is_empty(), "{answer:?}");
    }
}
