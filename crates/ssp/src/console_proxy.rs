//! vm-console-proxy: a token for the screen of one machine, for whoever may see it: to be given to a program that has no account.
//!
//! ```text
//! API server --aggregation, front-proxy certificate--> may the user see the screen? -> an account of the machine, which may do that
//! and nothing else -> its token, for a while
//! ```
//!
//! Deleting the account takes back every token of it; it goes with the machine.

mod access;

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use http::{HeaderMap, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kit::apply::{self, Applied};
use kit::gate::{Gate, Question, User};
use kit::health::{self, Ready};
use kit::refusal::Refusal;
use kit::server::{self, Peer};
use kit::{Task, duration, shutdown, tls};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Error, security};

/// The program's name, and its command.
pub const NAME: &str = "vm-console-proxy";
/// The group that it adds to the API.
pub const GROUP: &str = "token.kubevirt.io";
/// Its version.
pub const VERSION: &str = "v1";
/// How long a token lives unless somebody says; no token lives shorter.
const USUAL: Duration = Duration::from_secs(600);

/// Command line of vm-console-proxy.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Port that the API server asks.
    #[arg(long, default_value_t = 8768)]
    pub port: u16,
    /// Directory with tls.crt and tls.key.
    #[arg(long, default_value = "/tmp/vm-console-proxy-cert")]
    pub cert_dir: PathBuf,
    /// Namespace of this program and of the SSP object.
    #[arg(long, env = "POD_NAMESPACE", default_value = "kubevirt-hyperconverged")]
    pub namespace: String,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the process cannot be set up.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = kit::client::connect(NAME).await.map_err(Error::setup("reach the API server"))?;
    let (material, front) = (tls::Material::new(), tls::Trust::new());
    let files = tls::Files { pair: args.cert_dir.clone(), bundle: args.cert_dir.join("tls.crt") };
    let _reload =
        tls::load(files, material.clone(), tls::Trust::new()).await.map_err(Error::setup("load the certificate"))?;
    let config = tls::Changing::new(material, Some(tls::Clients::Optional(front.clone())))
        .map_err(Error::setup("configure TLS"))?;
    let _following = security::follow(&client, &args.namespace, vec![config.clone()]);
    let proxy = Proxy::start(client, front).await?;
    let address = (Ipv6Addr::UNSPECIFIED, args.port);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    server::serve_tls(listener, config, proxy.router(), stop).await;
    Ok(())
}

/// What the handlers share.
struct Context {
    client: Client,
    gate: Gate,
    applied: Applied,
}

/// Everything behind the listener.
pub struct Proxy {
    context: Arc<Context>,
    ready: Ready,
    _vouching: Task<()>,
}

impl Proxy {
    /// Reads how the API server vouches for users; `front` is filled with the authority of its front proxy.
    ///
    /// # Errors
    /// When that cannot be read.
    pub async fn start(client: Client, front: Arc<tls::Trust>) -> Result<Self, Error> {
        let opened = Gate::open(client.clone(), front).await;
        let (gate, vouching) = opened.map_err(Error::setup("read how the API server vouches"))?;
        let ready = Ready::default();
        ready.set(true);
        let context = Context { client, gate, applied: Applied::by(NAME) };
        Ok(Proxy { context: Arc::new(context), ready, _vouching: vouching })
    }

    /// Discovery, tokens and health.
    pub fn router(&self) -> Router {
        let base = format!("/apis/{GROUP}");
        let at = format!("{base}/{VERSION}");
        let tokens = format!("{at}/namespaces/{{namespace}}/virtualmachines/{{name}}/vnc");
        Router::new()
            .route(
                "/apis",
                get(|| async { Json(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group()] })) }),
            )
            .route(&base, get(|| async { Json(group()) }))
            .route(&at, get(|| async { Json(resources()) }))
            .route(&tokens, get(serve))
            .with_state(self.context.clone())
            .merge(health::router(self.ready.clone()))
    }
}

fn group() -> Value {
    let version = json!({ "groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION });
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version,
    })
}

fn resources() -> Value {
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [{ "name": "virtualmachines/vnc", "singularName": "", "namespaced": true, "kind": "", "verbs": ["get"] }],
    })
}

/// How long the token is to live.
#[derive(Debug, Deserialize)]
struct Asked {
    duration: Option<String>,
}

async fn serve(
    State(context): State<Arc<Context>>,
    Path((namespace, name)): Path<(String, String)>,
    Query(asked): Query<Asked>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
) -> Response {
    let peer = peer.map(|Extension(peer)| peer);
    let user = context.gate.user(peer.as_ref(), &headers);
    let answer = match user {
        Ok(user) => token(&context, &user, &namespace, &name, &asked).await,
        Err(refusal) => Err(refusal),
    };
    match answer {
        Ok(answer) => Json(answer).into_response(),
        // Who may not see the screen is told nothing else.
        Err(refusal) if refusal.code == StatusCode::UNAUTHORIZED => StatusCode::UNAUTHORIZED.into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

async fn token(context: &Context, user: &User, namespace: &str, name: &str, asked: &Asked) -> Result<Value, Refusal> {
    let plain =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
    if !plain(namespace) || !plain(name) {
        return Err(Refusal::not_found("the server could not find the requested resource"));
    }
    let question = Question {
        group: "subresources.kubevirt.io",
        version: "v1",
        verb: "get",
        namespace: namespace.to_owned(),
        resource: "virtualmachineinstances".to_owned(),
        subresource: "vnc".to_owned(),
        name: name.to_owned(),
    };
    context.gate.allow(user, &question).await.map_err(|_| Refusal::unauthorized(""))?;
    let life = match asked.duration.as_deref().filter(|text| !text.is_empty()) {
        None => USUAL,
        Some(text) => duration::parse(text).filter(|life| *life >= USUAL).ok_or_else(|| {
            Refusal::bad_request(format!("duration is {text:?}: write it as 30m or 1h30m, from 10m on"))
        })?,
    };
    let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachine");
    let machines: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), namespace, &ApiResource::from_gvk(&kind));
    let machine = machines.get_metadata_opt(name).await?;
    let machine = machine.ok_or_else(|| Refusal::not_found(format!("VirtualMachine does not exist: {name}")))?;
    let uid = machine.uid().unwrap_or_default();
    let account = access::account_name(name);
    let accounts: Api<ServiceAccount> = Api::namespaced(context.client.clone(), namespace);
    // An account that somebody else made under that name may have rights that the user has not.
    let held = accounts.get_opt(&account).await?;
    if held.is_some_and(|held| !access::is_owned_by(&held.metadata, &uid)) {
        let text =
            format!("the ServiceAccount {namespace}/{account} is not of this VirtualMachine: delete or rename it");
        return Err(Refusal::new(StatusCode::CONFLICT, "Conflict", text));
    }
    for manifest in access::manifests(namespace, name, &uid) {
        context.applied.forget();
        let written = apply::all(&context.client, &context.applied, &[manifest]).await;
        written.map_err(|error| Refusal::internal(kit::Chain(&error).to_string()))?;
    }
    let seconds = i64::try_from(life.as_secs()).unwrap_or(i64::MAX);
    let wanted = TokenRequest {
        spec: TokenRequestSpec { expiration_seconds: Some(seconds), ..TokenRequestSpec::default() },
        ..TokenRequest::default()
    };
    let made = accounts.create_token_request(&account, &PostParams::default(), &wanted).await?;
    let made = made.status.ok_or_else(|| Refusal::internal("the API server made no token"))?;
    Ok(json!({ "token": made.token, "expirationTimestamp": made.expiration_timestamp }))
}
