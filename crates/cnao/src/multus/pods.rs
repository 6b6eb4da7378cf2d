//! The pod of a sandbox, and which network it has as its own.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _};
use pod_networks::selection;

use super::call::{Call, Failure, LATER};

/// Names another network in place of the cluster's own.
const DEFAULT: &str = "v1.multus-cni.io/default-network";
/// Where such networks are that are for all.
const SHARED: &str = "kube-system";
/// The annotation of a pod that the kubelet has from a file: its UID at the kubelet.
const STATIC: &str = "kubernetes.io/config.mirror";
/// How long the API server is asked.
const PATIENCE: Duration = Duration::from_secs(20);

/// The pod that a call is for.
///
/// # Errors
/// When it is not there, or is another one by now.
pub(super) async fn of_call(client: &Client, call: &Call) -> Result<Pod, Failure> {
    let (namespace, name) = (call.argument("K8S_POD_NAMESPACE"), call.argument("K8S_POD_NAME"));
    let later =
        |why: String| Failure { code: LATER, message: format!("cannot read the pod {namespace}/{name}: {why}") };
    if namespace.is_empty() || name.is_empty() {
        return Err(later("CNI_ARGS lacks K8S_POD_NAMESPACE or K8S_POD_NAME".into()));
    }
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = match tokio::time::timeout(PATIENCE, api.get(name)).await {
        Ok(Ok(pod)) => pod,
        Ok(Err(error)) => return Err(later(kit::Chain(&error).to_string())),
        Err(_) => return Err(later("the API server does not answer".into())),
    };
    let uid = call.argument("K8S_POD_UID");
    let is_it = uid.is_empty()
        || pod.uid().as_deref() == Some(uid)
        || pod.annotations().get(STATIC).is_some_and(|known| known == uid);
    match is_it {
        true => Ok(pod),
        false => Err(later(format!("it is another one by now, and the sandbox is that of {uid}"))),
    }
}

/// The network that the pod wants in place of the cluster's own: one of its own namespace, or of those that are for all.
///
/// # Errors
/// When the annotation cannot be read, or names a network of another namespace.
pub(super) fn default_network(pod: &Pod) -> Result<Option<selection::Selected>, Failure> {
    let Some(text) = pod.annotations().get(DEFAULT).filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    let invalid = |why: String| Failure { code: LATER, message: format!("annotation {DEFAULT}: {why}") };
    let said = selection::parse(text, SHARED).map_err(invalid)?;
    let [one] = said.as_slice() else { return Err(invalid("it names one network".into())) };
    let own = pod.namespace().unwrap_or_default();
    if one.namespace != own && one.namespace != SHARED {
        let why = format!("{}/{} is neither of the pod's namespace nor of {SHARED}", one.namespace, one.name);
        return Err(invalid(why));
    }
    Ok(Some(one.clone()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<Option<&str>, &str>) {
        let metadata = json!({ "name": "p", "namespace": "own", "annotations": { DEFAULT: text } });
        let pod: Pod = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        match (default_network(&pod), expect) {
            (Ok(found), Ok(expect)) => {
                assert_eq!(found.map(|one| format!("{}/{}", one.namespace, one.name)).as_deref(), expect);
            }
            (Err(failure), Err(words)) => assert!(failure.message.contains(words), "{failure:?}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pod_takes_its_own_network_from_its_namespace_or_those_for_all() {
        check("", Ok(None));
        check("blue", Ok(Some("kube-system/blue")));
        check("own/blue", Ok(Some("own/blue")));
        check(r#"[{"name": "blue", "namespace": "own", "mac": "02:00:00:00:00:01"}]"#, Ok(Some("own/blue")));
        check("other/blue", Err("other/blue is neither of the pod's namespace nor of kube-system"));
        check("a,b", Err("it names one network"));
        check("A", Err("is not the name"));
    }
}
