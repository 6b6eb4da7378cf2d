//! What the server of an export makes manifests of: the machine, or the template of machines, and its disks, as they are to be made
//! elsewhere. Pure.
//!
//! A disk is a data volume that is filled out of the export. Its URL is a path here; the server puts the host before it by which
//! whoever asks knows it.

use std::collections::BTreeMap;

use api::cdi::v1beta1::{DataVolumeSource, DataVolumeSourceHTTP};
use api::export::v1::VirtualMachineExport;
use api::kubevirt::v1::VirtualMachine;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::links::{self, Host, Hosts};
use super::source::{self, Source, Volume};
use super::template::{self, APPLIED};

/// The file with the machine.
const MACHINE_FILE: &str = "virtualmachine-manifest";
/// The file with the template of machines.
const TEMPLATE_FILE: &str = "virtualmachinetemplate-manifest";

/// The files of the server's directory; none when there is nothing to apply elsewhere.
pub fn data(export: &VirtualMachineExport, source: &Source, hosts: &Hosts) -> Option<BTreeMap<String, String>> {
    let name = export.name_any();
    let namespace = export.namespace().unwrap_or_default();
    let (file, object, disks, home) = match (&source.machine, &source.template) {
        (Some(machine), _) => {
            let home = machine.metadata.namespace.as_deref();
            let object = json!(elsewhere(machine, &source.volumes, &name));
            (MACHINE_FILE, object, disks(machine, &source.volumes), home)
        }
        (None, Some(template)) => {
            (TEMPLATE_FILE, template::elsewhere(template, &namespace), source.volumes.iter().collect(), None)
        }
        (None, None) => return None,
    };
    let authority = |host: &Host| {
        json!({ "metadata": { "name": authority(&name) }, "data": { "ca.pem": host.certificate } }).to_string()
    };
    let mut out = BTreeMap::from([
        ("export-name".to_owned(), name.clone()),
        ("internal_host".to_owned(), hosts.internal.base.clone()),
        ("internal_ca_cm".to_owned(), authority(&hosts.internal)),
        (file.to_owned(), object.to_string()),
    ]);
    if let Some(host) = &hosts.external {
        out.insert("external_host".to_owned(), host.base.clone());
        out.insert("external_ca_cm".to_owned(), authority(host));
    }
    for volume in disks {
        out.insert(format!("dv-{}", volume.name), data_volume(home, volume, &name).to_string());
    }
    Some(out)
}

/// The volumes that no template of the machine's makes.
fn disks<'a>(machine: &VirtualMachine, volumes: &'a [Volume]) -> Vec<&'a Volume> {
    let template = |claim: &str| {
        let templates = machine.spec.data_volume_templates.iter();
        let named = |metadata: &Option<ObjectMeta>| metadata.as_ref().and_then(|metadata| metadata.name.clone());
        templates.into_iter().any(|template| named(&template.metadata).as_deref() == Some(claim))
    };
    let claims = source::claims_of(machine);
    volumes.iter().filter(|volume| claims.contains(&volume.name) && !template(&volume.name)).collect()
}

fn authority(export: &str) -> String {
    format!("export-ca-cm-{export}")
}

/// The machine without what was true of it here alone, its templates filled out of the export.
fn elsewhere(machine: &VirtualMachine, volumes: &[Volume], export: &str) -> VirtualMachine {
    let mut annotations = machine.metadata.annotations.clone().unwrap_or_default();
    annotations.remove(APPLIED);
    let mut spec = machine.spec.clone();
    for template in &mut spec.data_volume_templates {
        let name = template.metadata.as_ref().and_then(|metadata| metadata.name.as_deref());
        let Some(volume) = volumes.iter().find(|volume| Some(volume.name.as_str()) == name) else { continue };
        template.spec.source = Some(http(volume, export).into());
        template.spec.source_ref = None;
        template.spec.content_type = content(volume);
    }
    VirtualMachine {
        metadata: ObjectMeta {
            name: machine.metadata.name.clone(),
            namespace: machine.metadata.namespace.clone(),
            labels: machine.metadata.labels.clone(),
            annotations: Some(annotations).filter(|all| !all.is_empty()),
            ..Default::default()
        },
        spec,
        ..Default::default()
    }
}

fn data_volume(namespace: Option<&str>, volume: &Volume, export: &str) -> Value {
    let spec = volume.claim.spec.clone().unwrap_or_default();
    let mut metadata = json!({ "name": volume.name });
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    json!({
        "metadata": metadata,
        "spec": {
            "source": http(volume, export),
            "contentType": content(volume),
            // The storage class is the other cluster's to choose.
            "storage": {
                "accessModes": spec.access_modes, "volumeMode": spec.volume_mode, "resources": spec.resources,
            },
        },
    })
}

/// Files are an archive; that it is a disk need not be said.
fn content(volume: &Volume) -> Option<String> {
    (!volume.disk).then(|| "archive".to_owned())
}

fn http(volume: &Volume, export: &str) -> DataVolumeSource {
    // The compressed one of the two.
    let [_, (_, url)] = links::paths(&volume.claim.name_any(), volume.disk);
    let http = DataVolumeSourceHTTP {
        url,
        cert_config_map: Some(authority(export)),
        secret_extra_headers: vec![format!("header-secret-{export}")],
        ..Default::default()
    };
    DataVolumeSource { http: Some(http.into()), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(claim: &str, disk: bool) -> Volume {
        let claim_of = json!({ "metadata": { "name": format!("e-{claim}") }, "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": "fast", "volumeName": "pv",
            "resources": { "requests": { "storage": "1Gi" } },
        } });
        Volume { name: claim.to_owned(), claim: serde_json::from_value(claim_of).unwrap(), disk }
    }

    #[test]
    fn a_machine_is_made_elsewhere_of_what_is_exported() {
        let export =
            serde_json::from_value(json!({ "metadata": { "name": "e", "namespace": "ns" }, "spec": {} })).unwrap();
        let machine: VirtualMachine = serde_json::from_value(json!({
            "metadata": {
                "name": "vm", "namespace": "ns", "uid": "u", "resourceVersion": "7", "labels": { "a": "b" },
                "annotations": { "kept": "yes", (APPLIED): "{}" },
            },
            "spec": {
                "runStrategy": "Halted",
                "dataVolumeTemplates": [{
                    "metadata": { "name": "root" },
                    "spec": { "sourceRef": { "kind": "DataSource", "name": "d" }, "storage": { "resources": {} } },
                }],
                "template": { "spec": { "domain": { "devices": {} }, "volumes": [
                    { "name": "root", "dataVolume": { "name": "root" } },
                    { "name": "data", "persistentVolumeClaim": { "claimName": "data" } },
                    { "name": "files", "persistentVolumeClaim": { "claimName": "files" } },
                ] } },
            },
            "status": { "printableStatus": "Stopped" },
        }))
        .unwrap();
        let internal = Host { base: "virt-export-e.ns.svc".into(), certificate: "PEM".into() };
        let hosts = Hosts { internal, external: None };
        let volumes = [volume("root", true), volume("data", true), volume("files", false)];
        let source = Source { volumes: volumes.to_vec(), machine: Some(machine), ..Source::default() };
        let found = data(&export, &source, &hosts).unwrap();
        let keys: Vec<&str> = found.keys().map(String::as_str).collect();
        let expect =
            ["dv-data", "dv-files", "export-name", "internal_ca_cm", "internal_host", "virtualmachine-manifest"];
        assert_eq!(keys, expect);
        let of = |key: &str| serde_json::from_str::<Value>(&found[key]).unwrap();
        let vm = of("virtualmachine-manifest");
        assert_eq!(
            vm["metadata"],
            json!({ "name": "vm", "namespace": "ns", "labels": { "a": "b" }, "annotations": { "kept": "yes" } })
        );
        let http = |claim: &str, file: &str| {
            json!({ "http": {
                "url": format!("/volumes/e-{claim}/{file}"), "certConfigMap": "export-ca-cm-e",
                "secretExtraHeaders": ["header-secret-e"],
            } })
        };
        let template = &vm["spec"]["dataVolumeTemplates"][0];
        assert_eq!(template["spec"]["source"], http("root", "disk.img.gz"));
        assert_eq!(template["spec"]["sourceRef"], Value::Null);
        let data = of("dv-data");
        assert_eq!(data["spec"]["source"], http("data", "disk.img.gz"));
        assert_eq!(
            data["spec"]["storage"],
            json!({ "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "resources": { "requests": { "storage": "1Gi" } } })
        );
        let files = of("dv-files");
        assert_eq!(
            (&files["spec"]["source"], &files["spec"]["contentType"]),
            (&http("files", "disk.tar.gz"), &json!("archive"))
        );
        assert_eq!(of("internal_ca_cm")["data"]["ca.pem"], "PEM");
    }

    #[test]
    fn a_template_is_made_elsewhere_beside_its_disks() {
        let export =
            serde_json::from_value(json!({ "metadata": { "name": "e", "namespace": "ns" }, "spec": {} })).unwrap();
        let template = json!({ "metadata": { "name": "t", "namespace": "ns" }, "spec": { "virtualMachine": {} } });
        let source = Source { volumes: vec![volume("golden", true)], template: Some(template), ..Source::default() };
        let found = data(&export, &source, &Hosts::default()).unwrap();
        let of = |key: &str| serde_json::from_str::<Value>(&found[key]).unwrap();
        assert_eq!(of("virtualmachinetemplate-manifest")["metadata"], json!({ "name": "t" }));
        let disk = of("dv-golden");
        assert_eq!(disk["metadata"], json!({ "name": "golden" }));
        assert_eq!(disk["spec"]["source"]["http"]["url"], "/volumes/e-golden/disk.img.gz");
        assert_eq!(data(&export, &Source::default(), &Hosts::default()), None);
    }
}
