//! The reading end of a copy: a pod beside the source sends what it reads to the upload server of the target.

use std::time::Duration;

use api::cdi::constants::{annotation, env, label, path};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kit::certs::{Authority, Leaf};
use kit::clock;
use kit::queue::Next;
use kit::store::Key;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::Error;
use crate::controller::authorities;
use crate::controller::clone::source::in_use;
use crate::controller::clone::{authorize, plan, restore};
use crate::controller::context::{Context, annotation_of, reference, uid_index};
use crate::controller::import::status;
use crate::controller::upload::pod as server;
use crate::controller::worker::{self, Environment, confined, is_block, variable};
use crate::controller::write::{self, Changes};

/// The authority that signs clients.
const SIGNER: &str = "cdi-uploadserver-client-signer";
/// The certificates of the authority that signs servers.
const SERVERS: &str = "cdi-uploadserver-signer-bundle";
const LIFETIME: Duration = Duration::from_secs(48 * 60 * 60);
const SOURCE: &str = "/var/run/cdi/clone/source";
const AGAIN: Duration = Duration::from_secs(5);

/// Brings the pod in line that sends `source`, `NAMESPACE/NAME`, to the server of `target`.
pub async fn sync(context: &Context, target: &PersistentVolumeClaim, source: &str) -> Result<Next, Error> {
    let uid = target.uid().unwrap_or_default();
    let name = pod_name(target);
    let pod = context.pods.by_index(&uid_index(&uid)).into_iter().find(|pod| pod.name_any() == name);
    let over = annotation_of(target, annotation::POD_PHASE) == Some("Succeeded")
        || target.metadata.deletion_timestamp.is_some();
    let leaves = target.metadata.deletion_timestamp.is_some();
    match pod {
        Some(_) if over && !leaves && annotation_of(target, annotation::POD_RETAIN) == Some("true") => Ok(Next::Wait),
        Some(pod) if over => discard(context, &pod).await,
        None if over => Ok(Next::Wait),
        Some(pod) => {
            let seen = status::seen(target, &pod).annotations;
            let told = worker::SOURCE_RUNS.into_iter().zip(worker::RUNS);
            let changes = told.map(|(ours, its)| (ours.to_owned(), seen.get(its).cloned().flatten())).collect();
            write::annotate(context, target, changes, Changes::new()).await?;
            Ok(Next::Wait)
        }
        // The server comes first.
        None if annotation_of(target, annotation::POD_READY) != Some("true") => Ok(Next::Wait),
        None => start(context, target, source, &name).await,
    }
}

fn pod_name(target: &PersistentVolumeClaim) -> String {
    format!("{}-source-pod", target.uid().unwrap_or_default())
}

async fn start(context: &Context, target: &PersistentVolumeClaim, source: &str, name: &str) -> Result<Next, Error> {
    let Some((namespace, claim)) = source.split_once('/') else { return Ok(Next::Wait) };
    let Some(source) = context.claims.get(&Key::new(namespace, claim)) else { return Ok(Next::After(AGAIN)) };
    if let Err(why) = permitted(context, target, &source).await {
        context.recorder.warning(&reference(target), "CloneValidationFailed", why);
        return Ok(Next::After(AGAIN));
    }
    if let Some(user) = in_use(context, &source) {
        let told = format!("pod {namespace}/{user} using PersistentVolumeClaim {claim}");
        context.recorder.warning(&reference(target), "CloneSourceInUse", told);
        return Ok(Next::After(AGAIN));
    }
    let secret = secret(context, target, &source, name).await?;
    write::create(context, &secret).await?;
    let settings = context.settings();
    let placement = context.placement();
    let environment = Environment {
        image: &context.image,
        pull_policy: &context.pull_policy,
        settings: &settings,
        placement: &placement,
    };
    let pod: Pod =
        serde_json::from_value(render(target, &source, name, &environment)).map_err(Error::setup("render a cloner"))?;
    if !write::create_worker(context, target, &pod, worker::SOURCE_RUNS).await? {
        return Ok(Next::After(AGAIN));
    }
    let changes = Changes::from([(annotation::CLONE_SOURCE_POD.to_owned(), Some(name.to_owned()))]);
    write::annotate(context, target, changes, Changes::new()).await?;
    Ok(Next::Wait)
}

/// Whether what is in `source` may go to `target`, whoever annotated the claims so; if not, why.
async fn permitted(
    context: &Context,
    target: &PersistentVolumeClaim,
    source: &PersistentVolumeClaim,
) -> Result<(), String> {
    if target.namespace() == source.namespace() {
        return Ok(());
    }
    // A claim that a populator made stands in for the one that somebody asked for, and whose token counts.
    let owner = annotation_of(target, annotation::OWNER_UID);
    let owner = owner.and_then(|uid| context.claims.by_index(&uid_index(uid)).into_iter().next());
    let owner = owner.filter(|owner| plan::claim_name(owner) == target.name_any());
    let asked = owner.as_ref().filter(|owner| owner.namespace() == target.namespace()).unwrap_or(target);
    let snapshot = source.spec.as_ref().and_then(|spec| spec.data_source.as_ref());
    let snapshot = snapshot.filter(|from| from.kind == "VolumeSnapshot" && source.name_any() == restore::name(asked));
    let from = origin::Source {
        snapshot: snapshot.is_some(),
        namespace: source.namespace().unwrap_or_default(),
        name: snapshot.map_or_else(|| source.name_any(), |from| from.name.clone()),
    };
    authorize::check(context, asked, &from).await
}

/// The pod beside `source` that sends it to `target`. Pure.
fn render(
    target: &PersistentVolumeClaim,
    source: &PersistentVolumeClaim,
    name: &str,
    environment: &Environment<'_>,
) -> Value {
    let from_device = is_block(source);
    // The server takes the disk out of what a file system sends, where it writes to a device.
    let (kind, mount) = if from_device { ("blockdevice-clone", path::BLOCK) } else { ("filesystem-clone", SOURCE) };
    let size = source
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref()?.get("storage"))
        .map_or(0, crate::controller::settings::bytes);
    let host = server::dns(target).into_iter().next().unwrap_or_default();
    let secret = |variable: &str, key: &str| json!({ "name": variable, "valueFrom": { "secretKeyRef": { "name": name, "key": key } } });
    let mut container = json!({
        "name": label::CLONER,
        "image": environment.image,
        "imagePullPolicy": environment.pull_policy,
        "command": ["cdi-cloner"],
        "args": [format!("--content-type={kind}"), format!("--mount={mount}"), format!("--upload-bytes={size}")],
        "env": [
            secret("CLIENT_KEY", "tls.key"),
            secret("CLIENT_CERT", "tls.crt"),
            secret("SERVER_CA_CERT", "servers.crt"),
            variable("UPLOAD_URL", &format!("https://{host}/v1beta1/upload")),
            variable(env::PREALLOCATION, annotation_of(target, annotation::PREALLOCATION_REQUESTED).unwrap_or("false")),
            variable(env::OWNER_UID, &annotation_of(target, annotation::OWNER_UID).map_or_else(|| worker::owner(target), ToOwned::to_owned)),
        ],
        "ports": [{ "name": "metrics", "containerPort": 8443, "protocol": "TCP" }],
        "resources": environment.settings.resources,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": confined(),
    });
    worker::extend(&mut container["env"], worker::told(environment.settings));
    if from_device {
        container["volumeDevices"] = json!([{ "name": worker::DATA, "devicePath": path::BLOCK }]);
    } else {
        container["volumeMounts"] = json!([{ "name": worker::DATA, "mountPath": SOURCE, "readOnly": true }]);
    }
    let mut pod = worker::shell(source, name, label::CLONER, environment);
    // The source does not go because a copy of it does, nor the other way round.
    pod["metadata"]["ownerReferences"] = json!([]);
    pod["metadata"]["annotations"][annotation::OWNER_UID] = json!(target.uid());
    for (key, value) in plan::owned(target, label::CLONER) {
        pod["metadata"]["labels"][key] = json!(value);
    }
    pod["spec"]["containers"] = json!([container]);
    if !from_device {
        pod["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = json!(false);
    }
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    pod
}

/// A certificate of the sender's own, good for this one target and this one copy's time.
async fn secret(
    context: &Context,
    target: &PersistentVolumeClaim,
    source: &PersistentVolumeClaim,
    name: &str,
) -> Result<Secret, Error> {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &context.namespace);
    let signer = secrets.get(SIGNER).await.map_err(Error::api("read", "Secret", SIGNER))?;
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let servers = maps.get(SERVERS).await.map_err(Error::api("read", "ConfigMap", SERVERS))?;
    let servers = servers.data.and_then(|mut data| data.remove("ca-bundle.crt")).unwrap_or_default();
    let authority = Authority::from_pair(authorities::pair(&signer)).map_err(Error::Certificates)?;
    let leaf = Leaf { name: server::cloner(target), role: label::CLONER.to_owned(), node: None, dns: Vec::new() };
    let now = clock::now();
    let issued = authority.issue(&leaf, now, LIFETIME).map_err(Error::Certificates)?;
    let secret = json!({
        "metadata": {
            "name": name, "namespace": source.namespace(), "labels": plan::owned(target, label::CLONER),
        },
        "type": "Opaque",
        "stringData": { "tls.crt": issued.certificate, "tls.key": issued.key, "servers.crt": servers },
    });
    serde_json::from_value(secret).map_err(Error::setup("render a certificate"))
}

async fn discard(context: &Context, pod: &Pod) -> Result<Next, Error> {
    write::delete(context, pod).await?;
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    if let Some(secret) = secrets.get_opt(&name).await.map_err(Error::api("read", "Secret", &name))? {
        write::delete(context, &secret).await?;
    }
    Ok(Next::Wait)
}
