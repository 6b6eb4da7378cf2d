//! The pod that serves an export, and its Service. Pure.

use std::collections::BTreeMap;

use api::export::constants::{
    APP, BACKUP_BITMAP, BACKUP_IDENTITY, CERTIFICATE, CERTIFICATE_FILE, PORT, READY, SELECTOR, TLS_CIPHERS,
    TLS_MIN_VERSION,
};
use api::export::lending;
use api::export::v1::VirtualMachineExport;
use api::kubevirt::constants::label;
use api::kubevirt::tls;
use api::kubevirt::v1::KubeVirt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use origin::network;
use serde_json::{Value, json};

use super::certificate::Lifetimes;
use super::source::{Pulled, Source};
use super::{links, names, owned, owner};
use crate::error::RenderError;
use crate::facts::claims::is_block;
use crate::facts::launcher::USER;

/// On the pod: how long certificates lived when it was made; for people.
const LIFETIMES: &str = "kubevirt.io/export.certParameters";
/// Says what was applied last, which is not true of what is made after it.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const CERTIFICATES: &str = "certificates";
/// The volume with the newest certificate, and where it is.
const RENEWED: (&str, &str) = ("renewed", "/renewed");
/// The group `disk`, by the number that Linux distributions agree on.
const DISK_GROUP: i64 = 6;

/// The image of the server.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// Its name.
    pub name: &'a str,
    /// When to pull it.
    pub pull_policy: &'a str,
}

/// What the KubeVirt object asks of servers: they are told when they begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    least: String,
    ciphers: String,
}

impl Tls {
    /// As `kubevirt` has it.
    pub fn of(kubevirt: Option<&KubeVirt>) -> Self {
        let (least, ciphers) = kubevirt.map(tls::asked).unwrap_or_default();
        Self { least: least.to_owned(), ciphers: ciphers.join(",") }
    }

    fn variables(&self) -> [(&'static str, &str); 2] {
        [(TLS_MIN_VERSION, &self.least), (TLS_CIPHERS, &self.ciphers)]
    }

    /// Whether `pod` was told the same.
    fn is_of(&self, pod: &Pod) -> bool {
        self.variables().iter().all(|(name, value)| variable(pod, name).unwrap_or_default() == *value)
    }
}

/// What the server was told under this name.
fn variable<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut told = containers.flat_map(|container| container.env.iter().flatten());
    told.find(|one| one.name == name).and_then(|one| one.value.as_deref())
}

/// What a pod is made from.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The export.
    pub export: &'a VirtualMachineExport,
    /// What it shows.
    pub source: &'a Source,
    /// The Secret with its token.
    pub token: &'a str,
    /// The Secret that its key will be in.
    pub secret: &'a str,
    /// The server's image.
    pub image: Image<'a>,
    /// How long certificates live.
    pub lifetimes: Lifetimes,
    /// When the server is to end, if ever.
    pub deadline: Option<Timestamp>,
    /// What it is to offer of TLS.
    pub tls: &'a Tls,
}

/// The pod.
///
/// # Errors
/// When a part of the export does not fit into a pod.
pub fn render(wanted: &Wanted<'_>) -> Result<Pod, RenderError> {
    let Wanted { export, source, token, secret, image, lifetimes, deadline, tls } = *wanted;
    let name = export.name_any();
    let mut environment = vec![
        json!({ "name": "CERT_FILE", "value": "/cert/tls.crt" }),
        json!({ "name": "KEY_FILE", "value": "/cert/tls.key" }),
        json!({ "name": "TOKEN_FILE", "value": "/token/token" }),
        json!({ "name": CERTIFICATE_FILE, "value": format!("{}/tls.crt", RENEWED.1) }),
        json!({ "name": "DEADLINE", "value": deadline.map(|at| at.to_string()).unwrap_or_default() }),
        json!({ "name": "EXPORT_NAME", "value": name }),
        json!({ "name": "EXPORT_SECRET_DEF_URI", "value": links::SECRET }),
        // A small process that mostly waits: more allocation arenas would only hold memory.
        json!({ "name": "MALLOC_ARENA_MAX", "value": "1" }),
    ];
    let asked = tls.variables().into_iter().filter(|(_, value)| !value.is_empty());
    environment.extend(asked.map(|(name, value)| json!({ "name": name, "value": value })));
    let mut volumes = vec![
        json!({ "name": CERTIFICATES, "secret": { "secretName": secret } }),
        json!({ "name": RENEWED.0, "downwardAPI": { "items": [
            { "path": "tls.crt", "fieldRef": { "fieldPath": format!("metadata.annotations['{CERTIFICATE}']") } },
        ] } }),
        json!({ "name": "token", "secret": { "secretName": token } }),
    ];
    let mut mounts = vec![
        json!({ "name": CERTIFICATES, "mountPath": "/cert", "readOnly": true }),
        json!({ "name": RENEWED.0, "mountPath": RENEWED.1, "readOnly": true }),
        json!({ "name": "token", "mountPath": "/token", "readOnly": true }),
    ];
    let mut devices = Vec::new();
    for (index, volume) in source.volumes.iter().enumerate() {
        let claim = volume.claim.name_any();
        let mounted = names::volume(&claim);
        let path = if is_block(&volume.claim) {
            let path = format!("/dev/export-volumes/{mounted}");
            devices.push(json!({ "name": mounted, "devicePath": path }));
            path
        } else {
            let path = format!("/export-volumes/{mounted}");
            mounts.push(json!({ "name": mounted, "mountPath": path, "readOnly": true }));
            path
        };
        // The claim itself is not mounted for reading only: some drivers refuse what they have not set up once for writing.
        volumes.push(json!({ "name": mounted, "persistentVolumeClaim": { "claimName": claim } }));
        environment.push(json!({ "name": format!("VOLUME{index}_EXPORT_PATH"), "value": path }));
        let forms = if volume.disk { ["RAW", "RAW_GZIP"] } else { ["DIR", "ARCHIVE"] };
        for (form, (_, path)) in forms.iter().zip(links::paths(&claim, volume.disk)) {
            environment.push(json!({ "name": format!("VOLUME{index}_EXPORT_{form}_URI"), "value": path }));
        }
    }
    if source.has_manifests() {
        environment.push(json!({ "name": "EXPORT_VM_DEF_URI", "value": links::MACHINE }));
        mounts.push(json!({ "name": "manifest-data", "mountPath": "/manifest_data", "readOnly": true }));
        volumes.push(json!({ "name": "manifest-data", "configMap": { "name": names::manifests(&name) } }));
    }
    let mut affinity = Value::Null;
    if let Some(pulled) = &source.backup {
        environment.push(json!({ "name": BACKUP_IDENTITY, "value": pulled.identity }));
        environment.push(json!({ "name": BACKUP_BITMAP, "value": pulled.bitmap.as_deref().unwrap_or_default() }));
        for (index, volume) in pulled.volumes.iter().enumerate() {
            environment.push(json!({ "name": format!("BACKUP{index}_BACKUP_PATH"), "value": volume }));
            for (endpoint, path) in links::backup_paths(volume) {
                let name = format!("BACKUP{index}_{}_URI", endpoint.to_uppercase());
                environment.push(json!({ "name": name, "value": path }));
            }
        }
        // Where the node's agent lends it the guest's disks.
        mounts.push(json!({ "name": lending::VOLUME, "mountPath": lending::DIRECTORY }));
        volumes.push(json!({ "name": lending::VOLUME, "emptyDir": {} }));
        let on_node = json!({ "key": "metadata.name", "operator": "In", "values": [pulled.node] });
        affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchFields": [on_node] }],
        } } });
    }
    let mut labels = json!({ (label::APP): APP });
    let mut annotations = json!({});
    for (key, value) in export.labels().iter().filter(|(key, _)| !names::is_ours(key)) {
        labels[key] = json!(value);
    }
    for (key, value) in passed_on(export) {
        annotations[key] = json!(value);
    }
    labels[SELECTOR] = json!(names::label(&name));
    annotations[LIFETIMES] = json!(lifetimes.mark());
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": names::pod(&name), "namespace": export.namespace(), "labels": labels, "annotations": annotations,
            "ownerReferences": [owner(export)],
        },
        "spec": {
            // It serves whoever has a token, and asks nobody.
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 10,
            "affinity": affinity,
            "securityContext": {
                "runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": true, "fsGroup": USER,
                // What lies in a volume is its guest's: nothing of it is to change by being shown.
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [container(image, &environment, &mounts, &devices)],
            "volumes": volumes,
        },
    });
    if !devices.is_empty() {
        // A volume's fsGroup says nothing of devices, which nodes leave to this group.
        pod["spec"]["securityContext"]["supplementalGroups"] = json!([DISK_GROUP]);
    }
    serde_json::from_value(pod).map_err(RenderError)
}

/// The annotations of an export that what is made for it gets, too: none that names what its author may not have.
fn passed_on(export: &VirtualMachineExport) -> BTreeMap<String, String> {
    let mut annotations = export.annotations().clone();
    annotations.retain(|key, _| key != APPLIED && !names::is_ours(key));
    network::keep_own(&mut annotations, &export.namespace().unwrap_or_default());
    annotations
}

fn container(image: Image<'_>, environment: &[Value], mounts: &[Value], devices: &[Value]) -> Value {
    json!({
        "name": "exporter",
        "image": image.name,
        "imagePullPolicy": image.pull_policy,
        "command": ["virt-exportserver"],
        "env": environment,
        "ports": [{ "name": "export", "containerPort": PORT, "protocol": "TCP" }],
        "resources": {
            "requests": { "cpu": "100m", "memory": "200Mi" },
            "limits": { "cpu": "1", "memory": "1Gi" },
        },
        "readinessProbe": {
            "httpGet": { "path": READY, "port": PORT, "scheme": "HTTPS" }, "periodSeconds": 1, "timeoutSeconds": 5,
        },
        "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "readOnlyRootFilesystem": true,
            "runAsUser": USER, "runAsGroup": USER, "runAsNonRoot": true,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        "volumeDevices": devices,
    })
}

/// The Service, under whose name the pod's certificate is checked.
pub fn service(export: &VirtualMachineExport) -> Service {
    let name = export.name_any();
    let mut metadata = owned(export, &names::service(&name));
    let mut labels = export.labels().clone();
    labels.retain(|key, _| !names::is_ours(key));
    labels.insert(label::APP.to_owned(), APP.to_owned());
    metadata.labels = Some(labels);
    metadata.annotations = Some(passed_on(export)).filter(|all| !all.is_empty());
    Service {
        metadata,
        spec: Some(ServiceSpec {
            selector: Some([(SELECTOR.to_owned(), names::label(&name))].into()),
            ports: Some(vec![ServicePort {
                name: Some("export".to_owned()),
                protocol: Some("TCP".to_owned()),
                port: 443,
                target_port: Some(IntOrString::Int(i32::from(PORT))),
                ..Default::default()
            }]),
            ..Default::default()
        }),
        status: None,
    }
}

/// The pod's phase.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// Whether it serves.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready && phase(pod) == "Running"
}

/// Whether it serves a backup, and has nothing of it yet.
pub fn waits_to_be_lent(pod: &Pod) -> bool {
    phase(pod) == "Running" && !is_ready(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// The Secret that the pod's key is in.
pub fn certificate(pod: &Pod) -> Option<String> {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.find(|volume| volume.name == CERTIFICATES)?.secret.as_ref()?.secret_name.clone()
}

/// Why `pod` is not to serve `source` any longer: the reason and the words of an event.
pub fn outlived(pod: &Pod, source: &Source, tls: &Tls) -> Option<(&'static str, String)> {
    if !source.is_served() {
        return Some(("ExportPaused", source.message.clone()));
    }
    if matches!(phase(pod), "Succeeded" | "Failed") {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let message = format!("Exporter pod {namespace}/{name} is in phase {}", phase(pod));
        return Some(("ExporterPodFailedOrCompleted", message));
    }
    if !tls.is_of(pod) {
        return Some(("TLSConfigurationChanged", "The KubeVirt object asks for another TLS".to_owned()));
    }
    let identity = |pulled: &Pulled| pulled.identity.clone();
    if variable(pod, BACKUP_IDENTITY).map(str::to_owned) != source.backup.as_ref().map(identity) {
        return Some(("VolumesChanged", "The backup is not the one that is served".to_owned()));
    }
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let held = volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone()));
    let wanted = source.volumes.iter().map(|volume| volume.claim.name_any());
    let same = held.collect::<std::collections::BTreeSet<_>>() == wanted.collect();
    (!same).then(|| ("VolumesChanged", "The volumes of the source are not those that are served".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::source::Volume;
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    static NO_TLS: Tls = Tls { least: String::new(), ciphers: String::new() };
    const LIVES: Lifetimes = Lifetimes { whole: HOUR, renew: Duration::from_secs(60) };

    fn volume(name: &str, mode: &str, disk: bool) -> Volume {
        let claim = json!({ "metadata": { "name": name }, "spec": { "volumeMode": mode } });
        Volume { name: name.to_owned(), claim: serde_json::from_value(claim).unwrap(), disk }
    }

    fn pod(source: &Source) -> Pod {
        let export: VirtualMachineExport = serde_json::from_value(json!({
            "metadata": {
                "name": "e", "namespace": "ns", "uid": "u",
                // What the components know each other by is not an exporter's to be given.
                "labels": { "team": "a", "kubevirt.io": "virt-handler", "kubevirt.io/created-by": "x", "cdi.kubevirt.io": "y" },
                "annotations": { "note": "b", (APPLIED): "{}" },
            },
            "spec": { "source": { "kind": "PersistentVolumeClaim", "name": "a" } },
        }))
        .unwrap();
        render(&wanted(&export, source)).unwrap()
    }

    fn wanted<'a>(export: &'a VirtualMachineExport, source: &'a Source) -> Wanted<'a> {
        Wanted {
            export,
            source,
            token: "secret-e",
            secret: "secret-x",
            image: Image { name: "component:v1", pull_policy: "Always" },
            lifetimes: LIVES,
            deadline: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            tls: &NO_TLS,
        }
    }

    #[test]
    fn volumes_are_mounted_for_reading_and_named_to_the_server() {
        let volumes =
            vec![volume("a", "Filesystem", true), volume("b.c", "Block", true), volume("d", "Filesystem", false)];
        let source = Source { volumes, free: true, ..Source::default() };
        let pod = pod(&source);
        let found = json!(pod);
        let container = &found["spec"]["containers"][0];
        let environment = |name: &str| {
            let all = container["env"].as_array().unwrap();
            all.iter().find(|one| one["name"] == name).map(|one| one["value"].as_str().unwrap().to_owned())
        };
        let check = |name: &str, expect: Option<&str>| assert_eq!(environment(name).as_deref(), expect, "{name}");
        check("VOLUME0_EXPORT_PATH", Some("/export-volumes/a"));
        check("VOLUME0_EXPORT_RAW_URI", Some("/volumes/a/disk.img"));
        check("VOLUME0_EXPORT_RAW_GZIP_URI", Some("/volumes/a/disk.img.gz"));
        check("VOLUME1_EXPORT_PATH", Some(&format!("/dev/export-volumes/{}", names::volume("b.c"))));
        check("VOLUME1_EXPORT_RAW_URI", Some("/volumes/b.c/disk.img"));
        check("VOLUME2_EXPORT_DIR_URI", Some("/volumes/d/dir/"));
        check("VOLUME2_EXPORT_ARCHIVE_URI", Some("/volumes/d/disk.tar.gz"));
        check("VOLUME2_EXPORT_RAW_URI", None);
        check("EXPORT_VM_DEF_URI", None);
        check("DEADLINE", Some("2026-01-01T00:00:00Z"));
        assert!(container["volumeMounts"].as_array().unwrap().iter().all(|mount| mount["readOnly"] == true));
        let resources = json!({
            "requests": { "cpu": "100m", "memory": "200Mi" }, "limits": { "cpu": "1", "memory": "1Gi" },
        });
        assert_eq!(container["resources"], resources);
        assert_eq!(found["spec"]["automountServiceAccountToken"], false);
        assert_eq!(found["spec"]["securityContext"]["supplementalGroups"], json!([DISK_GROUP]));
        assert_eq!(
            found["metadata"]["labels"],
            json!({ "kubevirt.io": "virt-exporter", "kubevirt.io.virt-export-service": "e", "team": "a" })
        );
        assert_eq!(found["metadata"]["annotations"], json!({ (LIFETIMES): LIVES.mark(), "note": "b" }));
        assert_eq!(certificate(&pod).as_deref(), Some("secret-x"));
    }

    #[test]
    fn an_export_puts_its_pod_on_no_network_of_another_namespace() {
        let check = |text: &str, expect: Value| {
            let export = json!({
                "metadata": { "name": "e", "namespace": "evil", "uid": "u", "annotations": {
                    "k8s.v1.cni.cncf.io/networks": text, "v1.multus-cni.io/default-network": text,
                } },
                "spec": { "source": { "kind": "PersistentVolumeClaim", "name": "a" } },
            });
            let export: VirtualMachineExport = serde_json::from_value(export).unwrap();
            let pod = render(&wanted(&export, &Source::default())).unwrap();
            for metadata in [pod.metadata, service(&export).metadata] {
                let found = json!(metadata);
                for key in ["k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network"] {
                    assert_eq!(found["annotations"].get(key).cloned().unwrap_or_default(), expect, "{key}: {text}");
                }
            }
        };
        check("victim/red", Value::Null);
        check(r#"[{"name": "red", "namespace": "victim"}]"#, Value::Null);
        check("red@eth1, default/blue", json!("red@eth1, default/blue"));
    }

    #[test]
    fn the_server_of_a_backup_is_on_the_guests_node() {
        let pulled = Pulled {
            backup: "b".to_owned(),
            started: serde_json::from_value(json!("2026-01-31T13:59:59Z")).unwrap(),
            machine: "vm".to_owned(),
            node: "n".to_owned(),
            identity: "i/b/2026-01-31T13:59:59Z".to_owned(),
            bitmap: Some("b-1".to_owned()),
            volumes: vec!["root".to_owned()],
        };
        let source = Source { backup: Some(pulled.clone()), free: true, ..Source::default() };
        let pod = pod(&source);
        let check = |name: &str, expect: &str| assert_eq!(variable(&pod, name), Some(expect));
        check("BACKUP_IDENTITY", "i/b/2026-01-31T13:59:59Z");
        check("BACKUP_BITMAP", "b-1");
        check("BACKUP0_BACKUP_PATH", "root");
        check("BACKUP0_DATA_URI", "/exports/root/data");
        check("BACKUP0_MAP_URI", "/exports/root/map");
        let spec = json!(pod)["spec"].clone();
        let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"], json!(["n"]));
        assert_eq!(spec["volumes"][3], json!({ "name": "backup", "emptyDir": {} }));
        let ended = |source: &Source| outlived(&pod, source, &Tls::default()).map(|(reason, _)| reason);
        assert_eq!(ended(&source), None);
        let again = Pulled { identity: "i/b/2026-01-31T14:00:00Z".to_owned(), ..pulled };
        assert_eq!(ended(&Source { backup: Some(again), ..source }), Some("VolumesChanged"));
        assert_eq!(ended(&Source::default()), Some("ExportPaused"));
        let mut running = pod.clone();
        assert!(!waits_to_be_lent(&running));
        running.status = serde_json::from_value(json!({ "phase": "Running" })).unwrap();
        assert!(waits_to_be_lent(&running));
    }

    #[test]
    fn a_pod_ends_with_what_it_was_made_for() {
        let source = Source { volumes: vec![volume("a", "Block", true)], free: true, ..Source::default() };
        let check = |pod: &Pod, source: &Source, expect: Option<&str>| {
            let found = outlived(pod, source, &Tls::default());
            assert_eq!(found.map(|(reason, _)| reason), expect);
        };
        let mut pod = pod(&source);
        check(&pod, &source, None);
        check(&pod, &Source { free: false, ..source.clone() }, Some("ExportPaused"));
        let more = Source { volumes: vec![volume("b", "Block", true)], ..source.clone() };
        check(&pod, &more, Some("VolumesChanged"));
        let modern = json!({ "metadata": {}, "spec": { "configuration": {
            "tlsConfiguration": { "minTLSVersion": "VersionTLS13" },
        } } });
        let modern = Tls::of(Some(&serde_json::from_value(modern).unwrap()));
        let found = outlived(&pod, &source, &modern);
        assert_eq!(found.map(|(reason, _)| reason), Some("TLSConfigurationChanged"));
        pod.status = serde_json::from_value(json!({ "phase": "Succeeded" })).unwrap();
        check(&pod, &source, Some("ExporterPodFailedOrCompleted"));
    }
}
