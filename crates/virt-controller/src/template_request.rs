//! VirtualMachineTemplateRequest: a template of a machine that is there. The machine is snapshotted, its disks are copied from the
//! snapshot, and the template's machines get copies of these. Who may take a machine of another namespace, an admission policy decides
//! when the request is made.

pub mod machine;
pub mod plan;

use api::cdi::v1beta1::DataVolume;
use api::kubevirt::v1::VirtualMachine;
use api::snapshot::v1beta1::VirtualMachineSnapshot;
use api::template::VirtualMachineTemplate;
use api::template::request::{FINALIZER, REQUEST_UID, VirtualMachineTemplateRequest};
use kit::queue::{Next, Queue};
use kit::store::{self, Key, Store, Watch};
use kit::{clock, served};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{NamespaceResourceScope, Request};
use kube::discovery::ApiResource;
use kube::{Api, Resource, ResourceExt};
use plan::{Plan, Step, World};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::context::Context;
use crate::error::{self, Error};
use crate::facts::copies::snapshot_indexes;
use crate::setup::Setup;
use crate::snapshot;
use crate::stores::Changes;

const KIND: &str = "virtualmachinetemplaterequest";

/// What it works with.
#[derive(Clone)]
struct Requests {
    context: Context,
    requests: Store<VirtualMachineTemplateRequest>,
    /// Of each only that it is there and whether it is ready.
    templates: Store<VirtualMachineTemplate>,
}

/// The index value under which a request is found by what was made for it.
fn by_uid(uid: &str) -> String {
    format!("uid:{uid}")
}

fn indexes(request: &VirtualMachineTemplateRequest) -> Vec<String> {
    request.uid().iter().map(|uid| by_uid(uid)).collect()
}

/// Has requests looked after.
pub(crate) fn register(setup: &mut Setup) {
    let own = Requests { context: setup.context.clone(), requests: Store::default(), templates: Store::default() };
    let (queue, client) = (Queue::default(), own.context.client.clone());
    wakes(&mut setup.changes, &own.requests, &queue);
    let wake = queue.clone();
    let how = Watch { index: indexes, ..Watch::default() };
    let resource = ApiResource::erase::<VirtualMachineTemplateRequest>(&());
    setup.keep(served::watch(&client, &resource, Api::all(client.clone()), how, own.requests.clone(), move |change| {
        wake.add(change.key.clone());
    }));
    let (wake, held) = (queue.clone(), own.requests.clone());
    let how = Watch { trim: trim_template, ..Watch::default() };
    let resource = ApiResource::erase::<VirtualMachineTemplate>(&());
    setup.keep(served::watch(
        &client,
        &resource,
        Api::all(client.clone()),
        how,
        own.templates.clone(),
        move |change| {
            let uid = change.new.and_then(|template| template.labels().get(REQUEST_UID));
            wake.add_all(uid.into_iter().flat_map(|uid| held.keys_by_index(&by_uid(uid))));
        },
    ));
    let (stores, held) = (own.context.stores.clone(), own.clone());
    let known = async move {
        tokio::join!(
            stores.snapshots.synced(),
            stores.data_volumes.synced(),
            held.requests.synced(),
            held.templates.synced()
        );
    };
    setup.work(queue, 1, known, move |key| reconcile(own.clone(), key));
}

fn wakes(changes: &mut Changes, requests: &Store<VirtualMachineTemplateRequest>, queue: &Queue<Key>) {
    fn uid_of<K: Resource>(object: Option<&K>) -> Option<String> {
        object?.meta().labels.as_ref()?.get(REQUEST_UID).map(|uid| by_uid(uid))
    }
    let held = requests.clone();
    changes.snapshots.wake(queue, move |_, change| {
        uid_of(change.new).into_iter().flat_map(|uid| held.keys_by_index(&uid)).collect::<Vec<_>>()
    });
    let held = requests.clone();
    changes.data_volumes.wake(queue, move |_, change| {
        uid_of(change.new).into_iter().flat_map(|uid| held.keys_by_index(&uid)).collect::<Vec<_>>()
    });
}

/// Templates are large.
fn trim_template(template: &mut VirtualMachineTemplate) {
    store::trim(template);
    template.spec = Default::default();
    template.metadata.annotations = None;
}

async fn reconcile(own: Requests, key: Key) -> Next {
    error::settled(KIND, &key, Box::pin(sync(&own, &key)).await)
}

async fn sync(own: &Requests, key: &Key) -> Result<Next, Error> {
    let Some(request) = own.requests.get(key) else { return Ok(Next::Wait) };
    if request.metadata.deletion_timestamp.is_some() {
        return let_go(own, &request).await.map(|()| Next::Wait);
    }
    let now = clock::seconds(clock::now());
    if let Some(rest) = plan::finished(&request, now) {
        return match rest {
            plan::Rest::Stays => Ok(Next::Wait),
            plan::Rest::Goes(later) if !later.is_zero() => Ok(Next::After(later)),
            plan::Rest::Goes(_) => {
                delete::<VirtualMachineTemplateRequest>(own, KIND, key, None).await.map(|()| Next::Wait)
            }
        };
    }
    if !request.finalizers().iter().any(|held| held == FINALIZER) {
        return hold(own, &request).await.map(|()| Next::Wait);
    }
    let world = look(own, &request).await?;
    let Plan { step, status } = plan::plan(&request, &world, now);
    match step {
        Step::None => {}
        Step::Snapshot(wanted) => {
            let made = create(own, "virtualmachinesnapshot", &*wanted).await?;
            own.context.stores.snapshots.put(&made, snapshot_indexes(&made));
        }
        Step::Volumes(wanted) => {
            for volume in wanted {
                let made = create(own, "datavolume", &volume).await?;
                own.context.stores.data_volumes.put(&made, Vec::new());
            }
        }
        Step::Template(wanted) => {
            let mut made = create(own, "virtualmachinetemplate", &*wanted).await?;
            trim_template(&mut made);
            own.templates.put(&made, Vec::new());
        }
        Step::HandOver => hand_over(own, &request, &world).await?,
    }
    write_status(own, &request, &status).await?;
    Ok(Next::Wait)
}

/// What `request` is about, as it is now.
async fn look(own: &Requests, request: &VirtualMachineTemplateRequest) -> Result<World, Error> {
    let stores = &own.context.stores;
    let namespace = request.namespace().unwrap_or_default();
    let source = &request.spec.virtual_machine_ref;
    let template = own.templates.get(&Key::new(namespace.as_str(), plan::template_name(request)));
    let snapshot = stores.snapshots.get(&Key::new(source.namespace.as_str(), plan::snapshot_name(request)));
    let mut world = World { template, snapshot, ..World::default() };
    match &world.snapshot {
        Some(found) => {
            world.content = snapshot::find_content(&own.context, found).await?;
            for name in plan::volume_names(request, world.content.as_ref()) {
                let held = stores.data_volumes.get(&Key::new(namespace.as_str(), name.as_str()));
                world.volumes.extend(held.map(|volume| (name, volume)));
            }
        }
        None if world.template.is_some() => {}
        None => {
            let machines: Api<VirtualMachine> = Api::namespaced(own.context.client.clone(), &source.namespace);
            let found = machines.get_metadata_opt(&source.name).await;
            let found = found.map_err(Error::api("get", "virtualmachine", &source.namespace, &source.name))?;
            world.has_machine = found.is_some();
        }
    }
    Ok(world)
}

/// The disks go with the template from now on, and the request as well; the snapshot is not needed any more.
async fn hand_over(own: &Requests, request: &VirtualMachineTemplateRequest, world: &World) -> Result<(), Error> {
    let Some(template) = &world.template else { return Ok(()) };
    let owner = plan::owner(template);
    let namespace = request.namespace().unwrap_or_default();
    let (client, how) = (own.context.client.clone(), PatchParams::default());
    let change = Patch::Merge(json!({ "metadata": { "ownerReferences": [owner] } }));
    let volumes: Api<DataVolume> = Api::namespaced(client.clone(), &namespace);
    for name in plan::to_hand_over(request, world) {
        let done = volumes.patch(&name, &how, &change).await;
        let done = done.map_err(Error::api("patch", "datavolume", &namespace, &name))?;
        own.context.stores.data_volumes.put(&done, Vec::new());
    }
    let requests: Api<VirtualMachineTemplateRequest> = Api::namespaced(client, &namespace);
    let name = request.name_any();
    let mut owner = json!(owner);
    // It is deleted with the template, and keeps nobody from deleting that.
    owner["controller"] = json!(false);
    owner["blockOwnerDeletion"] = json!(false);
    let change = Patch::Merge(json!({ "metadata": { "ownerReferences": [owner] } }));
    requests.patch(&name, &how, &change).await.map_err(Error::api("patch", KIND, &namespace, &name))?;
    delete_snapshot(own, request).await
}

async fn delete_snapshot(own: &Requests, request: &VirtualMachineTemplateRequest) -> Result<(), Error> {
    let key = Key::new(request.spec.virtual_machine_ref.namespace.as_str(), plan::snapshot_name(request));
    let Some(found) = own.context.stores.snapshots.get(&key) else { return Ok(()) };
    // One that somebody else made under that name is his.
    if found.labels().get(REQUEST_UID) != request.uid().as_ref() {
        return Ok(());
    }
    delete::<VirtualMachineSnapshot>(own, "virtualmachinesnapshot", &key, found.uid()).await
}

/// Once the snapshot is deleted, the request may go.
async fn let_go(own: &Requests, request: &VirtualMachineTemplateRequest) -> Result<(), Error> {
    if !request.finalizers().iter().any(|held| held == FINALIZER) {
        return Ok(());
    }
    delete_snapshot(own, request).await?;
    let left: Vec<&String> = request.finalizers().iter().filter(|held| *held != FINALIZER).collect();
    patch_finalizers(own, request, json!(left)).await
}

async fn hold(own: &Requests, request: &VirtualMachineTemplateRequest) -> Result<(), Error> {
    let mut held: Vec<&str> = request.finalizers().iter().map(String::as_str).collect();
    held.push(FINALIZER);
    patch_finalizers(own, request, json!(held)).await
}

async fn patch_finalizers(
    own: &Requests,
    request: &VirtualMachineTemplateRequest,
    finalizers: serde_json::Value,
) -> Result<(), Error> {
    let (namespace, name) = (request.namespace().unwrap_or_default(), request.name_any());
    let api: Api<VirtualMachineTemplateRequest> = Api::namespaced(own.context.client.clone(), &namespace);
    let version = &request.metadata.resource_version;
    let change = json!({ "metadata": { "resourceVersion": version, "finalizers": finalizers } });
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => done.map(drop).map_err(Error::api("patch", KIND, &namespace, &name)),
    }
}

async fn write_status(
    own: &Requests,
    request: &VirtualMachineTemplateRequest,
    wanted: &api::template::request::Status,
) -> Result<(), Error> {
    if request.status.as_ref() == Some(wanted) {
        return Ok(());
    }
    let (namespace, name) = (request.namespace().unwrap_or_default(), request.name_any());
    let api: Api<VirtualMachineTemplateRequest> = Api::namespaced(own.context.client.clone(), &namespace);
    let change = Patch::Merge(json!({ "status": wanted }));
    let done = api.patch_status(&name, &PatchParams::default(), &change).await;
    done.map(drop).map_err(Error::api("patch", KIND, &namespace, &name))
}

/// Makes `wanted`, or finds what is there under its name, whoever made it: the plan looks whose it is.
async fn create<K>(own: &Requests, kind: &'static str, wanted: &K) -> Result<K, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let (namespace, name) = (wanted.namespace().unwrap_or_default(), wanted.name_any());
    let api: Api<K> = Api::namespaced(own.context.client.clone(), &namespace);
    let failed = || Error::api("create", kind, &namespace, &name);
    let body = serde_json::to_value(wanted).and_then(|mut object| {
        (object["apiVersion"], object["kind"]) = (json!(K::api_version(&())), json!(K::kind(&())));
        serde_json::to_vec(&object)
    });
    let body = body.map_err(|error| failed()(kube::Error::SerdeError(error)))?;
    let request = Request::new(K::url_path(&(), Some(&namespace))).create(&PostParams::default(), body);
    let request = request.map_err(|error| failed()(kube::Error::BuildRequest(error)))?;
    let made = match own.context.client.request::<K>(request).await {
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => api.get(&name).await,
        made => made,
    };
    let mut made = made.map_err(failed())?;
    made.meta_mut().managed_fields = None;
    Ok(made)
}

/// Deletes the object, and no other that has its name meanwhile.
async fn delete<K>(own: &Requests, kind: &'static str, key: &Key, uid: Option<String>) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(own.context.client.clone(), &key.namespace);
    let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), ..Preconditions::default() });
    let how = DeleteParams { preconditions, ..DeleteParams::default() };
    match api.delete(&key.name, &how).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("delete", kind, &key.namespace, &key.name)(error)),
        Ok(_) => Ok(()),
    }
}
