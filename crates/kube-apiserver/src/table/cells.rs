//! Which cells a built-in kind has, and the small kinds' cells; the larger ones have files of their own.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::view::{NONE, View, count};
use super::{duration, network, node, pod, storage, workload};
use crate::registry::Resource;

/// The cells of a built-in, in the order of its columns.
pub(super) fn of(resource: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    let view = View { object, now };
    match resource.plural.as_str() {
        "pods" => pod::row(view),
        "nodes" => node::row(view),
        "deployments"
        | "replicasets"
        | "replicationcontrollers"
        | "statefulsets"
        | "daemonsets"
        | "jobs"
        | "cronjobs"
        | "controllerrevisions"
        | "podtemplates"
        | "poddisruptionbudgets"
        | "horizontalpodautoscalers" => workload::row(&resource.plural, view),
        "services" | "endpoints" | "endpointslices" | "ingresses" | "ingressclasses" | "networkpolicies"
        | "ipaddresses" | "servicecidrs" => network::row(&resource.plural, view),
        "persistentvolumes"
        | "persistentvolumeclaims"
        | "storageclasses"
        | "csidrivers"
        | "csinodes"
        | "volumeattachments" => storage::row(&resource.plural, view),
        "events" => event(view),
        other => small(other, view),
    }
}

/// What became of a claim on devices.
fn claim_state(view: View<'_>) -> String {
    let leaving = !view.at("/metadata/deletionTimestamp").is_null();
    let allocated = !view.at("/status/allocation").is_null();
    let words = [
        (leaving, "deleted"),
        (!allocated && !leaving, "pending"),
        (allocated, "allocated"),
        (!view.list("/status/reservedFor").is_empty(), "reserved"),
    ];
    words.into_iter().filter(|(holds, _)| *holds).map(|(_, word)| word).collect::<Vec<_>>().join(",")
}

fn small(plural: &str, view: View<'_>) -> Vec<Value> {
    let (name, age) = (view.name(), view.age());
    match plural {
        "configmaps" => vec![name, json!(count(view.at("/data")) + count(view.at("/binaryData"))), age],
        "secrets" => vec![name, view.at("/type").clone(), json!(count(view.at("/data"))), age],
        "namespaces" => vec![name, view.at("/status/phase").clone(), age],
        "limitranges" | "roles" | "clusterroles" | "customresourcedefinitions" | "csistoragecapacities" => {
            vec![name, view.at("/metadata/creationTimestamp").clone()]
        }
        "deviceclasses" | "resourceclaimtemplates" => vec![name, age],
        "volumeattributesclasses" => vec![name, view.at("/driverName").clone(), age],
        "resourceclaims" => vec![name, claim_state(view).into(), age],
        "resourceslices" => {
            let of = |pointer: &str| view.at(pointer).clone();
            vec![name, of("/spec/nodeName"), of("/spec/driver"), of("/spec/pool/name"), age]
        }
        "rolebindings" | "clusterrolebindings" => binding(view),
        "resourcequotas" => quota(view),
        "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => {
            vec![name, json!(view.list("/webhooks").len()), age]
        }
        "validatingadmissionpolicies" | "mutatingadmissionpolicies" => {
            let kind = view.at("/spec/paramKind");
            let kind = match (kind["apiVersion"].as_str(), kind["kind"].as_str()) {
                (Some(version), Some(kind)) => format!("{version}/{kind}"),
                _ => "<unset>".to_owned(),
            };
            let rules = view.list("/spec/validations").len() + view.list("/spec/mutations").len();
            vec![name, json!(rules), kind.into(), age]
        }
        "validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings" => {
            let parameter = view.at("/spec/paramRef");
            let parameter = match (parameter["namespace"].as_str(), parameter["name"].as_str()) {
                (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
                (None, Some(name)) => format!("*/{name}"),
                _ => "<unset>".to_owned(),
            };
            vec![name, view.at("/spec/policyName").clone(), parameter.into(), age]
        }
        "apiservices" => {
            let service = match view.text("/spec/service/name") {
                "" => "Local".to_owned(),
                service => format!("{}/{service}", view.text("/spec/service/namespace")),
            };
            let available = view.list("/status/conditions").iter().find(|c| c["type"] == "Available");
            let available = available.map_or("Unknown".to_owned(), |c| {
                let (status, reason) =
                    (c["status"].as_str().unwrap_or_default(), c["reason"].as_str().unwrap_or_default());
                if status == "True" { status.to_owned() } else { format!("{status} ({reason})") }
            });
            vec![name, service.into(), available.into(), age]
        }
        "certificatesigningrequests" => csr(view),
        "componentstatuses" => {
            let healthy = view.list("/conditions").iter().find(|condition| condition["type"] == "Healthy");
            let told = |field: &str| healthy.map_or("", |condition| condition[field].as_str().unwrap_or_default());
            let status = if told("status") == "True" { "Healthy" } else { "Unhealthy" };
            vec![name, status.into(), told("message").into(), told("error").into()]
        }
        "flowschemas" => {
            let dangles = view.list("/status/conditions").iter().find(|c| c["type"] == "Dangling");
            let dangles = dangles.and_then(|c| c["status"].as_str()).unwrap_or("?");
            vec![
                name,
                view.at("/spec/priorityLevelConfiguration/name").clone(),
                view.at("/spec/matchingPrecedence").clone(),
                view.or_none("/spec/distinguisherMethod/type"),
                age,
                dangles.into(),
            ]
        }
        "prioritylevelconfigurations" => {
            let number =
                |pointer: &str| Some(view.at(pointer)).filter(|n| n.is_number()).cloned().unwrap_or(NONE.into());
            let queuing = |field: &str| number(&format!("/spec/limited/limitResponse/queuing/{field}"));
            vec![
                name,
                view.at("/spec/type").clone(),
                number("/spec/limited/nominalConcurrencyShares"),
                queuing("queues"),
                queuing("handSize"),
                queuing("queueLengthLimit"),
                age,
            ]
        }
        "leases" => vec![name, view.at("/spec/holderIdentity").clone(), age],
        "runtimeclasses" => vec![name, view.at("/handler").clone(), age],
        "priorityclasses" => vec![
            name,
            view.at("/value").clone(),
            json!(view.at("/globalDefault").as_bool().unwrap_or(false)),
            age,
            view.at("/preemptionPolicy").clone(),
        ],
        _ => vec![name, age],
    }
}

fn binding(view: View<'_>) -> Vec<Value> {
    let subjects = |kind: &str| {
        let names: Vec<String> = view
            .list("/subjects")
            .iter()
            .filter(|s| s["kind"] == kind)
            .map(|s| {
                let name = s["name"].as_str().unwrap_or_default();
                s["namespace"]
                    .as_str()
                    .filter(|_| kind == "ServiceAccount")
                    .map_or(name.to_owned(), |ns| format!("{ns}/{name}"))
            })
            .collect();
        Value::from(names.join(", "))
    };
    let role = format!("{}/{}", view.text("/roleRef/kind"), view.text("/roleRef/name"));
    vec![view.name(), role.into(), view.age(), subjects("User"), subjects("Group"), subjects("ServiceAccount")]
}

fn quota(view: View<'_>) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (key, hard) in view.at("/status/hard").as_object().into_iter().flatten() {
        let used = view.at("/status/used")[key].as_str().unwrap_or("0");
        let text = format!("{key}: {used}/{}", hard.as_str().unwrap_or_default());
        if key.starts_with("limits.") { limits.push(text) } else { requests.push(text) }
    }
    vec![view.name(), requests.join(", ").into(), limits.join(", ").into(), view.age()]
}

fn csr(view: View<'_>) -> Vec<Value> {
    let conditions = view.list("/status/conditions");
    let has = |type_: &str| conditions.iter().any(|c| c["type"] == type_);
    let mut state = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied".to_owned(),
        (_, true) => "Approved".to_owned(),
        _ => "Pending".to_owned(),
    };
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !view.text("/status/certificate").is_empty() {
        state.push_str(",Issued");
    }
    let requested = view.at("/spec/expirationSeconds").as_i64().map_or(NONE.to_owned(), duration::human);
    let (signer, user) = (view.or_none("/spec/signerName"), view.at("/spec/username").clone());
    vec![view.name(), view.age(), signer, user, requested.into(), state.into()]
}

/// Both event APIs; the old one says `involvedObject`, the new one `regarding`.
fn event(view: View<'_>) -> Vec<Value> {
    let pick = |pointers: &[&'static str]| pointers.iter().copied().find(|p| !view.at(p).is_null()).unwrap_or("/none");
    let first = pick(&["/firstTimestamp", "/deprecatedFirstTimestamp", "/eventTime"]);
    let last = pick(&["/series/lastObservedTime", "/lastTimestamp", "/deprecatedLastTimestamp", "/eventTime"]);
    let count = pick(&["/series/count", "/count", "/deprecatedCount"]);
    let object = view.at(pick(&["/involvedObject", "/regarding"]));
    let (kind, name) = (object["kind"].as_str().unwrap_or_default(), object["name"].as_str().unwrap_or_default());
    let target = if name.is_empty() { kind.to_lowercase() } else { format!("{}/{name}", kind.to_lowercase()) };
    let source = view.at(pick(&["/source", "/deprecatedSource"]));
    let component = source["component"].as_str().filter(|c| !c.is_empty());
    let component = component.unwrap_or_else(|| view.text(pick(&["/reportingComponent", "/reportingController"])));
    let host = source["host"].as_str().filter(|h| !h.is_empty()).unwrap_or_else(|| view.text("/reportingInstance"));
    let from: Vec<&str> = [component, host].into_iter().filter(|word| !word.is_empty()).collect();
    vec![
        view.since(last),
        view.at("/type").clone(),
        view.at("/reason").clone(),
        target.into(),
        object["fieldPath"].as_str().unwrap_or_default().into(),
        from.join(", ").into(),
        view.text(pick(&["/message", "/note"])).trim().into(),
        view.since(first),
        json!(view.at(count).as_i64().unwrap_or(1).max(1)),
        view.name(),
    ]
}
