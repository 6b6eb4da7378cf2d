//! Access reviews: the objects behind `kubectl auth can-i` and the SAR calls of extension servers. They are answered, never
//! stored.

use serde_json::{Value, json};

use apimachinery::error::{ApiError, Cause};
use apimachinery::pointer::{items, strings, text};
use apimachinery::request::{RequestInfo, User};

use super::Authorizer;
use super::rbac::Rule;

/// Answers a POST of one of the review resources of `authorization.k8s.io`.
///
/// # Errors
/// 404 for a resource that is not a review, 422 for a spec that says nothing.
pub fn create(authorizer: &Authorizer, user: &User, info: &RequestInfo, mut body: Value) -> Result<Value, ApiError> {
    body["apiVersion"] = "authorization.k8s.io/v1".into();
    if body.get("metadata").is_none_or(Value::is_null) {
        body["metadata"] = json!({});
    }
    let (kind, of_others) = match info.resource.as_str() {
        "selfsubjectaccessreviews" => ("SelfSubjectAccessReview", false),
        "subjectaccessreviews" => ("SubjectAccessReview", true),
        "localsubjectaccessreviews" => ("LocalSubjectAccessReview", true),
        "selfsubjectrulesreviews" => {
            body["kind"] = "SelfSubjectRulesReview".into();
            let namespace = text(&body, "/spec/namespace");
            if namespace.is_empty() {
                return Err(ApiError::bad_request("no namespace on request"));
            }
            body["status"] = rules_status(authorizer, user, namespace);
            return Ok(body);
        }
        other => return Err(ApiError::not_found(&info.group, other, "")),
    };
    body["kind"] = kind.into();
    let mut causes = about(&body);
    let subject = if of_others { subject_of(&body) } else { user.clone() };
    if subject.name.is_empty() && subject.groups.is_empty() {
        let why = "Invalid value: \"\": at least one of user or group must be specified";
        causes.push(invalid("spec.user", why));
    }
    if kind == "LocalSubjectAccessReview" {
        local(&body, &info.namespace, &mut causes);
    }
    causes.extend(selectors(&body));
    let wanted = wanted(&body).filter(|_| causes.is_empty());
    let Some(wanted) = wanted else {
        return Err(ApiError::invalid("authorization.k8s.io", kind, text(&body, "/metadata/name"), causes));
    };
    // No role is no reason: scripts compare the output of `kubectl auth can-i`, which shows one, with a bare "no".
    body["status"] = json!({"allowed": authorizer.allows(&subject, &wanted)});
    if let Some(ignored) = unreadable(&body) {
        body["status"]["evaluationError"] =
            format!("spec.resourceAttributes.{ignored} ignored due to parse error").into();
    }
    Ok(body)
}

/// What is wrong with the selectors a question is about. They only narrow what is asked, and no rule here knows of
/// selectors: a right to all is a right to some.
fn selectors(body: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for name in ["fieldSelector", "labelSelector"] {
        let at = format!("spec.resourceAttributes.{name}");
        let Some(selector) = body.pointer(&format!("/{}", at.replace('.', "/"))).filter(|s| s.is_object()) else {
            continue;
        };
        let raw = text(selector, "/rawSelector");
        let listed = !items(selector, "/requirements").is_empty();
        let mut cause = |reason: &str, field: &str, message: String| {
            causes.push(Cause { reason: reason.into(), message, field: format!("{at}.{field}") });
        };
        match (raw.is_empty(), listed) {
            (false, true) => {
                let why = format!("Invalid value: {raw:?}: may not specified at the same time as requirements");
                cause("FieldValueInvalid", "rawSelector", why);
            }
            (true, false) => {
                let why = format!("Required value: when {at} is specified, requirements or rawSelector is required");
                cause("FieldValueRequired", "requirements", why);
            }
            _ => {}
        }
    }
    causes
}

/// A selector with an operator that there is not. The question is answered without it.
fn unreadable(body: &Value) -> Option<&'static str> {
    const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];
    ["fieldSelector", "labelSelector"].into_iter().find(|selector| {
        let requirements = format!("/spec/resourceAttributes/{selector}/requirements");
        items(body, &requirements).iter().any(|r| !OPERATORS.contains(&text(r, "/operator")))
    })
}

fn invalid(field: &str, message: &str) -> Cause {
    Cause { reason: "FieldValueInvalid".into(), message: message.into(), field: field.into() }
}

/// What is wrong with what a review asks: one question, and no object.
fn about(body: &Value) -> Vec<Cause> {
    let asks = |field: &str| body.pointer(&format!("/spec/{field}")).is_some_and(Value::is_object);
    let mut causes = Vec::new();
    match (asks("resourceAttributes"), asks("nonResourceAttributes")) {
        (true, true) => {
            let why = format!(
                "Invalid value: {}: cannot be specified in combination with resourceAttributes",
                body["spec"]["nonResourceAttributes"]
            );
            causes.push(invalid("spec.nonResourceAttributes", &why));
        }
        (false, false) => causes.push(invalid(
            "spec.resourceAttributes",
            "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        _ => {}
    }
    let named = |(field, value): (&String, &Value)| {
        !value.is_null()
            && value != ""
            && !matches!(field.as_str(), "namespace" | "managedFields" | "creationTimestamp")
    };
    if body["metadata"].as_object().is_some_and(|metadata| metadata.iter().any(named)) {
        let why = format!("Invalid value: {}: must be empty except for namespace", body["metadata"]);
        causes.push(invalid("metadata", &why));
    }
    causes
}

/// What a question about one namespace may not ask.
fn local(body: &Value, namespace: &str, causes: &mut Vec<Cause>) {
    let spec = &body["spec"];
    if spec["nonResourceAttributes"].is_object() {
        let why = format!("Invalid value: {}: disallowed on this kind of request", spec["nonResourceAttributes"]);
        causes.push(invalid("spec.nonResourceAttributes", &why));
    }
    let asked = text(spec, "/resourceAttributes/namespace");
    if spec["resourceAttributes"].is_object() && asked != namespace {
        let why = format!("Invalid value: {asked:?}: must match metadata.namespace");
        causes.push(invalid("spec.resourceAttributes.namespace", &why));
    }
}

fn subject_of(body: &Value) -> User {
    User {
        name: text(body, "/spec/user").to_owned(),
        uid: text(body, "/spec/uid").to_owned(),
        groups: strings(body, "/spec/groups"),
        extra: extra_of(body.pointer("/spec/extra")),
    }
}

/// The `extra` map of a user document.
#[must_use]
pub fn extra_of(value: Option<&Value>) -> std::collections::BTreeMap<String, Vec<String>> {
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    entries.map(|(k, v)| (k.clone(), strings(v, ""))).collect()
}

fn wanted(body: &Value) -> Option<RequestInfo> {
    let spec = body.get("spec")?;
    let one = |p: &str| text(spec, p).to_owned();
    match (
        spec.get("resourceAttributes").filter(|v| v.is_object()),
        spec.get("nonResourceAttributes").filter(|v| v.is_object()),
    ) {
        (Some(_), None) => Some(RequestInfo {
            verb: one("/resourceAttributes/verb"),
            group: one("/resourceAttributes/group"),
            version: one("/resourceAttributes/version"),
            namespace: one("/resourceAttributes/namespace"),
            resource: one("/resourceAttributes/resource"),
            subresource: one("/resourceAttributes/subresource"),
            name: one("/resourceAttributes/name"),
            ..RequestInfo::default()
        }),
        (None, Some(_)) => Some(RequestInfo {
            verb: one("/nonResourceAttributes/verb"),
            path: one("/nonResourceAttributes/path"),
            ..RequestInfo::default()
        }),
        _ => None,
    }
}

fn rules_status(authorizer: &Authorizer, user: &User, namespace: &str) -> Value {
    let mut rules = authorizer.rbac.rules_of(user, namespace);
    if user.groups.iter().any(|g| g == "system:masters") {
        let star = || vec!["*".to_owned()];
        rules.push(Rule { verbs: star(), api_groups: star(), resources: star(), ..Rule::default() });
        rules.push(Rule { verbs: star(), non_resource_urls: star(), ..Rule::default() });
    }
    // What holds for some objects only cannot be told in a list of rules.
    let incomplete = rules.iter().any(|rule| rule.own_node.is_some());
    let (mut resource, mut other) = (Vec::new(), Vec::new());
    for rule in rules {
        if rule.non_resource_urls.is_empty() {
            let mut entry = json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                entry["resourceNames"] = json!(rule.resource_names);
            }
            resource.push(entry);
        } else {
            other.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    json!({"resourceRules": resource, "nonResourceRules": other, "incomplete": incomplete})
}

/// `SelfSubjectReview`: who the server thinks the caller is.
#[must_use]
pub fn self_subject(user: &User) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {"creationTimestamp": null},
        "status": {"userInfo": user_info(user)}})
}

/// `authentication.k8s.io/v1.UserInfo` of a user.
#[must_use]
pub fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.clone().into();
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}
