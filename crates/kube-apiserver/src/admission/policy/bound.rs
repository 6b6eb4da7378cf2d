//! What policies of both kinds share: their bindings, the requests these concern, and the names expressions use.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::Value;

use apimachinery::cel::{Value as Cel, value};
use apimachinery::error::ApiError;
use apimachinery::pointer::{items, text};

use crate::admission::cel::{Expression, Scope};
use crate::admission::{Attributes, rules};
use crate::authz::Authorizer;
use crate::crd::convert::between;
use crate::registry::{Registry, Resource};
use crate::view::View;

pub(super) const GROUP: &str = "admissionregistration.k8s.io";

/// A policy with its expressions compiled.
pub(super) trait Policy: Sized {
    /// The resource of the policies, and of their bindings.
    const RESOURCES: [&'static str; 2];

    fn compile(document: Arc<Value>) -> Self;
}

/// Policies with their bindings.
#[derive(Debug)]
pub(super) struct Compiled<P> {
    revisions: [u64; 2],
    pub(super) bound: Vec<(Arc<P>, Arc<Value>)>,
}

/// All policies of a kind with their bindings, compiled when one changes.
pub(super) struct Bound<P> {
    pub(super) view: Arc<dyn View>,
    compiled: ArcSwap<Compiled<P>>,
}

impl<P: Policy> Bound<P> {
    pub(super) fn new(view: Arc<dyn View>) -> Self {
        Self { view, compiled: ArcSwap::from_pointee(Compiled { revisions: [u64::MAX; 2], bound: Vec::new() }) }
    }

    /// The policies as they are now, in the order of their names and those of their bindings.
    pub(super) fn current(&self) -> Arc<Compiled<P>> {
        let revisions = P::RESOURCES.map(|resource| self.view.revision(GROUP, resource));
        let compiled = self.compiled.load_full();
        if compiled.revisions == revisions {
            return compiled;
        }
        let [policies, bindings] = P::RESOURCES.map(|resource| self.view.list(GROUP, resource, ""));
        let named = |policy: Arc<Value>| (text(&policy, "/metadata/name").to_owned(), Arc::new(P::compile(policy)));
        let policies: HashMap<String, Arc<P>> = policies.into_iter().map(named).collect();
        let mut bindings = bindings;
        bindings.sort_by(|a, b| order(a).cmp(&order(b)));
        let with_policy = |binding: Arc<Value>| Some((policies.get(order(&binding).0)?.clone(), binding));
        let fresh = Arc::new(Compiled { revisions, bound: bindings.into_iter().filter_map(with_policy).collect() });
        self.compiled.store(fresh.clone());
        fresh
    }
}

/// The names of a binding's policy and of itself.
fn order(binding: &Value) -> (&str, &str) {
    (text(binding, "/spec/policyName"), text(binding, "/metadata/name"))
}

/// The version in which a policy wants to see the request through this binding; None when it is not concerned.
pub(super) fn concerns(
    view: &dyn View,
    policy: &Value,
    binding: &Value,
    attributes: &Attributes,
    registry: &Registry,
) -> Option<String> {
    let matched = |holder: &Value| {
        let equivalent = text(holder, "/matchPolicy") != "Exact";
        let listed = items(holder, "/resourceRules");
        let excluded = items(holder, "/excludeResourceRules");
        let own = || Some(attributes.info.version.clone()).filter(|_| listed.is_empty());
        let version = rules::matched_version(listed, attributes, equivalent, registry).or_else(own)?;
        let out = rules::matched_version(excluded, attributes, equivalent, registry).is_some()
            || !rules::selectors_match(view, holder, attributes);
        (!out).then_some(version)
    };
    let constraints = policy.pointer("/spec/matchConstraints").unwrap_or(&Value::Null);
    // A policy says what it is about; only a binding may leave the rules out.
    if items(constraints, "/resourceRules").is_empty() {
        return None;
    }
    let version = matched(constraints)?;
    let narrowed = binding.pointer("/spec/matchResources").filter(|holder| holder.is_object());
    narrowed.is_none_or(|holder| matched(holder).is_some()).then_some(version)
}

/// The request with its objects in another version of the resource; None when they are in it already.
pub(super) async fn in_version(
    view: &dyn View,
    attributes: &Attributes,
    registry: &Registry,
    version: &str,
) -> Result<Option<Attributes>, ApiError> {
    if version == attributes.info.version || !attributes.info.subresource.is_empty() {
        return Ok(None);
    }
    let mut seen = attributes.clone();
    if let Some(own) = seen.object.take() {
        seen.object = Some(between(view, registry, &attributes.resource, own, version).await?);
    }
    if let Some(own) = seen.old.take() {
        let own = Arc::unwrap_or_clone(own);
        seen.old = Some(between(view, registry, &attributes.resource, own, version).await?.into());
    }
    version.clone_into(&mut seen.info.version);
    Ok(Some(seen))
}

/// The way back: an object of the version of `seen` in the one of the request.
pub(super) async fn from_version(
    view: &dyn View,
    registry: &Registry,
    attributes: &Attributes,
    seen: &Attributes,
    object: Value,
) -> Result<Value, ApiError> {
    let shown = Resource { version: seen.info.version.clone(), ..(*attributes.resource).clone() };
    between(view, registry, &shown, object, &attributes.info.version).await
}

/// The names that expressions about a request use, evaluated with one parameter.
pub(super) fn scope<'a>(
    view: &dyn View,
    attributes: &Attributes,
    authorizer: &Authorizer,
    parameter: Option<&Value>,
    variables: &'a [(String, Expression)],
) -> Scope<'a> {
    let mut scope = Scope::new(attributes, authorizer);
    scope.set("params", parameter.map_or(Cel::Null, value::plain));
    let namespace = match attributes.namespace.as_str() {
        "" => None,
        name => view.get("", "namespaces", "", name),
    };
    scope.set("namespaceObject", namespace.as_deref().map_or(Cel::Null, value::plain));
    scope.variables(variables);
    scope
}
