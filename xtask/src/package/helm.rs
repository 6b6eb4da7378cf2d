//! The Helm chart: definitions under `crds`, which Helm installs first; the operators and their objects as templates; and hooks for
//! what Helm leaves to charts: definitions of an upgrade, and the order of an end.

mod hooks;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::product::{Document, HEADER, IMAGES, NAMESPACE, REGISTRY, VERSION, text_of};

/// Where the release is.
const HERE: &str = "{{ .Release.Namespace }}";

/// The files, by path; `storage` is the manifest of the HostPathProvisioner and its class.
///
/// # Errors
/// When a manifest has no YAML form, or would be taken for a template.
pub(crate) fn files(documents: &[Document], storage: &str) -> Result<BTreeMap<PathBuf, String>> {
    let chart = Path::new("deploy/helm/ferrovirt");
    let mut out = BTreeMap::new();
    let mut operators = HEADER.to_owned();
    for document in documents {
        ensure!(!document.text.contains("{{"), "{} holds a template", document.name());
        match document.kind() {
            "CustomResourceDefinition" => {
                let path = chart.join("crds").join(format!("{}.yaml", document.name()));
                out.insert(path, format!("{HEADER}{}", document.text));
            }
            // It is where the release is, which Helm or an administrator makes.
            "Namespace" if document.name() == NAMESPACE => {}
            _ => {
                operators.push_str("---\n");
                operators.push_str(&template(document)?);
            }
        }
    }
    let mut add = |path: &str, text: String| drop(out.insert(chart.join(path), text));
    add("templates/operators.yaml", operators);
    add("templates/hyperconverged.yaml", format!("{HEADER}{OBJECT}"));
    add("templates/storage.yaml", storage_template(storage));
    add("templates/hooks.yaml", hooks::template(documents)?);
    add("templates/_images.tpl", image_templates());
    add("templates/NOTES.txt", NOTES.to_owned());
    add("Chart.yaml", chart_file()?);
    add("values.yaml", format!("{HEADER}{}", values::VALUES));
    add("values.schema.json", values::schema());
    Ok(out)
}

fn chart_file() -> Result<String> {
    let chart = json!({
        "apiVersion": "v2", "name": "ferrovirt", "type": "application", "version": VERSION,
        "appVersion": format!("v{VERSION}"), "kubeVersion": ">=1.30.0-0",
        "description": "Virtual machines on Kubernetes: HyperConverged, KubeVirt, CDI, network addons, SSP and the hostpath provisioner",
        "keywords": ["kubevirt", "virtualization", "vm", "cdi"],
    });
    Ok(format!("{HEADER}{}", text_of(&chart)?))
}

/// Images by their parts, as values name them. `required` says what to do when there is no registry.
fn image_templates() -> String {
    let mut out = String::from(
        "{{- define \"ferrovirt.registry\" -}}\n{{ required \"image.registry is not set: name the registry to which `ferrovirt images push` \
         sent the images\" .Values.image.registry }}\n{{- end }}\n",
    );
    for (image, value) in IMAGES {
        let digest = format!(".Values.image.digests.{value}");
        out.push_str(&format!(
            "{{{{- define \"ferrovirt.{image}\" -}}}}\n{{{{ include \"ferrovirt.registry\" . }}}}/{image}{{{{ if {digest} }}}}@{{{{ {digest} }}}}{{{{ else \
             }}}}:{{{{ .Values.image.tag | default .Chart.AppVersion }}}}{{{{ end }}}}\n{{{{- end }}}}\n"
        ));
    }
    out
}

const OBJECT: &str = r"{{- if .Values.hyperConverged.create }}
---
apiVersion: hco.kubevirt.io/v1
kind: HyperConverged
metadata:
  name: kubevirt-hyperconverged
  namespace: {{ .Release.Namespace }}
{{- with .Values.hyperConverged.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
{{- end }}
spec:
  {{- toYaml .Values.hyperConverged.spec | nindent 2 }}
{{- end }}
";

const NOTES: &str = "\
{{ .Chart.Name }} {{ .Chart.AppVersion }} is being deployed into {{ .Release.Namespace }}.

  kubectl -n {{ .Release.Namespace }} wait hyperconverged/kubevirt-hyperconverged --for condition=Available --timeout 15m
  kubectl -n {{ .Release.Namespace }} edit hyperconverged      what the product does

`helm uninstall` is refused while there are virtual machines.
";

/// The HostPathProvisioner and its class, where they are asked for.
fn storage_template(storage: &str) -> String {
    let body = storage.trim_start_matches(HEADER).replace("path: /var/hpvolumes", "path: {{ .Values.storage.path }}");
    let mark = "storageclass.kubernetes.io/is-default-class: ";
    let body = body.replace(&format!("{mark}\"true\""), &format!("{mark}\"{{{{ .Values.storage.defaultClass }}}}\""));
    format!("{HEADER}{{{{- if .Values.storage.create }}}}\n{body}{{{{- end }}}}\n")
}

/// A manifest with what values decide left open.
fn template(document: &Document) -> Result<String> {
    let mut value = document.value.clone();
    if document.kind() == "Namespace" {
        // Images of users are in it.
        value["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
    }
    if document.kind() == "Deployment" {
        let pod = &mut value["spec"]["template"]["spec"];
        for (field, _) in PLACED {
            pod[*field] = json!(mark(field));
        }
        pod["containers"][0]["imagePullPolicy"] = json!(mark("imagePullPolicy"));
    }
    let mut text = images(&text_of(&value)?);
    text = text.replace(&format!("namespace: {NAMESPACE}\n"), &format!("namespace: {HERE}\n"));
    for (field, usual) in PLACED {
        let usual: Value = if usual.is_empty() { Value::Null } else { serde_saphyr::from_str(usual)? };
        text = open(&text, field, &usual)?;
    }
    Ok(text.replace(&mark("imagePullPolicy"), "{{ .Values.image.pullPolicy }}"))
}

/// Fields of an operator's pod that values decide, and what they are otherwise.
const PLACED: &[(&str, &str)] = &[
    ("affinity", ""),
    ("nodeSelector", "kubernetes.io/os: linux"),
    ("priorityClassName", ""),
    ("tolerations", "- key: CriticalAddonsOnly\n  operator: Exists"),
];

fn mark(field: &str) -> String {
    format!("VALUE-OF-{field}")
}

/// Puts the value of `field` in place of its mark: what the values say, beside what is always so.
fn open(text: &str, field: &str, usual: &Value) -> Result<String> {
    let line = format!("{field}: {}\n", mark(field));
    let Some(at) = text.find(&line) else { return Ok(text.to_owned()) };
    let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let (indent, inner) = (at - start, at - start + 2);
    let pad = " ".repeat(indent);
    let path = format!(".Values.operators.{field}");
    let filled = match usual {
        Value::Null if field == "priorityClassName" => {
            format!("{{{{- with {path} }}}}\n{pad}{field}: {{{{ . }}}}\n{{{{- end }}}}\n")
        }
        Value::Null => {
            format!(
                "{{{{- with {path} }}}}\n{pad}{field}:\n{pad}  {{{{- toYaml . | nindent {inner} }}}}\n{{{{- end }}}}\n"
            )
        }
        usual => {
            let lines = text_of(usual)?;
            let lines: String = lines.lines().map(|line| format!("{pad}  {line}\n")).collect();
            format!(
                "{pad}{field}:\n{lines}{{{{- with {path} }}}}\n{pad}  {{{{- toYaml . | nindent {inner} }}}}\n{{{{- end }}}}\n"
            )
        }
    };
    Ok(format!("{}{filled}{}", &text[..start], &text[at + line.len()..]))
}

/// The images by the templates that name them.
fn images(text: &str) -> String {
    IMAGES.iter().fold(text.to_owned(), |text, (image, _)| {
        let named = format!("{REGISTRY}/{image}:v{VERSION}");
        text.replace(&named, &format!("'{{{{ include \"ferrovirt.{image}\" . }}}}'"))
    })
}

#[cfg(test)]
mod tests;
