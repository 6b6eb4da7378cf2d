//! A server of the test itself that the API server calls through a Service without a selector.

use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use e2e::Namespace;
use kit::certs::{Authority, Leaf};
use kit::shutdown::CancellationToken;
use serde_json::json;

use crate::pods::apply;

/// Address of the host, where the API server and the test run, as the cluster's pods see it.
const HOST: &str = "10.88.0.1";
const DAY: std::time::Duration = std::time::Duration::from_secs(86_400);

/// A server behind the Service `hook` of the namespace; ends with its owner.
pub(crate) struct Served {
    runtime: Option<tokio::runtime::Runtime>,
    stop: CancellationToken,
    /// What clients must trust, in PEM.
    pub(crate) authority: String,
}

impl Served {
    pub(crate) fn start(space: &Namespace, router: Router) -> Result<Self> {
        // Another test may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let authority = Authority::generate("e2e", kit::clock::now(), DAY)?;
        let name = format!("hook.{}.svc", space.name());
        let leaf = Leaf { name: name.clone(), role: "e2e".into(), node: None, dns: vec![name] };
        let material = kit::tls::Material::new();
        material.set(&authority.issue(&leaf, kit::clock::now(), DAY)?)?;
        let config = kit::tls::server(material, None)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let stop = CancellationToken::new();
        let listener = runtime.block_on(tokio::net::TcpListener::bind((HOST, 0))).context("cannot listen")?;
        let port = listener.local_addr()?.port();
        runtime.spawn(kit::server::serve_tls(listener, Arc::clone(&config), router, stop.clone()));
        apply(
            space,
            &[
                json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"}, "spec": {"ports": [{"port": 443, "targetPort": port}]}}),
                json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                   "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
                   "ports": [{"name": "", "port": port, "protocol": "TCP"}], "endpoints": [{"addresses": [HOST], "conditions": {"ready": true}}]}),
            ],
        )?;
        Ok(Self { runtime: Some(runtime), stop, authority: authority.pair().certificate.clone() })
    }

    /// The authority as a `caBundle`.
    pub(crate) fn bundle(&self) -> String {
        BASE64_STANDARD.encode(&self.authority)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
