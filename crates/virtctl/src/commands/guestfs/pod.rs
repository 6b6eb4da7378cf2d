//! The pod of `virtctl guestfs`, and whether others use its claim. Pure.

use api::kubevirt::constants::device;
use api::kubevirt::v1::VirtualMachine;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::Args;
use crate::fault::Fault;

/// The one container.
pub(super) const CONTAINER: &str = "libguestfs";
const DIRECTORY: &str = "/disk";
const DEVICE: &str = "/dev/vda";
const HOME: &str = "/home/guestfs";
const TEMPORARY: &str = "/tmp/guestfs";
const APPLIANCE: &str = "/usr/local/lib/guestfs/appliance";

/// What the pod is to be like.
#[derive(Debug)]
pub(super) struct Shape {
    claim: String,
    pub(super) image: String,
    pull_policy: String,
    kvm: bool,
    root: bool,
    user: Option<i64>,
    group: Option<i64>,
    volume_group: Option<i64>,
    /// The claim is a device.
    pub(super) block: bool,
    /// The machine that says on which nodes the pod may be.
    pub(super) place: Option<VirtualMachine>,
}

impl Shape {
    pub(super) fn of(args: &Args) -> Result<Self, Fault> {
        if !["Always", "IfNotPresent", "Never"].contains(&args.pull_policy.as_str()) {
            return Err(Fault::usage(format!("Invalid pull policy: {}", args.pull_policy))
                .hint("it is Always, IfNotPresent or Never"));
        }
        let refuse = |why: &str| Err(Fault::usage(why));
        match (args.root, args.uid, args.gid, args.fs_group) {
            (true, Some(_), ..) => return refuse("cannot set uid if root is true"),
            (true, _, Some(_), _) => return refuse("cannot set gid id with root"),
            (true, .., Some(_)) => return refuse("cannot set fsGroup id with root"),
            (false, None, Some(_), _) => return refuse("gid requires the uid to be set"),
            _ => {}
        }
        let zero = args.root.then_some(0);
        Ok(Self {
            claim: args.claim.clone(),
            image: args.image.clone(),
            pull_policy: args.pull_policy.clone(),
            kvm: args.kvm,
            root: args.root,
            user: args.uid.or(zero),
            group: args.gid.or(zero),
            volume_group: args.fs_group.or(zero),
            block: false,
            place: None,
        })
    }

    /// Where the claim is in the pod.
    pub(super) fn mounted_at(&self) -> &'static str {
        if self.block { DEVICE } else { DIRECTORY }
    }

    pub(super) fn pod(&self) -> serde_json::Result<Pod> {
        let mut mounts = vec![
            json!({ "name": "libguestfs-tmp-dir", "mountPath": TEMPORARY }),
            json!({ "name": "guestfs", "mountPath": HOME }),
        ];
        let mut devices = Vec::new();
        if self.block {
            devices.push(json!({ "name": "volume", "devicePath": DEVICE }));
        } else {
            mounts.push(json!({ "name": "volume", "mountPath": DIRECTORY }));
        }
        let limits = if self.kvm { json!({ (device::KVM): "1" }) } else { json!({}) };
        let template = self.place.as_ref().map(|machine| &machine.spec.template);
        let spec = template.and_then(|template| template.spec.as_deref());
        let labels = template.and_then(|template| template.metadata.as_ref()?.labels.clone());
        serde_json::from_value(json!({
            "metadata": { "name": format!("libguestfs-tools-{}", self.claim), "labels": labels },
            "spec": {
                "restartPolicy": "Never",
                "securityContext": {
                    "runAsNonRoot": !self.root, "runAsUser": self.user, "runAsGroup": self.group,
                    "fsGroup": self.volume_group, "seccompProfile": { "type": "RuntimeDefault" },
                },
                "tolerations": spec.map(|spec| &spec.tolerations),
                "affinity": spec.and_then(|spec| spec.affinity.as_ref()),
                "nodeSelector": spec.map(|spec| &spec.node_selector),
                "containers": [{
                    "name": CONTAINER,
                    "image": self.image,
                    "imagePullPolicy": self.pull_policy,
                    "command": ["/entrypoint.sh"],
                    "workingDir": (!self.block).then_some(DIRECTORY),
                    "stdin": true, "tty": true,
                    "env": [
                        { "name": "LIBGUESTFS_BACKEND", "value": "direct" },
                        { "name": "LIBGUESTFS_PATH", "value": APPLIANCE },
                        { "name": "LIBGUESTFS_TMPDIR", "value": TEMPORARY },
                        { "name": "HOME", "value": HOME },
                    ],
                    "resources": { "limits": limits },
                    "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                    "volumeMounts": mounts,
                    "volumeDevices": devices,
                }],
                "volumes": [
                    { "name": "volume", "persistentVolumeClaim": { "claimName": self.claim } },
                    { "name": "libguestfs-tmp-dir", "emptyDir": {} },
                    { "name": "guestfs", "emptyDir": {} },
                ],
            },
        }))
    }
}

/// Whether `pod`, which has not ended, has the claim.
pub(super) fn uses(pod: &Pod, claim: &str) -> bool {
    let ended = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    !matches!(ended, Some("Succeeded" | "Failed"))
        && volumes
            .iter()
            .any(|volume| volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == claim))
}

/// Why `pod` does not run yet, if anybody says.
pub(super) fn waits(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let waiting = status.container_statuses.iter().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        Some((container.name.as_str(), waiting.reason.clone(), waiting.message.clone()))
    });
    let unscheduled = || {
        let refused = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
        Some((CONTAINER, refused.reason.clone(), refused.message.clone()))
    };
    let (name, reason, message) = waiting.or_else(unscheduled)?;
    let (reason, message) = (reason.unwrap_or_default(), message.unwrap_or_default());
    Some(format!("Waiting for container {name} still in pending, reason: {reason}, message: {message}"))
}

/// The image that the container of `pod` waits for in vain, and why.
pub(super) fn lacks(pod: &Pod) -> Option<(String, String)> {
    let mut all = pod.status.as_ref()?.container_statuses.iter().flatten();
    all.find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        // The first failure of a pull may be one of the moment.
        let in_vain = ["ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"];
        let reason = waiting.reason.as_deref().filter(|reason| in_vain.contains(reason))?;
        Some((container.image.clone(), waiting.message.clone().unwrap_or_else(|| reason.to_owned())))
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn shape(line: &[&str]) -> Result<Shape, String> {
        let line = Line::try_parse_from([&["guestfs", "data"], line].concat()).unwrap();
        Shape::of(&line.args).map_err(|fault| format!("{fault:?}"))
    }

    #[track_caller]
    fn check(line: &[&str], path: &str, expect: Value) {
        let pod = json!(shape(line).unwrap().pod().unwrap());
        assert_eq!(pod.pointer(path).cloned().unwrap_or_default(), expect);
    }

    #[test]
    fn the_pod_is_as_asked_for() {
        check(&[], "/metadata/name", json!("libguestfs-tools-data"));
        check(&[], "/spec/securityContext/runAsNonRoot", json!(true));
        check(&[], "/spec/containers/0/resources/limits/devices.kubevirt.io~1kvm", json!("1"));
        check(&["--kvm=false"], "/spec/containers/0/resources/limits/devices.kubevirt.io~1kvm", Value::Null);
        check(&["--root"], "/spec/securityContext/runAsUser", json!(0));
        check(&["--uid", "107", "--gid", "36"], "/spec/securityContext/runAsGroup", json!(36));
        check(&["--fsGroup", "107"], "/spec/securityContext/fsGroup", json!(107));
        check(&["--image", "i"], "/spec/containers/0/image", json!("i"));
        check(&[], "/spec/containers/0/volumeMounts/2/mountPath", json!("/disk"));
        let device = Shape { block: true, ..shape(&[]).unwrap() };
        let pod = json!(device.pod().unwrap());
        assert_eq!(pod["spec"]["containers"][0]["volumeDevices"][0]["devicePath"], "/dev/vda");
        assert_eq!((device.mounted_at(), pod["spec"]["containers"][0].get("workingDir")), ("/dev/vda", None));
    }

    #[test]
    fn a_machine_says_where_the_pod_is() {
        let machine = json!({ "spec": { "template": {
            "metadata": { "labels": { "app": "db" } },
            "spec": { "nodeSelector": { "disk": "fast" }, "domain": { "devices": {} } },
        } } });
        let place = Some(serde_json::from_value(machine).unwrap());
        let pod = json!(Shape { place, ..shape(&[]).unwrap() }.pod().unwrap());
        assert_eq!(
            (&pod["spec"]["nodeSelector"]["disk"], &pod["metadata"]["labels"]["app"]),
            (&json!("fast"), &json!("db"))
        );
    }

    #[test]
    fn contradicting_flags_are_refused() {
        for (line, expect) in [
            (&["--root", "--uid", "1"][..], "cannot set uid if root is true"),
            (&["--gid", "1"], "gid requires the uid to be set"),
            (&["--root", "--fsGroup", "1"], "cannot set fsGroup id with root"),
            (&["--pull-policy", "Sometimes"], "Invalid pull policy: Sometimes"),
        ] {
            assert!(shape(line).unwrap_err().contains(expect), "{line:?}");
        }
    }

    #[test]
    fn an_image_that_is_nowhere_is_not_waited_for() {
        let pod = |reason: &str| -> Pod {
            serde_json::from_value(json!({ "status": { "containerStatuses": [{
                "name": CONTAINER, "image": "r/guestfs:v1", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "waiting": { "reason": reason, "message": "no such host" } },
            }] } }))
            .unwrap()
        };
        assert_eq!(lacks(&pod("ImagePullBackOff")), Some(("r/guestfs:v1".to_owned(), "no such host".to_owned())));
        assert!(lacks(&pod("ErrImageNeverPull")).is_some());
        assert_eq!((lacks(&pod("ErrImagePull")), lacks(&pod("ContainerCreating"))), (None, None));
    }

    #[test]
    fn a_claim_is_free_once_its_pods_have_ended() {
        let pod = |phase: &str| -> Pod {
            serde_json::from_value(json!({
                "spec": { "containers": [], "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }] },
                "status": { "phase": phase },
            }))
            .unwrap()
        };
        assert!(uses(&pod("Running"), "data") && uses(&pod("Pending"), "data"));
        assert!(!uses(&pod("Succeeded"), "data") && !uses(&pod("Running"), "other"));
    }
}
