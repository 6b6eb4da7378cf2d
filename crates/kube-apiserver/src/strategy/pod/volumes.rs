//! Volumes of a pod: each has a name and one source, and what each source must say.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::super::claim as claims;
use super::super::field::{Causes, FILE_MODE, Field, LABEL, Rule, check};
use super::mount::{below, in_volume, no_backsteps};
use super::{amount, environment};

/// Sources in the order in which the first one counts, with the fields that each must have.
const SOURCES: [(&str, &[&str]); 30] = [
    ("emptyDir", &[]),
    ("hostPath", &["path"]),
    ("gitRepo", &["repository"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("secret", &["secretName"]),
    ("nfs", &["server", "path"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("glusterfs", &["endpoints", "path"]),
    ("flocker", &[]),
    ("persistentVolumeClaim", &["claimName"]),
    ("rbd", &["monitors", "image"]),
    ("cinder", &["volumeID"]),
    ("cephfs", &["monitors"]),
    ("quobyte", &["registry", "volume"]),
    ("downwardAPI", &[]),
    ("fc", &[]),
    ("flexVolume", &["driver"]),
    ("configMap", &["name"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("storageos", &["volumeName"]),
    ("portworxVolume", &["volumeID"]),
    ("photonPersistentDisk", &["pdID"]),
    ("projected", &[]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("csi", &["driver"]),
    ("ephemeral", &["volumeClaimTemplate"]),
    ("image", &["reference"]),
];
const HOST_PATHS: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
const SHORTEST_TOKEN: i64 = 10 * 60;
const LONGEST_TOKEN: i64 = 1 << 32;

/// Checks the volumes of a pod spec, and gives those that are good by their names: only they can be mounted.
pub(super) fn all<'a>(spec: &Field<'a>, causes: &mut Causes) -> HashMap<&'a str, &'a Value> {
    let mut good = HashMap::new();
    for volume in spec.each("volumes") {
        let before = causes.len();
        let name = volume.get("name");
        source(&volume, causes);
        name.check(&Rule::Needed, causes);
        let dotted = name.text().contains('.') && apimachinery::names::subdomain_problem(name.text()).is_none();
        if dotted {
            name.invalid("must not contain dots", causes);
        } else {
            name.check(&LABEL, causes);
        }
        if good.contains_key(name.text()) {
            name.duplicate(causes);
        }
        if causes.len() == before {
            good.insert(name.text(), volume.value);
        }
    }
    good
}

fn source(volume: &Field<'_>, causes: &mut Causes) {
    let mut given = SOURCES.iter().filter(|(name, _)| volume.get(name).is_set());
    let Some((name, needed)) = given.next() else {
        volume.required("must specify a volume type", causes);
        return;
    };
    for (more, _) in given {
        volume.get(more).forbidden("may not specify more than 1 volume type", causes);
    }
    let source = volume.get(name);
    needed.iter().for_each(|field| source.get(field).check(&Rule::Needed, causes));
    match *name {
        "emptyDir" if amount(&source.value["sizeLimit"]).is_some_and(|size| size < 0) => {
            source.get("sizeLimit").forbidden("SizeLimit field must be a valid resource quantity", causes);
        }
        "hostPath" => {
            no_backsteps(&source.get("path"), causes);
            source.get("type").check(&Rule::OneOf(HOST_PATHS), causes);
        }
        "gitRepo" => below(&source.get("directory"), causes),
        "secret" | "configMap" => files(&source, causes),
        "downwardAPI" => {
            source.get("defaultMode").check(&FILE_MODE, causes);
            source.each("items").for_each(|item| downward(&item, &source, causes));
        }
        "projected" => projected(&source, causes),
        "nfs" => {
            let path = source.get("path");
            if !path.is_empty() && !path.text().starts_with('/') {
                path.invalid("must be an absolute path", causes);
            }
        }
        "iscsi" => iscsi(&source, causes),
        "csi" => {
            let secret = source.get("nodePublishSecretRef");
            if secret.is_set() {
                secret.get("name").check(&Rule::Needed, causes);
            }
        }
        "ephemeral" => ephemeral(&source.get("volumeClaimTemplate"), causes),
        "image" => source.get("pullPolicy").check(&Rule::OneOf(&["Always", "IfNotPresent", "Never"]), causes),
        _ => {}
    }
}

/// The mode of files and which keys become which of them.
fn files(source: &Field<'_>, causes: &mut Causes) {
    source.get("defaultMode").check(&FILE_MODE, causes);
    source.each("items").for_each(|item| file(&item, causes));
}

fn file(item: &Field<'_>, causes: &mut Causes) {
    check(item, &[("key", Rule::Needed), ("path", Rule::Needed), ("mode", FILE_MODE)], causes);
    in_volume(&item.get("path"), causes);
}

/// A file that shows a field or a resource; the errors name the source.
fn downward(item: &Field<'_>, source: &Field<'_>, causes: &mut Causes) {
    let of_source = |name: &str| item.get(name).told_as(format!("{}.{name}", source.path));
    let (path, field, resource) = (of_source("path"), of_source("fieldRef"), of_source("resourceFieldRef"));
    path.check(&Rule::Needed, causes);
    in_volume(&path, causes);
    if field.is_set() {
        environment::field_in_file(&field, causes);
        if resource.is_set() {
            let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
            source.invalid_word("resource", why, causes);
        }
    } else if resource.is_set() {
        environment::resource(&resource, true, causes);
    } else {
        source.required("one of fieldRef and resourceFieldRef is required", causes);
    }
    of_source("mode").check(&FILE_MODE, causes);
}

fn projected(volume: &Field<'_>, causes: &mut Causes) {
    const KINDS: [&str; 5] = ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle"];
    volume.get("defaultMode").check(&FILE_MODE, causes);
    let mut paths = HashSet::new();
    for each in volume.each("sources") {
        let mut given = KINDS.iter().map(|kind| (*kind, each.get(kind))).filter(|(_, source)| source.is_set());
        let Some((kind, source)) = given.next() else { continue };
        given.for_each(|_| each.forbidden("may not specify more than 1 volume type per source", causes));
        match kind {
            "secret" | "configMap" => {
                source.get("name").check(&Rule::Needed, causes);
                source.each("items").for_each(|item| file(&item, causes));
            }
            "downwardAPI" => source.each("items").for_each(|item| downward(&item, &source, causes)),
            "serviceAccountToken" => token(&source, volume, causes),
            _ => in_volume(&source.get("path"), causes),
        }
        for path in source.each("items").map(|item| item.get("path")).filter(|path| !path.is_empty()) {
            if !paths.insert(path.text()) {
                volume.invalid_word(source.get("name").text(), "conflicting duplicate paths", causes);
            }
        }
    }
}

fn token(token: &Field<'_>, volume: &Field<'_>, causes: &mut Causes) {
    let (seconds, path) = (token.get("expirationSeconds"), token.get("path").told_as(format!("{}.path", volume.path)));
    if seconds.is_set() && seconds.number() < SHORTEST_TOKEN {
        seconds.invalid("may not specify a duration less than 10 minutes", causes);
    }
    if seconds.number() > LONGEST_TOKEN {
        seconds.invalid("may not specify a duration larger than 2^32 seconds", causes);
    }
    path.check(&Rule::Needed, causes);
    in_volume(&path, causes);
}

fn iscsi(source: &Field<'_>, causes: &mut Causes) {
    let iqn = source.get("iqn");
    if !iqn.is_empty() && !["iqn", "eui", "naa"].iter().any(|start| iqn.text().starts_with(start)) {
        iqn.invalid("must be valid format starting with iqn, eui, or naa", causes);
    }
    source.get("lun").check(&Rule::Within(0, 255), causes);
}

/// A claim that is made for the pod: it has no name of its own.
fn ephemeral(template: &Field<'_>, causes: &mut Causes) {
    if !template.is_set() {
        return;
    }
    for (name, field) in template.entries("metadata") {
        if !matches!(name, "labels" | "annotations") && !field.is_empty() {
            field.told_as(format!("{}.metadata.{name}", template.path)).forbidden("cannot be set", causes);
        }
    }
    claim(&template.get("spec"), causes);
}

/// The spec of a claim in another object.
pub(in super::super) fn claim(spec: &Field<'_>, causes: &mut Causes) {
    let before = causes.len();
    claims::claim(spec.value, causes);
    for cause in &mut causes[before..] {
        if let Some(rest) = cause.field.strip_prefix("spec") {
            cause.field = format!("{}{rest}", spec.path);
        }
    }
}
