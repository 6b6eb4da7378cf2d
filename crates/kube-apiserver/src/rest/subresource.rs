//! Subresources that read or write the object itself: status, scale, binding, finalize, ephemeral containers.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use apimachinery::error::ApiError;

use super::write::{Edit, Produce, change, change_by};
use super::{Call, decode, meta, not_allowed, patching, read, respond};
use crate::registry::ScalePaths;

pub(super) async fn serve(call: &Call, body: Body) -> Result<Response, ApiError> {
    let resource = &call.resource;
    let unknown = || ApiError::new(404, "NotFound", "the server could not find the requested resource");
    if call.info.name.is_empty() {
        return Err(unknown());
    }
    match (resource.plural.as_str(), call.info.subresource.as_str()) {
        (_, "status") if resource.status_subresource => part(call, body, "status").await,
        (_, "scale") => match &resource.scale {
            Some(paths) => scale(call, body, &paths.clone()).await,
            None => Err(unknown()),
        },
        ("namespaces", "finalize") if resource.group.is_empty() => part(call, body, "finalize").await,
        ("certificatesigningrequests", "approval") => part(call, body, "approval").await,
        ("pods", "ephemeralcontainers") if resource.group.is_empty() => part(call, body, "ephemeralcontainers").await,
        ("pods", "resize") if resource.group.is_empty() => part(call, body, "resize").await,
        ("pods", "eviction") if resource.group.is_empty() => super::eviction::evict(call, body).await,
        ("pods", "binding") if resource.group.is_empty() => bind(call, body).await,
        _ => Err(unknown()),
    }
}

async fn part(call: &Call, body: Body, name: &'static str) -> Result<Response, ApiError> {
    match call.info.verb.as_str() {
        "get" => read::get(call).await,
        "patch" => patching::patch_part(call, body, name).await,
        "update" => {
            call.query.check_write("UpdateOptions")?;
            let bytes = decode::read(call, body).await?;
            let (mut object, duplicates) = decode::document(call, &bytes)?;
            meta::check_identity(&call.resource, &mut object, call.namespace(), &call.info.name)?;
            super::write::shape_sent(call, &mut object, duplicates)?;
            let stored = change(call, &Edit::part(name, "UpdateOptions"), |_| Ok(object.clone())).await?;
            respond::written(call, StatusCode::OK, stored).await
        }
        _ => Err(not_allowed()),
    }
}

fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut node = object;
    for part in path.trim_start_matches('.').split('.') {
        node = node.get(part)?;
    }
    Some(node)
}

/// Takes a field out.
fn take(object: &mut Value, path: &str) {
    let pointer = path.trim_start_matches('.').replace('.', "/");
    let (parent, field) = pointer.rsplit_once('/').unwrap_or(("", &pointer));
    let parent = if parent.is_empty() { Some(object) } else { object.pointer_mut(&format!("/{parent}")) };
    if let Some(map) = parent.and_then(Value::as_object_mut) {
        map.remove(field);
    }
}

fn scale_of(call: &Call, paths: &ScalePaths, object: &Value) -> Value {
    let metadata = &object["metadata"];
    let mut status = json!({"replicas": at(object, &paths.status_replicas).and_then(Value::as_i64).unwrap_or(0)});
    if let Some(selector) = (!paths.selector.is_empty()).then(|| at(object, &paths.selector)).flatten() {
        let text = match selector {
            Value::String(text) => text.clone(),
            tree => crate::strategy::selector_text(tree),
        };
        status["selector"] = text.into();
    }
    let mut scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {"name": metadata["name"], "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"]},
        "spec": {}, "status": status});
    if call.resource.namespaced {
        scale["metadata"]["namespace"] = metadata["namespace"].clone();
    }
    if let Some(replicas) = at(object, &paths.spec_replicas).filter(|replicas| **replicas != 0) {
        scale["spec"]["replicas"] = replicas.clone();
    }
    scale
}

async fn scale(call: &Call, body: Body, paths: &ScalePaths) -> Result<Response, ApiError> {
    if call.info.verb == "get" {
        let object = respond::tree(call, &*read::fetch(call)?).await?;
        return respond::encode(call, StatusCode::OK, &scale_of(call, paths, &object));
    }
    call.query.check_write("UpdateOptions")?;
    let patch = match call.info.verb.as_str() {
        "patch" => patching::read(call, body).await?.0,
        "update" => {
            let bytes = decode::read(call, body).await?;
            let scale = decode::document(call, &bytes)?.0;
            check_scale(call, &scale)?;
            patching::Patch::Merge(scale)
        }
        _ => return Err(not_allowed()),
    };
    if let patching::Patch::Apply(wanted) = &patch
        && (wanted["apiVersion"] != "autoscaling/v1" || wanted["kind"] != "Scale")
    {
        let (version, kind) = (&wanted["apiVersion"], &wanted["kind"]);
        let text = format!("the applied object is {version} {kind}: this takes an autoscaling/v1 Scale");
        return Err(ApiError::bad_request(text));
    }
    let scaling = Scaling { call, patch: &patch, paths };
    let stored = change_by(call, &Edit::part("scale", "UpdateOptions"), scaling).await?;
    respond::encode(call, StatusCode::OK, &scale_of(call, paths, &stored.tree(call).await?))
}

/// Checks that what was sent is the Scale of the object that the path names.
fn check_scale(call: &Call, scale: &Value) -> Result<(), ApiError> {
    let kind = scale["kind"].as_str().unwrap_or_default();
    if !matches!(kind, "" | "Scale") {
        let version = scale["apiVersion"].as_str().unwrap_or_default();
        let version = version.rsplit_once('/').map_or(version, |(_, version)| version);
        let why = format!(
            "{kind} in version {version:?} cannot be handled as a Scale: converting ({version}.{kind}) to (autoscaling.Scale): unknown conversion"
        );
        return Err(ApiError::bad_request(why));
    }
    let (named, name) = (meta::text(scale, "name"), &call.info.name);
    if !named.is_empty() && named != name {
        let why = format!("the name of the object ({named}) does not match the name on the URL ({name})");
        return Err(ApiError::bad_request(why));
    }
    Ok(())
}

/// A patch of the Scale an object is seen as.
struct Scaling<'a> {
    call: &'a Call,
    patch: &'a patching::Patch,
    paths: &'a ScalePaths,
}

impl Produce for Scaling<'_> {
    async fn produce(&self, current: &Value) -> Result<Value, ApiError> {
        let Self { call, patch, paths } = self;
        if let patching::Patch::Apply(wanted) = patch {
            let wanted = scaled(call, paths, wanted);
            let mut shown = current.clone();
            // A Scale of none shows no number, so that to apply 0 is a change of it.
            if at(&wanted, &paths.spec_replicas).is_some() && at(current, &paths.spec_replicas).is_some_and(|n| *n == 0)
            {
                take(&mut shown, &paths.spec_replicas);
            }
            return super::owners::merge(call, Some(&shown), &wanted, "scale").await;
        }
        let scale = patch.apply(call, &scale_of(call, paths, current), "scale").await?;
        let schema = apimachinery::schema::builtin::schema("autoscaling", "v1", "Scale");
        if let Some(why) = schema.and_then(|schema| apimachinery::schema::types::mismatch(&schema, &scale)) {
            return Err(respond::unreadable(&scale, &why));
        }
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        // What a custom resource may say there, its own rules say.
        if replicas < 0 && call.resource.crd.is_none() {
            let message = format!("Invalid value: {replicas}: must be greater than or equal to 0");
            let cause = apimachinery::error::Cause {
                reason: "FieldValueInvalid".into(),
                message,
                field: "spec.replicas".into(),
            };
            return Err(ApiError::invalid("autoscaling", "Scale", &call.info.name, vec![cause]));
        }
        let mut new = current.clone();
        new["metadata"]["resourceVersion"] = scale["metadata"]["resourceVersion"].clone();
        let mut node = &mut new;
        for part in paths.spec_replicas.trim_start_matches('.').split('.') {
            node = &mut node[part];
        }
        *node = replicas.into();
        Ok(new)
    }
}

/// What an applied Scale wishes of the object it scales: one field, which the applier then owns there.
fn scaled(call: &Call, paths: &ScalePaths, wanted: &Value) -> Value {
    let mut object = json!({"apiVersion": call.resource.api_version(), "kind": call.resource.kind,
        "metadata": {"name": call.info.name, "namespace": call.namespace()}});
    for field in ["uid", "resourceVersion"] {
        if let Some(value) = wanted["metadata"].get(field) {
            object["metadata"][field] = value.clone();
        }
    }
    if let Some(replicas) = wanted["spec"].get("replicas") {
        let mut node = &mut object;
        for part in paths.spec_replicas.trim_start_matches('.').split('.') {
            node = &mut node[part];
        }
        *node = replicas.clone();
    }
    object
}

/// Gives a pod its node; only once.
async fn bind(call: &Call, body: Body) -> Result<Response, ApiError> {
    if call.info.verb != "create" {
        return Err(not_allowed());
    }
    let bytes = decode::read(call, body).await?;
    let (binding, _) = decode::document(call, &bytes)?;
    let named = meta::text(&binding, "name");
    if !named.is_empty() && named != call.info.name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    let kind = binding["target"]["kind"].as_str().unwrap_or_default();
    if !matches!(kind, "" | "Node") {
        let why = format!("target.kind: Unsupported value: {kind:?}: supported values: \"Node\", \"<empty>\"");
        return Err(ApiError::new(500, "", why));
    }
    if node.is_empty() {
        return Err(ApiError::new(500, "", "target.name: Required value"));
    }
    let uid = meta::text(&binding, "uid").to_owned();
    change(call, &Edit::part("binding", "CreateOptions"), |current| {
        let refuse = |why: &str| Err(call.conflict(&call.info.name, why));
        if !uid.is_empty() && uid != meta::text(current, "uid") {
            return refuse("Precondition failed: the binding is for a pod with another UID");
        }
        if meta::terminating(current) {
            return refuse(&format!("pod {} is being deleted, cannot be assigned to a host", call.info.name));
        }
        let assigned = current["spec"]["nodeName"].as_str().unwrap_or_default();
        if !assigned.is_empty() {
            return refuse(&format!("pod {} is already assigned to node {assigned:?}", call.info.name));
        }
        if current["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
            return refuse(&format!("pod {} has non-empty .spec.schedulingGates", call.info.name));
        }
        let mut new = current.clone();
        new["spec"]["nodeName"] = node.as_str().into();
        for part in ["annotations", "labels"] {
            for (key, value) in binding["metadata"][part].as_object().into_iter().flatten() {
                new["metadata"][part][key] = value.clone();
            }
        }
        crate::strategy::scheduled(&mut new, &crate::stamp::now());
        Ok(new)
    })
    .await?;
    respond::encode(
        call,
        StatusCode::CREATED,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    )
}
