//! `status.typeChecking` of a policy: what its expressions get wrong about the kinds it is bound to see.

use std::sync::Arc;

use serde_json::{Value, json};

use apimachinery::cel::Program;
use apimachinery::cel::types::Type;
use apimachinery::pointer::{items, text};
use kube_store::{Object, Store};

use crate::admission::expressions::Scope;
use crate::registry::{Registry, Resource};

/// Kinds a policy is checked against at most, as in Kubernetes.
const KINDS: usize = 10;

/// Writes the status of a policy that was just stored, unless it says so already.
pub(crate) async fn settle(store: &Store, registry: &Registry, stored: &Arc<Object>) {
    let mut policy = stored.value();
    let status = status(&policy, registry);
    if policy["status"] == status {
        return;
    }
    policy["status"] = status;
    // Who changed it meanwhile has its status written too.
    let _ = store.update(stored.key.clone(), policy, stored.revision).await;
}

/// The status of a policy.
pub(super) fn status(policy: &Value, registry: &Registry) -> Value {
    let kinds = kinds(policy, registry);
    let mut warnings = Vec::new();
    for (index, validation) in items(policy, "/spec/validations").iter().enumerate() {
        for key in ["expression", "messageExpression"] {
            let source = text(validation, &format!("/{key}")).trim();
            let found: Vec<String> = kinds.iter().filter_map(|kind| warning(policy, source, kind, registry)).collect();
            if !found.is_empty() {
                let field = format!("spec.validations[{index}].{key}");
                warnings.push(json!({"fieldRef": field, "warning": found.join("\n")}));
            }
        }
    }
    let checking = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
    let mut status = json!({"typeChecking": checking});
    if let Some(generation) = policy["metadata"]["generation"].as_i64() {
        status["observedGeneration"] = generation.into();
    }
    status
}

/// The kinds that rules without wildcards name.
fn kinds(policy: &Value, registry: &Registry) -> Vec<Arc<Resource>> {
    let mut found: Vec<Arc<Resource>> = Vec::new();
    for rule in items(policy, "/spec/matchConstraints/resourceRules") {
        let names = |key: &str| items(rule, key).iter().filter_map(Value::as_str).filter(|name| !name.contains('*'));
        for group in names("/apiGroups") {
            for version in names("/apiVersions") {
                for plural in names("/resources").filter(|plural| !plural.contains('/')) {
                    let known = registry.find(group, version, plural);
                    found.extend(known.filter(|known| !found.iter().any(|seen| Arc::ptr_eq(seen, known))).cloned());
                }
            }
        }
    }
    found.sort_by_key(|resource| (resource.api_version(), resource.kind.clone()));
    found.truncate(KINDS);
    found
}

fn warning(policy: &Value, source: &str, kind: &Resource, registry: &Registry) -> Option<String> {
    let params = policy.pointer("/spec/paramKind").filter(|kind| kind.is_object()).and_then(|kind| {
        let api = text(kind, "/apiVersion");
        let (group, version) = api.split_once('/').unwrap_or(("", api));
        let resource = registry.find_kind(group, version, text(kind, "/kind"))?;
        Some(Type::of(&resource.schema, &resource.kind))
    });
    let object = Type::of(&kind.schema, &kind.kind);
    let mut scope = Scope::policy(true).about(&object, params.unwrap_or(Type::Dyn));
    for variable in items(policy, "/spec/variables") {
        let type_ = scope.type_of(text(variable, "/expression").trim());
        scope.declare(text(variable, "/name"), type_.unwrap_or(Type::Dyn));
    }
    scope.open_variables();
    // What cannot be parsed was refused when it was written.
    Program::compile(source).ok()?;
    let error = scope.type_of(source).err()?;
    Some(format!("{}, Kind={}: {error}", kind.api_version(), kind.kind))
}
