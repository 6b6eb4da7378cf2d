//! One mutation: what its expression comes to, and the object changed by that.

use std::sync::Arc;

use serde_json::Value;

use apimachinery::cel::{Budget, message};
use apimachinery::patch::{json, merge};
use apimachinery::pointer::text;
use apimachinery::schema::{Schema, builtin, defaults, prune, types};

use super::Place;
use crate::admission::Attributes;
use crate::admission::cel::{Expression, Scope};
use crate::registry::{Registry, Resource};

/// Bytes that policies may make of an object at most: those of the largest request.
const BYTES: usize = 3 << 20;
/// What makes an object this one.
const IDENTITY: [&str; 5] = ["apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid"];

#[derive(Debug)]
pub(super) enum Mutation {
    /// Yields the fields that are wanted.
    Configuration(Expression),
    /// Yields operations.
    Patch(Expression),
}

/// The kind of an object that is changed.
struct Kind<'a> {
    /// None for what is asked of a connection: it is read as what it must be where it is used.
    schema: Option<Arc<Schema>>,
    /// Where the object is one of the resource's own kind.
    own: Option<&'a Resource>,
}

impl Mutation {
    pub(super) fn compile(document: &Value) -> Self {
        match text(document, "/patchType") {
            "JSONPatch" => Self::Patch(Expression::new(text(document, "/jsonPatch/expression"))),
            _ => Self::Configuration(Expression::new(text(document, "/applyConfiguration/expression"))),
        }
    }

    /// `object` after the mutation.
    ///
    /// # Errors
    /// A sentence when the expression fails or what it comes to cannot be applied.
    pub(super) fn apply(
        &self,
        scope: &Scope<'_>,
        budget: &mut Budget,
        attributes: &Attributes,
        place: Place<'_>,
        object: &Value,
    ) -> Result<Value, String> {
        let (Self::Configuration(expression) | Self::Patch(expression)) = self;
        let value = expression.evaluate(scope, budget).map_err(|fault| expression.failed(&fault.to_string()))?;
        let kind = kind_of(attributes, place.registry, object);
        let mut new = match self {
            Self::Configuration(_) => {
                let mut wanted = message::configuration(&value)?;
                for field in ["apiVersion", "kind"] {
                    wanted[field] = object[field].clone();
                }
                let schema = kind.schema.as_ref().ok_or_else(|| {
                    let (api, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
                    format!("Resource kind {api}, Kind={kind} not found: only a JSON patch can change it")
                })?;
                let merged = merge::merge(schema, object, &wanted);
                merged.map_err(|why| format!("error applying patch: {why}"))?
            }
            Self::Patch(_) => {
                let patch = json::decode(message::json_patch(&value)?).map_err(|error| error.message)?;
                match json::apply_if_tests_hold(object, &patch) {
                    Ok(Some(new)) => new,
                    Ok(None) => return Ok(object.clone()),
                    Err(error) => return Err(format!("JSON Patch: {}", error.message)),
                }
            }
        };
        fits(&kind, object, &mut new)?;
        if let Some(schema) = &kind.schema {
            defaults::apply(schema, &mut new);
        }
        if let Some(own) = kind.own {
            (place.defaults)(own, &mut new);
        }
        Ok(new)
    }
}

fn kind_of<'a>(attributes: &'a Attributes, registry: &'a Registry, object: &Value) -> Kind<'a> {
    let resource = &*attributes.resource;
    let (api, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
    if kind == resource.kind {
        let version = attributes.info.version.as_str();
        let found = registry.find(&resource.group, version, &resource.plural).map_or(resource, |found| &**found);
        return Kind { schema: Some(found.schema.clone()), own: Some(found) };
    }
    // Subresources have kinds of their own.
    let (group, version) = api.split_once('/').unwrap_or(("", api));
    Kind { schema: builtin::schema(group, version, kind), own: None }
}

/// Checks that an object is still one of its kind, and the same one.
fn fits(kind: &Kind<'_>, before: &Value, new: &mut Value) -> Result<(), String> {
    for field in IDENTITY {
        let pointer = format!("/{}", field.replace('.', "/"));
        if before.pointer(&pointer) != new.pointer(&pointer) {
            return Err(format!("{field} may not be changed by a policy"));
        }
    }
    let levels = json::DEPTH;
    if json::depth(new) > levels {
        return Err(format!("the object would nest too deeply: at most {levels} levels are accepted"));
    }
    if new.to_string().len() > BYTES {
        return Err(format!("the object would be too large: at most {BYTES} bytes are accepted"));
    }
    let Some(schema) = &kind.schema else { return Ok(()) };
    let custom = kind.own.is_some_and(|own| own.crd.is_some());
    let wrong = if custom { types::metadata_mismatch(schema, new) } else { types::mismatch(schema, new) };
    if let Some(why) = wrong {
        return Err(why);
    }
    let unknown = prune::unknown(schema, new);
    // A custom object may have had fields that its definition lost.
    if let (false, Some(unknown)) = (custom, unknown.first()) {
        return Err(unknown.to_string());
    }
    Ok(())
}
