//! An API server on loopback with its kubeconfig: `cargo run -p kube-apiserver --example serve -- DIR [PORT]`.

use std::path::PathBuf;
use std::sync::Arc;

use kube_apiserver::pki::kubeconfig;
use kube_apiserver::serve::tls::Tls;
use kube_apiserver::{ApiServer, Config};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("usage: serve DIR [PORT]")?);
    let port: u16 = arguments.next().map_or(Ok(0), |p| p.parse())?;
    let pki_dir = dir.join("pki");
    let server = ApiServer::open(Config {
        data_dir: Some(dir.join("data")),
        pki_dir: Some(pki_dir.clone()),
        ..Config::default()
    })
    .await?;
    let pki = &server.edges().pki;
    pki.api_server(&["127.0.0.1".into(), "localhost".into()])?;
    let tls = Tls::from_files(pki_dir.join("apiserver.crt"), pki_dir.join("apiserver.key"), pki_dir.join("ca.crt"))?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let url = format!("https://{}", listener.local_addr()?);
    std::fs::write(dir.join("kubeconfig"), kubeconfig(&url, pki.ca_pem(), "admin", &pki.admin()?))?;
    let shutdown = tokio_util::sync::CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        stop.cancel();
    });
    tokio::spawn(kube_apiserver::availability::run(server.clone(), shutdown.clone()));
    server.serve(vec![listener], Arc::new(tls), shutdown).await;
    Ok(())
}
