//! The webhooks: what is looked up for a machine and for a template that is deleted, and what is answered.

use std::sync::Arc;

use axum::Router;
use kit::Chain;
use kit::admission::{self, Cause, Request, Verdict};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::evaluate::{causes, evaluate, warnings};
use super::parent::{self, Found, Reference};
use super::{Context, rules};
use crate::words;

/// Where machines are judged.
pub const MACHINES: &str = "/virtualmachine-validate";
/// Where templates are.
pub const TEMPLATES: &str = "/template-validate";
/// Machines that are asked for at once.
const PAGE: u32 = 500;
/// Machines that a refusal names.
const NAMED: usize = 10;

/// A refusal, or that the cluster could not be asked; both are answers.
type Judged = Result<Verdict, Verdict>;

/// Both webhooks.
pub(super) fn router(context: &Arc<Context>) -> Router {
    let held = context.clone();
    let router = admission::route_looking(Router::new(), MACHINES, move |request| {
        let context = held.clone();
        async move {
            let verdict = machine(&context, &request).await.unwrap_or_else(|refused| refused);
            if matches!(verdict, Verdict::Invalid(_) | Verdict::Deny { .. }) {
                context.rejected.inc();
            }
            verdict
        }
    });
    let held = context.clone();
    admission::route_looking(router, TEMPLATES, move |request| {
        let context = held.clone();
        async move { template(&context, &request).await.unwrap_or_else(|refused| refused) }
    })
}

fn unanswered(error: kube::Error) -> Verdict {
    let message = match error {
        kube::Error::Api(status) => status.message.clone(),
        error => Chain(&error).to_string(),
    };
    Verdict::Deny { code: 500, reason: "InternalError", message }
}

async fn machine(context: &Context, request: &Request) -> Judged {
    let machine = &request.object;
    let annotation = |key: &str| machine["metadata"]["annotations"].get(key);
    let over = machine["metadata"].get("deletionTimestamp").is_some_and(|time| !time.is_null());
    if !machine.is_object() || over || annotation(words::SKIP_VALIDATIONS).is_some() {
        return Ok(Verdict::allow());
    }
    let mut remarks = Vec::new();
    let (text, place) = match annotation(words::VALIDATIONS).and_then(Value::as_str) {
        Some(own) => (Some(own.to_owned()), format!("metadata.annotations[{}]", words::VALIDATIONS)),
        None => {
            let Some(reference) = parent::reference(machine) else { return Ok(Verdict::allow()) };
            let Reference { namespace, name } = &reference;
            let at = (request.namespace.as_str(), context.common.as_str());
            let found = parent::rules(&context.client, &request.user_info, at, &reference).await.map_err(unanswered)?;
            let text = match found {
                Found::Rules(text) => text,
                Found::Closed => {
                    let user = &request.user_info.username;
                    remarks.push(format!(
                        "{}: {user} may not read template {namespace}/{name}: no rules of it are applied",
                        words::TEMPLATE
                    ));
                    None
                }
            };
            (text, format!("annotation {} of template {namespace}/{name}", words::TEMPLATE_VALIDATIONS))
        }
    };
    let entries = rules::parse(text.as_deref().unwrap_or_default()).map_err(|error| {
        let message = format!("{place}: {error}; correct it, or annotate the machine with {}", words::SKIP_VALIDATIONS);
        Verdict::Invalid(vec![Cause { reason: "FieldValueInvalid", field: place.clone(), message }])
    })?;
    let reports = evaluate(&entries, machine);
    let wrong = causes(&reports);
    if !wrong.is_empty() {
        return Ok(Verdict::Invalid(wrong));
    }
    remarks.extend(warnings(&reports));
    Ok(Verdict::Allow { warnings: remarks })
}

/// A template that comes with the cluster stays as long as machines are held to its rules.
async fn template(context: &Context, request: &Request) -> Judged {
    let metadata = &request.old_object["metadata"];
    if request.operation != "DELETE" || metadata["labels"][words::TYPE] != words::BASE {
        return Ok(Verdict::allow());
    }
    let held = machines(context, &request.namespace, &request.name).await.map_err(unanswered)?;
    if held.is_empty() {
        return Ok(Verdict::allow());
    }
    let mut named = held.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if held.len() > NAMED {
        named.push_str(", and more");
    }
    let message =
        format!("Template cannot be deleted, because the following VMs are referencing it for validation: {named}");
    Ok(Verdict::Deny { code: 403, reason: "Forbidden", message })
}

/// Machines that are held to the rules of a template, one more than is told of at most. Only those count that may follow the
/// reference without leave: a tenant keeps no template of others from being deleted by naming it.
async fn machines(context: &Context, namespace: &str, name: &str) -> kube::Result<Vec<String>> {
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachine"),
        "virtualmachines",
    );
    let api: Api<DynamicObject> = match namespace == context.common {
        true => Api::all_with(context.client.clone(), &resource),
        false => Api::namespaced_with(context.client.clone(), namespace, &resource),
    };
    let wanted = Reference { namespace: namespace.to_owned(), name: name.to_owned() };
    let mut held = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = match api.list_metadata(&page).await {
            // Without the kind there are none.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(held),
            list => list?,
        };
        for machine in list.items {
            let metadata = json!({ "metadata": { "labels": machine.labels(), "annotations": machine.annotations() } });
            let own = [words::VALIDATIONS, words::SKIP_VALIDATIONS];
            let free = own.iter().any(|key| machine.annotations().contains_key(*key));
            if !free && parent::reference(&metadata).as_ref() == Some(&wanted) {
                held.push(format!("{}/{}", machine.namespace().unwrap_or_default(), machine.name_any()));
            }
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) if held.len() <= NAMED => page = page.continue_token(&token),
            _ => return Ok(held),
        }
    }
}
