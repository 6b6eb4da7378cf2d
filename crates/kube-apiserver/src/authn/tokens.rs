//! Service-account tokens: what they claim, how they are issued (TokenRequest) and when they stop being valid.
//!
//! Guarantees: a token is valid only while its service account exists with the same uid, and while the pod, secret or node
//! it is bound to does; deleting either revokes it at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use apimachinery::error::{ApiError, Cause};
use apimachinery::pointer::{strings, text};
use apimachinery::request::{RequestInfo, User};

use super::jwt::{Signer, TokenError};
use crate::view::View;

/// Issuer and default audience of the embedded cluster.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const MINIMUM_SECONDS: i64 = 600;
const MAXIMUM_SECONDS: i64 = 1 << 32;

/// Issues and checks tokens.
pub struct Tokens {
    signer: Signer,
    view: Arc<dyn View>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

fn now() -> i64 {
    kit::clock::now().as_second()
}

impl Tokens {
    /// Tokens signed by `signer` and bound to objects seen through `view`.
    #[must_use]
    pub fn new(signer: Signer, view: Arc<dyn View>) -> Self {
        Self { signer, view }
    }

    /// The JSON web key set.
    #[must_use]
    pub fn key_set(&self) -> Value {
        self.signer.key_set()
    }

    /// The user of a token meant for one of `audiences` (our own when empty), and the audiences that matched.
    ///
    /// # Errors
    /// When the token is not ours, expired, meant for others or revoked.
    pub fn authenticate(&self, token: &str, audiences: &[String]) -> Result<(User, Vec<String>), TokenError> {
        let claims = self.signer.verify(token, now())?;
        if text(&claims, "/iss") != ISSUER {
            return Err(TokenError::Issuer);
        }
        let own = [ISSUER.to_owned()];
        let wanted = if audiences.is_empty() { &own[..] } else { audiences };
        let matched: Vec<String> = strings(&claims, "/aud").into_iter().filter(|a| wanted.contains(a)).collect();
        if matched.is_empty() {
            return Err(TokenError::Audience);
        }
        let bound = claims.get("kubernetes.io").ok_or(TokenError::Malformed)?;
        let namespace = text(bound, "/namespace");
        let account = text(bound, "/serviceaccount/name");
        self.alive("serviceaccounts", namespace, account, text(bound, "/serviceaccount/uid"))?;
        let mut extra = BTreeMap::new();
        let id = text(&claims, "/jti");
        if !id.is_empty() {
            extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={id}")]);
        }
        for (field, resource, prefix) in [("pod", "pods", "pod"), ("secret", "secrets", ""), ("node", "nodes", "node")]
        {
            let Some(reference) = bound.get(field) else { continue };
            let (name, uid) = (text(reference, "/name"), text(reference, "/uid"));
            let in_namespace = if field == "node" { "" } else { namespace };
            // The node of a pod-bound token is information; only a token bound to the node itself dies with it.
            if field != "node" || bound.get("pod").is_none() {
                self.alive(resource, in_namespace, name, uid)?;
            }
            if !prefix.is_empty() {
                extra.insert(format!("authentication.kubernetes.io/{prefix}-name"), vec![name.to_owned()]);
                extra.insert(format!("authentication.kubernetes.io/{prefix}-uid"), vec![uid.to_owned()]);
            }
        }
        let user = User {
            name: format!("system:serviceaccount:{namespace}:{account}"),
            uid: text(bound, "/serviceaccount/uid").to_owned(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
            extra,
        };
        Ok((user, matched))
    }

    fn alive(&self, resource: &str, namespace: &str, name: &str, uid: &str) -> Result<(), TokenError> {
        let object = self.view.get("", resource, namespace, name).ok_or(TokenError::Revoked)?;
        if uid.is_empty() || text(&object, "/metadata/uid") != uid {
            return Err(TokenError::Revoked);
        }
        // A pod that is being deleted keeps its token for its grace period and a minute.
        let deleted = text(&object, "/metadata/deletionTimestamp");
        let gone = deleted.parse::<jiff::Timestamp>().is_ok_and(|t| t.as_second() + 60 < now());
        if gone { Err(TokenError::Revoked) } else { Ok(()) }
    }

    /// Answers a POST of `serviceaccounts/<name>/token`.
    ///
    /// # Errors
    /// 404 without the account, 409 when a bound object is missing or has another uid, 422 for a bad request.
    pub fn request(&self, info: &RequestInfo, body: &Value) -> Result<Value, ApiError> {
        let (namespace, name) = (info.namespace.as_str(), info.name.as_str());
        let account = self
            .view
            .get("", "serviceaccounts", namespace, name)
            .ok_or_else(|| ApiError::not_found("", "serviceaccounts", name))?;
        let seconds = body.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(3600);
        if !(MINIMUM_SECONDS..=MAXIMUM_SECONDS).contains(&seconds) {
            let message = if seconds < MINIMUM_SECONDS {
                format!("Invalid value: {seconds}: may not specify a duration less than 10 minutes")
            } else {
                format!("Invalid value: {seconds}: may not specify a duration larger than 2^32 seconds")
            };
            let cause = Cause { reason: "FieldValueInvalid".into(), message, field: "spec.expirationSeconds".into() };
            return Err(ApiError::invalid("authentication.k8s.io", "TokenRequest", name, vec![cause]));
        }
        let mut audiences = strings(body, "/spec/audiences");
        if audiences.is_empty() {
            audiences.push(ISSUER.to_owned());
        }
        let mut bound = json!({"namespace": namespace,
            "serviceaccount": {"name": name, "uid": text(&account, "/metadata/uid")}});
        if let Some(reference) = body.pointer("/spec/boundObjectRef").filter(|r| r.is_object()) {
            self.bind(&mut bound, namespace, name, reference)?;
        }
        let issued = now();
        let expires = issued + seconds;
        let claims = json!({"iss": ISSUER, "aud": audiences, "iat": issued, "nbf": issued, "exp": expires,
            "sub": format!("system:serviceaccount:{namespace}:{name}"), "jti": uuid::Uuid::new_v4().to_string(),
            "kubernetes.io": bound});
        let token = self.signer.sign(&claims).map_err(|e| ApiError::internal(e.to_string()))?;
        let expiry = jiff::Timestamp::from_second(expires).map_err(|e| ApiError::internal(e.to_string()))?;
        let mut spec = json!({"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": null});
        if let Some(reference) = body.pointer("/spec/boundObjectRef") {
            spec["boundObjectRef"] = reference.clone();
        }
        Ok(json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": jiff::Timestamp::from_second(issued).unwrap_or_default().to_string()},
            "spec": spec, "status": {"token": token, "expirationTimestamp": expiry.to_string()}}))
    }

    fn bind(&self, bound: &mut Value, namespace: &str, account: &str, reference: &Value) -> Result<(), ApiError> {
        let (kind, name, uid) = (text(reference, "/kind"), text(reference, "/name"), text(reference, "/uid"));
        let (field, resource, scope) = match kind {
            "Pod" => ("pod", "pods", namespace),
            "Secret" => ("secret", "secrets", namespace),
            "Node" => ("node", "nodes", ""),
            other => {
                return Err(ApiError::bad_request(format!("cannot bind token to object of type /{other}")));
            }
        };
        if name.is_empty() {
            return Err(ApiError::bad_request(format!("spec.boundObjectRef.name: the name of the {kind} is required")));
        }
        let object = self.view.get("", resource, scope, name).ok_or_else(|| ApiError::not_found("", resource, name))?;
        let actual = text(&object, "/metadata/uid");
        if !uid.is_empty() && uid != actual {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            );
            return Err(ApiError::conflict("", resource, name, &why));
        }
        bound[field] = json!({"name": name, "uid": actual});
        if field == "pod" {
            if text(&object, "/spec/serviceAccountName") != account {
                let why = format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                );
                return Err(ApiError::bad_request(why));
            }
            let node = text(&object, "/spec/nodeName");
            if !node.is_empty() {
                let uid = self.view.get("", "nodes", "", node).map(|n| text(&n, "/metadata/uid").to_owned());
                bound["node"] = json!({"name": node, "uid": uid.unwrap_or_default()});
            }
        }
        Ok(())
    }

    /// Answers a POST of a TokenReview.
    #[must_use]
    pub fn review(&self, mut body: Value) -> Value {
        body["apiVersion"] = "authentication.k8s.io/v1".into();
        body["kind"] = "TokenReview".into();
        if body.get("metadata").is_none_or(Value::is_null) {
            body["metadata"] = json!({});
        }
        let outcome = self.authenticate(text(&body, "/spec/token"), &strings(&body, "/spec/audiences"));
        body["status"] = match outcome {
            Ok((user, audiences)) => json!({"authenticated": true,
                "user": crate::authz::reviews::user_info(&user), "audiences": audiences}),
            Err(error) => json!({"user": {}, "error": error.to_string()}),
        };
        body
    }
}

#[cfg(test)]
mod tests;
