//! VirtualMachineTemplate: whether machines can be made of it, told in its condition Ready. Exports of templates wait for that.

pub mod status;

use api::template::VirtualMachineTemplate;
use kit::queue::{Next, Queue};
use kit::store::{self, Key, Store, Watch};
use kit::{clock, served};
use kube::api::{Patch, PatchParams};
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::json;

use crate::error::{self, Error};
use crate::setup::Setup;

/// What it works with.
#[derive(Clone)]
struct Templates {
    client: Client,
    /// Of each only what its controller said of which generation: what it holds is read when it is judged.
    known: Store<VirtualMachineTemplate>,
}

/// Has templates judged.
pub(crate) fn register(setup: &mut Setup) {
    let own = Templates { client: setup.context.client.clone(), known: Store::default() };
    let queue = Queue::default();
    let (resource, wake) = (ApiResource::erase::<VirtualMachineTemplate>(&()), queue.clone());
    let how = Watch { trim, ..Watch::default() };
    let api = Api::all(own.client.clone());
    setup.keep(served::watch(&own.client, &resource, api, how, own.known.clone(), move |change| {
        wake.add(change.key.clone());
    }));
    let known = own.known.clone();
    setup.work(queue, 1, async move { known.synced().await }, move |key| reconcile(own.clone(), key));
}

/// Templates are large, and there are many.
fn trim(template: &mut VirtualMachineTemplate) {
    store::trim(template);
    template.spec = Default::default();
    (template.metadata.labels, template.metadata.annotations) = (None, None);
}

async fn reconcile(own: Templates, key: Key) -> Next {
    error::settled("virtualmachinetemplate", &key, sync(&own, &key).await)
}

async fn sync(own: &Templates, key: &Key) -> Result<Next, Error> {
    if own.known.get(key).is_none_or(|known| known.metadata.deletion_timestamp.is_some() || status::is_judged(&known)) {
        return Ok(Next::Wait);
    }
    let api: Api<VirtualMachineTemplate> = Api::namespaced(own.client.clone(), &key.namespace);
    let failed = |verb| Error::api(verb, "virtualmachinetemplate", &key.namespace, &key.name);
    let Some(template) = api.get_opt(&key.name).await.map_err(failed("get"))? else { return Ok(Next::Wait) };
    let wanted = status::of(&template, clock::seconds(clock::now()));
    if template.status.as_ref() == Some(&wanted) {
        return Ok(Next::Wait);
    }
    // Onto what was judged: whoever has changed it meanwhile has it judged anew.
    let version = &template.metadata.resource_version;
    let change = json!({ "metadata": { "resourceVersion": version }, "status": wanted });
    let written = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(change)).await;
    match written {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Next::Wait),
        written => written.map(|_| Next::Wait).map_err(failed("patch")),
    }
}
