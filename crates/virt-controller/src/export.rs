//! VirtualMachineExport: the volumes of a claim, a machine or a snapshot are shown to whoever has a token, for a while.
//!
//! ```text
//!  source (claims, machine) ─ in use, or not filled yet ─▶ Pending, and looked at again
//!        │ free
//!        ▼
//!  token Secret, Service, manifests ─▶ pod virt-export-NAME + its certificate ─ ready ─▶ links ─▶ Ready
//!        ▲                                    │ its volumes or the source are not what they were
//!        └────────────────────────────────────┘            the export's time is over ─▶ it is deleted, and all with it
//! ```
//!
//! The volumes of a backup that is pulled are no claims: the pod is on the guest's node, and the agent there lends it
//! connections to the guest's QEMU for as long as it is asked to, which is until the pod is ready.
//!
//! Everything that is made for an export belongs to it, and goes with it. The pod has no account, mounts volumes for reading, and
//! ends by itself with the export. Its certificate is renewed while it serves.

pub mod certificate;
mod find;
mod lending;
pub mod links;
pub mod manifest;
pub mod names;
mod outside;
pub mod pod;
pub mod pulled;
pub mod source;
pub mod status;
pub mod template;

use std::time::Duration;

use api::export::constants::{SELECTOR, TOKEN_KEY};
use api::export::v1::{VirtualMachineExport, VirtualMachineExportStatus};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kit::events::Recorder;
use kit::queue::{Next, Queue};
use kit::store::{self, Key, Store, Watch};
use kit::{Task, clock};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use source::Source;

use crate::context::{Context, reference};
use crate::error::{self, Error};
use crate::facts::copies::{backup_index, export_indexes, snapshot_index, source_index};
use crate::facts::index::claim_index;
use crate::setup::Setup;
use crate::stores::Changes;
use crate::vm::chosen;
use crate::{limits, patch, write};

/// Between two looks at a source that is not free yet: nobody tells when the last pod lets go of a claim.
const LOOK_AGAIN: Duration = Duration::from_secs(3);
/// Between two looks at the server of a backup that has not been lent the guest's disks.
const LEND_AGAIN: Duration = Duration::from_secs(1);
/// Between two looks at an export that is served: certificates are replaced, and nobody tells.
const LOOK_OUTSIDE: Duration = Duration::from_secs(60);

/// The export that `pod` serves.
fn served_by(pod: &Pod) -> Option<Key> {
    let owner = pod.owner_references().iter().find(|owner| owner.kind == names::KIND)?;
    Some(Key::new(pod.namespace().unwrap_or_default(), owner.name.as_str()))
}

/// What it works with.
#[derive(Clone)]
struct Exports {
    context: Context,
    /// Pods that serve exports.
    exporters: Store<Pod>,
    ways: outside::Ways,
    /// Events of exports.
    recorder: Recorder,
}

/// Has exports looked after.
pub(crate) fn register(setup: &mut Setup) {
    let context = setup.context.clone();
    let recorder = Recorder::new(context.client.clone(), "export-controller", "");
    let own = Exports { context, exporters: Store::default(), ways: outside::Ways::default(), recorder };
    let queue = Queue::default();
    wakes(&mut setup.changes, &queue);
    setup.keep(watch_exporters(&own, &queue));
    own.ways.watch(&own.context, &queue).into_iter().for_each(|task| setup.keep(task));
    let (stores, exporters) = (own.context.stores.clone(), own.exporters.clone());
    let known = async move {
        tokio::join!(
            stores.vms.synced(),
            stores.vmis.synced(),
            stores.data_volumes.synced(),
            stores.volume_snapshots.synced(),
            stores.kubevirts.synced(),
            stores.exports.synced(),
            exporters.synced()
        );
    };
    setup.work(queue, 2, known, move |key| reconcile(own.clone(), key));
}

fn wakes(changes: &mut Changes, queue: &Queue<Key>) {
    changes.exports.wake(queue, |_, change| [change.key.clone()]);
    changes.vms.wake(queue, |stores, change| stores.exports.keys_by_index(&source_index(change.key)));
    changes.vmis.wake(queue, |stores, change| stores.exports.keys_by_index(&source_index(change.key)));
    changes.snapshots.wake(queue, |stores, change| stores.exports.keys_by_index(&snapshot_index(change.key)));
    changes.backups.wake(queue, |stores, change| stores.exports.keys_by_index(&backup_index(change.key)));
    changes.claims.wake(queue, |stores, change| {
        stores.exports.keys_by_index(&claim_index(&change.key.namespace, &change.key.name))
    });
    // Servers of exports offer what it says of TLS.
    changes.kubevirts.wake(queue, |stores, _| stores.exports.keys());
}

fn watch_exporters(own: &Exports, queue: &Queue<Key>) -> Task<()> {
    let (api, stores, queue) = (Api::all(own.context.client.clone()), own.context.stores.clone(), queue.clone());
    let how = Watch { config: watcher::Config::default().labels(SELECTOR), ..Watch::default() };
    store::watch(api, how, own.exporters.clone(), move |change| match change.new.and_then(served_by) {
        Some(key) => queue.add(key),
        None => {
            let near = |key: &Key| key.namespace == change.key.namespace;
            queue.add_all(stores.exports.keys().into_iter().filter(near));
        }
    })
}

/// Brings one export a step further.
async fn reconcile(own: Exports, key: Key) -> Next {
    error::settled("vmexport", &key, Box::pin(sync(&own, &key)).await)
}

async fn sync(own: &Exports, key: &Key) -> Result<Next, Error> {
    let context = &own.context;
    let Some(export) = context.stores.exports.get(key) else { return Ok(Next::Wait) };
    if export.metadata.deletion_timestamp.is_some() {
        return Ok(Next::Wait);
    }
    let now = clock::now();
    let Some(left) = left(&export, now) else {
        tracing::info!(export = %key, "its time is over");
        expire(context, &export).await?;
        return Ok(Next::Wait);
    };
    let mut wanted = status::begun(&export, now);
    let Some(source) = find::source(context, &export).await? else {
        // Of a kind that another controller serves, or nobody.
        return Ok(Next::After(left));
    };
    let service = service(own, &export).await?;
    wanted.token_secret_ref = token(own, &export, &source).await?;
    let bundle = certificate::bundle(context).await?;
    let outside = own.ways.find(context).await?;
    let hosts = links::Hosts::of(&export, &service, &bundle, outside);
    if source.is_served() {
        manifests(context, &export, &source, &hosts).await?;
    }
    let pod = exporter(own, &export, &source, wanted.token_secret_ref.as_deref(), now).await?;
    let renewal = match pod.as_ref().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        Some(pod) => certificate::renew(context, &export, pod, &bundle, now).await?,
        None => Duration::MAX,
    };
    let seen = status::Seen { source: &source, pod: pod.as_ref(), service: &service, hosts: &hosts };
    status::say(&mut wanted, &seen, now);
    write_status(context, &export, wanted).await?;
    if let (Some(pulled), Some(pod)) = (&source.backup, &pod)
        && pod::waits_to_be_lent(pod)
    {
        lending::lend(context, pulled, pod).await?;
        return Ok(Next::After(LEND_AGAIN.min(left)));
    }
    let next = if source.look_again { LOOK_AGAIN } else { LOOK_OUTSIDE };
    Ok(Next::After(next.min(left).min(renewal)))
}

/// How long the export is good for yet.
fn left(export: &VirtualMachineExport, now: Timestamp) -> Option<Duration> {
    let left = Duration::try_from(status::expires(export)?.duration_since(now)).ok()?;
    Some(left).filter(|left| !left.is_zero())
}

async fn expire(context: &Context, export: &VirtualMachineExport) -> Result<(), Error> {
    let (namespace, name) = (export.namespace().unwrap_or_default(), export.name_any());
    let api: Api<VirtualMachineExport> = Api::namespaced(context.client.clone(), &namespace);
    let this = Preconditions { uid: export.uid(), resource_version: None };
    match api.delete(&name, &DeleteParams { preconditions: Some(this), ..Default::default() }).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("delete", "virtualmachineexport", &namespace, &name)(error)),
        Ok(_) => Ok(()),
    }
}

/// Metadata of what belongs to `export`.
fn owned(export: &VirtualMachineExport, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: export.namespace(),
        owner_references: Some(vec![owner(export)]),
        ..Default::default()
    }
}

/// What goes with `export`.
fn owner(export: &VirtualMachineExport) -> OwnerReference {
    OwnerReference {
        api_version: names::API_VERSION.to_owned(),
        kind: names::KIND.to_owned(),
        name: export.name_any(),
        uid: export.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The name of the Service of `export`, which is made when it is not there.
async fn service(own: &Exports, export: &VirtualMachineExport) -> Result<String, Error> {
    let context = &own.context;
    let (namespace, name) = (export.namespace().unwrap_or_default(), names::service(&export.name_any()));
    let api: Api<Service> = Api::namespaced(context.client.clone(), &namespace);
    let found = api.get_opt(&name).await.map_err(Error::api("read", "service", &namespace, &name))?;
    if found.is_none() {
        let made = api.create(&PostParams::default(), &pod::service(export)).await;
        if news(made).map_err(Error::api("create", "service", &namespace, &name))? {
            own.recorder.normal(&reference(export), "ServiceCreated", format!("Created service {namespace}/{name}"));
        }
    }
    Ok(name)
}

/// The name of the Secret with the token: the one that was named, or else one that is made.
async fn token(own: &Exports, export: &VirtualMachineExport, source: &Source) -> Result<Option<String>, Error> {
    let context = &own.context;
    if export.spec.token_secret_ref.is_some() {
        return Ok(export.spec.token_secret_ref.clone());
    }
    let held = export.status.as_ref().and_then(|status| status.token_secret_ref.clone());
    if held.is_some() || !source.is_served() {
        return Ok(held);
    }
    let (namespace, name) = (export.namespace().unwrap_or_default(), names::token(&export.name_any()));
    let secret = Secret {
        metadata: owned(export, &name),
        type_: Some("Opaque".to_owned()),
        data: Some([(TOKEN_KEY.to_owned(), ByteString(names::random(TOKEN_LENGTH).into_bytes()))].into()),
        ..Default::default()
    };
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    let made = api.create(&PostParams::default(), &secret).await;
    if news(made).map_err(Error::api("create", "secret", &namespace, &name))? {
        let message = format!("Created default secret {namespace}/{name}");
        own.recorder.normal(&reference(export), "SecretCreated", message);
    }
    Ok(Some(name))
}

/// Of a token that nobody chose.
const TOKEN_LENGTH: usize = 20;

/// Writes what the server makes the manifests of, where there are any.
async fn manifests(
    context: &Context,
    export: &VirtualMachineExport,
    source: &Source,
    hosts: &links::Hosts,
) -> Result<(), Error> {
    let mut source = source.clone();
    if let Some(machine) = &mut source.machine {
        // Elsewhere there may be no such instance type, or another.
        match chosen::alone(context, &export.namespace().unwrap_or_default(), machine).await {
            Ok(whole) => *machine = whole,
            Err(failure) => context.recorder.warning(&reference(export), failure.reason, failure.message),
        }
    }
    let Some(data) = manifest::data(export, &source, hosts) else { return Ok(()) };
    let (namespace, name) = (export.namespace().unwrap_or_default(), names::manifests(&export.name_any()));
    let map = ConfigMap { metadata: owned(export, &name), data: Some(data), ..Default::default() };
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &namespace);
    let by = PatchParams::apply("virt-controller").force();
    let written = api.patch(&name, &by, &Patch::Apply(&map)).await;
    written.map(drop).map_err(Error::api("write", "configmap", &namespace, &name))
}

/// The pod that serves `export`: made, kept or ended as the source and the time have it.
async fn exporter(
    own: &Exports,
    export: &VirtualMachineExport,
    source: &Source,
    token: Option<&str>,
    now: Timestamp,
) -> Result<Option<Pod>, Error> {
    let context = &own.context;
    let (namespace, name) = (export.namespace().unwrap_or_default(), names::pod(&export.name_any()));
    let held = own.exporters.get(&Key::new(namespace.as_str(), name.as_str()));
    // One of an export that was here under this name before is on its way out.
    let held = held.filter(|pod| pod.owner_references().iter().any(|owner| Some(&owner.uid) == export.uid().as_ref()));
    let kubevirts = context.stores.kubevirts.list();
    let (lifetimes, tls) = (certificate::lifetimes(kubevirts.first()), pod::Tls::of(kubevirts.first()));
    let Some(pod) = held else {
        let Some(token) = token.filter(|_| source.is_served()) else { return Ok(None) };
        let settings = context.settings();
        let image = pod::Image { name: &context.exporter_image, pull_policy: &settings.image_pull_policy };
        let deadline = status::expires(export).map(clock::seconds);
        let secret = format!("secret-{}", names::random(10));
        let wanted = pod::Wanted { export, source, token, secret: &secret, image, lifetimes, deadline, tls: &tls };
        let mut wanted = pod::render(&wanted).map_err(Error::Render)?;
        limits::meet(context, &mut wanted, &namespace, 1).await?;
        let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
        return match api.create(&PostParams::default(), &wanted).await {
            Ok(made) => {
                let message = format!("Created exporter pod {namespace}/{name}");
                own.recorder.normal(&reference(export), "ExporterPodCreated", message);
                certify(own, export, &made, now).await?;
                Ok(Some(made))
            }
            Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(None),
            Err(error) => Err(Error::api("create", "pod", &namespace, &name)(error)),
        };
    };
    if pod.metadata.deletion_timestamp.is_some() {
        return Ok(source.is_served().then_some(pod));
    }
    if let Some((reason, message)) = pod::outlived(&pod, source, &tls) {
        own.recorder.warning(&reference(export), reason, message);
        let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
        match api.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(Error::api("delete", "pod", &namespace, &name)(error)),
            Ok(_) => {}
        }
        return Ok(source.is_served().then_some(pod));
    }
    if pod::phase(&pod) == "Pending" {
        // Whoever made the pod may not have come to its Secret.
        certify(own, export, &pod, now).await?;
    }
    Ok(Some(pod))
}

/// Makes the Secret that `pod` waits for, and then says in the pod which certificate is in it: what the pod says is always of the key that
/// its server has. Where the Secret is there and the pod does not say so, the key is one that nobody knows any more, and the pod, which
/// has served nothing, makes room for another.
async fn certify(own: &Exports, export: &VirtualMachineExport, pod: &Pod, now: Timestamp) -> Result<(), Error> {
    let Some(name) = pod::certificate(pod).filter(|_| !certificate::is_announced(pod)) else { return Ok(()) };
    let (context, namespace) = (&own.context, export.namespace().unwrap_or_default());
    let pair = certificate::issue(context, export, now).await?;
    let certificate = pair.certificate.clone();
    let secret = certificate::secret(pod, &name, &namespace, pair);
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    let made = api.create(&PostParams::default(), &secret).await;
    if news(made).map_err(Error::api("create", "secret", &namespace, &name))? {
        own.recorder.normal(&reference(export), "SecretCreated", "Created exporter pod secret");
        return certificate::announce(context, pod, &certificate).await;
    }
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let this = Preconditions { uid: pod.uid(), resource_version: pod.resource_version() };
    match api.delete(&pod.name_any(), &DeleteParams::default().preconditions(this)).await {
        // It is another by now, or has gone on.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        done => done.map(drop).map_err(Error::api("delete", "pod", &namespace, &pod.name_any())),
    }
}

/// Whether something was made just now; that it is there already is no failure.
fn news<K>(made: kube::Result<K>) -> kube::Result<bool> {
    match made {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(false),
        Err(error) => Err(error),
    }
}

async fn write_status(
    context: &Context,
    export: &VirtualMachineExport,
    wanted: VirtualMachineExportStatus,
) -> Result<(), Error> {
    let old = export.status.as_deref().cloned().unwrap_or_default();
    let Some(changed) = patch::changed(&old, &wanted) else { return Ok(()) };
    let (namespace, name) = (export.namespace().unwrap_or_default(), export.name_any());
    let api: Api<VirtualMachineExport> = Api::namespaced(context.client.clone(), &namespace);
    let patch = patch::status(export.metadata.resource_version.as_deref(), &changed);
    let answer = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    write::accept(answer, &context.stores.exports, export_indexes, ("virtualmachineexport", export)).map(drop)
}
