//! Keeps the shipped FlowSchemas and PriorityLevelConfigurations, says which schemas lead nowhere, and has the server go by
//! what is stored.
//!
//! Guarantees: after each write of either kind, and at each start, the mandatory objects are there and say what they must;
//! a suggested one that is gone is made again, and one that differs is put right unless its annotation says `false`;
//! whoever wrote is answered when the server goes by it.

use serde_json::{Value, json};

use apimachinery::error::ApiError;
use apimachinery::pointer::{items, text};
use kube_store::{Key, WriteError};

use crate::ApiServer;
use crate::bootstrap::objects::ensure;
use crate::flow::{EXEMPT, GROUP, LEVELS, SCHEMAS, shipped};
use crate::registry::Resource;
use crate::strategy;
use crate::view::View;

const DANGLING: &str = "Dangling";
/// Tries to write what somebody else writes as well.
const TRIES: usize = 5;

/// See the module.
pub(crate) async fn settle(server: &ApiServer) -> Result<(), ApiError> {
    let levels =
        shipped::levels().into_iter().map(|object| keep(server, "prioritylevelconfigurations", LEVELS, object));
    let schemas = shipped::schemas().into_iter().map(|object| keep(server, "flowschemas", SCHEMAS, object));
    futures::future::try_join(futures::future::try_join_all(levels), futures::future::try_join_all(schemas)).await?;
    let schemas = View::list(&**server.store(), GROUP, "flowschemas", "");
    let told: Vec<_> = schemas.iter().map(|schema| tell(server, text(schema, "/metadata/name"))).collect();
    futures::future::try_join_all(told).await?;
    server.edges().fairness.configure(|| {
        let list = |plural: &str| View::list(&**server.store(), GROUP, plural, "");
        (list("flowschemas"), list("prioritylevelconfigurations"))
    });
    Ok(())
}

/// Says of a schema whether its level is there.
async fn tell(server: &ApiServer, name: &str) -> Result<(), ApiError> {
    let judge = |schema: &Value| {
        let level = text(schema, "/spec/priorityLevelConfiguration/name");
        dangling(schema, server.store().get(LEVELS, "", level).is_some(), &crate::stamp::now())
    };
    change(server, SCHEMAS, name, judge).await
}

/// Makes a shipped object, or puts it right.
async fn keep(server: &ApiServer, plural: &str, storage: &str, object: Value) -> Result<(), ApiError> {
    let registry = server.registry();
    let Some(resource) = registry.find(GROUP, "v1", plural) else {
        return Err(ApiError::internal(format!("{plural} is not served")));
    };
    let wanted = complete(resource, object.clone());
    ensure(server, GROUP, plural, "", object).await?;
    change(server, storage, text(&wanted, "/metadata/name"), |stored| put_right(stored, &wanted)).await
}

/// A shipped object as it is stored.
fn complete(resource: &Resource, mut object: Value) -> Value {
    apimachinery::schema::defaults::apply(&resource.schema, &mut object);
    strategy::set_defaults(resource, &mut object);
    object
}

/// The object with the shipped spec; None when it stays.
fn put_right(stored: &Value, wanted: &Value) -> Option<Value> {
    let name = text(stored, "/metadata/name");
    let said = stored.pointer("/metadata/annotations").and_then(|all| all.get(shipped::AUTOUPDATE)).cloned();
    let kept = match said.as_ref().and_then(Value::as_str) {
        Some("true") => true,
        Some(_) => false,
        // Nobody has said, nor changed anything since it was made.
        None => stored["metadata"]["generation"] == 1,
    };
    let mut spec = wanted["spec"].clone();
    if !kept && !shipped::is_mandatory(name) {
        return None;
    }
    if !kept && name == EXEMPT && !stored["spec"]["exempt"].is_null() {
        spec["exempt"] = stored["spec"]["exempt"].clone();
    }
    let mut new = stored.clone();
    if said.is_none() && kept {
        new["metadata"]["annotations"][shipped::AUTOUPDATE] = "true".into();
    }
    if new["spec"] != spec {
        new["spec"] = spec;
        new["metadata"]["generation"] = (stored["metadata"]["generation"].as_i64().unwrap_or(0) + 1).into();
    }
    (new != *stored).then_some(new)
}

/// The schema with a condition that says whether its level is there; None when it says so already.
fn dangling(schema: &Value, found: bool, now: &str) -> Option<Value> {
    let level = text(schema, "/spec/priorityLevelConfiguration/name");
    let (status, reason, ending) = match found {
        true => ("False", "Found", "and it exists"),
        false => ("True", "NotFound", "but there is no such object"),
    };
    let message = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?} {ending}");
    let conditions = items(schema, "/status/conditions");
    let before = conditions.iter().find(|condition| condition["type"] == DANGLING);
    let turned = before.filter(|condition| condition["status"] == status).map(|c| text(c, "/lastTransitionTime"));
    let condition = json!({"type": DANGLING, "status": status, "reason": reason,
        "lastTransitionTime": turned.filter(|time| !time.is_empty()).unwrap_or(now),
        "message": message});
    if before == Some(&condition) {
        return None;
    }
    let mut all: Vec<Value> = conditions.iter().filter(|condition| condition["type"] != DANGLING).cloned().collect();
    all.push(condition);
    let mut new = schema.clone();
    new["status"]["conditions"] = Value::Array(all);
    Some(new)
}

/// Writes what `to` makes of an object, if it makes anything of it.
async fn change(
    server: &ApiServer,
    storage: &str,
    name: &str,
    to: impl Fn(&Value) -> Option<Value>,
) -> Result<(), ApiError> {
    for _ in 0..TRIES {
        let Some(stored) = server.store().get(storage, "", name) else { return Ok(()) };
        let Some(new) = to(&stored.value()) else { return Ok(()) };
        match server.store().update(Key::new(storage, "", name), new, stored.revision).await {
            Ok(_) | Err(WriteError::Missing) => return Ok(()),
            Err(WriteError::Changed) => {}
            Err(error) => return Err(ApiError::internal(format!("{storage} {name}: {error}"))),
        }
    }
    // Whoever changes it all the time settles it after each of his writes.
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_objects_are_repaired_unless_autoupdate_is_off() {
        let wanted = json!({"spec": {"a": 1}});
        let stored = |name: &str, said: Value, generation: u32, a: u32| {
            let annotations = said.is_string().then(|| json!({shipped::AUTOUPDATE: said}));
            json!({"metadata": {"name": name, "annotations": annotations, "generation": generation}, "spec": {"a": a}})
        };
        let spec = |stored: &Value| put_right(stored, &wanted).map(|new| new["spec"]["a"].as_u64().unwrap());
        assert_eq!(spec(&stored("system", json!("true"), 1, 1)), None);
        assert_eq!(spec(&stored("system", json!("true"), 7, 2)), Some(1));
        assert_eq!(spec(&stored("system", json!("false"), 7, 2)), None);
        assert_eq!(spec(&stored("system", json!(null), 1, 2)), Some(1));
        assert_eq!(spec(&stored("system", json!(null), 2, 2)), None);
        assert_eq!(spec(&stored("catch-all", json!("false"), 2, 2)), Some(1));
        let new = put_right(&stored("system", json!(null), 1, 2), &wanted).unwrap();
        assert_eq!(
            (&new["metadata"]["annotations"][shipped::AUTOUPDATE], &new["metadata"]["generation"]),
            (&json!("true"), &json!(2))
        );
    }

    #[test]
    fn a_schema_says_whether_its_level_is_there() {
        let schema = json!({"spec": {"priorityLevelConfiguration": {"name": "l"}}});
        let gone = dangling(&schema, false, "then").unwrap();
        let said = &gone["status"]["conditions"][0];
        let message =
            "This FlowSchema references the PriorityLevelConfiguration object named \"l\" but there is no such object";
        assert_eq!(
            (&said["status"], &said["reason"], &said["message"]),
            (&json!("True"), &json!("NotFound"), &json!(message))
        );
        assert_eq!(dangling(&gone, false, "now"), None);
        let found = dangling(&gone, true, "now").unwrap();
        let said = &found["status"]["conditions"];
        assert_eq!(
            (said.as_array().unwrap().len(), &said[0]["status"], &said[0]["lastTransitionTime"]),
            (1, &json!("False"), &json!("now"))
        );
        let message = "This FlowSchema references the PriorityLevelConfiguration object named \"l\" and it exists";
        assert_eq!(said[0]["message"], message);
    }
}
