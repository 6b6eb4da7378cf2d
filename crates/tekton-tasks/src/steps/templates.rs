//! copy-template and modify-vm-template: of OpenShift's Template where that kind is served and holds one of that name, else of
//! VirtualMachineTemplate.

use std::time::Duration;

use api::template::openshift;
use serde_json::{Map, Value, json};

use crate::cluster::{Kind, OPENSHIFT_TEMPLATE, TEMPLATE, what};
use crate::words::{Results, given, pairs, truth};
use crate::{Cluster, Error};

const PATIENCE: Duration = Duration::from_secs(60);

/// Params of copy-template.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Copy {
    /// The template
    #[arg(long)]
    source_template_name: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    source_template_namespace: String,
    /// Name of the copy
    #[arg(long, default_value = "")]
    target_template_name: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    target_template_namespace: String,
    /// Whether one that is there may be replaced
    #[arg(long, default_value = "false")]
    allow_replace: String,
    #[command(flatten)]
    results: Results,
}

/// Params of modify-vm-template.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Modify {
    /// The template
    #[arg(long)]
    template_name: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    template_namespace: String,
    /// Sockets of the machine's processor
    #[arg(long, default_value = "")]
    cpu_sockets: String,
    /// Cores of each
    #[arg(long, default_value = "")]
    cpu_cores: String,
    /// Threads of each
    #[arg(long, default_value = "")]
    cpu_threads: String,
    /// Memory of the guest
    #[arg(long, default_value = "")]
    memory: String,
    /// KEY:VALUE
    #[arg(long = "template-label")]
    template_labels: Vec<String>,
    /// KEY:VALUE
    #[arg(long = "template-annotation")]
    template_annotations: Vec<String>,
    /// KEY:VALUE
    #[arg(long = "vm-label")]
    vm_labels: Vec<String>,
    /// KEY:VALUE
    #[arg(long = "vm-annotation")]
    vm_annotations: Vec<String>,
    /// Disks, as JSON
    #[arg(long = "disk")]
    disks: Vec<String>,
    /// Whether all others go
    #[arg(long, default_value = "false")]
    delete_disks: String,
    /// Volumes, as JSON
    #[arg(long = "volume")]
    volumes: Vec<String>,
    /// Whether all others go
    #[arg(long, default_value = "false")]
    delete_volumes: String,
    /// Templates of DataVolumes, as JSON
    #[arg(long = "datavolume-template")]
    datavolume_templates: Vec<String>,
    /// Whether all others go
    #[arg(long, default_value = "false")]
    delete_datavolume_template: String,
    /// Parameters, as JSON
    #[arg(long = "template-parameter")]
    template_parameters: Vec<String>,
    /// Whether all others go
    #[arg(long, default_value = "false")]
    delete_template_parameters: String,
    /// Whether to delete the template
    #[arg(long, default_value = "false")]
    delete_template: String,
    #[command(flatten)]
    results: Results,
}

/// A template as it is in the cluster.
#[derive(Clone, Debug)]
pub(super) struct Found {
    kind: Kind,
    object: Value,
}

impl Found {
    /// The VirtualMachineTemplate that says the same.
    pub(super) fn native(&self) -> Result<Value, Error> {
        if self.kind == TEMPLATE {
            return Ok(self.object.clone());
        }
        let mut object = self.object.clone();
        object["kind"] = json!("Template");
        openshift::convert(&object).map_err(|refusal| Error::Failed(format!("the Template cannot be used: {refusal}")))
    }

    /// The machine within it.
    fn machine(&mut self) -> Result<&mut Value, Error> {
        let at = if self.kind == TEMPLATE { "/spec/virtualMachine" } else { "/objects/0" };
        let machine = self.object.pointer_mut(at).filter(|machine| machine.is_object());
        machine.ok_or_else(|| Error::Failed("the template holds no VirtualMachine".to_owned()))
    }

    /// Where its parameters are.
    fn parameters(&mut self) -> &mut Value {
        match self.kind == TEMPLATE {
            true => &mut self.object["spec"]["parameters"],
            false => &mut self.object["parameters"],
        }
    }
}

/// The template of that name.
pub(super) async fn find(cluster: &Cluster, namespace: &str, name: &str) -> Result<Found, Error> {
    // A cluster that has no such kind has none of that name.
    for kind in [OPENSHIFT_TEMPLATE, TEMPLATE] {
        if let Some(object) = cluster.get(kind, namespace, name).await? {
            let object = serde_json::to_value(object).map_err(|error| Error::Failed(error.to_string()))?;
            return Ok(Found { kind, object });
        }
    }
    Err(Error::Failed(format!("there is no {}, and no Template of that name", what(TEMPLATE, namespace, name))))
}

/// Copies a template.
///
/// # Errors
/// When there is none of that name, one is there already that may not be replaced, or the cluster refuses.
pub async fn copy(cluster: &Cluster, args: &Copy) -> Result<(), Error> {
    let source = given(&args.source_template_namespace).unwrap_or(&cluster.namespace);
    let found = find(cluster, source, &args.source_template_name).await?;
    let target = given(&args.target_template_namespace).unwrap_or(&cluster.namespace);
    let mut metadata = json!({ "labels": kept(&found.object["metadata"]["labels"]), "annotations": kept(&found.object["metadata"]["annotations"]) });
    match given(&args.target_template_name) {
        Some(name) => metadata["name"] = json!(name),
        None => metadata["generateName"] = json!(format!("{}-", args.source_template_name)),
    }
    if truth("allowReplace", &args.allow_replace)?
        && let Some(name) = given(&args.target_template_name)
    {
        if target == source && name == args.source_template_name {
            return Err(Error::param("targetTemplateName", "a template cannot be replaced by its own copy"));
        }
        cluster.delete(found.kind, target, name, PATIENCE).await?;
    }
    let mut copy = found.object.clone();
    copy["metadata"] = metadata;
    copy.as_object_mut().map(|copy| copy.remove("status"));
    let name = cluster.create(found.kind, target, &copy).await?;
    args.results.write(&name, target)
}

/// What goes into a copy: not what says that the template is one of the common ones, which are restored and deprecated.
fn kept(map: &Value) -> Value {
    let own = |key: &str| {
        key == "template.kubevirt.io/type"
            || key == "template.kubevirt.io/deprecated"
            || key.starts_with("app.kubernetes.io/")
    };
    let all = map.as_object().into_iter().flatten();
    Value::Object(
        all.filter(|(key, _)| !own(key)).map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>(),
    )
}

/// Changes or deletes a template.
///
/// # Errors
/// When there is none of that name, a param cannot be read, or the cluster refuses.
pub async fn modify(cluster: &Cluster, args: &Modify) -> Result<(), Error> {
    let namespace = given(&args.template_namespace).unwrap_or(&cluster.namespace);
    let mut found = find(cluster, namespace, &args.template_name).await?;
    if truth("deleteTemplate", &args.delete_template)? {
        cluster.delete(found.kind, namespace, &args.template_name, PATIENCE).await?;
        return args.results.write(&args.template_name, namespace);
    }
    change(&mut found, args)?;
    let whole = if found.kind == TEMPLATE { ["spec"].as_slice() } else { ["objects", "parameters"].as_slice() };
    let mut patch = json!({ "metadata": {
        "labels": found.object["metadata"]["labels"], "annotations": found.object["metadata"]["annotations"],
        "resourceVersion": found.object["metadata"]["resourceVersion"],
    } });
    for field in whole {
        patch[*field] = found.object[*field].clone();
    }
    cluster.merge(found.kind, namespace, &args.template_name, &patch).await?;
    args.results.write(&args.template_name, namespace)
}

fn change(found: &mut Found, args: &Modify) -> Result<(), Error> {
    for (field, name, all) in [
        ("labels", "templateLabels", &args.template_labels),
        ("annotations", "templateAnnotations", &args.template_annotations),
    ] {
        for (key, value) in pairs(name, all)? {
            found.object["metadata"][field][key] = json!(value);
        }
    }
    list(
        found.parameters(),
        "templateParameters",
        &args.template_parameters,
        "name",
        ("deleteTemplateParameters", &args.delete_template_parameters),
    )?;
    let machine = found.machine()?;
    for (field, name, all) in
        [("labels", "vmLabels", &args.vm_labels), ("annotations", "vmAnnotations", &args.vm_annotations)]
    {
        for (key, value) in pairs(name, all)? {
            machine["metadata"][field][key] = json!(value);
        }
    }
    list(
        &mut machine["spec"]["dataVolumeTemplates"],
        "datavolumeTemplates",
        &args.datavolume_templates,
        "metadata.name",
        ("deleteDatavolumeTemplate", &args.delete_datavolume_template),
    )?;
    let spec = &mut machine["spec"]["template"]["spec"];
    for (field, name, text) in [
        ("sockets", "cpuSockets", &args.cpu_sockets),
        ("cores", "cpuCores", &args.cpu_cores),
        ("threads", "cpuThreads", &args.cpu_threads),
    ] {
        if let Some(text) = given(text) {
            let number: u32 = text
                .parse()
                .ok()
                .filter(|number| *number > 0)
                .ok_or_else(|| Error::param(name, format!("{text:?} is no number above 0")))?;
            spec["domain"]["cpu"][field] = json!(number);
        }
    }
    if let Some(text) = given(&args.memory) {
        spec["domain"]["memory"]["guest"] = json!(text);
    }
    list(&mut spec["domain"]["devices"]["disks"], "disks", &args.disks, "name", ("deleteDisks", &args.delete_disks))?;
    list(&mut spec["volumes"], "volumes", &args.volumes, "name", ("deleteVolumes", &args.delete_volumes))
}

/// Puts the items of `wanted` in the place of those that are called so, or behind them; what was there goes before where it is to.
fn list(
    held: &mut Value,
    name: &'static str,
    wanted: &[String],
    key: &str,
    (clear, clears): (&'static str, &str),
) -> Result<(), Error> {
    let clears = truth(clear, clears)?;
    let wanted: Vec<&String> = wanted.iter().filter(|text| !text.trim().is_empty()).collect();
    if wanted.is_empty() && !clears {
        return Ok(());
    }
    if !held.is_array() || clears {
        *held = json!([]);
    }
    let Some(items) = held.as_array_mut() else { return Ok(()) };
    let pointer = format!("/{}", key.replace('.', "/"));
    for text in wanted {
        let item: Value =
            serde_json::from_str(text).map_err(|error| Error::param(name, format!("{text:?} is no JSON: {error}")))?;
        let called = item.pointer(&pointer).and_then(Value::as_str).map(str::to_owned);
        let called = called.ok_or_else(|| Error::param(name, format!("{text:?} has no {key}")))?;
        match items.iter_mut().find(|held| held.pointer(&pointer).and_then(Value::as_str) == Some(&called)) {
            Some(held) => *held = item,
            None => items.push(item),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native() -> Found {
        let machine = json!({ "metadata": {}, "spec": { "template": { "spec": { "domain": { "devices": {
            "disks": [{ "name": "root", "disk": { "bus": "sata" } }],
        } } } } } });
        Found {
            kind: TEMPLATE,
            object: json!({ "metadata": {}, "spec": { "parameters": [{ "name": "NAME" }], "virtualMachine": machine } }),
        }
    }

    #[test]
    fn every_param_changes_its_field() {
        let mut found = native();
        let one = |text: &str| vec![text.to_owned()];
        let args = Modify {
            cpu_cores: "4".to_owned(),
            memory: "2Gi".to_owned(),
            template_labels: one("a:b"),
            vm_annotations: one("c:d"),
            disks: vec![
                r#"{"name":"root","disk":{"bus":"virtio"}}"#.to_owned(),
                r#"{"name":"data","disk":{}}"#.to_owned(),
            ],
            volumes: one(r#"{"name":"data","emptyDisk":{"capacity":"1Gi"}}"#),
            datavolume_templates: one(r#"{"metadata":{"name":"dv"},"spec":{}}"#),
            template_parameters: one(r#"{"name":"SIZE","value":"1"}"#),
            delete_template_parameters: "true".to_owned(),
            ..Modify::default()
        };
        change(&mut found, &args).unwrap();
        assert_eq!(found.object["metadata"]["labels"]["a"], "b");
        assert_eq!(found.object["spec"]["parameters"], json!([{ "name": "SIZE", "value": "1" }]));
        let machine = &found.object["spec"]["virtualMachine"];
        assert_eq!(machine["metadata"]["annotations"]["c"], "d");
        assert_eq!(machine["spec"]["dataVolumeTemplates"][0]["metadata"]["name"], "dv");
        let spec = &machine["spec"]["template"]["spec"];
        assert_eq!((&spec["domain"]["cpu"]["cores"], &spec["domain"]["memory"]["guest"]), (&json!(4), &json!("2Gi")));
        let disks = json!([{ "name": "root", "disk": { "bus": "virtio" } }, { "name": "data", "disk": {} }]);
        assert_eq!((&spec["domain"]["devices"]["disks"], &spec["volumes"][0]["name"]), (&disks, &json!("data")));
    }

    #[test]
    fn params_that_cannot_be_read_are_named() {
        let check = |args: Modify, expect: &str| {
            let error = change(&mut native(), &args).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(Modify { cpu_cores: "0".to_owned(), ..Modify::default() }, "param cpuCores");
        check(Modify { disks: vec!["{".to_owned()], ..Modify::default() }, "param disks");
        check(Modify { volumes: vec!["{}".to_owned()], ..Modify::default() }, "has no name");
        check(Modify { vm_labels: vec!["x".to_owned()], ..Modify::default() }, "param vmLabels");
    }

    #[test]
    fn a_copy_of_a_common_template_is_none() {
        let labels =
            json!({ "template.kubevirt.io/type": "base", "app.kubernetes.io/managed-by": "ssp-operator", "a": "b" });
        assert_eq!(kept(&labels), json!({ "a": "b" }));
    }
}
