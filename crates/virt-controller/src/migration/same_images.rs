//! The images that a guest's disks lie on, pinned for the pod it is moved into: what was written to a disk is carried over,
//! what lies beneath is the target's own, and must be the same to the last byte. A tag may have been moved since. Pure.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};

use crate::vmi::pod::is_disk_container;

/// Lets the containers of `target` that lend disks have the very images that those of `source` run.
pub(super) fn pin(target: &mut Pod, source: &Pod) {
    let statuses: Vec<&ContainerStatus> = source
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().chain(&status.init_container_statuses).flatten())
        .collect();
    let Some(spec) = target.spec.as_mut() else { return };
    for container in spec.containers.iter_mut().filter(|container| is_disk_container(&container.name)) {
        if let Some(status) = statuses.iter().find(|status| status.name == container.name) {
            pin_one(container, &status.image_id);
        }
    }
}

fn pin_one(container: &mut Container, id: &str) {
    let Some(digest) = id.rfind("sha256:").map(|at| &id[at..]) else { return };
    if id.contains('@') {
        let image = container.image.as_deref().unwrap_or_default();
        container.image = Some(format!("{}@{digest}", repository(image)));
    } else {
        // It came to the source's node without a registry, which alone could give a digest to pull by. The other node has it
        // as well, or nobody can give it to it.
        container.image = Some(digest.to_owned());
        container.image_pull_policy = Some("Never".to_owned());
    }
}

/// A reference without its tag and digest.
fn repository(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    name[last..].find(':').map_or(name, |colon| &name[..last + colon])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DIGEST: &str = "sha256:49f711bdf9a7a43ff34b53db381f67b4bb0ac5a5030070674471ae46ea76fa65";

    /// The image and the pull policy of a container by this name, after the source's runs `id`.
    #[track_caller]
    fn check(name: &str, image: &str, id: &str, expect: (&str, &str)) {
        let pod = |more: Value| serde_json::from_value::<Pod>(more).unwrap();
        let mut target = pod(json!({ "spec": { "containers": [
            { "name": name, "image": image, "imagePullPolicy": "Always" },
        ] } }));
        let source = pod(json!({ "status": { "containerStatuses": [
            { "name": name, "image": image, "imageID": id, "ready": true, "restartCount": 0 },
        ] } }));
        pin(&mut target, &source);
        let found = target.spec.unwrap().containers.remove(0);
        assert_eq!((found.image.as_deref().unwrap(), found.image_pull_policy.as_deref().unwrap()), expect);
    }

    #[test]
    fn a_disk_lies_on_the_same_image_on_both_nodes() {
        let pinned = |repository: &str| format!("{repository}@{DIGEST}");
        let id = pinned("mirror.example/other");
        check("volumeroot", "quay.io/a/b:v1", &id, (&pinned("quay.io/a/b"), "Always"));
        check("kernel-boot-volume", "host:5000/a", &id, (&pinned("host:5000/a"), "Always"));
        check("volumeroot", "host:5000/a:v1@sha256:00", &id, (&pinned("host:5000/a"), "Always"));
        check("volumeroot", "ferrovirt.local/a:v1", DIGEST, (DIGEST, "Never"));
        // What is not known is left as the guest has it.
        check("volumeroot", "a:v1", "", ("a:v1", "Always"));
        // The launcher is today's.
        check("compute", "launcher:v2", &id, ("launcher:v2", "Always"));
    }
}
