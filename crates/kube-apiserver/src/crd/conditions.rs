//! The conditions of a definition: what the server made of it.

use serde_json::{Value, json};

use super::check::{Approval, approval_of};

/// Sets a condition; the time of its last transition is kept while its status is.
pub(crate) fn set(crd: &mut Value, type_: &str, status: bool, reason: &str, message: &str, now: &str) {
    let status = if status { "True" } else { "False" };
    let fresh = |since: &str| json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": since});
    if !crd["status"]["conditions"].is_array() {
        crd["status"]["conditions"] = json!([]);
    }
    let Some(list) = crd["status"]["conditions"].as_array_mut() else { return };
    match list.iter_mut().find(|condition| condition["type"] == type_) {
        Some(condition) => {
            let since = condition["lastTransitionTime"].as_str().unwrap_or(now).to_owned();
            *condition = fresh(if condition["status"] == status { &since } else { now });
        }
        None => list.push(fresh(now)),
    }
}

fn remove(crd: &mut Value, type_: &str) {
    if let Some(list) = crd["status"]["conditions"].as_array_mut() {
        list.retain(|condition| condition["type"] != type_);
    }
}

/// Whether a condition is true.
pub(crate) fn is_true(crd: &Value, type_: &str) -> bool {
    let conditions = crd["status"]["conditions"].as_array();
    conditions.is_some_and(|list| list.iter().any(|c| c["type"] == type_ && c["status"] == "True"))
}

/// Says whether its names are the definition's. One that was served once goes on being served.
pub(super) fn names(crd: &mut Value, conflict: Option<&(String, String)>, now: &str) {
    match conflict {
        None => {
            set(crd, "NamesAccepted", true, "NoConflicts", "no conflicts found", now);
            let established = is_true(crd, "Established");
            if !established {
                set(crd, "Established", true, "InitialNamesAccepted", "the initial names have been accepted", now);
            }
        }
        Some((reason, message)) => {
            set(crd, "NamesAccepted", false, reason, message, now);
            if !is_true(crd, "Established") {
                set(crd, "Established", false, "NotAccepted", "not all names are accepted", now);
            }
        }
    }
}

/// Says what is known of the approval of a group of Kubernetes' own.
pub(super) fn approval(crd: &mut Value, now: &str) {
    const TYPE: &str = "KubernetesAPIApprovalPolicyConformant";
    match approval_of(crd) {
        Approval::NotNeeded => remove(crd, TYPE),
        Approval::Given(Ok(message)) => set(crd, TYPE, true, "ApprovedAnnotation", &message, now),
        Approval::Given(Err(message)) => set(crd, TYPE, false, "UnapprovedAnnotation", &message, now),
        Approval::Missing => {
            let message = "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111";
            set(crd, TYPE, false, "MissingAnnotation", message, now);
        }
        Approval::Unusable(_) => {
            let message = "protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111";
            set(crd, TYPE, false, "InvalidAnnotation", message, now);
        }
    }
}
