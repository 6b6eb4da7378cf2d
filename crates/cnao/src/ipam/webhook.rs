//! The webhook: a launcher's pod names the claims of its machine, which are there by then, and no others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::v1::VirtualMachineInstance;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kit::Chain;
use kit::admission::{self, Request, UserInfo, Verdict};
use kit::store::Key;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::claim::Unfit;
use super::ensure::{self, ensure};
use super::network::NetworkAttachmentDefinition;
use super::plan::{self, Plan};
use super::pod::{self, Around, Change};

/// Path of the webhook.
pub(super) const PATH: &str = "/mutate-v1-pod";
/// Largest AdmissionReview: two objects of the API server's own limit.
const REVIEW: usize = 4 << 20;
/// The API server waits ten seconds, and then nobody learns why.
const ANSWER: Duration = Duration::from_secs(8);

/// What the handler needs.
pub(super) struct Context {
    pub(super) client: Client,
    /// Namespace of the definition of the pod's own network.
    pub(super) default: String,
}

/// An answer, and a word on it.
type Judged = Result<(Verdict, &'static str), Verdict>;

/// The webhook.
pub(super) fn router(context: Arc<Context>) -> Router {
    Router::new().route(PATH, post(answer)).layer(DefaultBodyLimit::max(REVIEW)).with_state(context)
}

async fn answer(State(context): State<Arc<Context>>, body: Bytes) -> Response {
    let request = match admission::review(&body) {
        Ok(request) => request,
        Err(message) => return (StatusCode::BAD_REQUEST, message).into_response(),
    };
    let judged = timeout(ANSWER, judge(&context, &request)).await;
    let late =
        || deny(504, "Timeout", "the API server did not answer the ipam controller in time: try again".to_owned());
    let (verdict, word) = judged.unwrap_or_else(|_| Err(late())).unwrap_or_else(|refused| (refused, ""));
    let mut review = admission::response(&request.uid, verdict);
    if !word.is_empty() {
        review["response"]["status"] = json!({ "code": 200, "message": word });
    }
    Json(review).into_response()
}

fn deny(code: u16, reason: &'static str, message: String) -> Verdict {
    Verdict::Deny { code, reason, message }
}

fn forbid(message: String) -> Verdict {
    deny(403, "Forbidden", message)
}

fn unanswered(error: &kube::Error) -> Verdict {
    deny(500, "InternalError", format!("cannot read the cluster: {}", Chain(error)))
}

async fn judge(context: &Context, request: &Request) -> Judged {
    let is_new = match request.operation.as_str() {
        "CREATE" => true,
        "UPDATE" => false,
        _ => return Ok((Verdict::allow(), "carry on")),
    };
    let object = &request.object;
    if !is_new && pod::is_unchanged(&request.old_object, object) {
        return Ok((Verdict::allow(), "mutation not needed"));
    }
    let named = pod::named(object).map_err(forbid)?;
    let Some(instance) = pod::instance(object) else {
        // Whoever is not asked about by the policy has to be asked about here.
        return match named {
            Some(claim) => {
                let shown = meta::text::brief(&claim, 64);
                Err(forbid(format!("the pod names the IPAMClaim {shown:?}, and runs no virtual machine: take it out")))
            }
            None => Ok((Verdict::allow(), "not a VM")),
        };
    };
    let namespace = request.namespace.as_str();
    let own = own(&context.client, namespace).await?;
    if named.is_none() && !pod::has_networks(object) && own.is_empty() {
        return Ok((Verdict::allow(), "no mutation required"));
    }
    let vmi = read(context, namespace, instance).await?;
    let plan = plan::plan(&vmi, &definitions(&context.client, namespace, &vmi).await?, &own);
    if let Some(problem) = plan.problems.first() {
        return Err(deny(422, "Invalid", problem.clone()));
    }
    let nothing = BTreeMap::new();
    let around = Around { namespace, uids: &nothing, default: &context.default, is_new };
    // What is refused anyhow is refused before anything is made for it.
    if pod::change(object, &plan, around).map_err(forbid)? == Change::Nothing {
        return Ok((Verdict::allow(), "carry on"));
    }
    controls(&vmi, object).map_err(forbid)?;
    may_run(context, request, instance).await?;
    let uids = claims(context, request, instance, &plan).await?;
    match pod::change(object, &plan, Around { uids: &uids, ..around }).map_err(forbid)? {
        Change::Nothing => Ok((Verdict::allow(), "carry on")),
        Change::Done => Ok((Verdict::allow(), "mutation not needed")),
        Change::Write(all) => Ok((Verdict::Patch(pod::patch(object, &all)), "")),
    }
}

/// All definitions of the pod's namespace: one of them may be its primary network.
async fn own(client: &Client, namespace: &str) -> Result<Vec<NetworkAttachmentDefinition>, Verdict> {
    let api: Api<NetworkAttachmentDefinition> = Api::namespaced(client.clone(), namespace);
    match api.list(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        // The cluster has no such networks.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(unanswered(&error)),
    }
}

async fn read(context: &Context, namespace: &str, instance: &str) -> Result<VirtualMachineInstance, Verdict> {
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), namespace);
    let found = api.get_opt(instance).await.map_err(|error| unanswered(&error))?;
    found.ok_or_else(|| {
        let shown = meta::text::brief(instance, 64);
        forbid(format!("the pod runs VirtualMachineInstance {namespace}/{shown}, which is not there"))
    })
}

/// The definitions that `vmi` names. Its writer was asked whether he may have those of other namespaces.
async fn definitions(
    client: &Client,
    namespace: &str,
    vmi: &VirtualMachineInstance,
) -> Result<BTreeMap<Key, NetworkAttachmentDefinition>, Verdict> {
    let mut out = BTreeMap::new();
    for key in vmi.spec.networks.iter().filter_map(|network| plan::definition(network, namespace)) {
        if out.contains_key(&key) {
            continue;
        }
        let api: Api<NetworkAttachmentDefinition> = Api::namespaced(client.clone(), &key.namespace);
        if let Some(found) = api.get_opt(&key.name).await.map_err(|error| unanswered(&error))? {
            out.insert(key, found);
        }
    }
    Ok(out)
}

/// Whether `vmi` controls the pod.
fn controls(vmi: &VirtualMachineInstance, pod: &Value) -> Result<(), String> {
    let owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let mut controllers = owners.filter(|owner| owner["controller"] == json!(true));
    let uid = vmi.uid().unwrap_or_default();
    let is_own = |owner: &Value| owner["kind"] == "VirtualMachineInstance" && owner["uid"] == uid.as_str();
    if controllers.any(is_own) {
        return Ok(());
    }
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    Err(format!(
        "the pod would have the addresses of VirtualMachineInstance {namespace}/{name}, which does not control it: its pods are made by \
         virt-controller alone"
    ))
}

/// Whether whoever writes the pod may write the instance, too: its guest's addresses are at stake.
async fn may_run(context: &Context, request: &Request, instance: &str) -> Result<(), Verdict> {
    let attributes = ResourceAttributes {
        group: Some("kubevirt.io".to_owned()),
        resource: Some("virtualmachineinstances".to_owned()),
        verb: Some("update".to_owned()),
        namespace: Some(request.namespace.clone()),
        name: Some(instance.to_owned()),
        ..ResourceAttributes::default()
    };
    let UserInfo { username, groups, uid, extra } = request.user_info.clone();
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            user: Some(username.clone()),
            groups: Some(groups),
            uid: Some(uid),
            extra: Some(extra),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(context.client.clone());
    let answer = api.create(&PostParams::default(), &review).await.map_err(|error| unanswered(&error))?;
    if answer.status.is_some_and(|status| status.allowed) {
        return Ok(());
    }
    let namespace = &request.namespace;
    Err(forbid(format!(
        "the pod would have the addresses of VirtualMachineInstance {namespace}/{instance}: User {username:?} cannot update resource \
         \"virtualmachineinstances\" in API group \"kubevirt.io\" in the namespace {namespace:?}"
    )))
}

/// The claims of `plan`, made where they are not there, by name and UID.
async fn claims(
    context: &Context,
    request: &Request,
    machine: &str,
    plan: &Plan,
) -> Result<BTreeMap<String, String>, Verdict> {
    let mut out = BTreeMap::new();
    for wanted in plan.claims() {
        let place = (request.namespace.as_str(), machine);
        let found = ensure(&context.client, place, &plan.owner, wanted, request.dry_run).await;
        let claim = found.map_err(|error| match error {
            ensure::Error::Unfit(Unfit::Leaving(message)) => deny(409, "Conflict", message),
            ensure::Error::Unfit(Unfit::Foreign(message)) => forbid(message),
            other => deny(500, "InternalError", Chain(&other).to_string()),
        })?;
        out.extend(claim.map(|claim| (wanted.name.clone(), claim.uid().unwrap_or_default())));
    }
    Ok(out)
}
