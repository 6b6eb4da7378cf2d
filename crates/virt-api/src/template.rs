//! Group `subresources.template.kubevirt.io`: the machine that comes of a VirtualMachineTemplate, told (`process`) or made (`create`).
//!
//! A machine is made by this server's account, so whatever its maker is asked about is asked here, of the user: whether they may create
//! machines, use the networks that the machine names, and have copies of the disks that it is made with. No note of what the user may
//! have is left on it: what is copied later is copied by the rights of the machine's own account.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::template::{self, GROUP, PLURAL, SUBRESOURCES, VERSIONS};
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use kit::admission::{self, UserInfo, Verdict};
use kit::gate::{Question, User};
use kit::server::Peer;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use rand::Rng;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::status::Refusal;
use crate::subresource::{Context, body};
use crate::{copies, networks};

const PROCESS: &str = "process";
const CREATE: &str = "create";

/// What a client says about the machine that it wants.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Options {
    parameters: BTreeMap<String, String>,
}

/// `/apis/subresources.template.kubevirt.io`.
pub(crate) fn group() -> Value {
    let version = |version: &str| json!({ "groupVersion": format!("{SUBRESOURCES}/{version}"), "version": version });
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": SUBRESOURCES,
        "versions": VERSIONS.map(version), "preferredVersion": version(VERSIONS[0]),
    })
}

fn resources(version: &str) -> Value {
    let one = |subresource: &str| {
        json!({
            "name": format!("{PLURAL}/{subresource}"), "singularName": "", "namespaced": true,
            "kind": "ProcessedVirtualMachineTemplate", "verbs": ["create"],
        })
    };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{SUBRESOURCES}/{version}"),
        "resources": [one(PROCESS), one(CREATE)],
    })
}

/// Everything below `/apis/subresources.template.kubevirt.io`.
pub(crate) fn router(context: &Arc<Context>) -> Router {
    let base = format!("/apis/{SUBRESOURCES}");
    let mut router = Router::new().route(&base, get(|| async { Json(group()) }));
    for version in VERSIONS {
        let at = format!("{base}/{version}");
        router = router.route(&at, get(move || async move { Json(resources(version)) }));
        for subresource in [PROCESS, CREATE] {
            let object = format!("{at}/namespaces/{{namespace}}/{PLURAL}/{{name}}/{subresource}");
            let asked = Asked { version, subresource };
            router = router.route(&object, post(move |state, path, request| serve(state, asked, path, request)));
        }
    }
    router.with_state(context.clone())
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    version: &'static str,
    subresource: &'static str,
}

async fn serve(
    State(context): State<Arc<Context>>,
    asked: Asked,
    Path((namespace, name)): Path<(String, String)>,
    request: Request,
) -> Response {
    match process(&context, asked, &namespace, &name, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

async fn process(
    context: &Context,
    asked: Asked,
    namespace: &str,
    name: &str,
    request: Request,
) -> Result<Response, Refusal> {
    // What is authorised is exactly what is read: a name that would be a path is none.
    let plain =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
    if !plain(namespace) || !plain(name) {
        return Err(Refusal::not_found("the server could not find the requested resource"));
    }
    let user = context.gate.user(request.extensions().get::<Peer>(), request.headers())?;
    let question = Question {
        group: SUBRESOURCES,
        version: VERSIONS[0],
        verb: "create",
        namespace: namespace.to_owned(),
        resource: PLURAL.to_owned(),
        subresource: asked.subresource.to_owned(),
        name: name.to_owned(),
    };
    context.gate.allow(&user, &question).await?;
    let body = body(request).await?;
    let options: Options = match body.is_empty() {
        true => Options::default(),
        false => serde_json::from_slice(&body)
            .map_err(|error| Refusal::bad_request(format!("the body is no ProcessOptions: {error}")))?,
    };
    let kind = GroupVersionKind::gvk(GROUP, VERSIONS[0], "VirtualMachineTemplate");
    let resource = ApiResource::from_gvk_with_plural(&kind, PLURAL);
    let templates: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &resource);
    let found = templates.get(name).await?;
    let invalid = |message: String| {
        let text = format!("VirtualMachineTemplate.{GROUP} \"{name}\" is invalid: {message}");
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", text)
    };
    let spec: template::Spec =
        serde_json::from_value(found.data["spec"].clone()).map_err(|error| invalid(format!("spec: {error}")))?;
    let processed = template::process(&spec, &options.parameters, &mut |below| rand::rng().random_range(0..below))
        .map_err(|refusal| invalid(refusal.to_string()))?;
    let mut machine = processed.machine;
    if asked.subresource == CREATE {
        machine = create(context, &user, namespace, machine).await?;
    }
    let mut answer = json!({
        "apiVersion": format!("{SUBRESOURCES}/{}", asked.version), "kind": "ProcessedVirtualMachineTemplate",
        "templateRef": { "namespace": namespace, "name": name }, "virtualMachine": machine,
    });
    if !processed.message.is_empty() {
        answer["message"] = json!(processed.message);
    }
    Ok(Json(answer).into_response())
}

/// Makes the machine in the namespace of its template, if the user may have it so.
async fn create(context: &Context, user: &User, namespace: &str, mut machine: Value) -> Result<Value, Refusal> {
    let elsewhere = machine.pointer("/metadata/namespace").and_then(Value::as_str).filter(|other| *other != namespace);
    if let Some(other) = elsewhere {
        let text =
            format!("the template makes machines of namespace {other}: process it, and create the machine there");
        return Err(Refusal::bad_request(text));
    }
    machine["metadata"]["namespace"] = json!(namespace);
    let question = Question {
        group: "kubevirt.io",
        version: "v1",
        verb: "create",
        namespace: namespace.to_owned(),
        resource: "virtualmachines".to_owned(),
        subresource: String::new(),
        name: String::new(),
    };
    context.gate.allow(user, &question).await?;
    // What the webhooks ask of whoever writes a machine themselves. A note that the template brings is nobody's.
    if let Some(annotations) = machine.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(origin::leave::COPIES_ALLOWED);
    }
    let asked = admission::Request {
        operation: "CREATE".to_owned(),
        namespace: namespace.to_owned(),
        user_info: UserInfo {
            username: user.name.clone(),
            groups: user.groups.clone(),
            uid: String::new(),
            extra: user.extra.clone(),
        },
        object: machine.clone(),
        ..admission::Request::default()
    };
    let verdict = networks::judge(&context.client, &asked, Verdict::allow()).await;
    match copies::judge(&context.client, &asked, verdict).await {
        Verdict::Allow { .. } => {}
        refused => return Err(refusal(refused)),
    }
    let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachine");
    let machines: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), namespace, &ApiResource::from_gvk(&kind));
    let made: DynamicObject = serde_json::from_value(machine)
        .map_err(|error| Refusal::internal(format!("the machine cannot be written: {error}")))?;
    Ok(json!(machines.create(&PostParams::default(), &made).await?))
}

fn refusal(verdict: Verdict) -> Refusal {
    match verdict {
        Verdict::Deny { code, reason, message } => {
            Refusal::new(StatusCode::from_u16(code).unwrap_or(StatusCode::FORBIDDEN), reason, message)
        }
        Verdict::Invalid(causes) => {
            let all: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
            Refusal::forbidden(all.join("; "))
        }
        Verdict::Allow { .. } | Verdict::Patch(_) => Refusal::internal("allowed, and refused"),
    }
}
