//! Claims that name a populator of Forklift's: a disk of an oVirt engine, or an image of an OpenStack cloud.
//!
//! ```text
//!  claim ─▶ prime ─▶ pod "populate-UID": ovirt-populator, openstack-populator ─▶ the prime's volume becomes the claim's
//! ```

use std::collections::BTreeMap;

use api::cdi::constants::{annotation, label};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kit::queue::Next;
use kit::store::Key;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Error;
use crate::controller::context::{Context, annotation_of, reference, uid_index};
use crate::controller::storage::requested;
use crate::controller::worker::{self, Environment, confined, extend, is_block, proxies};
use crate::controller::write::{self, Changes};

/// Group of these populators.
pub use crate::controller::context::FORKLIFT as GROUP;
/// Kind of disks of an oVirt engine.
pub const OVIRT: &str = "OvirtVolumePopulator";
/// Kind of images of an OpenStack cloud.
pub const OPENSTACK: &str = "OpenstackVolumePopulator";
/// What a prime says that is filled for one of them.
pub const WORD: &str = "forklift";

const REASON: &str = "PopulatorNotAvailable";
const VOLUME: &str = "target";
const MOUNT: &str = "/mnt/";
const DEVICE: &str = "/dev/block";
const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";

/// Kind and name of the populator that `claim` names and waits for.
pub fn named(claim: &PersistentVolumeClaim) -> Option<(&str, &str)> {
    let from = claim.spec.as_ref()?.data_source_ref.as_ref()?;
    let ours = from.api_group.as_deref() == Some(GROUP) && from.namespace.is_none();
    ours.then_some((from.kind.as_str(), from.name.as_str()))
}

/// True of a claim that is filled in the place of one that names such a populator.
pub fn is_prime(claim: &PersistentVolumeClaim) -> bool {
    annotation_of(claim, annotation::POPULATOR_KIND) == Some(WORD)
}

/// What the populator is; none when it is not there, or no populator that is known.
pub fn find(context: &Context, claim: &PersistentVolumeClaim) -> Result<Populator, String> {
    let (kind, name) = named(claim).unwrap_or_default();
    let store = match kind {
        OVIRT => &context.ovirt,
        OPENSTACK => &context.openstack,
        other => {
            return Err(format!("{other} of group {GROUP} fills no claim: only {OVIRT} and {OPENSTACK} do"));
        }
    };
    let key = Key::new(claim.namespace().unwrap_or_default(), name);
    let found = store.get(&key).ok_or_else(|| format!("{kind} {key} does not exist: waiting for it"))?;
    read(kind, &found).map_err(|why| format!("{kind} {key} cannot be used: {why}"))
}

/// Says why nothing fills `claim`.
pub async fn tell(context: &Context, claim: &PersistentVolumeClaim, why: &str) -> Result<Next, Error> {
    if annotation_of(claim, annotation::BOUND_MESSAGE) != Some(why) {
        context.recorder.warning(&reference(claim), REASON, why);
        let said = [(annotation::BOUND, "false"), (annotation::BOUND_REASON, REASON), (annotation::BOUND_MESSAGE, why)];
        let changes = said.map(|(key, value)| (key.to_owned(), Some(value.to_owned()))).into();
        write::annotate(context, claim, changes, Changes::new()).await?;
    }
    Ok(Next::Wait)
}

/// Name of the pod that fills `prime`.
pub fn pod_name(prime: &PersistentVolumeClaim) -> String {
    format!("populate-{}", worker::owner(prime))
}

/// The pod that fills `prime`; none when the claim it stands in for, or the populator, has gone.
pub fn pod(
    context: &Context,
    prime: &PersistentVolumeClaim,
    environment: &Environment<'_>,
) -> Result<Option<Pod>, Error> {
    let target = context.claims.by_index(&uid_index(&worker::owner(prime))).into_iter().next();
    let Some(populator) = target.and_then(|target| find(context, &target).ok()) else { return Ok(None) };
    let rendered = serde_json::from_value(render(prime, &populator, environment));
    rendered.map(Some).map_err(Error::setup("render a populator pod"))
}

/// What a populator says.
#[derive(Debug, PartialEq, Eq)]
pub struct Populator {
    program: &'static str,
    arguments: [String; 2],
    secret: String,
    network: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ovirt {
    engine_url: String,
    disk_id: String,
    secret_ref: String,
    transfer_network: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OpenStack {
    identity_url: String,
    image_id: String,
    secret_ref: String,
    transfer_network: Option<String>,
}

fn read(kind: &str, object: &DynamicObject) -> Result<Populator, String> {
    let spec = object.data["spec"].clone();
    if kind == OVIRT {
        let Ovirt { engine_url, disk_id, secret_ref, transfer_network } =
            serde_json::from_value(spec).map_err(|error| error.to_string())?;
        let arguments = [format!("--disk-id={disk_id}"), format!("--engine-url={engine_url}")];
        return Ok(Populator { program: "ovirt-populator", arguments, secret: secret_ref, network: transfer_network });
    }
    let OpenStack { identity_url, image_id, secret_ref, transfer_network } =
        serde_json::from_value(spec).map_err(|error| error.to_string())?;
    let arguments = [format!("--endpoint={identity_url}"), format!("--image-id={image_id}")];
    Ok(Populator { program: "openstack-populator", arguments, secret: secret_ref, network: transfer_network })
}

fn render(prime: &PersistentVolumeClaim, populator: &Populator, environment: &Environment<'_>) -> Value {
    let path = if is_block(prime) { DEVICE.to_owned() } else { format!("{MOUNT}disk.img") };
    let size = prime.spec.as_ref().and_then(requested).unwrap_or_default();
    let mut arguments = vec![format!("--volume-path={path}"), format!("--secret-name={}", populator.secret)];
    arguments.extend(populator.arguments.iter().cloned());
    arguments.extend([format!("--owner-uid={}", worker::owner(prime)), format!("--pvc-size={size}")]);
    let mut container = json!({
        "name": "populate", "image": environment.image, "imagePullPolicy": environment.pull_policy,
        "command": [populator.program], "args": arguments,
        "envFrom": [{ "secretRef": { "name": populator.secret } }],
        "env": worker::told(environment.settings),
        "ports": [{ "name": "metrics", "containerPort": 8443, "protocol": "TCP" }],
        "resources": environment.settings.resources,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": confined(),
    });
    extend(&mut container["env"], proxies(environment.settings));
    if is_block(prime) {
        container["volumeDevices"] = json!([{ "name": VOLUME, "devicePath": DEVICE }]);
    } else {
        container["volumeMounts"] = json!([{ "name": VOLUME, "mountPath": MOUNT }]);
    }
    let mut pod = worker::shell(prime, &pod_name(prime), label::IMPORTER, environment);
    pod["metadata"]["annotations"][annotation::POPULATOR_KIND] = json!(WORD);
    if let Some(network) = populator.network.as_deref().filter(|network| !network.is_empty()) {
        pod["metadata"]["annotations"][DEFAULT_NETWORK] = json!(network);
    }
    pod["spec"]["containers"] = json!([container]);
    pod["spec"]["volumes"][0]["name"] = json!(VOLUME);
    // What failed is tried again, and how often is counted.
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    pod
}

/// What the prime of a claim that names such a populator says.
pub fn marks() -> BTreeMap<String, String> {
    [(annotation::USE_POPULATOR.to_owned(), "true".to_owned())].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::settings::Settings;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn populator(kind: &str, spec: Value) -> Result<Populator, String> {
        let object = json!({ "apiVersion": "forklift.cdi.kubevirt.io/v1beta1", "kind": kind, "metadata": { "name": "p" }, "spec": spec });
        read(kind, &serde_json::from_value(object).unwrap())
    }

    fn pod(kind: &str, spec: Value, mode: &str) -> Value {
        let owner =
            json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "c", "uid": "u", "controller": true });
        let prime = serde_json::from_value(json!({
            "metadata": { "name": "prime-u", "namespace": "ns", "uid": "p", "ownerReferences": [owner] },
            "spec": { "volumeMode": mode, "resources": { "requests": { "storage": "1Gi" } } },
        }))
        .unwrap();
        let settings = Settings::of(None);
        let environment =
            Environment { image: "cdi:1", pull_policy: "IfNotPresent", settings: &settings, placement: &json!({}) };
        render(&prime, &populator(kind, spec).unwrap(), &environment)
    }

    #[test]
    fn a_populator_is_a_pod_as_forklift_knows_it() {
        let engine =
            json!({ "engineUrl": "https://engine", "diskId": "d", "secretRef": "s", "transferNetwork": "ns/fast" });
        let made = pod(OVIRT, engine, "Filesystem");
        assert_eq!(made["metadata"]["name"], "populate-u");
        assert_eq!(made["metadata"]["annotations"]["v1.multus-cni.io/default-network"], "ns/fast");
        assert_eq!(made["metadata"]["annotations"]["cdi.kubevirt.io/storage.populator.kind"], "forklift");
        let container = &made["spec"]["containers"][0];
        assert_eq!((&container["name"], &container["command"]), (&json!("populate"), &json!(["ovirt-populator"])));
        let expect = [
            "--volume-path=/mnt/disk.img",
            "--secret-name=s",
            "--disk-id=d",
            "--engine-url=https://engine",
            "--owner-uid=u",
            "--pvc-size=1073741824",
        ];
        assert_eq!(container["args"], json!(expect));
        assert_eq!(container["envFrom"], json!([{ "secretRef": { "name": "s" } }]));
        assert_eq!(container["volumeMounts"], json!([{ "name": "target", "mountPath": "/mnt/" }]));
        assert_eq!(made["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "prime-u");

        let cloud = json!({ "identityUrl": "https://cloud/v3", "imageId": "i", "secretRef": "s" });
        let made = pod(OPENSTACK, cloud, "Block");
        let container = &made["spec"]["containers"][0];
        assert_eq!(container["command"], json!(["openstack-populator"]));
        assert_eq!(container["args"][0], "--volume-path=/dev/block");
        assert_eq!(container["args"][2], "--endpoint=https://cloud/v3");
        assert_eq!(container["volumeDevices"], json!([{ "name": "target", "devicePath": "/dev/block" }]));
        let why = populator(OPENSTACK, json!({ "imageId": "i" })).unwrap_err();
        assert!(why.contains("identityUrl"), "{why}");
    }
}
