//! Rates and latencies of the API server with durable writes, in this process: no network and no TLS, so what is
//! measured is admission, validation, field ownership, the store and its group commit.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use axum::body::Body;
use futures::future::try_join_all;
use http::Request;
use http_body_util::BodyExt;
use kube_apiserver::request::User;
use kube_apiserver::{ApiServer, Config};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::table::{Table, Times};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLIENTS: [usize; 3] = [1, 8, 64];
/// Writes that a watch must deliver.
const WATCHED: usize = 200;

#[derive(Clone)]
struct Client(axum::Router);

impl Client {
    async fn open(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Body> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder().method(method).uri(path).header("content-type", kind).body(body)?;
        let response = self.0.clone().oneshot(request).await.map_err(|never| match never {})?;
        let good = response.status().is_success();
        let body = response.into_body();
        if good {
            return Ok(body);
        }
        let text = body.collect().await?.to_bytes();
        Err(anyhow!("{method} {path}: {}", String::from_utf8_lossy(&text)))
    }

    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<()> {
        self.open(method, path, body).await?.collect().await?;
        Ok(())
    }
}

/// Rows for `objects` pods in the store.
pub(crate) async fn measure(objects: usize) -> Result<Table> {
    let dir =
        tempfile::Builder::new().prefix("apiserver-").tempdir_in("/var/lib").context("cannot make a directory")?;
    let disk = disk(dir.path())?;
    let config = Config { data_dir: Some(dir.path().join("store")), ..Config::default() };
    let server = ApiServer::open(config).await.context("cannot open a store")?;
    let client = Client(server.router().layer(axum::Extension(User::admin())));
    let mut table = Table::default();

    // The last and largest crowd fills the store.
    let few = objects / 20;
    let last = objects - 4 * few;
    for (clients, total) in CLIENTS.into_iter().zip([few, 3 * few, last]) {
        let (times, took) = each(&client, clients, total, move |client, n| async move {
            client.call("POST", PODS, Some(&pod(&format!("p-{clients}-{n}")))).await
        })
        .await?;
        let beside = format!("write + fdatasync of one file, p50 {:.2} ms", disk.at(0.5) * 1000.0);
        row(&mut table, "create pod, durable", clients, &times, took, beside);
    }
    for clients in CLIENTS {
        let (times, took) = each(&client, clients, 50 * clients, move |client, n| {
            let change = json!({"metadata": {"labels": {"n": clients.to_string()}}});
            async move { client.call("PATCH", &format!("{PODS}/p-64-{}", n % last), Some(&change)).await }
        })
        .await?;
        row(&mut table, "patch pod, durable", clients, &times, took, String::new());
    }
    for clients in CLIENTS {
        let (times, took) = each(&client, clients, 20_000, move |client, n| async move {
            client.call("GET", &format!("{PODS}/p-64-{}", n % last), None).await
        })
        .await?;
        row(&mut table, "get pod", clients, &times, took, String::new());
    }
    for clients in CLIENTS {
        let (times, took) =
            each(
                &client,
                clients,
                clients.max(8),
                move |client, _| async move { client.call("GET", PODS, None).await },
            )
            .await?;
        row(&mut table, &format!("list {objects} pods"), clients, &times, took, String::new());
    }
    for clients in CLIENTS {
        let (times, took) = watch(&client, clients).await?;
        row(&mut table, "watch, write to event", clients, &times, took, "events delivered to every watcher".to_owned());
    }
    server.close();
    Ok(table)
}

fn row(table: &mut Table, what: &str, clients: usize, times: &Times, took: Duration, beside: String) {
    let rate = times.len() as f64 / took.as_secs_f64();
    let figure = format!("API server, {what}, {clients} clients, rate / p99 ms");
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
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let mut streams = Vec::new();
    for _ in 0..watchers {
        let selector = format!("labelSelector=w%3D{watchers}");
        streams.push(client.open("GET", &format!("{MAPS}?watch=1&{selector}"), None).await?);
    }
    let tasks: Vec<_> = streams.into_iter().map(|stream| tokio::task::spawn(arrivals(stream))).collect();
    let started = Instant::now();
    let mut writes = Vec::new();
    for n in 0..WATCHED {
        writes.push(Instant::now());
        let name = format!("w-{watchers}-{n}");
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"w": watchers.to_string()}}});
        client.call("POST", MAPS, Some(&map)).await?;
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
fn disk(dir: &std::path::Path) -> Result<Times> {
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
