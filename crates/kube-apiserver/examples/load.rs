//! Rates and latencies of the API server with durable writes: `cargo run --release -p kube-apiserver --example load`.
//!
//! Prints one line for each operation and number of clients. Everything is in process, so the network and TLS are left
//! out and what is measured is the server: admission, validation, field ownership, group commit.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::time::{Duration, Instant};

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube_apiserver::request::User;
use kube_apiserver::{ApiServer, Config};
use serde_json::{Value, json};
use tower::ServiceExt;

const OBJECTS: usize = 10_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
struct Client(axum::Router);

impl Client {
    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Result<(StatusCode, usize), Failure> {
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request =
            Request::builder().method(method).uri(path).header("content-type", "application/json").body(body)?;
        let response = self.0.clone().oneshot(request).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            return Err(String::from_utf8_lossy(&bytes).into_owned().into());
        }
        Ok((status, bytes.len()))
    }
}

fn pod(name: &str) -> Value {
    let env: Vec<Value> =
        (0..20).map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "some value of usual length"})).collect();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "load", "half": (name.len() % 2).to_string()}},
        "spec": {"containers": [{"name": "c", "image": "registry.example/app:1", "env": env,
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]}})
}

/// Runs `total` operations from `clients` tasks; prints the rate and the latencies.
async fn measure<F, G>(what: &str, clients: usize, total: usize, operation: F) -> Result<(), Failure>
where
    F: Fn(usize) -> G + Clone + Send + 'static,
    G: Future<Output = Result<(), Failure>> + Send,
{
    let started = Instant::now();
    let mut tasks = Vec::new();
    for client in 0..clients {
        let operation = operation.clone();
        tasks.push(tokio::spawn(async move {
            let mut times = Vec::new();
            for n in (client..total).step_by(clients) {
                let begin = Instant::now();
                operation(n).await?;
                times.push(begin.elapsed());
            }
            Ok::<_, Failure>(times)
        }));
    }
    let mut times: Vec<Duration> = Vec::new();
    for task in tasks {
        times.extend(task.await??);
    }
    let took = started.elapsed();
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
    println!(
        "{what:28} {clients:3} clients {:9.0}/s   p50 {:8.2} ms   p99 {:8.2} ms",
        total as f64 / took.as_secs_f64(),
        at(0.5),
        at(0.99)
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let dir = std::env::temp_dir().join(format!("apiserver-load-{}", std::process::id()));
    let server = ApiServer::open(Config { data_dir: Some(dir.clone()), ..Config::default() }).await?;
    let client = Client(server.router().layer(axum::Extension(User::admin())));
    let outcome = run(&client).await;
    std::fs::remove_dir_all(&dir)?;
    outcome
}

async fn run(client: &Client) -> Result<(), Failure> {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    for (clients, total) in [(1, 500), (8, 1500), (64, OBJECTS - 2000)] {
        let c = client.clone();
        measure("create pod, durable", clients, total, move |n| {
            let c = c.clone();
            async move { c.call("POST", PODS, Some(pod(&format!("p-{clients}-{n}")))).await.map(|_| ()) }
        })
        .await?;
    }
    for clients in [1, 8, 64] {
        let c = client.clone();
        measure("create configmap, durable", clients, 100 * clients, move |n| {
            let c = c.clone();
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m-{clients}-{n}")}, "data": {"k": "v"}});
            async move { c.call("POST", "/api/v1/namespaces/default/configmaps", Some(map)).await.map(|_| ()) }
        })
        .await?;
    }
    for clients in [1, 8, 64] {
        let c = client.clone();
        measure("get pod", clients, 20_000, move |n| {
            let c = c.clone();
            async move { c.call("GET", &format!("{PODS}/p-64-{}", n % 8000), None).await.map(|_| ()) }
        })
        .await?;
    }
    for (what, query) in [
        ("list 10,000 pods", ""),
        ("list by label, half", "?labelSelector=half%3D1"),
        ("list by field, none", "?fieldSelector=spec.nodeName%3Dx"),
    ] {
        for clients in [1, 8] {
            let c = client.clone();
            measure(what, clients, 8, move |_| {
                let c = c.clone();
                async move { c.call("GET", &format!("{PODS}{query}"), None).await.map(|_| ()) }
            })
            .await?;
        }
    }
    for clients in [1, 8, 64] {
        let c = client.clone();
        measure("patch pod, durable", clients, 50 * clients, move |n| {
            let c = c.clone();
            async move {
                let path = format!("{PODS}/p-64-{n}");
                let body = Body::from(json!({"metadata": {"labels": {"n": n.to_string()}}}).to_string());
                let request = Request::patch(path).header("content-type", "application/merge-patch+json").body(body)?;
                let response = c.0.clone().oneshot(request).await?;
                if response.status().is_success() { Ok(()) } else { Err("patch refused".into()) }
            }
        })
        .await?;
    }
    Ok(())
}
