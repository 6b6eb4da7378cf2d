//! The webhooks: what a request wants is read, reserved and written into it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use jiff::Timestamp;
use kit::admission::{self, Request, Verdict};
use kit::{Chain, clock};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::grant::{Refused, grant};
use super::mac::Mac;
use super::pool::Exhausted;
use super::range::{CONFIG, END, START};
use super::reservation::{Kind, Object};
use super::wanted::{Slot, is_name, stamp};
use super::{Context, machine, pod};

/// Path of the webhook of virtual machines.
pub(super) const VIRTUAL_MACHINES: &str = "/mutate-virtualmachines";
/// Path of the webhook of pods.
pub(super) const PODS: &str = "/mutate-pods";
/// Largest AdmissionReview: two objects of the API server's own limit.
const REVIEW: usize = 4 << 20;
/// The API server waits ten seconds, and then nobody learns why.
const ANSWER: Duration = Duration::from_secs(8);
/// Interfaces whose address others have, of which the user is told.
const WARNED: usize = 8;

/// The answer, and remarks for the user.
struct Answer {
    verdict: Verdict,
    warnings: Vec<String>,
}

impl From<Verdict> for Answer {
    fn from(verdict: Verdict) -> Self {
        Answer { verdict, warnings: Vec::new() }
    }
}

/// A refusal is an answer as well.
type Judged = Result<Answer, Verdict>;

/// Both webhooks.
pub(super) fn router(context: Arc<Context>) -> Router {
    Router::new()
        .route(VIRTUAL_MACHINES, post(virtual_machines))
        .route(PODS, post(pods))
        .layer(DefaultBodyLimit::max(REVIEW))
        .with_state(context)
}

async fn virtual_machines(State(context): State<Arc<Context>>, body: Bytes) -> Response {
    answer(&body, async |request| virtual_machine(&context, &request).await).await
}

async fn pods(State(context): State<Arc<Context>>, body: Bytes) -> Response {
    answer(&body, async |request| created_pod(&context, &request).await).await
}

async fn answer(body: &[u8], judge: impl AsyncFnOnce(Request) -> Judged) -> Response {
    let request = match admission::review(body) {
        Ok(request) => request,
        Err(message) => return (StatusCode::BAD_REQUEST, message).into_response(),
    };
    let uid = request.uid.clone();
    let judged = timeout(ANSWER, judge(request)).await;
    let late = || deny(504, "Timeout", "the API server did not answer kubemacpool in time: try again".to_owned());
    let Answer { verdict, warnings } = judged.unwrap_or_else(|_| Err(late())).unwrap_or_else(Answer::from);
    let mut review = admission::response(&uid, verdict);
    if !warnings.is_empty() {
        review["response"]["warnings"] = json!(warnings);
    }
    Json(review).into_response()
}

fn deny(code: u16, reason: &'static str, message: String) -> Verdict {
    Verdict::Deny { code, reason, message }
}

fn unanswered(error: &kube::Error) -> Verdict {
    deny(500, "InternalError", format!("cannot read the cluster: {}", Chain(error)))
}

/// The object that the request is about; none when nothing is to be done for it, because it ends or cannot be stored.
fn object(request: &Request, kind: Kind) -> Option<Object> {
    let metadata = &request.object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    let namespace = request.namespace.clone();
    let ends = metadata.get("deletionTimestamp").is_some_and(|at| !at.is_null());
    let nameable = is_name(&namespace) && (name.is_empty() || is_name(name));
    (!ends && nameable).then(|| Object { namespace, kind, name: name.to_owned() })
}

async fn virtual_machine(context: &Context, request: &Request) -> Judged {
    context.started()?;
    let old = match request.operation.as_str() {
        "CREATE" => None,
        "UPDATE" => Some(&request.old_object),
        _ => return Ok(Verdict::allow().into()),
    };
    let Some(owner) = object(request, Kind::VirtualMachine) else { return Ok(Verdict::allow().into()) };
    let serves = context.mirror.serves_machines(&owner.namespace).await;
    if !request.sub_resource.is_empty() || !serves.map_err(|error| unanswered(&error))? {
        return Ok(Verdict::allow().into());
    }
    let wanted = machine::wanted(&request.object, old).map_err(Verdict::Invalid)?;
    let now = now();
    let granted = reserve(context, request, &owner, &wanted.slots, now).await?;
    let mut operations = machine::patch(&wanted, &granted);
    if !wanted.slots.is_empty() {
        operations.push(stamp(&request.object, now));
    }
    Ok(patched(context, operations, &owner, &wanted.slots))
}

async fn created_pod(context: &Context, request: &Request) -> Judged {
    context.started()?;
    let Some(owner) = object(request, Kind::Pod).filter(|_| request.operation == "CREATE") else {
        return Ok(Verdict::allow().into());
    };
    let serves = context.mirror.serves_pods(&owner.namespace).await;
    if !request.sub_resource.is_empty() || !serves.map_err(|error| unanswered(&error))? {
        return Ok(Verdict::allow().into());
    }
    // The addresses of a machine's launcher are the machine's, and were given to it. An instance without a machine has none yet.
    if let Some(instance) = pod::instance(&request.object) {
        let machine = context.mirror.is_machine(&owner.namespace, instance).await;
        if machine.map_err(|error| unanswered(&error))? {
            return Ok(Verdict::allow().into());
        }
    }
    let Some(wanted) = pod::wanted(&request.object).map_err(Verdict::Invalid)? else {
        return Ok(Verdict::allow().into());
    };
    let granted = reserve(context, request, &owner, &wanted.slots, now()).await?;
    let operations = pod::patch(&wanted, &granted);
    Ok(patched(context, operations, &owner, &wanted.slots))
}

/// As exact as a Lease holds it.
fn now() -> Timestamp {
    let now = clock::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

/// The addresses of `slots`. Of a request that will not be stored, those that it would get: nothing is reserved.
async fn reserve(
    context: &Context,
    request: &Request,
    owner: &Object,
    slots: &[Slot],
    now: Timestamp,
) -> Result<Vec<Mac>, Verdict> {
    if slots.is_empty() {
        return Ok(Vec::new());
    }
    let refused = |refused: Refused| refusal(context, &refused);
    if !request.dry_run {
        return grant(&context.mirror, owner, slots, now, context.wait).await.map_err(refused);
    }
    let wanted = slots.iter().filter(|slot| slot.given.is_none()).count();
    let mut free = match wanted {
        0 => Vec::new(),
        _ => context.mirror.pool().free(wanted).map_err(|error| refused(error.into()))?,
    }
    .into_iter();
    Ok(slots.iter().filter_map(|slot| slot.given.or_else(|| free.next())).collect())
}

fn refusal(context: &Context, refused: &Refused) -> Verdict {
    let place = format!("ConfigMap {}/{CONFIG}", context.mirror.namespace);
    match refused {
        Refused::Exhausted(Exhausted::Full(_)) => {
            let remedy = format!("widen {START} and {END} in {place}, or delete what is not needed any more");
            deny(403, "Forbidden", format!("{refused}: {remedy}"))
        }
        Refused::Exhausted(Exhausted::NoRange) => {
            deny(503, "ServiceUnavailable", format!("{refused}: {}", context.mirror.problem()))
        }
        Refused::Open(..) => deny(429, "TooManyRequests", refused.to_string()),
        Refused::Contested => deny(409, "Conflict", format!("{refused}: try again")),
        Refused::Api { .. } => deny(500, "InternalError", refused.to_string()),
    }
}

fn patched(context: &Context, operations: Vec<Value>, owner: &Object, slots: &[Slot]) -> Answer {
    let verdict = if operations.is_empty() { Verdict::allow() } else { Verdict::Patch(Value::Array(operations)) };
    let given = slots.iter().filter_map(|slot| slot.given);
    let pool = context.mirror.pool();
    let warnings = given.filter_map(|mac| shared(mac, &owner.namespace, &pool.others(mac, owner)));
    Answer { verdict, warnings: warnings.take(WARNED).collect() }
}

/// What a user of `namespace` is told of an address that `others` have. Who they are is not said of another namespace's.
fn shared(mac: Mac, namespace: &str, others: &[Object]) -> Option<String> {
    let own = others.iter().find(|one| one.namespace == namespace && !one.name.is_empty());
    let whose = match (own, others) {
        (_, []) => return None,
        (Some(one), _) => one.to_string(),
        (None, [one, ..]) if one.namespace == namespace => "another object of this namespace".to_owned(),
        _ => "an object of another namespace".to_owned(),
    };
    Some(format!("MAC address {mac} is also that of {whose}: do not run both in one network"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_not_told_of_objects_of_other_namespaces() {
        let mac: Mac = "02:00:00:00:00:01".parse().unwrap();
        let object = |namespace: &str, name: &str| Object {
            namespace: namespace.into(),
            kind: Kind::VirtualMachine,
            name: name.into(),
        };
        let told = |others: &[Object]| shared(mac, "a", others);
        assert_eq!(told(&[]), None);
        let sentence =
            |whose: &str| Some(format!("MAC address {mac} is also that of {whose}: do not run both in one network"));
        assert_eq!(told(&[object("b", "secret")]), sentence("an object of another namespace"));
        assert_eq!(told(&[object("a", "")]), sentence("another object of this namespace"));
        assert_eq!(told(&[object("b", "secret"), object("a", "vm")]), sentence("VirtualMachine a/vm"));
    }
}
