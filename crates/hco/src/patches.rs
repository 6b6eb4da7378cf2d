//! Patches of the rendered objects, RFC 6902, in annotations of the HyperConverged object. Pure. Nobody supports what they make of a
//! cluster: a condition says that they are there.

use api::hco::HyperConverged;
use serde_json::Value;

use crate::child::Child;
use crate::refusal::Refusal;

/// The longest patch: an annotation could be a quarter of a megabyte, and each of its operations could copy the object.
const LONGEST: usize = 16 << 10;

/// `manifest` as the annotation `name` has it.
///
/// # Errors
/// When the annotation holds no patch, one of something else than the spec, or one that does not apply.
pub(crate) fn apply(mut manifest: Value, hco: &HyperConverged, name: &str) -> Result<Value, Refusal> {
    let Some(text) = hco.metadata.annotations.as_ref().and_then(|all| all.get(name)) else { return Ok(manifest) };
    let refuse = |message: String| Refusal::new(format!("metadata.annotations[{name}]"), message);
    if text.len() > LONGEST {
        return Err(refuse(format!("the patch is longer than {LONGEST} bytes: set the fields of the object instead")));
    }
    let patch: json_patch::Patch = serde_json::from_str(text)
        .map_err(|error| refuse(format!("no list of JSON patch operations as of RFC 6902: {error}")))?;
    for operation in &patch.0 {
        let path = operation.path().to_string();
        if !path.starts_with("/spec/") {
            return Err(refuse(format!("only fields below /spec/ can be patched, and {path:?} is none")));
        }
    }
    json_patch::patch(&mut manifest, &patch).map_err(|error| refuse(format!("the patch does not apply: {error}")))?;
    Ok(manifest)
}

/// The annotations of `hco` with patches.
pub(crate) fn present(hco: &HyperConverged) -> Vec<&'static str> {
    let annotations = hco.metadata.annotations.as_ref();
    let names = Child::ALL.into_iter().map(|child| child.kind().patch);
    names.filter(|name| annotations.is_some_and(|all| all.contains_key(*name))).collect()
}

/// How many operations the annotation `name` has.
pub(crate) fn operations(hco: &HyperConverged, name: &str) -> usize {
    let text = hco.metadata.annotations.as_ref().and_then(|all| all.get(name));
    text.and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok()).map_or(0, |list| list.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(patch: &str, expect: Result<Value, &str>) {
        let hco: HyperConverged =
            serde_json::from_value(json!({ "metadata": { "annotations": { "p": patch } } })).unwrap();
        match (apply(json!({ "spec": { "a": 1 } }), &hco, "p"), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found["spec"], expect),
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (found, _) => panic!("{patch}: {found:?}"),
        }
    }

    #[test]
    fn patches_change_the_spec_and_nothing_else() {
        check(r#"[{"op":"add","path":"/spec/b","value":2}]"#, Ok(json!({ "a": 1, "b": 2 })));
        check(r#"[{"op":"test","path":"/spec/a","value":2}]"#, Err("does not apply"));
        check(r#"[{"op":"add","path":"/metadata/name","value":"x"}]"#, Err("\"/metadata/name\" is none"));
        check(r#"[{"op":"remove","path":"/spec"}]"#, Err("only fields below"));
        check("{", Err("no list of JSON patch operations"));
        check(&format!("[{}]", " ".repeat(LONGEST)), Err("longer than"));
    }
}
