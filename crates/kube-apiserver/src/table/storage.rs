//! Rows of volumes and drivers.

use serde_json::{Value, json};

use super::view::View;

pub(super) fn row(plural: &str, view: View<'_>) -> Vec<Value> {
    let (name, age) = (view.name(), view.age());
    let flag = |pointer: &str, default: bool| json!(view.at(pointer).as_bool().unwrap_or(default));
    match plural {
        "persistentvolumes" => {
            let claim = match view.text("/spec/claimRef/name") {
                "" => String::new(),
                name => format!("{}/{name}", view.text("/spec/claimRef/namespace")),
            };
            vec![
                name,
                view.at("/spec/capacity/storage").clone(),
                modes(view.at("/spec/accessModes")).into(),
                view.at("/spec/persistentVolumeReclaimPolicy").clone(),
                phase(view).into(),
                claim.into(),
                view.text("/spec/storageClassName").into(),
                class(view),
                view.text("/status/reason").into(),
                age,
                mode(view),
            ]
        }
        "persistentvolumeclaims" => {
            let bound = !view.text("/spec/volumeName").is_empty();
            let (capacity, access) = if bound {
                (view.text("/status/capacity/storage"), modes(view.at("/status/accessModes")))
            } else {
                ("", String::new())
            };
            vec![
                name,
                phase(view).into(),
                view.text("/spec/volumeName").into(),
                capacity.into(),
                access.into(),
                view.text("/spec/storageClassName").into(),
                class(view),
                age,
                mode(view),
            ]
        }
        "storageclasses" => {
            let default = view.at("/metadata/annotations").get("storageclass.kubernetes.io/is-default-class");
            let name = match default.and_then(Value::as_str) {
                Some("true") => format!("{} (default)", view.text("/metadata/name")).into(),
                _ => name,
            };
            let policy = view.at("/reclaimPolicy").as_str().unwrap_or("Delete").into();
            let binding = view.at("/volumeBindingMode").as_str().unwrap_or("Immediate").into();
            vec![name, view.at("/provisioner").clone(), policy, binding, flag("/allowVolumeExpansion", false), age]
        }
        "csidrivers" => {
            let tokens: Vec<&str> =
                view.list("/spec/tokenRequests").iter().filter_map(|t| t["audience"].as_str()).collect();
            let tokens = if tokens.is_empty() { "<unset>".to_owned() } else { tokens.join(",") };
            let lifecycle: Vec<&str> =
                view.list("/spec/volumeLifecycleModes").iter().filter_map(Value::as_str).collect();
            let lifecycle = if lifecycle.is_empty() { "<none>".to_owned() } else { lifecycle.join(",") };
            vec![
                name,
                flag("/spec/attachRequired", true),
                flag("/spec/podInfoOnMount", false),
                flag("/spec/storageCapacity", false),
                tokens.into(),
                flag("/spec/requiresRepublish", false),
                lifecycle.into(),
                age,
            ]
        }
        "csinodes" => vec![name, json!(view.list("/spec/drivers").len()), age],
        _ => vec![
            name,
            view.at("/spec/attacher").clone(),
            view.text("/spec/source/persistentVolumeName").into(),
            view.at("/spec/nodeName").clone(),
            flag("/status/attached", false),
            age,
        ],
    }
}

fn phase(view: View<'_>) -> String {
    if view.at("/metadata/deletionTimestamp").is_null() { view.text("/status/phase") } else { "Terminating" }.to_owned()
}

fn class(view: View<'_>) -> Value {
    view.at("/spec/volumeAttributesClassName").as_str().unwrap_or("<unset>").into()
}

fn mode(view: View<'_>) -> Value {
    view.at("/spec/volumeMode").as_str().unwrap_or("<unset>").into()
}

/// `ReadWriteOnce` as `RWO`, in a fixed order.
fn modes(list: &Value) -> String {
    const SHORT: [(&str, &str); 4] =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let has = |long: &str| list.as_array().is_some_and(|list| list.iter().any(|mode| mode == long));
    let words: Vec<&str> = SHORT.iter().filter(|(long, _)| has(long)).map(|(_, short)| *short).collect();
    words.join(",")
}
