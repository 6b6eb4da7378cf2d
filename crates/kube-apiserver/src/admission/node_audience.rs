//! For whom a node asks for tokens (ServiceAccountNodeAudienceRestriction): those to whom its pod is going to show them.
//!
//! An audience is the pod's when a projected volume names it, or a CSI driver that one of the pod's volumes is of. The API
//! server's own, which a node may also leave out, is one like the others.

use serde_json::Value;

use apimachinery::pointer::{items, strings, text};
use apimachinery::request::RequestInfo;

use super::Attributes;
use crate::authn::tokens::ISSUER;
use crate::authz::Authorizer;
use crate::view::View;

/// Allows a node more audiences than those of its pods; the audience is the resource of the rule.
const VERB: &str = "request-serviceaccounts-token-audience";

/// Checks the audience of a request for a token that is bound to `pod`.
///
/// # Errors
/// Why the node does not get it.
pub(super) fn check(
    view: &dyn View,
    authorizer: &Authorizer,
    attributes: &Attributes,
    pod: &Value,
) -> Result<(), String> {
    let asked = attributes.object.as_ref().map(|request| strings(request, "/spec/audiences")).unwrap_or_default();
    let asked = match asked.as_slice() {
        [] => "",
        [one] => one.as_str(),
        _ => return Err("node may only request 0 or 1 audiences".to_owned()),
    };
    if refers(view, pod, asked).map_err(|why| format!("error validating audience {asked:?}: {why}"))? {
        return Ok(());
    }
    let rule = RequestInfo {
        verb: VERB.to_owned(),
        version: "v1".to_owned(),
        resource: asked.to_owned(),
        namespace: attributes.namespace.clone(),
        name: attributes.name.clone(),
        ..RequestInfo::default()
    };
    let user = &attributes.user;
    if !asked.is_empty() && authorizer.allows(user, &rule) {
        return Ok(());
    }
    Err(format!(
        "audience {asked:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
        user.name
    ))
}

/// Whether the pod's volumes need tokens for the audience; an error when they do not and some could not be looked at.
fn refers(view: &dyn View, pod: &Value, audience: &str) -> Result<bool, String> {
    let mut failures = Vec::new();
    for volume in items(pod, "/spec/volumes") {
        let mut mounted = items(volume, "/projected/sources").iter().filter_map(|s| s.get("serviceAccountToken"));
        if mounted.any(|token| same(text(token, "/audience"), audience)) {
            return Ok(true);
        }
        match driver(view, pod, volume).and_then(|driver| asks(view, driver.as_deref(), audience)) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(why) => failures.push(why),
        }
    }
    match failures.as_slice() {
        [] => Ok(false),
        [why] => Err(why.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

/// Whether both name one audience. None at all means the API server.
fn same(one: &str, other: &str) -> bool {
    let named = |audience: &str| if audience.is_empty() { ISSUER.to_owned() } else { audience.to_owned() };
    named(one) == named(other)
}

/// The CSI driver of a volume, if it has one.
fn driver(view: &dyn View, pod: &Value, volume: &Value) -> Result<Option<String>, String> {
    let claim = if volume.pointer("/ephemeral/volumeClaimTemplate").is_some() {
        format!("{}-{}", text(pod, "/metadata/name"), text(volume, "/name"))
    } else if volume.get("persistentVolumeClaim").is_some() {
        text(volume, "/persistentVolumeClaim/claimName").to_owned()
    } else {
        return Ok(Some(text(volume, "/csi/driver").to_owned()).filter(|driver| !driver.is_empty()));
    };
    let found = |resource: &str, singular: &str, namespace: &str, name: &str| {
        view.get("", resource, namespace, name).ok_or_else(|| format!("{singular} {name:?} not found"))
    };
    let claim = found("persistentvolumeclaims", "persistentvolumeclaim", text(pod, "/metadata/namespace"), &claim)?;
    let name = text(&claim, "/spec/volumeName");
    if name.is_empty() {
        return Ok(None);
    }
    let volume = found("persistentvolumes", "persistentvolume", "", name)?;
    Ok(Some(text(&volume, "/spec/csi/driver").to_owned()).filter(|driver| !driver.is_empty()))
}

/// Whether a driver is given tokens for the audience.
fn asks(view: &dyn View, driver: Option<&str>, audience: &str) -> Result<bool, String> {
    let Some(name) = driver else { return Ok(false) };
    let driver = view
        .get("storage.k8s.io", "csidrivers", "", name)
        .ok_or_else(|| format!("csidriver.storage.k8s.io {name:?} not found"))?;
    Ok(items(&driver, "/spec/tokenRequests").iter().any(|request| same(text(request, "/audience"), audience)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::Fixed;

    #[track_caller]
    fn check(volumes: &Value, audience: &str, expect: Result<bool, &str>) {
        let claim = |name: &str, volume: &str| json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"volumeName": volume}});
        let view = Fixed::default()
            .with("storage.k8s.io", "csidrivers", json!({"metadata": {"name": "d"}, "spec": {"tokenRequests": [{"audience": "vault"}, {"audience": ""}]}}))
            .with("", "persistentvolumes", json!({"metadata": {"name": "v"}, "spec": {"csi": {"driver": "d"}}}))
            .with("", "persistentvolumeclaims", claim("bound", "v"))
            .with("", "persistentvolumeclaims", claim("p-made", "v"))
            .with("", "persistentvolumeclaims", claim("waits", ""))
            .with("", "persistentvolumeclaims", claim("lost", "gone"));
        let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"volumes": volumes}});
        assert_eq!(refers(&view, &pod, audience), expect.map_err(str::to_owned), "{volumes} {audience:?}");
    }

    #[test]
    fn audiences_are_those_of_volumes() {
        let token = |audience: &str| json!([{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": audience}}]}}]);
        check(&json!([]), "", Ok(false));
        check(&token(""), "", Ok(true));
        check(&token(""), ISSUER, Ok(true));
        check(&token(ISSUER), "", Ok(true));
        check(&token("foo"), "foo", Ok(true));
        check(&token("foo"), "", Ok(false));
        check(&token("foo"), "bar", Ok(false));
        let claim = |name: &str| json!({"name": "c", "persistentVolumeClaim": {"claimName": name}});
        let inline = |driver: &str| json!({"name": "i", "csi": {"driver": driver}});
        for volume in [inline("d"), claim("bound"), json!({"name": "made", "ephemeral": {"volumeClaimTemplate": {}}})] {
            check(&json!([volume]), "vault", Ok(true));
            check(&json!([volume]), "", Ok(true));
            check(&json!([volume]), "foo", Ok(false));
        }
        check(&json!([claim("waits")]), "vault", Ok(false));
        check(&json!([inline("x")]), "vault", Err("csidriver.storage.k8s.io \"x\" not found"));
        check(&json!([claim("none")]), "vault", Err("persistentvolumeclaim \"none\" not found"));
        check(&json!([claim("lost")]), "vault", Err("persistentvolume \"gone\" not found"));
        check(
            &json!([claim("none"), inline("x")]),
            "vault",
            Err("[persistentvolumeclaim \"none\" not found, csidriver.storage.k8s.io \"x\" not found]"),
        );
        check(&json!([claim("none"), inline("d")]), "vault", Ok(true));
    }
}
