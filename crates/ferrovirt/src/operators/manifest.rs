//! Manifests of operators that share a process, made of those in which each has a Deployment. Pure.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::{PORT, PROGRAM, TOKENS};
use crate::deploy::NAMESPACE;

/// The Deployment, the account and the rights of the process.
pub(crate) const NAME: &str = "ferrovirt-operators";

/// An operator: its Deployment and its command, the argument that says where its metrics are, and what that port is called, by which
/// a Service finds it.
struct Operator {
    name: &'static str,
    argument: &'static str,
    port: &'static str,
}

const fn operator(name: &'static str, argument: &'static str, port: &'static str) -> Operator {
    Operator { name, argument, port }
}

const OPERATORS: [Operator; 6] = [
    operator("virt-operator", "--port", "metrics"),
    operator("cdi-operator", "--port", "cdi-metrics"),
    operator("cluster-network-addons-operator", "--port", "cnao-metrics"),
    operator("ssp-operator", "--port", "http-metrics"),
    operator("hostpath-provisioner-operator", "--metrics-port", "hpp-metrics"),
    operator("hyperconverged-cluster-operator", "--port", "hco-metrics"),
];

/// Names of the Deployments that there are where each operator has its own.
pub(crate) fn apart() -> impl Iterator<Item = &'static str> {
    OPERATORS.iter().map(|operator| operator.name)
}

/// `documents` with one Deployment in the place of those of all operators.
///
/// # Errors
/// When one of them is missing, or they cannot share an environment.
pub(crate) fn together(documents: Vec<Value>) -> Result<Vec<Value>> {
    let is_operator =
        |document: &Value| document["kind"] == "Deployment" && apart().any(|name| document["metadata"]["name"] == name);
    let (deployments, mut out): (Vec<Value>, Vec<Value>) = documents.into_iter().partition(is_operator);
    let mut merged = Merged::default();
    for (index, operator) in OPERATORS.iter().enumerate() {
        let found = deployments.iter().find(|one| one["metadata"]["name"] == operator.name);
        let deployment = found.with_context(|| format!("there is no Deployment of {}", operator.name))?;
        merged.add(operator, 8450 + index * 10, &deployment["spec"]["template"])?;
    }
    out.extend(merged.rights());
    out.push(merged.network_policy());
    out.push(merged.deployment(&deployments[0]));
    Ok(out)
}

/// What the operators have in common, and what each adds.
#[derive(Default)]
struct Merged {
    /// None where two of them differ.
    labels: BTreeMap<String, Option<Value>>,
    environment: BTreeMap<String, Value>,
    ports: Vec<Value>,
    lines: Vec<String>,
    accounts: Vec<String>,
}

impl Merged {
    fn add(&mut self, operator: &Operator, base: usize, template: &Value) -> Result<()> {
        for (key, value) in template["metadata"]["labels"].as_object().into_iter().flatten() {
            let known = self.labels.entry(key.clone()).or_insert_with(|| Some(value.clone()));
            if known.as_ref() != Some(value) {
                *known = None;
            }
        }
        let container = &template["spec"]["containers"][0];
        ensure!(
            container["command"] == json!([operator.name]),
            "{} is not the command of its Deployment",
            operator.name
        );
        let mut args = container["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let known = format!("{}=", operator.argument);
        if let Some(arg) = args.find(|arg| !arg.starts_with(&known)) {
            anyhow::bail!("{} has the argument {arg}, which is not known here", operator.name);
        }
        for variable in container["env"].as_array().into_iter().flatten() {
            let name = variable["name"].as_str().unwrap_or_default().to_owned();
            let known = self.environment.entry(name.clone()).or_insert_with(|| variable.clone());
            ensure!(known == variable, "two operators differ in {name}");
        }
        let mut line = operator.name.to_owned();
        for (offset, port) in container["ports"].as_array().into_iter().flatten().enumerate() {
            let name = port["name"].as_str().unwrap_or_default();
            // The first is where metrics and health are. Others are found by the number that the operator has for them.
            let number = match offset {
                0 => json!(base),
                _ => port["containerPort"].clone(),
            };
            let name = if offset == 0 { operator.port } else { name };
            self.ports.push(json!({ "name": name, "containerPort": number, "protocol": "TCP" }));
        }
        line.push_str(&format!(" {}={base}", operator.argument));
        let account = template["spec"]["serviceAccountName"].as_str().context("a Deployment names no account")?;
        self.lines.push(format!("{account}={line}"));
        self.accounts.push(account.to_owned());
        Ok(())
    }

    /// The account of the process may ask for tokens of the operators' accounts, and may do nothing itself.
    fn rights(&self) -> [Value; 3] {
        let metadata = json!({ "name": NAME, "namespace": NAMESPACE });
        let rule = json!({
            "apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"], "resourceNames": self.accounts,
        });
        let group = "rbac.authorization.k8s.io";
        [
            json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata }),
            json!({ "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata, "rules": [rule] }),
            json!({
                "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
                "roleRef": { "apiGroup": group, "kind": "Role", "name": NAME },
                "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE }],
            }),
        ]
    }

    /// Policies that an operator makes for its own pods select this one by its labels, and would keep others from the rest of its ports.
    fn network_policy(&self) -> Value {
        let ports: Vec<Value> =
            self.ports.iter().map(|port| json!({ "protocol": "TCP", "port": port["containerPort"] })).collect();
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": NAME, "namespace": NAMESPACE },
            "spec": {
                "podSelector": { "matchLabels": { "name": NAME } },
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{ "ports": ports }],
                "egress": [{}],
            },
        })
    }

    /// Like `pattern`, which is an operator's own: image, security context and probes are the same for all.
    fn deployment(self, pattern: &Value) -> Value {
        let mut labels: Map<String, Value> =
            self.labels.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        labels.insert("name".into(), json!(NAME));
        let mut deployment = pattern.clone();
        deployment["metadata"] = json!({ "name": NAME, "namespace": NAMESPACE, "labels": { "name": NAME } });
        deployment["spec"]["selector"] = json!({ "matchLabels": { "name": NAME } });
        let template = &mut deployment["spec"]["template"];
        template["metadata"] = json!({ "labels": labels });
        template["spec"]["serviceAccountName"] = json!(NAME);
        template["spec"]["volumes"] =
            json!([{ "name": "tokens", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }]);
        let container = &mut template["spec"]["containers"][0];
        container["name"] = json!(NAME);
        container["command"] = json!([PROGRAM]);
        container["args"] = json!(self.lines);
        container["env"] = self.environment.into_values().collect();
        let mut ports = self.ports;
        ports.push(json!({ "name": "health", "containerPort": PORT, "protocol": "TCP" }));
        container["ports"] = json!(ports);
        container["resources"] = json!({ "requests": { "cpu": "50m", "memory": "64Mi" } });
        container["volumeMounts"] = json!([{ "name": "tokens", "mountPath": TOKENS }]);
        for probe in ["readinessProbe", "livenessProbe"] {
            container[probe]["httpGet"]["port"] = json!("health");
        }
        deployment
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy;

    fn documents() -> Vec<Value> {
        let all = deploy::documents(&crate::storage::operators()).unwrap();
        all.iter().map(|one| serde_json::to_value(one).unwrap()).collect()
    }

    fn named<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
        all.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == name).unwrap()
    }

    #[test]
    fn one_deployment_stands_in_the_place_of_six() {
        let (before, after) = (documents(), together(documents()).unwrap());
        assert_eq!(after.len(), before.len() - 6 + 5);
        for name in apart() {
            assert!(!after.iter().any(|one| one["kind"] == "Deployment" && one["metadata"]["name"] == name), "{name}");
        }
        let pod = &named(&after, "Deployment", NAME)["spec"]["template"];
        let lines: Vec<_> = pod["spec"]["containers"][0]["args"].as_array().unwrap().iter().collect();
        assert_eq!(lines[0], "kubevirt-operator=virt-operator --port=8450");
        assert_eq!(lines[4], "hostpath-provisioner-operator=hostpath-provisioner-operator --metrics-port=8490");
        for line in lines {
            let _operator =
                super::super::operator(line.as_str().unwrap().parse().unwrap(), kit::operator::Process::default())
                    .unwrap();
        }
    }

    #[test]
    fn services_find_the_operators_they_are_for() {
        let after = together(documents()).unwrap();
        let pod = &named(&after, "Deployment", NAME)["spec"]["template"];
        let labels = &pod["metadata"]["labels"];
        let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
        let number = |name: &str| ports.iter().find(|port| port["name"] == name).unwrap()["containerPort"].as_u64();
        let expect = [
            ("kubevirt.io", "virt-operator", "webhooks", 8444),
            ("prometheus.kubevirt.io", "true", "metrics", 8450),
            ("prometheus.cdi.kubevirt.io", "true", "cdi-metrics", 8460),
            ("control-plane", "ssp-operator", "http-metrics", 8480),
            ("prometheus.hostpathprovisioner.kubevirt.io", "true", "hpp-metrics", 8490),
        ];
        for (key, value, port, expect) in expect {
            assert_eq!((&labels[key], number(port)), (&json!(value), Some(expect)), "{key}");
        }
        let numbers: std::collections::BTreeSet<_> = ports.iter().map(|port| port["containerPort"].as_u64()).collect();
        assert_eq!(numbers.len(), ports.len(), "{ports:?}");
    }

    #[test]
    fn every_port_is_open_whatever_policies_select_the_pod() {
        let after = together(documents()).unwrap();
        let ports = named(&after, "Deployment", NAME)["spec"]["template"]["spec"]["containers"][0]["ports"].clone();
        let open = &named(&after, "NetworkPolicy", NAME)["spec"]["ingress"][0]["ports"];
        for port in ports.as_array().unwrap().iter().filter(|port| port["name"] != "health") {
            let is_open = |one: &Value| one["port"] == port["containerPort"];
            assert!(open.as_array().unwrap().iter().any(is_open), "{port}");
        }
    }

    #[test]
    fn the_process_itself_may_only_ask_for_tokens_of_the_operators() {
        let after = together(documents()).unwrap();
        let rules = named(&after, "Role", NAME)["rules"].as_array().unwrap().clone();
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0]["resources"], json!(["serviceaccounts/token"]));
        assert_eq!(rules[0]["resourceNames"].as_array().unwrap().len(), OPERATORS.len());
        let bound = after.iter().filter(|one| one["kind"].as_str().is_some_and(|kind| kind.ends_with("RoleBinding")));
        let ours = bound.filter(|one| one["subjects"].to_string().contains(NAME));
        assert_eq!(ours.count(), 1);
    }
}
