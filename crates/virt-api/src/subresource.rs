//! The subresources: each parsed path to what it does.

mod address;
mod expand;
mod guest;
mod lifecycle;
mod memory_dump;
mod migrate;
mod node;
mod options;
mod portforward;
mod volumes;

use std::sync::{Arc, OnceLock};

use api::kubevirt::v1::KubeVirt;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequestParts, Request, State, WebSocketUpgrade};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use kit::gate::Gate;
use kit::health::Report;
use kit::peer::Peers;
use kit::server::Peer;
use kit::store::Store;
use kube::Client;
use serde_json::json;

use crate::path::{self, Target};
use crate::status::Refusal;

/// Largest body of a subresource request.
const BODY: usize = 1 << 20;

/// What the handlers share.
pub(crate) struct Context {
    /// The API server.
    pub(crate) client: Client,
    /// What `/healthz` says.
    pub(crate) report: Report,
    /// Who may.
    pub(crate) gate: Gate,
    /// virt-handlers, known by their certificates.
    pub(crate) handlers: Peers,
    /// Namespace of the components.
    pub(crate) namespace: String,
    /// The KubeVirt object.
    pub(crate) kubevirts: Store<KubeVirt>,
    /// The image with tools for disks.
    pub(crate) guestfs_image: OnceLock<String>,
}

/// Everything below `/apis/subresources.kubevirt.io/VERSION/`.
pub(crate) async fn serve(State(context): State<Arc<Context>>, request: Request) -> Response {
    match route(&context, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

async fn route(context: &Context, request: Request) -> Result<Response, Refusal> {
    let uri = request.uri().path().to_owned();
    let parsed =
        path::parse(&uri).ok_or_else(|| Refusal::not_found("the server could not find the requested resource"))?;
    if let Some(question) = parsed.question(request.method()) {
        let user = context.gate.user(request.extensions().get::<Peer>(), request.headers())?;
        context.gate.allow(&user, &question).await?;
    }
    let method = request.method().clone();
    match parsed.target {
        Target::Cluster { name } => cluster_wide(context, &name, &method).await,
        Target::Namespace { namespace, name } if name == "expand-vm-spec" && method == Method::PUT => {
            expand::given(context, &namespace, &body(request).await?).await
        }
        Target::Namespace { name, .. } => Err(unknown(&name)),
        Target::Object { namespace, resource, name, subresource, rest } => {
            let object = Object { namespace, resource, name };
            dispatch(context, request, &method, &object, &subresource, &rest).await
        }
    }
}

/// The object a request is about.
#[derive(Debug)]
struct Object {
    namespace: String,
    resource: &'static str,
    name: String,
}

async fn dispatch(
    context: &Context,
    request: Request,
    method: &Method,
    object: &Object,
    subresource: &str,
    rest: &[String],
) -> Result<Response, Refusal> {
    let get = *method == Method::GET;
    let put = *method == Method::PUT;
    match (object.resource, subresource) {
        (_, "portforward") if get => {
            let (mut parts, _) = request.into_parts();
            let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &())
                .await
                .map_err(|error| Refusal::bad_request(error.body_text()))?;
            portforward::serve(context, object, rest, upgrade).await
        }
        ("virtualmachines", "start") if put => lifecycle::start(context, object, &body(request).await?).await,
        ("virtualmachines", "stop") if put => lifecycle::stop(context, object, &body(request).await?).await,
        ("virtualmachines", "restart") if put => lifecycle::restart(context, object, &body(request).await?).await,
        ("virtualmachines", "migrate") if put => migrate::migrate(context, object, &body(request).await?).await,
        ("virtualmachines" | "virtualmachineinstances", "addvolume" | "removevolume") if put => {
            volumes::serve(context, object, subresource == "addvolume", &body(request).await?).await
        }
        ("virtualmachines", "memorydump" | "removememorydump") if put => {
            memory_dump::serve(context, object, subresource == "memorydump", &body(request).await?).await
        }
        (_, "evacuate/cancel") if put => {
            let configuration = crate::configuration(&context.kubevirts);
            migrate::evacuate_cancel(context, &configuration, object, &body(request).await?).await
        }
        ("virtualmachines", "expand-spec") if get => expand::stored(context, &object.namespace, &object.name).await,
        ("virtualmachineinstances", "console" | "vnc") if get => {
            guest::stream(context, object, subresource, request).await
        }
        ("virtualmachineinstances", "guestosinfo" | "userlist" | "filesystemlist" | "vnc/screenshot") if get => {
            guest::read(context, object, subresource, request.uri().query()).await
        }
        ("virtualmachineinstances", subresource) if put && guest::ACTIONS.contains(&subresource) => {
            guest::act(context, object, subresource, body(request).await?).await
        }
        _ => Err(unknown(subresource)),
    }
}

/// What clients may know of but this version does not do: said plainly, with the way around where there is one.
fn unknown(subresource: &str) -> Refusal {
    let message = match subresource {
        "usbredir" | "vsock" => "redirected USB devices and vsock are not part of this version",
        "objectgraph" => "the object graph is not part of this version",
        word if word.starts_with("sev/") => "confidential guests are not part of this version",
        _ => return Refusal::not_found("the server could not find the requested resource"),
    };
    Refusal::not_allowed(message)
}

pub(crate) async fn body(request: Request) -> Result<Bytes, Refusal> {
    let bytes = axum::body::to_bytes(request.into_body(), BODY).await;
    bytes.map_err(|error| Refusal::bad_request(format!("the body cannot be read: {error}")))
}

async fn cluster_wide(context: &Context, name: &str, method: &Method) -> Result<Response, Refusal> {
    match name {
        "healthz" if *method == Method::GET => Ok(context.report.answer().await),
        "version" if *method == Method::GET => Ok(Json(version()).into_response()),
        "guestfs" if *method == Method::GET => {
            let image = context.guestfs_image.get().filter(|image| !image.is_empty());
            let image = image.ok_or_else(|| Refusal::not_allowed("no image with tools for disks is configured"))?;
            Ok(Json(json!({ "registry": "", "tag": "", "imagePrefix": "", "digest": "", "gsImage": image }))
                .into_response())
        }
        other => Err(unknown(other)),
    }
}

/// What `virtctl version` shows of the server.
fn version() -> serde_json::Value {
    let number = env!("CARGO_PKG_VERSION");
    let mut parts = number.split('.');
    json!({
        "gitVersion": format!("v{number}"), "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "",
        "compiler": "rustc", "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
        "major": parts.next(), "minor": parts.next(),
    })
}
