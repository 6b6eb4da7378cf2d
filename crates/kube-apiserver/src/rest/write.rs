//! create and update: the one path every write takes to the store.
//!
//! ```text
//! decode -> unknown fields, defaults -> server's metadata -> mutating admission -> strategy -> validation
//!        -> validating admission -> managed fields -> store
//! ```

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use serde_json::{Map, Value};

use apimachinery::error::{ApiError, Cause};
use apimachinery::rules::Rules;
use apimachinery::schema::{self, prune};
use kube_store::{Key, Object, WriteError};

use super::admit::{self, Operation, Write};
use super::decode;
use super::respond::Written;
use super::{Call, MODIFIED, meta, owners, respond};
use crate::registry::Resource;
use crate::strategy;

/// Tries of a write that races with others before the client is told.
const TRIES: usize = 20;

impl Call {
    /// Namespace of the object the request is about; empty for cluster-wide resources.
    pub(super) fn namespace(&self) -> &str {
        if self.resource.namespaced { &self.info.namespace } else { "" }
    }

    pub(super) fn key(&self, name: &str) -> Key {
        Key::new(&self.storage(), self.namespace(), name)
    }

    pub(super) fn store_error(&self, name: &str, error: &WriteError) -> ApiError {
        match error {
            WriteError::Exists => ApiError::already_exists(&self.resource.group, &self.resource.plural, name),
            WriteError::Missing => self.not_found(name),
            WriteError::Changed => self.conflict(name, MODIFIED),
            WriteError::Disk => ApiError::internal("the write could not be made durable"),
            WriteError::Closed => ApiError::new(503, "ServiceUnavailable", "the server is shutting down"),
        }
    }
}

/// Drops what the schema does not know, says so as asked, and sets defaults. `strict` refusals name every field. Where
/// `object` was made of `before`, which is stored, what they share has its shape already, and what they do not must be of
/// the right types.
pub(super) fn shape(
    call: &Call,
    before: Option<&Value>,
    object: &mut Value,
    mut duplicates: Vec<String>,
) -> Result<Vec<String>, ApiError> {
    let schema = &call.resource.schema;
    let custom = call.resource.crd.is_some();
    // A definition may have changed since its object was stored.
    let mut shared = before.filter(|_| !custom).map(|before| set_aside(before, object)).unwrap_or_default();
    let status_alone =
        !shared.is_empty() && object.as_object().is_some_and(|map| map.keys().all(|key| key == "status"));
    // What could not be read before may have come from an older release.
    let readable = before.is_some_and(|before| !custom || mismatch(&call.resource, before).is_none());
    if let Some(why) = mismatch(&call.resource, object).filter(|_| readable) {
        return Err(respond::unreadable(object, &why));
    }
    if custom {
        if let Some(metadata) = object.get_mut("metadata") {
            schema::stored::decode(schema::builtin::object_meta(), metadata);
        }
        prune::unset(schema, object);
    } else {
        schema::stored::decode(schema, object);
    }
    let unknown = prune::unknown(schema, object);
    let mut of_definition = Vec::new();
    if is_definition(&call.resource) {
        of_definition = crate::crd::fields::unknown(object);
    }
    schema::defaults::apply(schema, object);
    if status_alone {
        schema::stored::settle(schema, object);
    }
    if let Some(map) = object.as_object_mut() {
        map.append(&mut shared);
    }
    // What a kind defaults beyond its schema is what it wishes for, never what is observed.
    if !status_alone {
        strategy::set_defaults(&call.resource, object);
    }
    for text in &mut duplicates {
        *text = format!("duplicate field {text:?}");
    }
    duplicates.extend(unknown.iter().map(ToString::to_string));
    duplicates.extend(of_definition.iter().map(|path| format!("unknown field {path:?}")));
    if duplicates.is_empty() {
        return Ok(duplicates);
    }
    match call.query.get("fieldValidation") {
        "Ignore" => Ok(Vec::new()),
        "Strict" => Ok(duplicates),
        _ => {
            for text in duplicates {
                call.warn(text);
            }
            Ok(Vec::new())
        }
    }
}

fn is_definition(resource: &Resource) -> bool {
    resource.group == "apiextensions.k8s.io" && resource.plural == "customresourcedefinitions"
}

/// Takes out of `object` the fields that are the same in `before`.
fn set_aside(before: &Value, object: &mut Value) -> Map<String, Value> {
    let Some(map) = object.as_object_mut() else { return Map::new() };
    let same = map.iter().filter(|(field, value)| before.get(field.as_str()) == Some(*value));
    let same: Vec<String> = same.map(|(field, _)| field.clone()).collect();
    same.iter().filter_map(|field| map.remove_entry(field)).collect()
}

/// Why an object cannot be read as one of its kind; None when it can.
fn mismatch(resource: &Resource, object: &Value) -> Option<String> {
    if resource.crd.is_some() {
        return schema::types::metadata_mismatch(&resource.schema, object);
    }
    let of_definition = || is_definition(resource).then(|| crate::crd::fields::mismatch(object)).flatten();
    schema::types::mismatch(&resource.schema, object).or_else(of_definition)
}

/// `shape` for a whole object sent by a client, which may also hold values of the wrong type.
pub(super) fn shape_sent(call: &Call, object: &mut Value, duplicates: Vec<String>) -> Result<(), ApiError> {
    let Resource { kind, version, .. } = &*call.resource;
    let undecodable = |why: &str| {
        ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    };
    if let Some(why) = mismatch(&call.resource, object) {
        return Err(undecodable(&why));
    }
    let refused = shape(call, None, object, duplicates)?;
    if refused.is_empty() {
        return Ok(());
    }
    Err(undecodable(&format!("strict decoding error: {}", refused.join(", "))))
}

pub(super) async fn create(call: &Call, body: Body) -> Result<Response, ApiError> {
    call.query.check_write("CreateOptions")?;
    let bytes = decode::read(call, body).await?;
    let (mut object, duplicates) = decode::document(call, &bytes)?;
    if object.is_null() {
        object = Value::Object(Map::new());
    }
    meta::check_identity(&call.resource, &mut object, call.namespace(), "")?;
    shape_sent(call, &mut object, duplicates)?;
    if !meta::text(&object, "resourceVersion").is_empty() && !call.dry_run() {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let stored = insert(call, object).await?;
    respond::written(call, StatusCode::CREATED, stored).await
}

/// Creates `object` (decoded, pruned, defaulted) and yields it as stored.
pub(super) async fn insert(call: &Call, mut object: Value) -> Result<Written, ApiError> {
    let unnamed = meta::text(&object, "name").is_empty();
    let generate = unnamed && !meta::text(&object, "generateName").is_empty();
    if unnamed && !generate && strategy::names_itself(&call.resource) {
        object["metadata"]["name"] = uuid::Uuid::new_v4().to_string().into();
    }
    if !generate {
        return Box::pin(insert_once(call, object)).await;
    }
    for _ in 0..TRIES {
        object["metadata"]["name"] = crate::stamp::generated(meta::text(&object, "generateName")).into();
        match Box::pin(insert_once(call, object.clone())).await {
            Err(error) if error.reason == "AlreadyExists" => {}
            outcome => return outcome,
        }
    }
    Err(ApiError::new(409, "AlreadyExists", "could not generate a name that is free, try again"))
}

async fn insert_once(call: &Call, mut object: Value) -> Result<Written, ApiError> {
    let resource = &call.resource;
    crate::stamp::stamp_new(resource, &mut object, call.namespace());
    if let Some(map) = object.as_object_mut()
        && resource.status_subresource
        && !strategy::keeps_status(resource)
    {
        map.remove("status");
    }
    // A creator owns what he sent and its defaults; what admission and the kind's own rules add is nobody's.
    object = owners::record(call, None, object, "").await;
    let name = meta::text(&object, "name").to_owned();
    let write = Write {
        operation: Operation::Create,
        name: &name,
        old: None,
        options: "CreateOptions",
        dry_run: call.dry_run(),
    };
    admit::mutate(call, &write, &mut object).await?;
    strategy::prepare_create(resource, &mut object);
    strategy::settle(&call.server, resource, &mut object);
    check(call, &object, None, "")?;
    let turn = admit::validate_new(call, &write, &mut object).await?;
    if call.server.store().get(&call.storage(), call.namespace(), &name).is_some() {
        return Err(call.store_error(&name, &WriteError::Exists));
    }
    let reservation = strategy::allocate(&call.server, resource, None, &mut object, call.dry_run()).await?;
    if call.dry_run() {
        return Ok(Written::Tree(object));
    }
    let stored = call.server.to_storage(resource, object).await?;
    let stored = call.server.store().create(call.key(&name), stored).await;
    drop(reservation);
    if let Some(turn) = turn.filter(|_| stored.is_ok()) {
        turn.settle(call.server.store()).await;
    }
    let stored = stored.map_err(|error| call.store_error(&name, &error))?;
    crate::after_write::written(&call.server, resource, &stored).await;
    Ok(Written::Stored(stored))
}

/// Metadata, schema and strategy validation together, so that one answer names every bad field.
pub(super) fn check(call: &Call, object: &Value, old: Option<&Value>, subresource: &str) -> Result<(), ApiError> {
    let mut causes = Vec::new();
    let schema = &call.resource.schema;
    match old {
        // What is stored of a built-in kind was valid; only what changed can make it invalid.
        Some(old) if call.resource.crd.is_none() => schema::validate::check_changes(schema, old, object, &mut causes),
        old => schema::validate::check_update(schema, old, object, &mut causes),
    }
    if call.resource.crd.is_none() {
        // What lists of a shipped kind may hold twice, and often what it needs, its own rules say. Values of a wrong type
        // were refused when they were read.
        let own = strategy::says_what_is_required(&call.resource);
        causes.retain(|cause| match cause.reason.as_str() {
            "FieldValueDuplicate" => false,
            "FieldValueRequired" | "FieldValueTypeInvalid" => !own,
            _ => true,
        });
    }
    if is_definition(&call.resource) {
        // The versions of a definition have a check of their own, which knows what they share.
        causes.retain(|cause| !cause.field.starts_with("spec.versions["));
    }
    meta::check(&call.resource, object, &mut causes);
    scaled(&call.resource, object, &mut causes);
    if let Some(rules) = &call.resource.rules {
        rules_of(call, rules, object, old, &mut causes);
    }
    strategy::validate(&call.resource, object, old, subresource, &mut causes);
    if causes.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(&call.resource.group, &call.resource.kind, meta::text(object, "name"), causes))
}

/// The rules of a custom resource. They are asked of what has the shape that its schema says, and where it has not, that
/// they were not is said.
fn rules_of(call: &Call, rules: &Rules, object: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
    const SHAPELESS: [&str; 5] = [
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    ];
    if causes.iter().any(|cause| SHAPELESS.contains(&cause.reason.as_str())) {
        let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
        causes.push(schema::validate::cause(
            "FieldValueInvalid",
            schema::validate::WHOLE,
            format!("Invalid value: null: {why}"),
        ));
        return;
    }
    let mut warnings = Vec::new();
    rules.check(object, old, causes, &mut warnings);
    warnings.into_iter().for_each(|text| call.warn(text));
}

/// The numbers that the scale of a custom resource is made of.
fn scaled(resource: &Resource, object: &Value, causes: &mut Vec<Cause>) {
    let Some(scale) = resource.scale.as_ref().filter(|_| resource.crd.is_some()) else { return };
    for path in [&scale.spec_replicas, &scale.status_replicas] {
        let why = match number_at(object, path) {
            Ok(None) => continue,
            Ok(Some(number)) if (0..=i64::from(i32::MAX)).contains(&number) => continue,
            Ok(Some(number)) if number < 0 => format!("Invalid value: {number}: should be a non-negative integer"),
            Ok(Some(number)) => {
                format!("Invalid value: {number}: should be less than or equal to {}", i32::MAX)
            }
            Err(why) => format!("Invalid value: 0: {path} accessor error: {why}"),
        };
        causes.push(schema::validate::cause("FieldValueInvalid", path, why));
    }
}

/// The number that a path of fields leads to, or what is in the way.
fn number_at(object: &Value, path: &str) -> Result<Option<i64>, String> {
    use schema::validate::kind_of;
    let mut node = object;
    for field in path.trim_start_matches('.').split('.') {
        node = match node {
            Value::Object(map) => map.get(field).unwrap_or(&Value::Null),
            Value::Null => return Ok(None),
            other => return Err(format!("{other} is of the type {}, expected map", kind_of(other))),
        };
    }
    match node {
        Value::Null => Ok(None),
        node => {
            node.as_i64().map(Some).ok_or_else(|| format!("{node} is of the type {}, expected int64", kind_of(node)))
        }
    }
}

pub(super) async fn update(call: &Call, body: Body) -> Result<Response, ApiError> {
    call.query.check_write("UpdateOptions")?;
    let bytes = decode::read(call, body).await?;
    let (mut object, duplicates) = decode::document(call, &bytes)?;
    meta::check_named(&object, &call.info.name)?;
    meta::check_identity(&call.resource, &mut object, call.namespace(), &call.info.name)?;
    shape_sent(call, &mut object, duplicates)?;
    if call.server.store().get(&call.storage(), call.namespace(), &call.info.name).is_none() {
        if !created_by_update(&call.resource) || meta::revision(&object)?.is_some() {
            return Err(call.not_found(&call.info.name));
        }
        // Who may update may not thereby create.
        let create = apimachinery::request::RequestInfo { verb: "create".into(), ..call.info.clone() };
        call.server.authorize(&call.user, &create)?;
        let created = insert(call, object).await?;
        return respond::written(call, StatusCode::CREATED, created).await;
    }
    if updated_as_seen(&call.resource) && meta::revision(&object)?.is_none() {
        return Err(ApiError::invalid(
            &call.resource.group,
            &call.resource.kind,
            &call.info.name,
            vec![Cause {
                reason: "FieldValueInvalid".into(),
                message: "Invalid value: 0x0: must be specified for an update".into(),
                field: "metadata.resourceVersion".into(),
            }],
        ));
    }
    let stored = change(call, &Edit::whole("UpdateOptions"), |_| Ok(object.clone())).await?;
    respond::written(call, StatusCode::OK, stored).await
}

/// Kinds of which an update makes the object that is not there.
fn created_by_update(resource: &Resource) -> bool {
    matches!(
        (resource.group.as_str(), resource.plural.as_str()),
        ("", "endpoints" | "events" | "services")
            | ("events.k8s.io", "events")
            | ("coordination.k8s.io", "leases")
            | ("node.k8s.io", "runtimeclasses")
            | ("rbac.authorization.k8s.io", _)
    )
}

/// Kinds of which an update must name the revision it was made from.
fn updated_as_seen(resource: &Resource) -> bool {
    let named = |names: &[&str]| names.contains(&resource.plural.as_str());
    resource.crd.is_some()
        || match resource.group.as_str() {
            "admissionregistration.k8s.io" | "apiextensions.k8s.io" | "apiregistration.k8s.io" => true,
            "coordination.k8s.io" => named(&["leases"]),
            "node.k8s.io" => named(&["runtimeclasses"]),
            "policy" => named(&["poddisruptionbudgets"]),
            "storage.k8s.io" => named(&["csidrivers", "csinodes", "csistoragecapacities", "volumeattachments"]),
            _ => false,
        }
}

/// How an update treats the parts of the object.
pub(super) struct Edit {
    /// `status`, another subresource that writes the object, or empty for the object itself.
    pub(super) subresource: &'static str,
    pub(super) options: &'static str,
}

impl Edit {
    pub(super) fn whole(options: &'static str) -> Self {
        Self { subresource: "", options }
    }
    pub(super) fn part(subresource: &'static str, options: &'static str) -> Self {
        Self { subresource, options }
    }
}

/// Makes the new object of an update of the one there is.
pub(super) trait Produce: Sync {
    fn produce(&self, current: &Value) -> impl Future<Output = Result<Value, ApiError>> + Send;
}

/// A change that is found without waiting for anything.
struct AtOnce<F>(F);

impl<F: Fn(&Value) -> Result<Value, ApiError> + Sync> Produce for AtOnce<F> {
    fn produce(&self, current: &Value) -> impl Future<Output = Result<Value, ApiError>> + Send {
        std::future::ready(self.0(current))
    }
}

/// [`change_by`] for a change that is found without waiting for anything.
pub(super) async fn change(
    call: &Call,
    edit: &Edit,
    produce: impl Fn(&Value) -> Result<Value, ApiError> + Send + Sync,
) -> Result<Written, ApiError> {
    change_by(call, edit, AtOnce(produce)).await
}

/// Reads the object, lets `produce` make the new one, and stores that; again when another writer was faster, unless the
/// new object names the revision it was made from.
pub(super) async fn change_by(call: &Call, edit: &Edit, produce: impl Produce) -> Result<Written, ApiError> {
    for _ in 0..TRIES {
        let stored = super::read::fetch(call)?;
        match Box::pin(change_once(call, edit, &stored, &produce)).await {
            Err(Refused::Raced) => {}
            Err(Refused::Final(error)) => return Err(error),
            Ok(object) => return Ok(object),
        }
    }
    Err(call.conflict(&call.info.name, MODIFIED))
}

enum Refused {
    Raced,
    Final(ApiError),
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self::Final(error)
    }
}

async fn change_once(
    call: &Call,
    edit: &Edit,
    stored: &Arc<Object>,
    produce: &impl Produce,
) -> Result<Written, Refused> {
    let resource = &call.resource;
    let name = &call.info.name;
    let old = Arc::new(respond::tree(call, stored).await?);
    let mut new = produce.produce(&old).await?;
    // What an apply found out about owners; parts carried over from the old object would bring its owners back.
    let managed = owners::applies(call).then(|| new["metadata"]["managedFields"].clone());
    if meta::revision(&new)?.is_some_and(|seen| seen != stored.revision) {
        return Err(call.conflict(name, MODIFIED).into());
    }
    meta::check_immutable(call, &old, &new)?;
    let said = meta::text(&new, "uid");
    if !said.is_empty() && said != meta::text(&old, "uid") {
        let why = format!(
            "Precondition failed: UID in precondition: {said}, UID in object meta: {}",
            meta::text(&old, "uid")
        );
        return Err(call.conflict(name, &why).into());
    }
    merge_parts(call, edit, &old, &mut new);
    let write =
        Write { operation: Operation::Update, name, old: Some(&old), options: edit.options, dry_run: call.dry_run() };
    admit::mutate(call, &write, &mut new).await?;
    merge_parts(call, edit, &old, &mut new);
    strategy::prepare_update(resource, &old, &mut new, edit.subresource);
    strategy::settle(&call.server, resource, &mut new);
    crate::stamp::stamp_update(resource, &old, &mut new, edit.subresource != "status");
    new["metadata"]["resourceVersion"] = stored.revision.to_string().into();
    check_finalizers(call, &old, &new)?;
    check(call, &new, Some(&old), edit.subresource)?;
    let turn = admit::validate_new(call, &write, &mut new).await?;
    if let Some(managed) = managed {
        new["metadata"]["managedFields"] = managed;
    }
    new = owners::record(call, Some(&old), new, edit.subresource).await;
    owners::keep_times(&old, &mut new);
    let reservation = strategy::allocate(&call.server, resource, Some(&old), &mut new, call.dry_run()).await?;
    if call.dry_run() {
        return Ok(Written::Tree(new));
    }
    // A custom resource that was stored otherwise than it would be now is written again, though it says the same:
    // so objects move to a new storage version.
    let unchanged = new == *old;
    if unchanged && resource.crd.is_none() {
        return Ok(Written::Stored(stored.clone()));
    }
    let store = call.server.store();
    let gone = meta::terminating(&new)
        && meta::finalizers(&new).is_empty()
        && strategy::removable(resource, &new)
        && new["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
    let converted = call.server.to_storage(resource, new).await?;
    if unchanged && converted == stored.value() {
        return Ok(Written::Tree(Arc::unwrap_or_clone(old)));
    }
    let outcome = store.update(call.key(name), converted, stored.revision).await;
    drop(reservation);
    if let Some(turn) = turn.filter(|_| outcome.is_ok()) {
        turn.settle(call.server.store()).await;
    }
    let updated = match outcome {
        Ok(object) => object,
        Err(WriteError::Changed) => return Err(Refused::Raced),
        Err(error) => return Err(call.store_error(name, &error).into()),
    };
    if gone {
        // A writer in between may only have added what deletion ignores; its write is then the last state.
        if let Ok(last) = store.delete(call.key(name), updated.revision).await {
            crate::after_write::removed(&call.server, resource, &last).await;
        }
    } else {
        crate::after_write::written(&call.server, resource, &updated).await;
    }
    Ok(Written::Stored(updated))
}

/// Keeps of the old object what this kind of update may not touch.
fn merge_parts(call: &Call, edit: &Edit, old: &Value, new: &mut Value) {
    let resource = &call.resource;
    let carry = |field: &str, new: &mut Value| match old.get(field) {
        Some(value) if new.get(field) == Some(value) => {}
        Some(value) => new[field] = value.clone(),
        None => {
            if let Some(map) = new.as_object_mut() {
                map.remove(field);
            }
        }
    };
    match edit.subresource {
        "" | "finalize" if resource.status_subresource => carry("status", new),
        "status" => {
            if resource.group == "apps" && resource.plural == "deployments" {
                keep_labels(old, new);
            }
            let fields: Vec<String> =
                old.as_object().into_iter().chain(new.as_object()).flat_map(|m| m.keys().cloned()).collect();
            for field in fields {
                let kept = matches!(field.as_str(), "status") || (field == "metadata" && resource.crd.is_none());
                if !kept {
                    carry(&field, new);
                }
            }
        }
        "ephemeralcontainers" => strategy::keep_rest_of_ephemeral(old, new),
        "resize" => strategy::keep_rest_of_resize(old, new),
        _ => {}
    }
}

/// Who tells the status of a Deployment does not label it.
fn keep_labels(old: &Value, new: &mut Value) {
    let Some(metadata) = new["metadata"].as_object_mut() else { return };
    match old["metadata"].get("labels") {
        Some(labels) => drop(metadata.insert("labels".to_owned(), labels.clone())),
        None => drop(metadata.remove("labels")),
    }
}

/// Once deletion has begun, finalizers only go.
fn check_finalizers(call: &Call, old: &Value, new: &Value) -> Result<(), ApiError> {
    if !meta::terminating(old) {
        return Ok(());
    }
    let before = meta::finalizers(old);
    let added: Vec<&str> = meta::finalizers(new).into_iter().filter(|f| !before.contains(f)).collect();
    if added.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(
        &call.resource.group,
        &call.resource.kind,
        &call.info.name,
        vec![Cause {
            reason: "FieldValueForbidden".into(),
            message: format!(
                "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
            ),
            field: "metadata.finalizers".into(),
        }],
    ))
}
