//! The subresource `ephemeralcontainers` of a pod: containers are added for a look at others, and stay as they are. What else
//! a write says is not looked at.

use serde_json::Value;

use apimachinery::schema::validate::cause;

use super::super::field::{Causes, Field};
use super::resize::{MIRROR, carry};

/// Leaves of a write the ephemeral containers.
pub(crate) fn keep_rest(old: &Value, new: &mut Value) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        carry(&old["metadata"], &mut new["metadata"], field);
    }
    carry(old, new, "status");
    let mut spec = old["spec"].clone();
    carry(&new["spec"], &mut spec, "ephemeralContainers");
    new["spec"] = spec;
}

/// Checks what became of the ephemeral containers that were there.
pub(in super::super) fn update(old: &Value, new: &Value, causes: &mut Causes) {
    if old["metadata"]["annotations"].get(MIRROR).is_some() {
        let why = "Forbidden: static pods do not support ephemeral containers".to_owned();
        *causes = vec![cause("FieldValueForbidden", "", why)];
        return;
    }
    let (before, after) = (Field::new("spec", &old["spec"]), Field::new("spec", &new["spec"]));
    let list = after.get("ephemeralContainers");
    for known in before.each("ephemeralContainers") {
        let name = known.get("name").text();
        let became = match after.each("ephemeralContainers").find(|other| other.get("name").text() == name) {
            None => "removed",
            Some(other) if other.value != known.value => "changed",
            Some(_) => continue,
        };
        list.forbidden(&format!("existing ephemeral containers {name:?} may not be {became}\n"), causes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ephemeral_containers_are_added_and_nothing_else() {
        let with = |images: &[&str]| {
            let list: Vec<_> =
                images.iter().enumerate().map(|(i, image)| json!({"name": i.to_string(), "image": image})).collect();
            json!({"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"},
                "spec": {"containers": [{"name": "c", "image": "i"}], "ephemeralContainers": list}})
        };
        let old = with(&["x"]);
        let mut new = with(&["x", "y"]);
        new["metadata"]["labels"] = json!({});
        new["spec"]["containers"][0]["image"] = "other".into();
        new["status"]["phase"] = "Succeeded".into();
        keep_rest(&old, &mut new);
        assert_eq!(new, with(&["x", "y"]));
        let check = |old: &Value, new: &Value, expect: &[&str]| {
            let mut causes = Vec::new();
            update(old, new, &mut causes);
            let said: Vec<&str> = causes.iter().map(|cause| cause.message.trim_end()).collect();
            assert_eq!(said, expect);
        };
        check(&old, &new, &[]);
        check(&old, &with(&[]), &["Forbidden: existing ephemeral containers \"0\" may not be removed"]);
        check(&old, &with(&["z"]), &["Forbidden: existing ephemeral containers \"0\" may not be changed"]);
        let mut mirror = old.clone();
        mirror["metadata"]["annotations"] = json!({MIRROR: "x"});
        check(&mirror, &new, &["Forbidden: static pods do not support ephemeral containers"]);
    }
}
