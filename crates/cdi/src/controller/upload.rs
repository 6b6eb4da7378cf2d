//! Takes uploads in: for a claim that asks for one, a server with a certificate of its own, and the Service it is reached by.

pub mod certificate;
pub mod pod;

use std::time::Duration;

use api::cdi::constants::annotation;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret, Service};
use kit::clock;
use kit::queue::Next;
use kube::{Api, ResourceExt};

use crate::Error;
use crate::controller::context::{Context, owner_index, reference};
use crate::controller::import::{self, Step};
use crate::controller::settings;
use crate::controller::worker::{self, Environment};
use crate::controller::write::{self, Changes};

/// How long a server waits for its upload to begin. Then another takes its place, with a certificate of its own.
const WAITS: Duration = Duration::from_secs(24 * 60 * 60);

/// Brings the upload server of one claim in line.
pub async fn sync(context: &Context, claim: &PersistentVolumeClaim) -> Result<Next, Error> {
    let settings = context.settings();
    let waits = settings::waits_for_consumer(context.class_of(claim).as_ref());
    let pod = server(context, claim);
    match import::step(claim, pod.as_ref(), import::reachable(claim, waits, settings.honor_first_consumer)) {
        Step::Wait => Ok(Next::Wait),
        Step::Start => start(context, claim, &settings).await,
        Step::Follow => {
            let Some(pod) = pod else { return Ok(Next::Wait) };
            let seen = import::status::seen(claim, &pod);
            write::annotate(context, claim, seen.annotations, seen.labels).await?;
            if seen.done {
                let copied = claim.annotations().contains_key(annotation::CLONE_REQUEST);
                let (reason, message) = if copied {
                    ("CloneSucceeded", "Clone Complete")
                } else {
                    ("UploadSucceeded", "Upload Successful")
                };
                context.recorder.normal(&reference(claim), reason, message);
            }
            if seen.discard {
                end(context, claim, &pod).await?;
            }
            if seen.done || seen.discard {
                return Ok(Next::Wait);
            }
            Ok(Next::After(certificate::refresh(context, claim).await?))
        }
        Step::Discard => {
            if let Some(pod) = &pod {
                end(context, claim, pod).await?;
            }
            Ok(Next::Wait)
        }
    }
}

/// The server of a claim that asks for no upload any more goes.
pub async fn withdraw(context: &Context, claim: &PersistentVolumeClaim) -> Result<Next, Error> {
    if let Some(pod) = server(context, claim) {
        end(context, claim, &pod).await?;
    }
    Ok(Next::Wait)
}

fn server(context: &Context, claim: &PersistentVolumeClaim) -> Option<Pod> {
    let name = pod::name(claim);
    let owned = context.pods.by_index(&owner_index(&claim.uid().unwrap_or_default()));
    owned.into_iter().find(|pod| pod.name_any() == name)
}

async fn start(context: &Context, claim: &PersistentVolumeClaim, settings: &settings::Settings) -> Result<Next, Error> {
    if import::is_occupied(context, claim, "UploadTargetInUse") {
        return Ok(Next::After(worker::AGAIN));
    }
    let render = || Error::setup("render an upload server");
    certificate::provide(context, claim).await?;
    write::create(context, &pod::service(claim).map_err(render())?).await?;
    let placement = context.placement();
    let environment =
        Environment { image: &context.image, pull_policy: &context.pull_policy, settings, placement: &placement };
    let deadline = clock::seconds(clock::now() + WAITS);
    let server = pod::render(claim, deadline, &environment).map_err(render())?;
    if !write::create_worker(context, claim, &server, worker::RUNS).await? {
        return Ok(Next::After(worker::AGAIN));
    }
    let changes: Changes = [(annotation::UPLOAD_POD, server.name_any()), (annotation::POD_PHASE, "Pending".to_owned())]
        .map(|(key, value)| (key.to_owned(), Some(value)))
        .into();
    write::annotate(context, claim, changes, Changes::new()).await?;
    Ok(Next::Wait)
}

/// The server has done its work: it goes, and what led to it.
async fn end(context: &Context, claim: &PersistentVolumeClaim, pod: &Pod) -> Result<(), Error> {
    let namespace = claim.namespace().unwrap_or_default();
    let name = pod::name(claim);
    write::delete(context, pod).await?;
    let services: Api<Service> = Api::namespaced(context.client.clone(), &namespace);
    if let Some(service) = services.get_opt(&name).await.map_err(Error::api("read", "Service", &name))? {
        write::delete(context, &service).await?;
    }
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    if let Some(secret) = secrets.get_opt(&name).await.map_err(Error::api("read", "Secret", &name))? {
        write::delete(context, &secret).await?;
    }
    Ok(())
}
