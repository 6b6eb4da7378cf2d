//! What offers virtctl for download. Pure.

use kit::apply;
use kit::operator::manifests::{Program, pod};
use kit::workload::{self, Placement};
use serde_json::{Value, json};

use crate::downloads::{PORT, PROGRAM};

/// The Secret with its certificate.
pub(super) const CERTIFICATE: &str = "hyperconverged-cluster-cli-download-cert";
/// The kind by which OpenShift makes a Service seen from outside.
pub(super) const ROUTE: (&str, &str) = ("route.openshift.io/v1", "Route");
/// The kind by which OpenShift's console offers a program.
pub(super) const OFFER: (&str, &str) = ("console.openshift.io/v1", "ConsoleCLIDownload");
/// What the image holds: system, name in the console, path.
const FILES: [(&str, &str); 1] = [("Linux for x86_64", "/amd64/linux/virtctl.tar.gz")];

/// What the manifests are made from.
#[derive(Clone, Debug, Default)]
pub(super) struct Input {
    pub(super) namespace: String,
    pub(super) image: String,
    pub(super) placement: Placement,
}

/// The server and its Service.
pub(super) fn render(input: &Input) -> Vec<Value> {
    let metadata = json!({ "name": PROGRAM, "namespace": input.namespace });
    let selector = json!({ "name": PROGRAM });
    let ports = json!([{ "name": "https", "port": 443, "targetPort": "https", "protocol": "TCP" }]);
    // It asks the API server nothing.
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": false });
    vec![account, workload::service(&metadata, &selector, &ports), deployment(input)]
}

fn deployment(input: &Input) -> Value {
    let program = Program {
        name: PROGRAM,
        account: PROGRAM,
        image: &input.image,
        args: &[],
        env: &[],
        ports: &[("https", PORT)],
        memory: "16Mi",
    };
    let mut pod = pod(&program);
    pod["automountServiceAccountToken"] = json!(false);
    pod["containers"][0]["volumeMounts"] =
        json!([{ "name": "certificate", "mountPath": "/etc/tls", "readOnly": true }]);
    pod["volumes"] = json!([{ "name": "certificate", "secret": { "secretName": CERTIFICATE, "defaultMode": 0o444 } }]);
    input.placement.place(&mut pod);
    let metadata = json!({ "name": PROGRAM, "namespace": input.namespace });
    let labels = json!({ "name": PROGRAM });
    workload::deployment(&metadata, 1, &labels, &labels, &pod)
}

/// The way to it from outside: the router speaks TLS to users with its own certificate, and to the server with this authority's.
pub(super) fn route(namespace: &str, bundle: &str) -> Value {
    json!({
        "apiVersion": ROUTE.0, "kind": ROUTE.1, "metadata": { "name": PROGRAM, "namespace": namespace },
        "spec": {
            "to": { "kind": "Service", "name": PROGRAM, "weight": 100 }, "port": { "targetPort": "https" },
            "tls": {
                "termination": "reencrypt", "insecureEdgeTerminationPolicy": "Redirect", "destinationCACertificate": bundle,
            },
            "wildcardPolicy": "None",
        },
    })
}

/// Everything that is ever applied.
pub(super) fn every(namespace: &str) -> Vec<Value> {
    let mut all = render(&Input { namespace: namespace.to_owned(), ..Input::default() });
    all.extend([route(namespace, ""), offer("")]);
    all
}

/// Where it lies, what users come to first.
pub(super) fn addresses(namespace: &str) -> Vec<String> {
    every(namespace).iter().rev().map(apply::address).collect()
}

/// Where a router has admitted the route, or nothing.
pub(super) fn host(route: &Value) -> Option<String> {
    let admitted = |ingress: &&Value| {
        let mut conditions = ingress["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == "Admitted" && condition["status"] == "True")
    };
    let ingress = route["status"]["ingress"].as_array()?.iter().find(admitted)?;
    ingress["host"].as_str().filter(|host| !host.is_empty()).map(str::to_owned)
}

/// What the console shows under its downloads.
pub(super) fn offer(host: &str) -> Value {
    let links: Vec<Value> = FILES
        .iter()
        .map(|(system, path)| {
            json!({ "text": format!("Download virtctl for {system}"), "href": format!("https://{host}{path}") })
        })
        .collect();
    json!({
        "apiVersion": OFFER.0, "kind": OFFER.1, "metadata": { "name": "virtctl-clidownloads-kubevirt-hyperconverged" },
        "spec": {
            "displayName": "virtctl - KubeVirt command line interface",
            "description": "The virtctl client is a supplemental command-line utility for managing virtualization resources from the command line.\n",
            "links": links,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_that_of_a_router_that_admitted_the_route() {
        let of = |status: &str, host: &str| json!({ "host": host, "conditions": [{ "type": "Admitted", "status": status }] });
        let check = |ingress: Value, expect: Option<&str>| {
            assert_eq!(host(&json!({ "status": { "ingress": ingress } })).as_deref(), expect);
        };
        check(json!(null), None);
        check(json!([of("False", "a")]), None);
        check(json!([of("False", "a"), of("True", "b")]), Some("b"));
        check(json!([of("True", "")]), None);
    }
}
