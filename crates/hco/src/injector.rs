//! virt-network-resources-injector: pods of virtual machines ask for the resources of their networks, so that they are scheduled to a
//! node that has them.
//!
//! ```text
//! pod --annotation k8s.v1.cni.cncf.io/networks--> NetworkAttachmentDefinitions --annotations--> resources, node selector --> pod
//! ```

mod networks;
mod plan;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use futures::stream::{self, StreamExt, TryStreamExt};
use kit::admission::{self, Verdict};
use kit::health::{self, Ready};
use kit::shutdown::{self, CancellationToken};
use kit::{Chain, metrics, server, tls};
use kube::api::DynamicObject;
use kube::core::{GroupVersionKind, PartialObjectMeta};
use kube::discovery::ApiResource;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use serde_json::Value;

pub use self::networks::ANNOTATION;
use self::networks::Network;
use self::plan::Wanted;
use crate::Error;

/// Its command.
pub const PROGRAM: &str = "virt-network-resources-injector";
/// Where pods are judged.
pub const PATH: &str = "/mutate";
/// Largest review: a pod of the API server's own limit.
const REVIEW: usize = 4 << 20;
/// How many definitions are read at once.
const AT_ONCE: usize = 8;
/// How long this replica goes on serving after it was told to end: until then a request may still be sent to it.
const LINGER: Duration = Duration::from_secs(3);

/// Command line of the injector.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Port to serve on.
    #[arg(long, default_value_t = 6443)]
    pub port: u16,
    /// Directory with tls.crt and tls.key.
    #[arg(long, default_value = "/etc/tls")]
    pub cert_dir: PathBuf,
    /// File with the authorities of that certificate.
    #[arg(long, default_value = "/etc/bundle/ca-bundle.crt")]
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
    let router = router(client).merge(health::router(ready)).merge(metrics::router(Registry::default()));
    server::serve_tls(listener, config, router, gone).await;
    Ok(())
}

async fn leave(ready: Ready, stop: CancellationToken, gone: CancellationToken) {
    stop.cancelled().await;
    ready.set(false);
    tokio::time::sleep(LINGER).await;
    gone.cancel();
}

/// The webhook.
pub fn router(client: Client) -> Router {
    let judge = move |request: admission::Request| {
        let client = client.clone();
        async move { judge(&client, &request).await }
    };
    admission::route_looking(Router::new(), PATH, judge).layer(DefaultBodyLimit::max(REVIEW))
}

async fn judge(client: &Client, request: &admission::Request) -> Verdict {
    let asked = match networks::of(&request.object, &request.namespace) {
        Ok(asked) => asked,
        Err(message) => return refuse(message),
    };
    let wanted = match definitions(client, &asked).await {
        Ok(found) => Wanted::of(&asked, &found),
        Err(message) => return refuse(message),
    };
    match plan::patch(&request.object, &wanted) {
        Ok(None) => Verdict::allow(),
        Ok(Some(patch)) => Verdict::Patch(patch),
        Err(message) => refuse(message),
    }
}

fn refuse(message: String) -> Verdict {
    Verdict::Deny { code: 403, reason: "Forbidden", message }
}

/// The annotations of the definitions that `asked` names, each read once.
async fn definitions(client: &Client, asked: &[Network]) -> Result<BTreeMap<Network, Value>, String> {
    let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    let resource = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
    let mut each: Vec<&Network> = asked.iter().collect();
    each.sort();
    each.dedup();
    let reads: Vec<_> = each
        .into_iter()
        .map(|network| {
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &network.namespace, &resource);
            async move {
                let found: Option<PartialObjectMeta<DynamicObject>> = api
                    .get_metadata_opt(&network.name)
                    .await
                    .map_err(|error| format!("cannot read {network}: {}", Chain(&error)))?;
                let found = found.ok_or_else(|| {
                    format!(
                        "the pod asks for {network} in its annotation {ANNOTATION}, which is not there: make it first"
                    )
                })?;
                Ok::<_, String>((network.clone(), serde_json::json!(found.metadata.annotations)))
            }
        })
        .collect();
    stream::iter(reads).buffered(AT_ONCE).try_collect().await
}
