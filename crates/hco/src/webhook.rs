//! hyperconverged-cluster-webhook: admission of the HyperConverged object, the conversion of its versions, and the guard of its
//! namespace.
//!
//! ```text
//! API server --> mutate (pure)
//!            --> validate (pure) --> the other operators, by dry runs
//!            --> convert (pure)
//! ```

mod convert;
mod dry_run;
mod mutate;
mod namespaces;
mod validate;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use kit::admission::{self, Verdict};
use kit::health::{self, Ready};
use kit::shutdown::{self, CancellationToken};
use kit::{metrics, server, tls};
use kube::Client;
use prometheus_client::registry::Registry;
use serde_json::json;

use crate::render::Input;
use crate::{Error, release};

/// Its name, which is the command as well.
pub const PROGRAM: &str = "hyperconverged-cluster-webhook";
/// Where objects are judged.
pub const VALIDATE: &str = "/validate-hco-kubevirt-io-v1-hyperconverged";
/// Where objects are completed.
pub const MUTATE: &str = "/mutate-hco-kubevirt-io-v1-hyperconverged";
/// Where the end of a namespace is judged.
pub const NAMESPACES: &str = "/validate-ns-hco-kubevirt-io";
/// Where objects become those of another version.
pub const CONVERT: &str = "/convert";

/// Largest review: two objects of the API server's own limit.
const REVIEW: usize = 4 << 20;
/// How long this replica goes on serving after it was told to end: until then a request may still be sent to it.
const LINGER: Duration = Duration::from_secs(3);

/// Command line of the webhook.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the HyperConverged object.
    #[arg(long, env = "POD_NAMESPACE", default_value = release::NAMESPACE)]
    pub namespace: String,
    /// Port to serve on.
    #[arg(long, default_value_t = 4343)]
    pub port: u16,
    /// Directory with tls.crt and tls.key.
    #[arg(long, env = "WEBHOOK_CERT_DIR", default_value = "/apiserver.local.config/certificates")]
    pub cert_dir: PathBuf,
    /// File with the authorities of that certificate.
    #[arg(long, default_value = "/apiserver.local.config/bundle/ca-bundle.crt")]
    pub ca_bundle: PathBuf,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the process cannot be set up.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = kit::client::connect(PROGRAM).await.map_err(Error::setup("reach the API server"))?;
    let material = tls::Material::new();
    let files = tls::Files { pair: args.cert_dir.clone(), bundle: args.ca_bundle.clone() };
    let reload = tls::load(files, material.clone(), tls::Trust::new()).await;
    let _reload = reload.map_err(Error::setup("load the certificate"))?;
    let address = (std::net::Ipv6Addr::UNSPECIFIED, args.port);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    let config = tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))?;
    let ready = Ready::default();
    ready.set(true);
    let gone = CancellationToken::new();
    let _leaving = kit::spawn("leaving", leave(ready.clone(), stop, gone.clone()));
    let input = Input { namespace: args.namespace, version: release::version(), ..Input::default() };
    let router = router(client, input).merge(health::router(ready)).merge(metrics::router(Registry::default()));
    server::serve_tls(listener, config, router, gone).await;
    Ok(())
}

async fn leave(ready: Ready, stop: CancellationToken, gone: CancellationToken) {
    stop.cancelled().await;
    ready.set(false);
    tokio::time::sleep(LINGER).await;
    gone.cancel();
}

/// The webhooks, for objects in the namespace of `input`.
pub fn router(client: Client, input: Input) -> Router {
    let input = Arc::new(input);
    let judge = {
        let (client, input) = (client.clone(), input.clone());
        move |request: admission::Request| {
            let (client, input) = (client.clone(), input.clone());
            async move {
                let mut verdict = validate::judge(&request, &input);
                if let Verdict::Allow { warnings } = &mut verdict {
                    match dry_run::judge(&client, &request, &input).await {
                        Ok(more) => warnings.extend(more),
                        Err(refused) => return refused,
                    }
                }
                verdict
            }
        }
    };
    let router = admission::route_looking(Router::new(), VALIDATE, judge);
    let router = admission::route(router, MUTATE, mutate::judge);
    let guard = move |request: admission::Request| {
        let (client, input) = (client.clone(), input.clone());
        async move { namespaces::judge(&client, &request, &input.namespace).await }
    };
    let router = admission::route_looking(router, NAMESPACES, guard);
    convert::route(router).layer(DefaultBodyLimit::max(REVIEW))
}

fn deny(message: impl Into<String>) -> Verdict {
    Verdict::Deny { code: 403, reason: "Forbidden", message: message.into() }
}

/// A patch that replaces what `spec` was.
fn replace(spec: &serde_json::Value) -> serde_json::Value {
    json!([{ "op": "add", "path": "/spec", "value": spec }])
}
