//! Who may have a copy: whoever could read the source anyway, because they may create pods beside it, or whom its namespace lets.

use api::kubevirt::v1::VirtualMachine;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use kit::admission::UserInfo;
use kube::api::PostParams;
use kube::{Api, Client, Resource, ResourceExt};

use crate::Source;

/// What virt-api notes on a VM, and nobody else can: the sources that users who wrote its templates may copy, where their account may not.
pub const COPIES_ALLOWED: &str = "ferrovirt.io/copies-allowed";

/// The configuration of the webhook that notes.
pub const WEBHOOKS: &str = "virt-api-mutator";
/// How long an API server may go without calling a webhook that it was told of, in seconds.
const UNHEARD: i64 = 3;

/// The service account `name` of `namespace`, as a user.
pub fn account(namespace: &str, name: &str) -> UserInfo {
    UserInfo {
        username: format!("system:serviceaccount:{namespace}:{name}"),
        groups: vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ],
        ..UserInfo::default()
    }
}

/// The account that copies for `vm` of `namespace`: the one it is given by a volume, else its namespace's own.
pub fn account_of(vm: &VirtualMachine, namespace: &str) -> UserInfo {
    let volumes = vm.spec.template.spec.as_deref().map(|spec| spec.volumes.as_slice()).unwrap_or_default();
    let mut given =
        volumes.iter().filter_map(|volume| volume.service_account.as_ref()?.service_account_name.as_deref());
    account(namespace, given.next_back().filter(|name| !name.is_empty()).unwrap_or("default"))
}

/// True when virt-api has noted on `vm` that a user who wrote it may copy `source`.
pub fn is_noted(vm: &VirtualMachine, source: &Source) -> bool {
    let noted = vm.annotations().get(COPIES_ALLOWED).map(String::as_str).unwrap_or_default();
    noted.split(',').any(|one| one == source.to_string())
}

/// Whether the webhook has seen all that was ever written of `object`: then nobody else wrote its note. One that was there before the webhooks that
/// are there now may have got its note while there were none.
///
/// # Errors
/// When the cluster cannot be asked.
pub async fn is_witnessed(client: &Client, object: &impl Resource) -> kube::Result<bool> {
    Ok(saw(since(client).await?.as_ref(), object.meta().creation_timestamp.as_ref()))
}

/// Whether the webhooks were asked about the spec that an object with this metadata has: when it was made, or when its spec was written anew. The
/// metadata has to be as the API server has it, with who manages which fields.
///
/// # Errors
/// When the cluster cannot be asked.
pub async fn is_judged(client: &Client, metadata: &ObjectMeta) -> kube::Result<bool> {
    Ok(judged(since(client).await?.as_ref(), metadata))
}

async fn since(client: &Client) -> kube::Result<Option<Time>> {
    let webhooks = Api::<MutatingWebhookConfiguration>::all(client.clone()).get_opt(WEBHOOKS).await?;
    Ok(webhooks.and_then(|webhooks| webhooks.metadata.creation_timestamp))
}

fn judged(webhooks: Option<&Time>, metadata: &ObjectMeta) -> bool {
    let mut entries = metadata.managed_fields.iter().flatten();
    // How many are wanted is written through a subresource, about which nobody is asked.
    let whole = |entry: &ManagedFieldsEntry| entry.subresource.as_deref().unwrap_or_default().is_empty();
    let of_spec =
        |entry: &ManagedFieldsEntry| entry.fields_v1.as_ref().is_some_and(|all| all.0.get("f:spec").is_some());
    saw(webhooks, metadata.creation_timestamp.as_ref())
        || entries.any(|entry| whole(entry) && of_spec(entry) && saw(webhooks, entry.time.as_ref()))
}

fn saw(webhooks: Option<&Time>, written: Option<&Time>) -> bool {
    webhooks.zip(written).is_some_and(|(webhooks, written)| written.0.as_second() - webhooks.0.as_second() > UNHEARD)
}

/// Why `user` may not copy `source` into `namespace`; none when they may.
///
/// # Errors
/// When the cluster cannot be asked.
pub async fn refusal(
    client: &Client,
    user: &UserInfo,
    source: &Source,
    namespace: &str,
) -> kube::Result<Option<String>> {
    if source.namespace == namespace {
        return Ok(None);
    }
    for all in ways(source) {
        let mut granted = true;
        for attributes in all {
            granted = granted && allowed(client, user, attributes).await?;
        }
        if granted {
            return Ok(None);
        }
    }
    let (user, at) = (&user.username, &source.namespace);
    Ok(Some(format!("User {user} has insufficient permissions in clone source namespace {at}")))
}

/// Any of these is enough; of each, everything is needed.
fn ways(source: &Source) -> [Vec<ResourceAttributes>; 2] {
    let create = |group: &str, resource: &str, subresource: Option<&str>, name: Option<&String>| ResourceAttributes {
        namespace: Some(source.namespace.clone()),
        verb: Some("create".to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: subresource.map(str::to_owned),
        name: name.cloned(),
        ..ResourceAttributes::default()
    };
    let said = create("cdi.kubevirt.io", "datavolumes", Some("source"), Some(&source.name));
    let mut implied = vec![create("", "pods", None, None)];
    if source.snapshot {
        implied.push(create("", "persistentvolumeclaims", None, None));
    }
    [vec![said], implied]
}

/// Whether `user` may do what `attributes` describe.
///
/// # Errors
/// When the API server cannot be asked.
pub async fn allowed(client: &Client, user: &UserInfo, attributes: ResourceAttributes) -> kube::Result<bool> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.username.clone()),
            groups: Some(user.groups.clone()),
            uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = Api::<SubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed && !status.denied.unwrap_or(false)))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn a_spec_that_was_written_anew_since_is_judged() {
        let check = |entry: serde_json::Value, expect: bool| {
            let webhooks: Time = from_value(json!("2026-01-01T00:00:10Z")).unwrap();
            let mut entry = entry;
            entry["manager"] = json!("m");
            let metadata = json!({ "creationTimestamp": "2025-01-01T00:00:00Z", "managedFields": [entry] });
            assert_eq!(judged(Some(&webhooks), &from_value(metadata).unwrap()), expect);
        };
        let (spec, later) = (json!({ "f:spec": { "f:template": {} } }), "2026-01-01T00:01:00Z");
        check(json!({ "time": later, "fieldsV1": spec }), true);
        check(json!({ "time": "2026-01-01T00:00:00Z", "fieldsV1": spec }), false);
        check(json!({ "time": later, "fieldsV1": spec, "subresource": "scale" }), false);
        check(json!({ "time": later, "fieldsV1": { "f:metadata": {} } }), false);
    }

    #[test]
    fn a_note_counts_where_the_webhooks_were_before_the_machine() {
        let check = |webhooks: Option<&str>, vm: Option<&str>, expect: bool| {
            let read = |text: Option<&str>| text.map(|text| from_value::<Time>(json!(text)).unwrap());
            assert_eq!(saw(read(webhooks).as_ref(), read(vm).as_ref()), expect, "{webhooks:?} {vm:?}");
        };
        let at = Some("2026-01-01T00:00:10Z");
        check(at, Some("2026-01-01T00:01:00Z"), true);
        check(at, Some("2026-01-01T00:00:14Z"), true);
        // The API server may not have called them yet.
        check(at, Some("2026-01-01T00:00:13Z"), false);
        check(at, at, false);
        check(at, Some("2025-01-01T00:00:00Z"), false);
        check(None, at, false);
        check(at, None, false);
    }
}
