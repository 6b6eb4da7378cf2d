//! The chart, rendered.

use std::path::Path;

use gtmpl::{Context, FuncError, Template, Value as Given};

use super::*;

fn func(result: Result<String, String>) -> Result<Given, FuncError> {
    result.map(Given::String).map_err(FuncError::Generic)
}

fn json_of(given: &Given) -> Value {
    match given {
        Given::Object(map) | Given::Map(map) => {
            Value::Object(map.iter().map(|(key, value)| (key.clone(), json_of(value))).collect())
        }
        Given::Array(items) => items.iter().map(json_of).collect(),
        Given::String(text) => json!(text),
        Given::Bool(truth) => json!(truth),
        Given::Number(number) => number.as_i64().map_or_else(|| json!(number.as_f64()), |whole| json!(whole)),
        _ => Value::Null,
    }
}

fn given(value: &Value) -> Given {
    match value {
        Value::Object(map) => Given::Object(map.iter().map(|(key, value)| (key.clone(), given(value))).collect()),
        Value::Array(items) => Given::Array(items.iter().map(given).collect()),
        Value::String(text) => Given::String(text.clone()),
        Value::Bool(truth) => Given::Bool(*truth),
        Value::Number(number) => Given::from(number.as_i64().unwrap_or_default()),
        Value::Null => Given::Nil,
    }
}

/// Helm's functions that the chart calls.
fn render(text: &str, values: &Value) -> Result<String, String> {
    let scope = json!({
        "Values": values, "Release": { "Namespace": "vms" }, "Chart": { "Name": "ferrovirt", "AppVersion": "v9" },
    });
    let mut template = Template::default();
    template.add_func("toYaml", |words| {
        let text = serde_saphyr::to_string(&json_of(&words[0])).map_err(|error| error.to_string());
        func(text.map(|text| text.trim_end().to_owned()))
    });
    template.add_func("nindent", |words| {
        let (Given::Number(width), Given::String(text)) = (&words[0], &words[1]) else {
            return func(Err("nindent WIDTH TEXT".to_owned()));
        };
        let pad = " ".repeat(usize::try_from(width.as_i64().unwrap_or(0)).unwrap());
        func(Ok(text.lines().map(|line| format!("\n{pad}{line}")).collect()))
    });
    template.add_func("required", |words| match (&words[0], &words[1]) {
        (Given::String(error), Given::String(text)) if text.is_empty() => func(Err(error.clone())),
        (_, value) => Ok(value.clone()),
    });
    template.add_func("default", |words| match &words[1] {
        Given::String(text) if text.is_empty() => Ok(words[0].clone()),
        value => Ok(value.clone()),
    });
    // `include` differs from `template` in that its result may be piped, which the chart does nowhere.
    let text = format!("{}{text}", image_templates()).replace("{{ include \"", "{{ template \"");
    template.parse(&text).map_err(|error| error.to_string())?;
    template.render(&Context::from(given(&scope))).map_err(|error| error.to_string())
}

fn values(changes: &Value) -> Value {
    let mut values: Value = serde_saphyr::from_str(values::VALUES).unwrap();
    merge(&mut values, changes);
    values
}

fn merge(into: &mut Value, changes: &Value) {
    match (into, changes) {
        (Value::Object(into), Value::Object(changes)) => {
            for (key, change) in changes {
                merge(into.entry(key.clone()).or_insert(Value::Null), change);
            }
        }
        (into, change) => *into = change.clone(),
    }
}

/// All objects of the chart with these values.
fn chart(changes: &Value) -> Result<Vec<Value>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let documents = crate::product::compose(&root).unwrap();
    let storage = std::fs::read_to_string(root.join("deploy/hostpath-cr.yaml")).unwrap();
    let mut out = Vec::new();
    for (path, text) in files(&documents, &storage).unwrap() {
        if path.parent().is_some_and(|dir| dir.ends_with("templates"))
            && path.extension().is_some_and(|end| end == "yaml")
        {
            let text = render(&text, &values(changes)).map_err(|error| format!("{}: {error}", path.display()))?;
            let found: Vec<Value> =
                serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            out.extend(found.into_iter().filter(|value| !value.is_null()));
        }
    }
    Ok(out)
}

fn find<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = all.iter().find(|value| value["kind"] == kind && value["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("there is no {kind} {name}"))
}

#[test]
fn without_values_it_is_the_product_in_the_releases_namespace() {
    let all = chart(&json!({ "image": { "registry": "registry.example:5000/team" } })).unwrap();
    let operator = find(&all, "Deployment", "virt-operator");
    assert_eq!(operator["metadata"]["namespace"], "vms");
    let container = &operator["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "registry.example:5000/team/component:v9");
    let launcher = container["env"].as_array().unwrap().iter().find(|one| one["name"] == "LAUNCHER_IMAGE").unwrap();
    assert_eq!(launcher["value"], "registry.example:5000/team/launcher:v9");
    assert_eq!(container["imagePullPolicy"], "IfNotPresent");
    let text = serde_json::to_string(&all).unwrap();
    assert!(!text.contains(REGISTRY) && !text.contains("VALUE-OF"), "{text}");
    assert_eq!(find(&all, "HyperConverged", "kubevirt-hyperconverged")["spec"], json!({}));
    assert!(all.iter().all(|value| value["kind"] != "HostPathProvisioner"));
    // But for namespaces and images it is what `ferrovirt install` applies.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for document in crate::product::compose(&root).unwrap() {
        if matches!(document.kind(), "CustomResourceDefinition" | "Namespace") {
            continue;
        }
        let mut expect = serde_json::to_string(&document.value).unwrap();
        expect = expect.replace(&format!("\"namespace\":\"{NAMESPACE}\""), "\"namespace\":\"vms\"");
        for (image, _) in IMAGES {
            let named = format!("{REGISTRY}/{image}:v{VERSION}");
            expect = expect.replace(&named, &format!("registry.example:5000/team/{image}:v9"));
        }
        let expect: Value = serde_json::from_str(&expect).unwrap();
        assert!(all.contains(&expect), "{} {} is not in the chart", document.kind(), document.name());
    }
}

#[test]
fn every_value_acts() {
    let place = json!({
        "nodeSelector": { "a": "b" }, "tolerations": [{ "key": "c", "operator": "Exists" }], "priorityClassName": "p",
        "affinity": { "nodeAffinity": {} },
    });
    let digest = format!("sha256:{}", "0".repeat(64));
    let all = chart(&json!({
        "image": { "registry": "r", "tag": "v7", "pullPolicy": "Always", "digests": { "launcher": digest } },
        "operators": place,
        "hyperConverged": { "annotations": { "x": "y" }, "spec": { "virtualization": { "evictionStrategy": "None" } } },
        "storage": { "create": true, "path": "/srv/vms", "defaultClass": false }, "crds": { "keep": false },
    }))
    .unwrap();
    let pod = &find(&all, "Deployment", "virt-operator")["spec"]["template"]["spec"];
    assert_eq!(pod["nodeSelector"], json!({ "kubernetes.io/os": "linux", "a": "b" }));
    assert_eq!(pod["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!((&pod["priorityClassName"], &pod["affinity"]), (&json!("p"), &json!({ "nodeAffinity": {} })));
    let container = &pod["containers"][0];
    assert_eq!((&container["image"], &container["imagePullPolicy"]), (&json!("r/component:v7"), &json!("Always")));
    assert!(container.to_string().contains(&format!("r/launcher@{digest}")));
    let object = find(&all, "HyperConverged", "kubevirt-hyperconverged");
    assert_eq!(object["spec"]["virtualization"]["evictionStrategy"], "None");
    assert_eq!(object["metadata"]["annotations"]["x"], "y");
    assert_eq!(
        find(&all, "HostPathProvisioner", "hostpath-provisioner")["spec"]["storagePools"][0]["path"],
        "/srv/vms"
    );
    let class = find(&all, "StorageClass", "hostpath-csi");
    assert_eq!(class["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"], "false");
    find(&all, "Job", "ferrovirt-chart-end");
    let none = chart(&json!({ "image": { "registry": "r" }, "hyperConverged": { "create": false } })).unwrap();
    assert!(
        none.iter()
            .all(|value| value["kind"] != "HyperConverged" && value["metadata"]["name"] != "ferrovirt-chart-end")
    );
}

#[test]
fn without_a_registry_it_says_what_to_set() {
    let error = chart(&json!({})).unwrap_err();
    assert!(error.contains("image.registry is not set"), "{error}");
}

#[test]
fn the_schema_knows_every_value_and_no_other() {
    fn paths(value: &Value, at: &str, out: &mut Vec<String>) {
        match value.as_object().filter(|fields| !fields.is_empty()) {
            Some(fields) => fields.iter().for_each(|(key, value)| paths(value, &format!("{at}.{key}"), out)),
            None => out.push(at.to_owned()),
        }
    }
    fn known(schema: &Value, at: &str, out: &mut Vec<String>) {
        match schema["properties"].as_object() {
            Some(fields) => {
                assert_eq!(schema["additionalProperties"], json!(false), "{at}");
                fields.iter().for_each(|(key, schema)| known(schema, &format!("{at}.{key}"), out));
            }
            None => out.push(at.to_owned()),
        }
    }
    let (mut there, mut allowed) = (Vec::new(), Vec::new());
    paths(&values(&json!({})), "", &mut there);
    known(&serde_json::from_str(&values::schema()).unwrap(), "", &mut allowed);
    allowed.retain(|path| path != ".global");
    there.sort();
    allowed.sort();
    assert_eq!(there, allowed);
}
