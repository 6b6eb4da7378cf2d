//! The variable `authorizer` of admission expressions: what the user of the request, or another one, may do.

use std::sync::Arc;

use kube_cel::cel::Value;
use kube_cel::cel::objects::Opaque;

use super::Fault;
use crate::request::{RequestInfo, User};

/// What a decision costs.
pub(super) const COST: u64 = 350_000;

/// Who decides what a user may do.
pub trait Authorizer: std::fmt::Debug + Send + Sync {
    /// The reason why `user` may not do what `request` asks; None when they may.
    fn denies(&self, user: &User, request: &RequestInfo) -> Option<String>;
}

/// What is asked, as far as it was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum About {
    #[default]
    Nothing,
    Path(String),
    Group(String),
    Resource {
        group: String,
        resource: String,
        subresource: String,
        namespace: String,
        name: String,
    },
}

#[derive(Clone, Debug)]
struct Question {
    authorizer: Arc<dyn Authorizer>,
    user: User,
    about: About,
}

impl PartialEq for Question {
    fn eq(&self, other: &Self) -> bool {
        self.user.name == other.user.name && self.about == other.about
    }
}

impl Eq for Question {}

impl Opaque for Question {
    fn runtime_type_name(&self) -> &'static str {
        "kubernetes.authorization.Authorizer"
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Decision {
    allowed: bool,
    reason: String,
}

impl Opaque for Decision {
    fn runtime_type_name(&self) -> &'static str {
        "kubernetes.authorization.Decision"
    }
}

/// `authorizer`, for the user of a request.
#[must_use]
pub fn of(authorizer: &Arc<dyn Authorizer>, user: &User) -> Value {
    value(Question { authorizer: authorizer.clone(), user: user.clone(), about: About::Nothing })
}

/// `authorizer.requestResource`.
#[must_use]
pub fn of_request(authorizer: &Arc<dyn Authorizer>, user: &User, info: &RequestInfo, name: &str) -> Value {
    let about = About::Resource {
        group: info.group.clone(),
        resource: info.resource.clone(),
        subresource: info.subresource.clone(),
        namespace: info.namespace.clone(),
        name: name.to_owned(),
    };
    value(Question { authorizer: authorizer.clone(), user: user.clone(), about })
}

fn value(question: Question) -> Value {
    Value::Opaque(Arc::new(question))
}

/// The functions of authorizers and decisions; None for other values.
pub(super) fn call(name: &str, operands: &[Value]) -> Option<Result<Value, Fault>> {
    let (Value::Opaque(target), arguments) = operands.split_first()? else { return None };
    let texts: Option<Vec<&str>> = arguments.iter().map(text).collect();
    if let Some(decision) = target.downcast_ref::<Decision>() {
        return Some(match name {
            "allowed" => Ok(Value::Bool(decision.allowed)),
            "reason" => Ok(decision.reason.clone().into()),
            "errored" => Ok(Value::Bool(false)),
            "error" => Ok("".into()),
            _ => Err(Fault::overload()),
        });
    }
    let question = target.downcast_ref::<Question>()?;
    Some(texts.ok_or_else(Fault::overload).and_then(|texts| step(question, name, &texts)))
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}

fn step(question: &Question, name: &str, texts: &[&str]) -> Result<Value, Fault> {
    let mut next = question.clone();
    match (name, texts, &mut next.about) {
        ("path", [path], About::Nothing) => {
            if path.is_empty() {
                return Err(Fault::new("path must not be empty"));
            }
            next.about = About::Path((*path).to_owned());
        }
        ("group", [group], About::Nothing) => next.about = About::Group((*group).to_owned()),
        ("serviceAccount", [namespace, account], About::Nothing) => {
            next.user = User {
                name: format!("system:serviceaccount:{namespace}:{account}"),
                groups: vec![
                    "system:serviceaccounts".to_owned(),
                    format!("system:serviceaccounts:{namespace}"),
                    "system:authenticated".to_owned(),
                ],
                ..User::default()
            };
        }
        ("resource", [resource], About::Group(group)) => {
            if resource.is_empty() {
                return Err(Fault::new("resource must not be empty"));
            }
            next.about = About::Resource {
                group: std::mem::take(group),
                resource: (*resource).to_owned(),
                subresource: String::new(),
                namespace: String::new(),
                name: String::new(),
            };
        }
        ("subresource", [value], About::Resource { subresource, .. }) => (*value).clone_into(subresource),
        ("namespace", [value], About::Resource { namespace, .. }) => (*value).clone_into(namespace),
        ("name", [value], About::Resource { name, .. }) => (*value).clone_into(name),
        // Selectors narrow what is asked; rules know none, so that the wider question decides.
        ("fieldSelector" | "labelSelector", [_], About::Resource { .. }) => {}
        ("check", [verb], _) => return decide(question, verb),
        _ => return Err(Fault::overload()),
    }
    Ok(value(next))
}

fn decide(question: &Question, verb: &str) -> Result<Value, Fault> {
    let info = match &question.about {
        About::Path(path) => RequestInfo { verb: verb.to_owned(), path: path.clone(), ..RequestInfo::default() },
        About::Resource { group, resource, subresource, namespace, name } => RequestInfo {
            verb: verb.to_owned(),
            group: group.clone(),
            version: "*".to_owned(),
            resource: resource.clone(),
            subresource: subresource.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
            ..RequestInfo::default()
        },
        About::Nothing | About::Group(_) => return Err(Fault::overload()),
    };
    let denied = question.authorizer.denies(&question.user, &info);
    Ok(Value::Opaque(Arc::new(Decision { allowed: denied.is_none(), reason: denied.unwrap_or_default() })))
}
