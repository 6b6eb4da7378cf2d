//! template-validator: holds machines to the rules of the templates that they were made of.
//!
//! ```text
//! API server --webhook--> rules (the machine's own, or its template's) -> evaluate (pure) -> verdict
//!            --webhook--> template that goes -> machines that are held to it -> verdict
//! ```

pub mod defaults;
pub mod evaluate;
pub mod judge;
pub mod parent;
pub mod path;
pub mod reference;
pub mod rules;

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use kit::health::{self, Ready};
use kit::shutdown::{self, CancellationToken};
use kit::{metrics, server, tls};
use kube::Client;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use crate::{Error, security};

/// What the program is called.
pub const NAME: &str = "template-validator";
/// Largest AdmissionReview: two objects of the API server's own limit.
const REVIEW: usize = 4 << 20;
/// How long this replica goes on serving after it was told to end: until then a request may still be sent to it.
const LINGER: Duration = Duration::from_secs(3);

/// Command line of template-validator.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Port that the API server asks.
    #[arg(long, default_value_t = 9443)]
    pub webhook_port: u16,
    /// Port for metrics.
    #[arg(long, default_value_t = 8443)]
    pub metrics_port: u16,
    /// Directory with tls.crt and tls.key.
    #[arg(long, default_value = "/etc/webhook/certs")]
    pub cert_dir: PathBuf,
    /// Namespace of this program and of the SSP object.
    #[arg(long, env = "POD_NAMESPACE", default_value = "kubevirt-hyperconverged")]
    pub namespace: String,
    /// Namespace of the templates that machines of every namespace are made of.
    #[arg(long, env = "COMMON_TEMPLATES_NAMESPACE", default_value = "")]
    pub common_templates_namespace: String,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the process cannot be set up.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = kit::client::connect(NAME).await.map_err(Error::setup("reach the API server"))?;
    let material = tls::Material::new();
    // Nobody shows a certificate here, so no authority is ever asked about.
    let files = tls::Files { pair: args.cert_dir.clone(), bundle: args.cert_dir.join("tls.crt") };
    let reload = tls::load(files, material.clone(), tls::Trust::new()).await;
    let _reload = reload.map_err(Error::setup("load the certificate"))?;
    let webhooks = tls::Changing::new(material.clone(), None).map_err(Error::setup("configure TLS"))?;
    let measures = tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))?;
    let _following = security::follow(&client, &args.namespace, vec![webhooks.clone(), measures.clone()]);
    let validator = Validator::new(client, &args.common_templates_namespace);
    let gone = CancellationToken::new();
    let listener = bind(args.metrics_port).await?;
    let router = metrics::router(validator.registry());
    let _measures = kit::spawn("metrics", server::serve_tls(listener, measures, router, gone.clone()));
    let _leaving = kit::spawn("leaving", leave(validator.ready.clone(), stop, gone.clone()));
    let listener = bind(args.webhook_port).await?;
    server::serve_tls(listener, webhooks, validator.router(), gone).await;
    Ok(())
}

async fn bind(port: u16) -> Result<tokio::net::TcpListener, Error> {
    tokio::net::TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await.map_err(Error::setup("listen"))
}

async fn leave(ready: Ready, stop: CancellationToken, gone: CancellationToken) {
    stop.cancelled().await;
    ready.set(false);
    tokio::time::sleep(LINGER).await;
    gone.cancel();
}

/// What the webhooks share.
struct Context {
    client: Client,
    /// The namespace of the common templates, or empty.
    common: String,
    rejected: Counter,
}

/// Everything behind the listeners.
pub struct Validator {
    context: Arc<Context>,
    ready: Ready,
}

impl Validator {
    /// Ready at once: nothing is kept of the cluster. `common` is the namespace of the common templates, or empty.
    pub fn new(client: Client, common: &str) -> Self {
        let ready = Ready::default();
        ready.set(true);
        let context = Context { client, common: common.to_owned(), rejected: Counter::default() };
        Validator { context: Arc::new(context), ready }
    }

    /// Webhooks and health.
    pub fn router(&self) -> Router {
        let webhooks = judge::router(&self.context).layer(DefaultBodyLimit::max(REVIEW));
        webhooks.merge(health::router(self.ready.clone()))
    }

    /// How many machines were refused.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        let help = "The total number of rejected virtual machines due to template validation";
        registry.register("kubevirt_ssp_template_validator_rejected", help, self.context.rejected.clone());
        registry
    }
}
