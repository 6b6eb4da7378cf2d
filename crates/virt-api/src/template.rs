//! Group `subresources.template.kubevirt.io`: the machine that comes of a VirtualMachineTemplate. It is only told: whoever wants it
//! creates it, with their own rights.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::template::{self, GROUP, PLURAL, SUBRESOURCES, VERSIONS};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use kit::gate::Question;
use kit::server::Peer;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use rand::Rng;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::status::Refusal;
use crate::subresource::{Context, body};

const PROCESS: &str = "process";

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
    let name = format!("{PLURAL}/{PROCESS}");
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{SUBRESOURCES}/{version}"),
        "resources": [{
            "name": name, "singularName": "", "namespaced": true, "kind": "ProcessedVirtualMachineTemplate", "verbs": ["create"],
        }],
    })
}

/// Everything below `/apis/subresources.template.kubevirt.io`.
pub(crate) fn router(context: &Arc<Context>) -> Router {
    let base = format!("/apis/{SUBRESOURCES}");
    let mut router = Router::new().route(&base, get(|| async { Json(group()) }));
    for version in VERSIONS {
        let at = format!("{base}/{version}");
        let object = format!("{at}/namespaces/{{namespace}}/{PLURAL}/{{name}}/{PROCESS}");
        router = router
            .route(&at, get(move || async move { Json(resources(version)) }))
            .route(&object, post(move |state, path, request| serve(state, version, path, request)));
    }
    router.with_state(context.clone())
}

async fn serve(
    State(context): State<Arc<Context>>,
    version: &'static str,
    axum::extract::Path((namespace, name)): axum::extract::Path<(String, String)>,
    request: Request,
) -> Response {
    match process(&context, version, &namespace, &name, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

async fn process(
    context: &Context,
    version: &str,
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
        subresource: PROCESS.to_owned(),
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
    let mut random = rand::rng();
    let processed = template::process(&spec, &options.parameters, &mut |below| random.random_range(0..below))
        .map_err(|refusal| invalid(refusal.to_string()))?;
    let mut answer = json!({
        "apiVersion": format!("{SUBRESOURCES}/{version}"), "kind": "ProcessedVirtualMachineTemplate",
        "templateRef": { "namespace": namespace, "name": name }, "virtualMachine": processed.machine,
    });
    if !processed.message.is_empty() {
        answer["message"] = json!(processed.message);
    }
    Ok(Json(answer).into_response())
}
