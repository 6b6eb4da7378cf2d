//! The webhooks: what is looked up, judged and signed for each.

use std::sync::Arc;

use api::cdi::constants::{annotation, label};
use api::cdi::v1beta1::{CDI, DataSource, DataVolume, ObjectTransfer};
use axum::Router;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::admission::{self, Cause, Request, Verdict};
use kit::{Chain, clock};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use origin::follow::{self, Dead};
use serde_json::{Value, json};

use super::validate::{cron, datavolume, deny, installation, populator, read, transfer};
use super::{Context, clone, look, render};
use crate::token;

/// A refusal, or that the cluster could not be asked; both are answers.
type Judged = Result<Verdict, Verdict>;

fn unanswered(error: kube::Error) -> Verdict {
    match error {
        kube::Error::Api(status) => deny(status.message.clone()),
        error => deny(Chain(&error).to_string()),
    }
}

/// Every webhook.
pub(crate) fn router(context: &Arc<Context>) -> Router {
    let router = admission::route(Router::new(), "/dataimportcron-validate", cron::judge);
    let router = admission::route(router, "/populator-validate", populator::judge);
    let router = admission::route(router, "/datasource-validate", data_source);
    let held = context.clone();
    let router = admission::route_looking(router, "/datavolume-validate", move |request| {
        let context = held.clone();
        async move { merge(validate(&context.client, &request).await) }
    });
    let held = context.clone();
    let router = admission::route_looking(router, "/datavolume-mutate", move |request| {
        let context = held.clone();
        async move { merge(mutate(&context, &request).await) }
    });
    let held = context.clone();
    let router = admission::route_looking(router, "/cdi-validate", move |request| {
        let context = held.clone();
        async move { merge(installation(&context.client, &request).await) }
    });
    let held = context.clone();
    let router = admission::route_looking(router, "/pvc-mutate", move |request| {
        let context = held.clone();
        async move { merge(claim(&context.client, &request).await) }
    });
    let held = context.clone();
    admission::route_looking(router, "/objecttransfer-validate", move |request| {
        let context = held.clone();
        async move { merge(object_transfer(&context.client, &request).await) }
    })
}

fn merge(judged: Judged) -> Verdict {
    judged.unwrap_or_else(|refused| refused)
}

/// Name and namespace: the object has neither where the request alone says so.
fn place<'a>(request: &'a Request, volume: &'a DataVolume) -> (&'a str, &'a str) {
    let namespace = volume.metadata.namespace.as_deref().unwrap_or(&request.namespace);
    (namespace, volume.metadata.name.as_deref().unwrap_or(&request.name))
}

async fn validate(client: &Client, request: &Request) -> Judged {
    let volume: DataVolume = read(&request.object)?;
    if request.operation == "UPDATE" {
        let old: DataVolume = read(&request.old_object)?;
        return Ok(datavolume::judge(request, &volume, Some(&old), &datavolume::Seen::default()));
    }
    let (namespace, name) = place(request, &volume);
    let seen = look::volume(client, &volume, namespace, name).await.map_err(unanswered)?;
    Ok(datavolume::judge(request, &volume, None, &seen))
}

/// A DataVolume that clones carries the word that its maker may.
async fn mutate(context: &Context, request: &Request) -> Judged {
    let volume: DataVolume = read(&request.object)?;
    if request.operation != "CREATE" || volume.metadata.deletion_timestamp.is_some() {
        return Ok(Verdict::allow());
    }
    let (namespace, name) = place(request, &volume);
    if clone::is_filled(&volume) {
        return Ok(Verdict::allow());
    }
    let filled = clone::comes_filled(&volume);
    let source = match follow::live(&context.client, &volume.spec, namespace).await.map_err(unanswered)? {
        Some(Ok(end)) => end.source,
        // What names nothing yet is refused by the look of it.
        Some(Err(Dead::Empty(_))) | None => return Ok(Verdict::allow()),
        Some(Err(_)) if filled => return Ok(Verdict::allow()),
        Some(Err(dead)) => return Ok(Verdict::Invalid(vec![look::dead(&dead)])),
    };
    match clone::refusal(&context.client, &request.user_info, &source, namespace).await {
        Ok(None) => {}
        Ok(Some(_)) | Err(_) if filled => return Ok(Verdict::allow()),
        Ok(Some(message)) => {
            let field = "spec.source.PVC.namespace".to_owned();
            return Ok(Verdict::Invalid(vec![Cause { reason: "FieldValueInvalid", field, message }]));
        }
        Err(error) => return Err(unanswered(error)),
    }
    let payload = clone::payload(&source, namespace, name);
    let token = context.signer.sign(token::ISSUER_APISERVER, payload, clock::now(), token::LIFETIME);
    let token = token.map_err(|error| deny(error.to_string()))?;
    Ok(Verdict::Patch(annotate(&request.object, annotation::CLONE_TOKEN, &token)))
}

fn annotate(object: &Value, key: &str, value: &str) -> Value {
    if object.pointer("/metadata/annotations").is_some_and(Value::is_object) {
        let path = format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"));
        return json!([{ "op": "add", "path": path, "value": value }]);
    }
    json!([{ "op": "add", "path": "/metadata/annotations", "value": { (key): value } }])
}

async fn installation(client: &Client, request: &Request) -> Judged {
    if request.operation != "DELETE" {
        let cdi: CDI = read(&request.object)?;
        // Whoever is being deleted has nothing to say any more but that it is over.
        let ends = cdi.metadata.deletion_timestamp.is_some();
        return Ok(if ends { Verdict::allow() } else { installation::judge(&cdi) });
    }
    let cdi: CDI = read(&request.old_object)?;
    let left = installation::blocks(&cdi) && {
        let volumes = Api::<DataVolume>::all(client.clone()).list_metadata(&ListParams::default().limit(1)).await;
        match volumes {
            Ok(volumes) => !volumes.items.is_empty(),
            // Without the kind there is nothing to protect.
            Err(kube::Error::Api(status)) if status.code == 404 => false,
            Err(error) => return Err(unanswered(error)),
        }
    };
    Ok(installation::delete(&cdi, left))
}

async fn object_transfer(client: &Client, request: &Request) -> Judged {
    let new: ObjectTransfer = read(&request.object)?;
    if request.operation == "UPDATE" {
        let old: ObjectTransfer = read(&request.old_object)?;
        let changed = new.spec != old.spec;
        return Ok(if changed { deny("ObjectTransfer spec is immutable") } else { Verdict::allow() });
    }
    let target = transfer::target(&new).map_err(deny)?;
    let (namespace, name) = (&target.namespace, &target.name);
    let there = match target.kind.as_str() {
        "DataVolume" => {
            Api::<DataVolume>::namespaced(client.clone(), namespace).get_opt(name).await.map(|o| o.is_some())
        }
        _ => {
            let api = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
            api.get_opt(name).await.map(|found| found.is_some())
        }
    };
    if there.map_err(unanswered)? {
        return Ok(deny(format!("ObjectTransfer target \"{namespace}/{name}\" already exists")));
    }
    Ok(Verdict::allow())
}

async fn claim(client: &Client, request: &Request) -> Judged {
    let asked: PersistentVolumeClaim = read(&request.object)?;
    let labels = asked.metadata.labels.as_ref();
    if request.operation != "CREATE"
        || labels.is_none_or(|labels| labels.get(label::APPLY_STORAGE_PROFILE).is_none_or(|value| value != "true"))
    {
        return Ok(Verdict::allow());
    }
    render::claim(client, asked).await.map_err(unanswered)
}

/// A DataSource that points to itself names nothing.
fn data_source(request: &Request) -> Verdict {
    let source: DataSource = match read(&request.object) {
        Ok(source) => source,
        Err(refused) => return refused,
    };
    let Some(pointer) = &source.spec.source.data_source else { return Verdict::allow() };
    let own = (source.metadata.namespace.as_deref().unwrap_or(&request.namespace), source.name_any());
    if (pointer.namespace.as_str(), &pointer.name) == (own.0, &own.1) {
        return Verdict::Invalid(vec![Cause {
            reason: "FieldValueNotSupported",
            field: "DataSource.Spec.Source.DataSource".to_owned(),
            message: "DataSource cannot point to itself".to_owned(),
        }]);
    }
    Verdict::allow()
}
