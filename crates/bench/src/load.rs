//! Rates and latencies of the API server with durable writes: first by calls in this process, where admission, validation,
//! field ownership, the store and its group commit are measured and nothing else; then over TLS, clients in the same process.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use axum::body::Body;
use futures::future::try_join_all;
use http::Request;
use http_body_util::BodyExt;
use kube_apiserver::pki::kubeconfig;
use kube_apiserver::request::User;
use kube_apiserver::serve::tls::Tls;
use kube_apiserver::{ApiServer, Config};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::start;
use crate::table::{Table, Times};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLIENTS: [usize; 3] = [1, 8, 64];
const WATCHERS: [usize; 3] = [1, 64, 500];
/// Writes that a watch must deliver.
const WATCHED: usize = 200;

/// A way to the server: by a call in this process, or over TLS on loopback as a client of its own.
#[derive(Clone)]
enum Client {
    Here(axum::Router),
    Network(kube::Client),
}

impl Client {
    async fn open(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Body> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let text = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let response = match self {
            Self::Here(router) => {
                let answer = router.clone().oneshot(request.body(Body::from(text))?).await;
                answer.map_err(|never| match never {})?
            }
            Self::Network(client) => client.send(request.body(text.into())?).await?.map(Body::new),
        };
        let good = response.status().is_success();
        let body = response.into_body();
        if good {
            return Ok(body);
        }
        let text = body.collect().await?.to_bytes();
        Err(anyhow!("{method} {path}: {}", String::from_utf8_lossy(&text)))
    }

    /// Reads the answer to its end, and keeps none of it.
    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<()> {
        let mut answer = self.open(method, path, body).await?;
        while let Some(frame) = answer.frame().await {
            frame?;
        }
        Ok(())
    }
}

/// Rows for `objects` pods in the store.
pub(crate) async fn measure(objects: usize) -> Result<Table> {
    let dir =
        tempfile::Builder::new().prefix("apiserver-").tempdir_in("/var/lib").context("cannot make a directory")?;
    let store = dir.path().join("store");
    let mut table = Table::default();
    let config = Config { data_dir: Some(store.clone()), ..Config::default() };
    let server = ApiServer::open(config).await.context("cannot open a store")?;
    let here = Client::Here(server.router().layer(axum::Extension(User::admin())));
    let writes = fill(&here, dir.path(), objects, &mut table).await?;
    patches(&here, writes, &mut table).await?;
    reads(&here, "API server", writes, objects, &mut table).await?;
    for watchers in WATCHERS {
        fan_out(&here, "API server", watchers, &mut table).await?;
    }
    let (network, stop) = network(&server).await?;
    let network = Client::Network(network);
    creates(&network, "API server over TLS", 64, objects / 2, String::new(), &mut table).await?;
    reads(&network, "API server over TLS", writes, objects + objects / 2, &mut table).await?;
    fan_out(&network, "API server over TLS", 500, &mut table).await?;
    drop((here, network));
    stop.cancel();
    server.close();
    drop(server);
    table.append(start::measure(&store)?);
    Ok(table)
}

/// Creates `objects` pods, the last and largest crowd most of them; yields how many that crowd made.
async fn fill(client: &Client, dir: &Path, objects: usize, table: &mut Table) -> Result<usize> {
    let disk = disk(dir)?;
    let few = objects / 20;
    let last = objects - 4 * few;
    for (clients, total) in CLIENTS.into_iter().zip([few, 3 * few, last]) {
        let floor = format!("write + fdatasync of one file, p50 {:.2} ms", disk.at(0.5) * 1000.0);
        let beside = if clients == 64 { format!("aim 5000; {floor}") } else { floor };
        creates(client, "API server", clients, total, beside, table).await?;
    }
    Ok(last)
}

async fn creates(
    client: &Client,
    way: &str,
    clients: usize,
    total: usize,
    beside: String,
    table: &mut Table,
) -> Result<()> {
    let kind = if way == "API server" { "p" } else { "n" };
    let (times, took) = each(client, clients, total, move |client, n| async move {
        client.call("POST", PODS, Some(&pod(&format!("{kind}-{clients}-{n}")))).await
    })
    .await?;
    row(table, way, "create pod, durable", clients, &times, took, beside);
    Ok(())
}

async fn patches(client: &Client, pods: usize, table: &mut Table) -> Result<()> {
    for clients in CLIENTS {
        let (times, took) = each(client, clients, 50 * clients, move |client, n| {
            let change = json!({"metadata": {"labels": {"n": clients.to_string()}}});
            async move { client.call("PATCH", &format!("{PODS}/p-64-{}", n % pods), Some(&change)).await }
        })
        .await?;
        row(table, "API server", "patch pod, durable", clients, &times, took, String::new());
    }
    Ok(())
}

async fn reads(client: &Client, way: &str, pods: usize, objects: usize, table: &mut Table) -> Result<()> {
    for clients in CLIENTS {
        let (times, took) = each(client, clients, 20_000, move |client, n| async move {
            client.call("GET", &format!("{PODS}/p-64-{}", n % pods), None).await
        })
        .await?;
        row(table, way, "get pod", clients, &times, took, String::new());
    }
    for clients in [1, 8] {
        let list = move |client: Client, _| async move { client.call("GET", PODS, None).await };
        let (times, took) = each(client, clients, 16, list).await?;
        row(table, way, &format!("list {objects} pods"), clients, &times, took, "aim p99 150 for 10000".to_owned());
    }
    Ok(())
}

async fn fan_out(client: &Client, way: &str, watchers: usize, table: &mut Table) -> Result<()> {
    let (times, took) = watch(client, watchers).await?;
    row(
        table,
        way,
        "pod to watchers",
        watchers,
        &times,
        took,
        "events delivered; from the start of the write".to_owned(),
    );
    Ok(())
}

/// The server on loopback, and an administrator's client of it.
async fn network(server: &ApiServer) -> Result<(kube::Client, CancellationToken)> {
    let pki = &server.edges().pki;
    let (pair, admin) = (pki.api_server(&["127.0.0.1".to_owned()])?, pki.admin()?);
    let tls = Tls::from_pem(&pair.certificate, &pair.key, pki.ca_pem())?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.context("cannot listen on loopback")?;
    let text = kubeconfig(&format!("https://{}", listener.local_addr()?), pki.ca_pem(), "admin", &admin);
    let stop = CancellationToken::new();
    let (serving, until) = (server.clone(), stop.clone());
    tokio::task::spawn(async move { serving.serve(vec![listener], Arc::new(tls), until).await });
    let config = kube::config::Kubeconfig::from_yaml(&text)?;
    let config = kube::Config::from_custom_kubeconfig(config, &kube::config::KubeConfigOptions::default()).await?;
    Ok((kube::Client::try_from(config)?, stop))
}

fn row(table: &mut Table, way: &str, what: &str, clients: usize, times: &Times, took: Duration, beside: String) {
    let rate = times.len() as f64 / took.as_secs_f64();
    let figure = format!("{way}, {what}, {clients} clients, rate / p99 ms");
    table.row(figure, format!("{rate:.0}/s / {:.2}", times.at(0.99) * 1000.0), beside);
}

/// Runs `total` operations from `clients` tasks.
async fn each<F, G>(api: &Client, clients: usize, total: usize, operation: F) -> Result<(Times, Duration)>
where
    F: Fn(Client, usize) -> G + Clone + Send + 'static,
    G: Future<Output = Result<()>> + Send,
{
    let started = Instant::now();
    let tasks = (0..clients).map(|client| {
        let (operation, api) = (operation.clone(), api.clone());
        tokio::task::spawn(async move {
            let mut times = Vec::new();
            for n in (client..total).step_by(clients) {
                let begin = Instant::now();
                operation(api.clone(), n).await?;
                times.push(begin.elapsed());
            }
            Ok::<_, anyhow::Error>(times)
        })
    });
    let mut all = Times::default();
    for times in try_join_all(tasks).await? {
        all.extend(times?);
    }
    Ok((all, started.elapsed()))
}

/// Writes beneath so many watchers: from the start of each write to each watcher's event.
async fn watch(client: &Client, watchers: usize) -> Result<(Times, Duration)> {
    let way = if matches!(client, Client::Here(_)) { "h" } else { "t" };
    let mut streams = Vec::new();
    for _ in 0..watchers {
        let selector = format!("labelSelector=w%3D{way}{watchers}");
        streams.push(client.open("GET", &format!("{PODS}?watch=1&{selector}"), None).await?);
    }
    let tasks: Vec<_> = streams.into_iter().map(|stream| tokio::task::spawn(arrivals(stream))).collect();
    let started = Instant::now();
    let mut writes = Vec::new();
    for n in 0..WATCHED {
        writes.push(Instant::now());
        let mut pod = pod(&format!("w-{way}-{watchers}-{n}"));
        pod["metadata"]["labels"] = json!({"w": format!("{way}{watchers}")});
        client.call("POST", PODS, Some(&pod)).await?;
    }
    let mut all = Times::default();
    for arrivals in try_join_all(tasks).await? {
        all.extend(arrivals?.into_iter().zip(&writes).map(|(arrival, write)| arrival.duration_since(*write)));
    }
    Ok((all, started.elapsed()))
}

/// When each of the watched writes arrived; events are lines.
async fn arrivals(mut stream: Body) -> Result<Vec<Instant>> {
    let mut seen = Vec::new();
    while seen.len() < WATCHED {
        let frame = stream.frame().await.context("the watch ended")??;
        let now = Instant::now();
        let lines = frame.data_ref().map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count());
        seen.extend(std::iter::repeat_n(now, lines));
    }
    Ok(seen)
}

/// The floor of a durable write: one small file, written and synchronised.
fn disk(dir: &Path) -> Result<Times> {
    let mut file = std::fs::File::create(dir.join("floor")).context("cannot make a file")?;
    let once = |_| {
        let begin = Instant::now();
        file.write_all(&[7; 4096]).and_then(|()| file.sync_data()).map(|()| begin.elapsed())
    };
    (0..100).map(once).collect::<std::io::Result<Times>>().context("cannot write a file")
}

fn pod(name: &str) -> Value {
    let env: Vec<Value> =
        (0..20).map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "some value of usual length"})).collect();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "load"}},
        "spec": {"containers": [{"name": "c", "image": "registry.example/app:1", "env": env,
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]}})
}
