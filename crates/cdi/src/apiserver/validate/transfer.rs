//! ObjectTransfers.

use api::cdi::v1beta1::ObjectTransfer;

/// What an ObjectTransfer is to make, when it is well formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// `DataVolume` or `PersistentVolumeClaim`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Where the object goes.
///
/// # Errors
/// A sentence that says what is wrong.
pub(crate) fn target(transfer: &ObjectTransfer) -> Result<Target, String> {
    let (source, target) = (&transfer.spec.source, &transfer.spec.target);
    if target.namespace.is_none() && target.name.is_none() {
        return Err("Target namespace and/or target name must be supplied".to_owned());
    }
    if !matches!(source.kind.as_str(), "DataVolume" | "PersistentVolumeClaim") {
        return Err(format!("Unsupported kind {:?}", source.kind));
    }
    Ok(Target {
        kind: source.kind.clone(),
        namespace: target.namespace.clone().unwrap_or_else(|| source.namespace.clone()),
        name: target.name.clone().unwrap_or_else(|| source.name.clone()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(kind: &str, to: Value, expect: Result<(&str, &str), &str>) {
        let source = json!({ "kind": kind, "namespace": "a", "name": "x" });
        let object = json!({ "metadata": {}, "spec": { "source": source, "target": to } });
        let found = target(&serde_json::from_value(object).unwrap());
        let found = found.as_ref().map(|found| (found.namespace.as_str(), found.name.as_str()));
        assert_eq!(found.map_err(String::as_str), expect);
    }

    #[test]
    fn targets() {
        check("DataVolume", json!({ "namespace": "b" }), Ok(("b", "x")));
        check("PersistentVolumeClaim", json!({ "name": "y" }), Ok(("a", "y")));
        check("DataVolume", json!({}), Err("Target namespace and/or target name must be supplied"));
        check("Pod", json!({ "name": "y" }), Err("Unsupported kind \"Pod\""));
    }
}
