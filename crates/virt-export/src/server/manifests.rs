//! The machine of an export, or the template of machines, ready to be applied elsewhere: its disks are data volumes that fetch them from here.
//!
//! The controller has left everything in a directory, but for the host: whoever asks from inside of the cluster and whoever asks
//! from outside know this server by different ones. Disks whose URL has no host yet are those of this export.

use std::io;
use std::path::Path;

use serde_json::{Value, json};

/// The files with what is exported, one of which there is, and what it holds.
const OBJECTS: [(&str, &str, &str); 2] = [
    ("virtualmachine-manifest", "kubevirt.io/v1", "VirtualMachine"),
    ("virtualmachinetemplate-manifest", "template.kubevirt.io/v1beta1", "VirtualMachineTemplate"),
];
/// What the files of data volumes begin with.
const VOLUME: &str = "dv-";

/// From where it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// From a pod.
    Internal,
    /// Through the proxy.
    External,
}

impl Side {
    /// In paths and names of files.
    pub(super) fn word(self) -> &'static str {
        match self {
            Side::Internal => "internal",
            Side::External => "external",
        }
    }
}

/// How they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Yaml,
}

impl Form {
    /// As the header `Accept` has it.
    pub(super) fn of(accept: Option<&str>) -> Self {
        if accept.is_some_and(|accept| accept.contains("yaml")) { Form::Yaml } else { Form::Json }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Form::Json => "application/json",
            Form::Yaml => "application/yaml",
        }
    }
}

/// The machine, or the template of machines, its data volumes, and the authority that they believe, out of the files in `directory`.
pub(super) fn machine(directory: &Path, side: Side) -> io::Result<Vec<Value>> {
    let text = |name: &str| std::fs::read_to_string(directory.join(name));
    let parse = |text: String| serde_json::from_str::<Value>(&text).map_err(io::Error::other);
    let host = text(&format!("{}_host", side.word()))?;
    let mut out = vec![typed("v1", "ConfigMap", parse(text(&format!("{}_ca_cm", side.word()))?)?)];
    let there = OBJECTS.iter().find(|(file, _, _)| directory.join(file).exists());
    let (file, version, kind) = there.ok_or(io::ErrorKind::NotFound)?;
    let mut machine = typed(version, kind, parse(text(file)?)?);
    for template in machine.pointer_mut("/spec/dataVolumeTemplates").and_then(Value::as_array_mut).into_iter().flatten()
    {
        complete(template, &host);
    }
    out.push(machine);
    let mut names: Vec<String> = std::fs::read_dir(directory)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(VOLUME))
        .collect();
    names.sort();
    for name in names {
        let mut volume = typed("cdi.kubevirt.io/v1beta1", "DataVolume", parse(text(&name)?)?);
        complete(&mut volume, &host);
        out.push(volume);
    }
    Ok(out)
}

/// The Secret with the header that data volumes send.
pub(super) fn header_secret(export: &str, token: &str) -> Value {
    let header = format!("{}:{token}", api::export::constants::TOKEN);
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": format!("header-secret-{export}") },
        "stringData": { "token": header },
    })
}

fn typed(version: &str, kind: &str, mut object: Value) -> Value {
    object["apiVersion"] = json!(version);
    object["kind"] = json!(kind);
    object
}

/// Puts the host before a path.
fn complete(volume: &mut Value, host: &str) {
    if let Some(url) = volume.pointer_mut("/spec/source/http/url")
        && let Some(path) = url.as_str().filter(|url| url.starts_with('/'))
    {
        *url = json!(format!("https://{}{path}", host.trim_end_matches('/')));
    }
}

/// The text of `objects`.
pub(super) fn write(objects: &[Value], form: Form) -> io::Result<String> {
    match form {
        Form::Json => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects });
            serde_json::to_string_pretty(&list).map_err(io::Error::other)
        }
        Form::Yaml => objects.iter().try_fold(String::new(), |text, object| {
            let object = serde_saphyr::to_string(object).map_err(io::Error::other)?;
            Ok(text + &object + "---\n")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_those_of_the_side_that_asks() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, value: &str| std::fs::write(dir.path().join(name), value).unwrap();
        put("internal_host", "virt-export-e.ns.svc");
        put("internal_ca_cm", r#"{"metadata":{"name":"export-ca-cm-e"},"data":{"ca.pem":"PEM"}}"#);
        put("export-name", "e");
        let disk = |name: &str, url: &str| json!({ "metadata": { "name": name }, "spec": { "source": { "http": { "url": url } } } });
        let machine_of = json!({ "metadata": { "name": "vm" }, "spec": { "dataVolumeTemplates": [
            disk("root", "/volumes/root/disk.img.gz"), disk("other", "https://elsewhere/x"),
        ] } });
        put("virtualmachine-manifest", &machine_of.to_string());
        put("dv-data", &disk("data", "/volumes/data/disk.img.gz").to_string());
        let found = machine(dir.path(), Side::Internal).unwrap();
        let kinds: Vec<_> = found.iter().map(|object| object["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["ConfigMap", "VirtualMachine", "DataVolume"]);
        let template = |n: usize| found[1]["spec"]["dataVolumeTemplates"][n]["spec"]["source"]["http"]["url"].clone();
        assert_eq!(template(0), "https://virt-export-e.ns.svc/volumes/root/disk.img.gz");
        assert_eq!(template(1), "https://elsewhere/x");
        assert_eq!(found[2]["spec"]["source"]["http"]["url"], "https://virt-export-e.ns.svc/volumes/data/disk.img.gz");
        let missing = machine(dir.path(), Side::External).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn templates_are_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, value: &str| std::fs::write(dir.path().join(name), value).unwrap();
        put("internal_host", "virt-export-e.ns.svc");
        put("internal_ca_cm", "{}");
        assert_eq!(machine(dir.path(), Side::Internal).unwrap_err().kind(), io::ErrorKind::NotFound);
        put("virtualmachinetemplate-manifest", r#"{"metadata":{"name":"t"},"spec":{}}"#);
        let found = machine(dir.path(), Side::Internal).unwrap();
        let kind = json!({ "apiVersion": "template.kubevirt.io/v1beta1", "kind": "VirtualMachineTemplate" });
        assert_eq!((&found[1]["apiVersion"], &found[1]["kind"]), (&kind["apiVersion"], &kind["kind"]));
    }

    #[test]
    fn both_forms_hold_the_same() {
        let secret = [header_secret("e", "t0ken")];
        let list: Value = serde_json::from_str(&write(&secret, Form::Json).unwrap()).unwrap();
        assert_eq!(list["items"][0]["stringData"]["token"], "x-kubevirt-export-token:t0ken");
        let text = write(&secret, Form::Yaml).unwrap();
        let (object, rest) = text.split_once("---\n").unwrap();
        assert_eq!(rest, "");
        assert_eq!(serde_saphyr::from_str::<Value>(object).unwrap(), list["items"][0]);
        assert_eq!((Form::of(Some("application/yaml")), Form::of(None)), (Form::Yaml, Form::Json));
    }
}
