//! The subresources `expand-spec` and `expand-vm-spec`: a machine with what it names written out.

use api::kubevirt::v1::VirtualMachine;
use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use instancetype::{Family, find};
use kit::Chain;
use kit::admission::Cause;
use serde_json::{Value, json};

use super::Context;
use crate::defaults::Defaults;
use crate::status::Refusal;
use crate::validate::strict;
use crate::{chosen, cluster, configuration, defaults};

/// `virtualmachines/NAME/expand-spec`.
pub(crate) async fn stored(context: &Context, namespace: &str, name: &str) -> Result<Response, Refusal> {
    let vm = cluster::vm(&context.client, namespace, name).await?;
    let machine = expand(context, namespace, json!(vm)).await;
    let machine = machine.map_err(|refusal| Refusal { code: StatusCode::INTERNAL_SERVER_ERROR, ..refusal })?;
    Ok(Json(machine).into_response())
}

/// `expand-vm-spec`, of a machine that may be stored nowhere.
pub(crate) async fn given(context: &Context, namespace: &str, body: &Bytes) -> Result<Response, Refusal> {
    if body.is_empty() {
        return Err(Refusal::bad_request("empty request body"));
    }
    let machine: Value = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad_request(format!("Object is not a valid VirtualMachine: {error}")))?;
    if !machine.is_object() {
        return Err(Refusal::bad_request("Object is not a valid VirtualMachine: it is no object"));
    }
    let own = machine.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
    if !own.is_empty() && own != namespace {
        return Err(Refusal::bad_request(format!("VM namespace must be empty or {namespace}")));
    }
    strict::decode::<VirtualMachine>(&machine).map_err(|causes| {
        Refusal::bad_request(format!("Object is not a valid VirtualMachine: {}", sentence(&causes)))
    })?;
    Ok(Json(expand(context, namespace, machine).await?).into_response())
}

fn sentence(causes: &[Cause]) -> String {
    let all: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    all.join("; ")
}

async fn expand(context: &Context, namespace: &str, machine: Value) -> Result<Value, Refusal> {
    let named = |field: &str| machine["spec"].get(field).is_some_and(|matcher| !matcher.is_null());
    // Without a reference the machine is written out as it is.
    if !Family::ALL.iter().any(|family| named(family.field())) {
        return Ok(machine);
    }
    let vm: VirtualMachine = serde_json::from_value(machine.clone())
        .map_err(|error| Refusal::bad_request(format!("Object is not a valid VirtualMachine: {error}")))?;
    let found = find::all(&context.client, namespace, &vm).await;
    let chosen = found.map_err(|(_, error)| Refusal::bad_request(Chain(&error).to_string()))?;
    let causes = chosen::causes(&machine, &chosen);
    if !causes.is_empty() {
        return Err(Refusal::bad_request(sentence(&causes)));
    }
    let defaults = Defaults::of(&configuration(&context.kubevirts));
    let mut expanded = instancetype::expand(machine, &chosen, defaults.binding());
    if let Some(spec) = expanded.pointer_mut("/spec/template/spec") {
        defaults::spec(spec, &defaults);
    }
    Ok(expanded)
}
