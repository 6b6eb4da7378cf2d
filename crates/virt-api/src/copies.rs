//! What the disks of a VM are copied from, and whether whoever writes the VM may have the copies.
//!
//! The user is known at admission only, and the copies are made later, by virt-controller. So what the user may is noted on the VM: by the
//! mutating webhook alone, which takes the note from nobody.
//!
//! | who writes | the note afterwards |
//! |---|---|
//! | a user, other templates than before | of what they name: what it held, and what this user may |
//! | a user, the same templates | what it held |
//! | a component of ours | what it held; nothing on a new VM |

use api::cdi::v1beta1::DataVolumeSpec;
use api::kubevirt::v1::VirtualMachine;
use kit::Chain;
use kit::admission::{Cause, Request, UserInfo, Verdict};
use kube::Client;
use origin::{Source, follow, leave};
use serde_json::{Value, json};

use crate::validate::deleting;

const TEMPLATES: &str = "/spec/dataVolumeTemplates";

/// The object of `request` with the note that it is to have.
///
/// # Errors
/// The answer, when the cluster cannot be asked.
pub(crate) async fn note(client: &Client, request: &Request, component: bool) -> Result<Value, Verdict> {
    let held = copies_allowed(&request.old_object);
    let mut object = request.object.clone();
    let note = if component || deleting(&request.object) || !changes(request) {
        held.to_owned()
    } else {
        let mut allowed = Vec::new();
        for (_, source) in foreign(client, request).await? {
            let kept = held.split(',').any(|one| one == source.to_string());
            // What its own account may is asked when the copy is made.
            if kept
                || (!may(client, &account(request), &source, request).await?
                    && may(client, &request.user_info, &source, request).await?)
            {
                allowed.push(source.to_string());
            }
        }
        allowed.sort();
        allowed.dedup();
        allowed.join(",")
    };
    let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    match annotations {
        Some(annotations) if note.is_empty() => drop(annotations.remove(leave::COPIES_ALLOWED)),
        Some(annotations) => drop(annotations.insert(leave::COPIES_ALLOWED.to_owned(), json!(note))),
        None if note.is_empty() => {}
        None => object["metadata"]["annotations"] = json!({ (leave::COPIES_ALLOWED): note }),
    }
    Ok(object)
}

/// `verdict`, unless it allows a VM, whose note is as it is to be, that asks for copies which neither a user nor its account may have. A
/// DataSource that is not there yet is judged when it is.
pub(crate) async fn judge(client: &Client, request: &Request, verdict: Verdict) -> Verdict {
    if !matches!(verdict, Verdict::Allow { .. }) || deleting(&request.object) || !changes(request) {
        return verdict;
    }
    match refusals(client, request).await {
        Ok(causes) if causes.is_empty() => verdict,
        Ok(causes) => Verdict::Invalid(causes),
        Err(unanswered) => unanswered,
    }
}

async fn refusals(client: &Client, request: &Request) -> Result<Vec<Cause>, Verdict> {
    let mut causes = Vec::new();
    for (index, source) in foreign(client, request).await? {
        let held = copies_allowed(&request.object).split(',').any(|one| one == source.to_string());
        if held || may(client, &account(request), &source, request).await? {
            continue;
        }
        let (user, at) = (&request.user_info.username, &source.namespace);
        let message = format!(
            "Authorization failed, message is: User {user} has insufficient permissions in clone source namespace {at}: \
             they or {} need to create datavolumes/source of cdi.kubevirt.io there",
            account(request).username
        );
        let field = format!("spec.dataVolumeTemplates[{index}]");
        causes.push(Cause { reason: "FieldValueInvalid", field, message });
    }
    Ok(causes)
}

fn copies_allowed(object: &Value) -> &str {
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    annotations.and_then(|all| all.get(leave::COPIES_ALLOWED)?.as_str()).unwrap_or_default()
}

/// True when templates are written that were not there before.
fn changes(request: &Request) -> bool {
    request.operation == "CREATE" || request.object.pointer(TEMPLATES) != request.old_object.pointer(TEMPLATES)
}

fn account(request: &Request) -> UserInfo {
    let vm: VirtualMachine = serde_json::from_value(request.object.clone()).unwrap_or_default();
    leave::account_of(&vm, &request.namespace)
}

/// What the templates copy out of other namespaces, by their number.
async fn foreign(client: &Client, request: &Request) -> Result<Vec<(usize, Source)>, Verdict> {
    let mut found = Vec::new();
    let templates = request.object.pointer(TEMPLATES).and_then(Value::as_array);
    for (index, template) in templates.into_iter().flatten().enumerate() {
        // What cannot be read is refused for that.
        let Ok(spec) = serde_json::from_value::<DataVolumeSpec>(template["spec"].clone()) else { continue };
        let end = follow::live(client, &spec, &request.namespace).await.map_err(|error| unanswered(&error))?;
        let source = end.and_then(Result::ok).map(|end| end.source);
        found.extend(source.filter(|source| source.namespace != request.namespace).map(|source| (index, source)));
    }
    Ok(found)
}

async fn may(client: &Client, user: &UserInfo, source: &Source, request: &Request) -> Result<bool, Verdict> {
    let asked = leave::refusal(client, user, source, &request.namespace).await;
    asked.map(|why| why.is_none()).map_err(|error| unanswered(&error))
}

fn unanswered(error: &kube::Error) -> Verdict {
    let message = format!("cannot ask what spec.dataVolumeTemplates may copy: {}", Chain(error));
    Verdict::Deny { code: 500, reason: "InternalError", message }
}
