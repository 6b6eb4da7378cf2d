//! DeleteOptions, from the body and the query: what cannot be understood is refused, because a deletion cannot be undone.

use axum::body::Body;
use serde::Deserialize;
use serde_json::{Value, json};

use apimachinery::error::{ApiError, Cause};

use super::super::{Call, decode, meta};

/// How to delete.
#[derive(Clone, Debug, Default)]
pub(in crate::rest) struct Options {
    pub(super) grace: Option<i64>,
    uid: Option<String>,
    revision: Option<String>,
    /// `Orphan`, `Foreground` or `Background`.
    pub(super) propagation: Option<String>,
    pub(super) dry_run: bool,
}

/// The document as it is sent; fields that are not known do not count.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Document {
    grace_period_seconds: Option<i64>,
    preconditions: Option<Preconditions>,
    orphan_dependents: Option<bool>,
    propagation_policy: Option<String>,
    dry_run: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl Options {
    pub(in crate::rest) async fn read(call: &Call, body: Body) -> Result<Self, ApiError> {
        let bytes = decode::read(call, body).await?;
        let mut document = json!({});
        if !bytes.is_empty() {
            document = decode::document(call, &bytes)?.0;
        }
        Self::parse(call, document)
    }

    /// The options in `document`, completed from the query.
    pub(in crate::rest) fn parse(call: &Call, document: Value) -> Result<Self, ApiError> {
        let document = if document.is_null() { json!({}) } else { document };
        if !document.is_object() {
            return Err(ApiError::bad_request("the body of a deletion must be a DeleteOptions object"));
        }
        let kind = document.get("kind").unwrap_or(&Value::Null);
        if !matches!(kind.as_str(), None | Some("" | "DeleteOptions")) || !(kind.is_null() || kind.is_string()) {
            return Err(ApiError::bad_request(format!("the body of a deletion must be DeleteOptions, not {kind}")));
        }
        let document: Document = serde_json::from_value(document)
            .map_err(|error| ApiError::bad_request(format!("DeleteOptions cannot be read: {error}")))?;
        let asked = |key: &str| Some(call.query.get(key)).filter(|said| !said.is_empty()).map(ToOwned::to_owned);
        let orphan = match document.orphan_dependents {
            None => call.query.maybe_flag("orphanDependents"),
            said => said,
        };
        let policy = document.propagation_policy.or_else(|| asked("propagationPolicy"));
        let mut causes = Vec::new();
        let propagation = propagation(policy, orphan, &mut causes);
        let dry_run = document.dry_run.unwrap_or_default();
        if dry_run.iter().any(|said| said != "All") {
            let message = format!("Unsupported value: {dry_run:?}: supported values: \"All\"");
            causes.push(cause("NotSupported", "dryRun", message));
        }
        if !causes.is_empty() {
            return Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", causes));
        }
        let grace = match document.grace_period_seconds {
            None => call.query.signed("gracePeriodSeconds")?,
            said => said,
        };
        let preconditions = document.preconditions.unwrap_or_default();
        Ok(Self {
            // A negative grace period means one second, as everywhere in Kubernetes.
            grace: grace.map(|seconds| if seconds < 0 { 1 } else { seconds }),
            uid: preconditions.uid,
            revision: preconditions.resource_version,
            propagation,
            dry_run: !dry_run.is_empty() || call.dry_run(),
        })
    }

    pub(in crate::rest) fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Refuses to delete another object, or another state of it, than is meant.
    pub(super) fn check(&self, call: &Call, object: &Value) -> Result<(), ApiError> {
        for (what, wanted, has) in [
            ("UID", &self.uid, meta::text(object, "uid")),
            ("ResourceVersion", &self.revision, meta::text(object, "resourceVersion")),
        ] {
            if let Some(wanted) = wanted.as_ref().filter(|wanted| wanted.as_str() != has) {
                let why =
                    format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {has}");
                return Err(call.conflict(meta::text(object, "name"), &why));
            }
        }
        Ok(())
    }
}

/// What becomes of the dependents, by either of the two fields that say it.
fn propagation(policy: Option<String>, orphan: Option<bool>, causes: &mut Vec<Cause>) -> Option<String> {
    const FIELD: &str = "propagationPolicy";
    match (policy, orphan) {
        (Some(policy), Some(_)) => {
            let why = format!("Invalid value: {policy:?}: orphanDependents and deletionPropagation cannot be both set");
            causes.push(cause("Invalid", FIELD, why));
            None
        }
        (Some(policy), None) if !matches!(policy.as_str(), "Orphan" | "Foreground" | "Background") => {
            let supported = "\"Foreground\", \"Background\", \"Orphan\"";
            let why = format!("Unsupported value: {policy:?}: supported values: {supported}");
            causes.push(cause("NotSupported", FIELD, why));
            None
        }
        (Some(policy), None) => Some(policy),
        (None, Some(true)) => Some("Orphan".to_owned()),
        (None, Some(false)) => Some("Background".to_owned()),
        (None, None) => None,
    }
}

fn cause(reason: &str, field: &str, message: String) -> Cause {
    Cause { reason: format!("FieldValue{reason}"), message, field: field.to_owned() }
}
