//! What the pods that fill volumes have in common. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use api::cdi::constants::{annotation, env, label, path};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Resource, ResourceExt};
use origin::network;
use serde_json::{Map, Value, json};

use crate::controller::labels::labels;
use crate::controller::settings::Settings;
use crate::controller::storage::BLOCK;

/// Where a claim says whether its worker runs, the reason and the message.
pub const RUNS: [&str; 3] = [annotation::RUNNING, annotation::RUNNING_REASON, annotation::RUNNING_MESSAGE];
/// The same of the worker that reads what is cloned.
pub const SOURCE_RUNS: [&str; 3] =
    [annotation::SOURCE_RUNNING, annotation::SOURCE_RUNNING_REASON, annotation::SOURCE_RUNNING_MESSAGE];
/// How long after a worker was refused the next is tried: a quota that grows tells nobody.
pub const AGAIN: Duration = Duration::from_secs(5);

/// The user and group of the workers.
pub const QEMU: i64 = 107;
/// The group `disk`, by the number that Linux distributions agree on.
const DISK_GROUP: i64 = 6;
/// What the claim's volume is called in its pod.
pub const DATA: &str = "cdi-data-vol";

/// The proxies that workers go through.
pub fn proxies(settings: &Settings) -> Vec<Value> {
    let Some(proxy) = &settings.proxy else { return Vec::new() };
    let all = [
        (env::HTTP_PROXY, &proxy.http_proxy),
        (env::HTTPS_PROXY, &proxy.https_proxy),
        (env::NO_PROXY, &proxy.no_proxy),
    ];
    let set =
        all.into_iter().filter_map(|(name, value)| Some((name, value.as_deref().filter(|text| !text.is_empty())?)));
    set.map(|(name, value)| variable(name, value)).collect()
}

/// What a worker pod is made of beside its claim.
pub struct Environment<'a> {
    /// The component image.
    pub image: &'a str,
    /// When it is pulled.
    pub pull_policy: &'a str,
    /// The configuration.
    pub settings: &'a Settings,
    /// Where worker pods may run: `nodeSelector`, `affinity` and `tolerations`.
    pub placement: &'a Value,
}

/// An environment variable.
pub fn variable(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

/// What every worker is told: what its own server offers, and how much it is to say.
pub fn told(settings: &Settings) -> Vec<Value> {
    let (least, ciphers) = &settings.tls;
    let log = if settings.verbose { "debug" } else { "" };
    let all = [
        (env::TLS_MIN_VERSION, least.clone()),
        (env::TLS_CIPHERS, ciphers.join(",")),
        ("FERROVIRT_LOG", log.to_owned()),
    ];
    all.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| variable(name, value)).collect()
}

/// Adds to a list, which may not be there.
pub fn extend(list: &mut Value, more: Vec<Value>) {
    match list {
        Value::Array(list) => list.extend(more),
        _ if more.is_empty() => {}
        other => *other = Value::Array(more),
    }
}

/// True when the claim is a device.
pub fn is_block(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some(BLOCK)
}

/// Whose progress it is: that of the claim that is filled in the end, or of its DataVolume.
pub fn owner(claim: &PersistentVolumeClaim) -> String {
    let controller = claim.owner_references().iter().find(|owner| owner.controller == Some(true));
    controller.map(|owner| owner.uid.clone()).or_else(|| claim.uid()).unwrap_or_default()
}

/// Gives a container the volume of its claim, as device or as directory.
pub fn attach(container: &mut Value, claim: &PersistentVolumeClaim) {
    if is_block(claim) {
        container["volumeDevices"] = json!([{ "name": DATA, "devicePath": path::BLOCK }]);
    } else {
        container["volumeMounts"] = json!([{ "name": DATA, "mountPath": path::DATA }]);
    }
}

/// The security context of a worker's container: no privilege of any kind.
pub fn confined() -> Value {
    json!({
        "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "runAsNonRoot": true, "runAsUser": QEMU,
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

/// A worker pod of `claim` without its containers.
pub fn shell(claim: &PersistentVolumeClaim, name: &str, component: &str, environment: &Environment<'_>) -> Value {
    let mut pod = bare(claim, claim.annotations(), component, environment);
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["labels"][label::PROMETHEUS] = json!("true");
    pod["spec"]["volumes"] = json!([{ "name": DATA, "persistentVolumeClaim": { "claimName": claim.name_any() } }]);
    if is_block(claim) {
        // A volume's fsGroup says nothing of devices, which nodes leave to this group.
        pod["spec"]["securityContext"]["supplementalGroups"] = json!([DISK_GROUP]);
    }
    pod
}

/// A worker pod that goes with `owner`, without its name, containers and volumes. `said` is what a claim's annotations would say of it.
pub fn bare<K: Resource<DynamicType = ()>>(
    owner: &K,
    said: &BTreeMap<String, String>,
    component: &str,
    environment: &Environment<'_>,
) -> Value {
    let mut annotations = passed_on(said, &owner.namespace().unwrap_or_default());
    annotations.insert(annotation::CREATED_BY_CONTROLLER.to_owned(), json!("yes"));
    let mut spec = json!({
        "securityContext": { "runAsNonRoot": true, "runAsUser": QEMU, "fsGroup": QEMU, "seccompProfile": { "type": "RuntimeDefault" } },
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "imagePullSecrets": environment.settings.pull_secrets,
    });
    for (field, key) in
        [("priorityClassName", annotation::PRIORITY_CLASS), ("serviceAccountName", annotation::SERVICE_ACCOUNT)]
    {
        if let Some(value) = said.get(key).filter(|value| !value.is_empty()) {
            spec[field] = json!(value);
        }
    }
    for (key, value) in environment.placement.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": owner.namespace(), "labels": labels(component), "annotations": annotations,
            "ownerReferences": owned_by(owner),
        },
        "spec": spec,
    })
}

/// The variables of a name and password in `secret`.
pub fn login(secret: &str) -> Vec<Value> {
    let of = |(name, key): (&str, &str)| json!({ "name": name, "valueFrom": { "secretKeyRef": { "name": secret, "key": key } } });
    [(env::ACCESS_KEY, "accessKeyId"), (env::SECRET_KEY, "secretKey")].map(of).to_vec()
}

/// A volume of `source`, and how a container has it at `path`.
pub fn mounted(name: &str, path: &str, source: Value) -> (Value, Value) {
    let mut volume = source;
    volume["name"] = json!(name);
    (volume, json!({ "name": name, "mountPath": path, "readOnly": true }))
}

/// The owner references of what goes with `object`.
pub fn owned_by<K: Resource<DynamicType = ()>>(object: &K) -> Value {
    let owner = object.controller_owner_ref(&()).map(|mut owner| {
        owner.block_owner_deletion = Some(true);
        owner
    });
    json!(owner.into_iter().collect::<Vec<_>>())
}

/// The labels that the importer of `claim` has from it, and a claim that is filled in its place: those by which users find what is
/// theirs, and none that means something to these controllers.
pub fn inherited(claim: &PersistentVolumeClaim) -> BTreeMap<String, String> {
    let own = |key: &str| key == label::COMPONENT || key.starts_with(&format!("{}/", label::COMPONENT));
    claim.labels().iter().filter(|(key, _)| !own(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The annotations of networks and sidecars, which a worker in the namespace `own` takes from what its claim says. Networks of other namespaces
/// are not its author's to give.
fn passed_on(said: &BTreeMap<String, String>, own: &str) -> Map<String, Value> {
    let mut out = Map::new();
    // A sidecar that does not end keeps the pod from ending.
    out.insert("sidecar.istio.io/inject".to_owned(), json!("false"));
    out.insert("linkerd.io/inject".to_owned(), json!("disabled"));
    for key in annotation::PASSED_ON {
        if let Some(value) = said.get(key).filter(|value| network::is_own(key, value, own)) {
            out.insert(key.to_owned(), json!(value));
        }
    }
    out
}
