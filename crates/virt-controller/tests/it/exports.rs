//! Exports: the pod, its Service, token, certificate and manifests, the links, and the end; kubelet and storage are played.

use api::export::v1::{VirtualMachineExport, VirtualMachineExportStatus};
use api::kubevirt::v1::{KubeVirt, VirtualMachineInstance};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::certs::{Authority, Leaf};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::chosen;
use crate::cluster::{Cluster, machine, start, wait};
use crate::storage::{claim, on};

fn api<K>(cluster: &Cluster) -> Api<K>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(cluster.client.clone(), "default")
}

/// A cluster in which virt-operator has made the authority of exports.
async fn cluster() -> Cluster {
    let cluster = start().await;
    authority(&cluster).await;
    cluster
}

/// The authority of exports, as virt-operator makes it.
pub(crate) async fn authority(cluster: &Cluster) {
    let day = std::time::Duration::from_secs(24 * 3600);
    let pair = Authority::generate("export.kubevirt.io", kit::clock::now(), day * 7).unwrap().pair().clone();
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "kubevirt");
    let secret = json!({ "metadata": { "name": "kubevirt-export-ca" }, "stringData": { "tls.crt": pair.certificate, "tls.key": pair.key } });
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "kubevirt");
    let map = json!({ "metadata": { "name": "kubevirt-export-ca" }, "data": { "ca-bundle": pair.certificate } });
    maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
}

async fn export(cluster: &Cluster, kind: &str, name: &str, more: Value) -> VirtualMachineExport {
    let group = match kind {
        "VirtualMachine" => Some("kubevirt.io"),
        "VirtualMachineSnapshot" => Some("snapshot.kubevirt.io"),
        _ => None,
    };
    let source = json!({ "apiGroup": group, "kind": kind, "name": name });
    let mut object = json!({ "metadata": { "name": "e" }, "spec": { "source": source } });
    json_patch::merge(&mut object, &json!({ "spec": more }));
    let api = api::<VirtualMachineExport>(cluster);
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

/// The status of the export, once it is so.
async fn said(
    cluster: &Cluster,
    what: &'static str,
    holds: impl Fn(&VirtualMachineExportStatus) -> bool,
) -> VirtualMachineExportStatus {
    let exports = api(cluster);
    let found = wait(&exports, "e", what, move |found: Option<&VirtualMachineExport>| {
        found.and_then(|found| found.status.as_deref()).is_some_and(&holds)
    });
    *found.await.unwrap().status.unwrap()
}

fn is(phase: &'static str, reason: &'static str) -> impl Fn(&VirtualMachineExportStatus) -> bool {
    move |status| {
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        status.phase.as_deref() == Some(phase) && ready.is_some_and(|c| c.reason.as_deref() == Some(reason))
    }
}

/// What the kubelet says of the pod.
async fn report(cluster: &Cluster, phase: &str) {
    let ready = if phase == "Running" { "True" } else { "False" };
    let patch = json!({ "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": ready }] } });
    cluster.pods.patch_status("virt-export-e", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn exists<K>(found: Option<&K>) -> bool {
    found.is_some()
}

fn gone<K>(found: Option<&K>) -> bool {
    found.is_none()
}

#[tokio::test]
async fn a_claim_is_exported_once_nobody_uses_it() {
    let cluster = cluster().await;
    let user = json!({ "metadata": { "name": "user" }, "spec": {
        "containers": [{ "name": "c", "image": "i" }],
        "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }],
    } });
    cluster.pods.create(&PostParams::default(), &serde_json::from_value(user).unwrap()).await.unwrap();
    export(&cluster, "PersistentVolumeClaim", "data", json!({})).await;
    let waiting = said(&cluster, "waiting", |status| status.conditions.len() == 2).await;
    assert_eq!(waiting.conditions[1].reason.as_deref(), Some("PVCNotFound"));
    claim(&cluster, "data", "pv", "Filesystem").await;
    let used = said(&cluster, "in use", is("Pending", "InUse")).await;
    assert_eq!(used.conditions[0].message.as_deref(), Some("PersistentVolumeClaim default/data is in use"));
    assert!(used.ttl_expiration_time.is_some() && used.token_secret_ref.is_none());

    cluster.end("user").await;
    wait(&cluster.pods, "virt-export-e", "made", exists::<Pod>).await;
    let status = said(&cluster, "waiting for its pod", is("Pending", "PodPending")).await;
    assert_eq!(status.token_secret_ref.as_deref(), Some("export-token-e"));
    let pod = cluster.pods.get("virt-export-e").await.unwrap();
    let secret = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0].secret.as_ref().unwrap().secret_name.clone();
    let made = wait(&api::<Secret>(&cluster), &secret.unwrap(), "signed", exists::<Secret>).await.unwrap();
    assert_eq!(
        (made.type_.as_deref(), made.owner_references()[0].uid.as_str()),
        (Some("kubernetes.io/tls"), pod.uid().unwrap().as_str())
    );
    let token = api::<Secret>(&cluster).get("export-token-e").await.unwrap();
    assert_eq!(token.data.unwrap()["token"].0.len(), 20);
    let service = api::<Service>(&cluster).get("virt-export-e").await.unwrap();
    assert_eq!(
        service.spec.unwrap().selector.unwrap(),
        [("kubevirt.io.virt-export-service".to_owned(), "e".to_owned())].into()
    );

    report(&cluster, "Running").await;
    let ready = said(&cluster, "ready", is("Ready", "PodReady")).await;
    let links = ready.links.unwrap();
    let volume = &links.internal.as_ref().unwrap().volumes[0];
    // Nobody has said that it is a disk.
    let urls: Vec<_> = volume.formats.iter().map(|one| (one.format.as_str(), one.url.as_str())).collect();
    let base = "https://virt-export-e.default.svc/volumes/data";
    assert_eq!(urls, [("dir", format!("{base}/dir").as_str()), ("tar.gz", format!("{base}/disk.tar.gz").as_str())]);
    assert!(links.internal.unwrap().cert.contains("BEGIN CERTIFICATE") && links.external.is_none());

    // Somebody needs the claim: they have it.
    let user = json!({ "metadata": { "name": "user" }, "spec": {
        "containers": [{ "name": "c", "image": "i" }],
        "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }],
    } });
    cluster.pods.create(&PostParams::default(), &serde_json::from_value(user).unwrap()).await.unwrap();
    let touched = Patch::Merge(json!({ "metadata": { "labels": { "touched": "yes" } } }));
    api::<PersistentVolumeClaim>(&cluster).patch("data", &PatchParams::default(), &touched).await.unwrap();
    wait(&cluster.pods, "virt-export-e", "told to end", |pod: Option<&Pod>| {
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    })
    .await;
    let paused = said(&cluster, "paused", is("Pending", "InUse")).await;
    assert!(paused.links.unwrap().internal.is_none());
}

#[tokio::test]
async fn a_machine_is_exported_once_it_stands_with_its_manifests() {
    let cluster = cluster().await;
    claim(&cluster, "data", "pv", "Block").await;
    let mut vm = serde_json::to_value(on(json!({ "persistentVolumeClaim": { "claimName": "data" } }))).unwrap();
    vm["spec"]["runStrategy"] = json!("Always");
    cluster.vms.create(&PostParams::default(), &serde_json::from_value(vm).unwrap()).await.unwrap();
    cluster.pod().await;
    export(&cluster, "VirtualMachine", "vm", json!({ "tokenSecretRef": "mine", "ttlDuration": "1h" })).await;
    let running = said(&cluster, "waiting", is("Pending", "InUse")).await;
    assert_eq!(running.conditions[0].message.as_deref(), Some("Virtual Machine default/vm is running"));
    assert_eq!(running.token_secret_ref.as_deref(), Some("mine"));

    let halt = Patch::Merge(json!({ "spec": { "runStrategy": "Halted" } }));
    cluster.vms.patch("vm", &PatchParams::default(), &halt).await.unwrap();
    wait(&cluster.vmis, "vm", "gone", gone::<VirtualMachineInstance>).await;
    wait(&cluster.pods, "virt-export-e", "made", exists::<Pod>).await;
    report(&cluster, "Running").await;
    let ready = said(&cluster, "ready", is("Ready", "PodReady")).await;
    assert_eq!(ready.virtual_machine_name.as_deref(), Some("vm"));
    let internal = ready.links.unwrap().internal.unwrap();
    assert_eq!(internal.volumes[0].formats[1].url, "https://virt-export-e.default.svc/volumes/data/disk.img.gz");
    assert_eq!(internal.manifests[0].url, "https://virt-export-e.default.svc/internal/manifests/all");
    let data = api::<ConfigMap>(&cluster).get("exporter-vm-manifest-e").await.unwrap().data.unwrap();
    let volume: Value = serde_json::from_str(&data["dv-data"]).unwrap();
    assert_eq!(volume["spec"]["source"]["http"]["url"], "/volumes/data/disk.img.gz");
    assert!(!data.contains_key("external_host"));

    // A server that has ended is followed by another.
    let ended = cluster.pods.get("virt-export-e").await.unwrap().uid();
    report(&cluster, "Succeeded").await;
    // It may be gone, and followed by the next one, before this looks.
    let told =
        |pod: Option<&Pod>| pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some() || pod.uid() != ended);
    wait(&cluster.pods, "virt-export-e", "told to go", told).await;
    let _ = cluster
        .pods
        .delete("virt-export-e", &DeleteParams { grace_period_seconds: Some(0), ..Default::default() })
        .await;
    wait(&cluster.pods, "virt-export-e", "made anew", |pod: Option<&Pod>| {
        pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none())
    })
    .await;
}

#[tokio::test]
async fn an_exported_machine_has_the_values_of_what_it_chose_in_its_manifest() {
    let cluster = cluster().await;
    chosen::kinds(&cluster).await;
    let small = json!({ "cpu": { "guest": 2 }, "memory": { "guest": "256Mi" } });
    chosen::make(&cluster, &[chosen::object("VirtualMachineInstancetype", "small", small)]).await;
    claim(&cluster, "data", "pv", "Block").await;
    let mut vm = serde_json::to_value(on(json!({ "persistentVolumeClaim": { "claimName": "data" } }))).unwrap();
    vm["spec"]["runStrategy"] = json!("Halted");
    vm["spec"]["instancetype"] = json!({ "name": "small", "kind": "VirtualMachineInstancetype" });
    vm["spec"]["template"]["spec"]["domain"].as_object_mut().unwrap().remove("memory");
    cluster.vms.create(&PostParams::default(), &serde_json::from_value(vm).unwrap()).await.unwrap();
    export(&cluster, "VirtualMachine", "vm", json!({})).await;
    let maps = api::<ConfigMap>(&cluster);
    let map = wait(&maps, "exporter-vm-manifest-e", "made", exists::<ConfigMap>).await.unwrap();
    let exported: Value = serde_json::from_str(&map.data.unwrap()["virtualmachine-manifest"]).unwrap();
    assert_eq!(exported["spec"]["instancetype"], Value::Null);
    let domain = &exported["spec"]["template"]["spec"]["domain"];
    assert_eq!((&domain["cpu"]["sockets"], &domain["memory"]["guest"]), (&json!(2), &json!("256Mi")));
}

/// An export of a claim, served.
async fn served(cluster: &Cluster) -> Pod {
    let pod = certified(cluster).await;
    report(cluster, "Running").await;
    said(cluster, "ready", is("Ready", "PodReady")).await;
    pod
}

/// On a server's pod: its certificate.
const SHOWN: &str = "ferrovirt.io/export-certificate";

/// The server of a claim's export, before it runs.
async fn certified(cluster: &Cluster) -> Pod {
    claim(cluster, "data", "pv", "Filesystem").await;
    export(cluster, "PersistentVolumeClaim", "data", json!({})).await;
    let has_certificate = |pod: Option<&Pod>| pod.is_some_and(|pod| pod.annotations().contains_key(SHOWN));
    wait(&cluster.pods, "virt-export-e", "given a certificate", has_certificate).await.unwrap()
}

/// The certificate of a server called `host`.
fn certificate(host: &str) -> String {
    let (now, day) = (kit::clock::now(), std::time::Duration::from_secs(24 * 3600));
    let authority = Authority::generate("outside", now, day).unwrap();
    let leaf = Leaf { name: "web".into(), role: "web".into(), dns: vec![host.into()], ..Leaf::default() };
    authority.issue(&leaf, now, day).unwrap().certificate.trim().to_owned()
}

/// The link from outside, once it is so; that takes no longer than a watch does.
async fn outside(cluster: &Cluster, holds: impl Fn(Option<&str>) -> bool) -> Option<(String, String)> {
    let url = |status: &VirtualMachineExportStatus| {
        let link = status.links.as_ref()?.external.as_ref()?;
        Some((link.volumes[0].formats[0].url.clone(), link.cert.clone()))
    };
    let soon = std::time::Duration::from_secs(40);
    let so = said(cluster, "reached from outside", |status| holds(url(status).as_ref().map(|(url, _)| url.as_str())));
    url(&tokio::time::timeout(soon, so).await.unwrap())
}

#[tokio::test]
async fn links_from_outside_come_and_go_with_the_way() {
    let cluster = cluster().await;
    served(&cluster).await;
    let own = |name: &str| json!({ "name": name, "namespace": "kubevirt" });
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "kubevirt");
    let shown = certificate("*.example");
    let secret = json!({ "metadata": own("web"), "stringData": { "tls.crt": shown } });
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let ingress = json!({ "metadata": own("out"), "spec": {
        "tls": [{ "hosts": ["x.example"], "secretName": "web" }],
        "rules": [{ "host": "x.example", "http": { "paths": [{
            "path": "/", "pathType": "Prefix",
            "backend": { "service": { "name": "virt-exportproxy", "port": { "number": 443 } } },
        }] } }],
    } });
    let ingresses: Api<Ingress> = Api::namespaced(cluster.client.clone(), "kubevirt");
    ingresses.create(&PostParams::default(), &serde_json::from_value(ingress).unwrap()).await.unwrap();
    let path = "/api/export.kubevirt.io/v1/namespaces/default/virtualmachineexports/e/volumes/data/dir";
    let (url, believed) = outside(&cluster, |url| url.is_some()).await.unwrap();
    assert_eq!((url, believed), (format!("https://x.example{path}"), shown));
    ingresses.delete("out", &DeleteParams::default()).await.unwrap();
    outside(&cluster, |url| url.is_none()).await;

    // OpenShift's kind may come at any time, and is looked for.
    let kind = json!({ "metadata": { "name": "routes.route.openshift.io" }, "spec": {
        "group": "route.openshift.io", "scope": "Namespaced",
        "names": { "kind": "Route", "plural": "routes", "singular": "route", "listKind": "RouteList" },
        "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        } } }],
    } });
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    crds.create(&PostParams::default(), &serde_json::from_value(kind).unwrap()).await.unwrap();
    let shown = certificate("exports.apps.example");
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "kubevirt");
    let roots = json!({ "metadata": own("kube-root-ca.crt"), "data": { "ca.crt": shown } });
    maps.create(&PostParams::default(), &serde_json::from_value(roots).unwrap()).await.unwrap();
    let route = json!({
        "apiVersion": "route.openshift.io/v1", "kind": "Route", "metadata": own("out"),
        "spec": { "to": { "kind": "Service", "name": "virt-exportproxy" } },
        "status": { "ingress": [{ "host": "exports.apps.example" }] },
    });
    let uri = "/apis/route.openshift.io/v1/namespaces/kubevirt/routes";
    let request =
        http::Request::post(uri).header("content-type", "application/json").body(route.to_string().into_bytes());
    cluster.client.request::<Value>(request.unwrap()).await.unwrap();
    let (url, believed) = outside(&cluster, |url| url.is_some()).await.unwrap();
    assert_eq!((url, believed), (format!("https://exports.apps.example{path}"), shown));
}

#[tokio::test]
async fn servers_offer_the_tls_that_is_asked_for() {
    let cluster = cluster().await;
    let told = |pod: &Pod| {
        let all = pod.spec.as_ref().unwrap().containers[0].env.iter().flatten();
        let of = |name: &str| all.clone().find(|one| one.name == name).and_then(|one| one.value.clone());
        (of("TLS_MIN_VERSION"), of("TLS_CIPHERS"))
    };
    let pod = served(&cluster).await;
    assert_eq!(told(&pod), (None, None));
    let kubevirts: Api<KubeVirt> = Api::namespaced(cluster.client.clone(), "kubevirt");
    let modern = json!({ "metadata": { "name": "kubevirt" }, "spec": { "configuration": {
        "tlsConfiguration": { "minTLSVersion": "VersionTLS13" },
    } } });
    kubevirts.create(&PostParams::default(), &serde_json::from_value(modern).unwrap()).await.unwrap();
    // No node has it: it is gone as soon as it is deleted, and another may be there before this looks.
    let before = pod.uid();
    let next = wait(&cluster.pods, "virt-export-e", "made anew", |pod: Option<&Pod>| {
        pod.is_some_and(|pod| pod.uid() != before)
    });
    assert_eq!(told(&next.await.unwrap()), (Some("VersionTLS13".to_owned()), None));
}

#[tokio::test]
async fn the_certificate_of_a_server_is_renewed_for_its_key_while_it_serves() {
    let cluster = cluster().await;
    let pod = served(&cluster).await;
    let shown = |pod: &Pod| pod.annotations().get(SHOWN).cloned().unwrap_or_default();
    let volume = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0].clone();
    let secret = api::<Secret>(&cluster).get(&volume.secret.unwrap().secret_name.unwrap()).await.unwrap();
    let text = |key: &str| String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap();
    assert_eq!(shown(&pod), text("tls.crt"));

    // Certificates are to live for an hour: one for a day is followed by another at once, and nobody is interrupted.
    let kubevirts: Api<KubeVirt> = Api::namespaced(cluster.client.clone(), "kubevirt");
    let short = json!({ "metadata": { "name": "kubevirt" }, "spec": {
        "certificateRotateStrategy": { "selfSigned": { "server": { "duration": "1h" } } },
    } });
    kubevirts.create(&PostParams::default(), &serde_json::from_value(short).unwrap()).await.unwrap();
    let first = shown(&pod);
    let renewed = wait(&cluster.pods, "virt-export-e", "shown another", move |pod: Option<&Pod>| {
        pod.is_some_and(|pod| shown(pod) != first)
    });
    let renewed = renewed.await.unwrap();
    assert_eq!(renewed.uid(), pod.uid());
    let (made, until) = kit::certs::life(&shown(&renewed)).unwrap();
    assert_eq!(until.duration_since(made).as_hours(), 1);
    let pair = kit::certs::Pair { certificate: shown(&renewed), key: text("tls.key") };
    kit::tls::Material::new().set(&pair).unwrap();
}

/// As when whoever made the Secret ended before it could say so: nobody knows the key, and no certificate could follow the first.
#[tokio::test]
async fn a_server_whose_key_nobody_knows_makes_room_before_it_serves() {
    let cluster = cluster().await;
    let pod = certified(&cluster).await;
    let silent = Patch::Merge(json!({ "metadata": { "annotations": { (SHOWN): null } } }));
    cluster.pods.patch("virt-export-e", &PatchParams::default(), &silent).await.unwrap();
    let before = pod.uid();
    let next = wait(&cluster.pods, "virt-export-e", "made anew", move |pod: Option<&Pod>| {
        pod.is_some_and(|pod| pod.uid() != before && pod.annotations().contains_key(SHOWN))
    });
    let next = next.await.unwrap();
    let volume = next.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0].clone();
    let secret = api::<Secret>(&cluster).get(&volume.secret.unwrap().secret_name.unwrap()).await.unwrap();
    assert_eq!(secret.data.unwrap()["tls.crt"].0, next.annotations()[SHOWN].as_bytes());
}

/// A claim and a token are those of the export's own namespace.
#[tokio::test]
async fn claims_and_secrets_of_other_namespaces_are_not_exported() {
    let cluster = cluster().await;
    let of = |kind: &str, name: &str| json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name } });
    let mut disk = of("PersistentVolumeClaim", "disk");
    disk["metadata"]["namespace"] = json!("victim");
    disk["spec"] = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
    let mut secret = of("Secret", "token");
    secret["metadata"]["namespace"] = json!("victim");
    secret["stringData"] = json!({ "token": "victims" });
    let by = kit::apply::Applied::by("test");
    kit::apply::all(&cluster.client, &by, &[of("Namespace", "victim"), disk, secret]).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "victim");
    let bound = Patch::Merge(json!({ "status": { "phase": "Bound" } }));
    claims.patch_status("disk", &PatchParams::default(), &bound).await.unwrap();
    export(&cluster, "PersistentVolumeClaim", "disk", json!({ "tokenSecretRef": "token" })).await;
    let not_found = |status: &VirtualMachineExportStatus| {
        status.conditions.iter().any(|one| one.reason.as_deref() == Some("PVCNotFound"))
    };
    let status = said(&cluster, "not found", not_found).await;
    assert!(!json!(status.links).to_string().contains("https:"), "{:?}", status.links);
    let pods: Api<Pod> = Api::all(cluster.client.clone());
    assert!(pods.list(&Default::default()).await.unwrap().items.is_empty());
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "victim");
    assert!(services.list(&Default::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn a_machine_without_volumes_is_skipped_and_an_export_ends_with_its_time() {
    let cluster = cluster().await;
    cluster.vms.create(&PostParams::default(), &machine("Halted")).await.unwrap();
    export(&cluster, "VirtualMachine", "vm", json!({ "ttlDuration": "3s" })).await;
    said(&cluster, "skipped", is("Skipped", "VMNoVolumes")).await;
    wait(&api(&cluster), "e", "gone", gone::<VirtualMachineExport>).await;
}
