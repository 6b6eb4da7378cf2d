//! Everything the SSP object stands for but templates and boot sources, as manifests. Pure: the same input is always the same
//! manifests.

pub mod admission;
pub mod crds;
pub mod images;
pub mod monitoring;
pub mod network;
pub mod protection;
pub mod tekton;
pub mod tokens;
pub mod validator;

use std::collections::BTreeMap;

use kit::operator;
use kit::workload::Placement;
use serde_json::{Value, json};

use super::MANAGER;

/// Part of the product that an object is of.
pub(super) const TEMPLATING: &str = "templating";

/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Namespace of the validator.
    pub namespace: String,
    /// Its image.
    pub image: String,
    /// How often it runs.
    pub replicas: i32,
    /// Where.
    pub placement: Placement,
    /// Namespace of the common templates.
    pub templates: String,
    /// The bundle that verifies the validator.
    pub ca_bundle: String,
    /// Names the configuration: the Deployment carries it, so that what is seen of it is known to be of this one.
    pub configuration: String,
    /// Labels of the SSP object that everything made for it carries as well.
    pub labels: BTreeMap<String, String>,
    /// Whether somebody answers the webhooks.
    pub answered: bool,
    /// Whether there is somebody who hands out tokens for screens.
    pub tokens: bool,
    /// Whether he answers.
    pub tokens_answered: bool,
    /// Whether the cluster knows the kinds of Prometheus' operator.
    pub monitoring: bool,
    /// Images of steps of tasks, where the cluster knows the kinds of Tekton.
    pub steps: Option<[String; 2]>,
    /// Whether no node has KVM.
    pub emulated: bool,
    /// Version of the product.
    pub version: String,
}

/// Labels of what the operand `name` is made of.
pub fn labels(name: &str, component: &str, more: &BTreeMap<String, String>) -> Value {
    let mut labels = json!({
        "app.kubernetes.io/name": name, "app.kubernetes.io/component": component, "app.kubernetes.io/managed-by": MANAGER,
    });
    for (key, value) in more {
        labels[key] = json!(value);
    }
    labels
}

/// All manifests but what is secret.
pub fn render(input: &Input) -> Vec<Value> {
    let mut out = Vec::new();
    let mut add = |name: &str, component: &str, manifests: Vec<Value>| {
        out.extend(manifests.into_iter().map(|mut manifest| {
            operator::label(&mut manifest, &labels(name, component, &input.labels));
            manifest
        }));
    };
    add(images::OPERAND, TEMPLATING, images::render());
    add(validator::OPERAND, TEMPLATING, validator::render(input));
    add(validator::OPERAND, TEMPLATING, network::render(input));
    if input.answered {
        add(validator::OPERAND, TEMPLATING, admission::render(input));
    }
    if input.tokens {
        add(tokens::OPERAND, TEMPLATING, tokens::render(input));
        if input.tokens_answered {
            add(tokens::OPERAND, TEMPLATING, vec![tokens::api_service(input)]);
        }
    }
    if let Some(images) = &input.steps {
        add(tekton::OPERAND, "tektonTasks", tekton::render(&input.namespace, images, input.emulated, &input.version));
    }
    if input.monitoring {
        add("metrics", "monitoring", monitoring::render(input));
    }
    add("vm-delete-protection", "vmDeleteProtection", protection::render());
    out
}

/// All that can be rendered for `namespace`, whatever the object asks for and the cluster knows.
pub fn every(namespace: &str) -> Vec<Value> {
    let namespace = namespace.to_owned();
    let all = Input { namespace, replicas: 2, answered: true, monitoring: true, ..Input::default() };
    render(&Input { tokens: true, tokens_answered: true, steps: Some(Default::default()), ..all })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_manifest_has_a_name_and_ours_are_marked() {
        let mut seen = BTreeSet::new();
        for manifest in every("ns") {
            let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            let id = (text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
            assert!(!id.0.is_empty() && !id.2.is_empty(), "{manifest}");
            assert_eq!(text("/metadata/labels/app.kubernetes.io~1managed-by"), MANAGER, "{id:?}");
            assert!(seen.insert(id.clone()), "twice: {id:?}");
        }
    }

    #[test]
    fn labels_of_the_object_are_on_everything() {
        let labels = BTreeMap::from([("app.kubernetes.io/part-of".to_owned(), "hyperconverged-cluster".to_owned())]);
        let input = Input { labels, ..Input::default() };
        let all = render(&input);
        let of = |manifest: &Value| manifest["metadata"]["labels"]["app.kubernetes.io/part-of"].clone();
        assert!(all.iter().all(|manifest| of(manifest) == "hyperconverged-cluster"));
    }
}
