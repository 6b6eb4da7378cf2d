//! Endpoints and EndpointSlices follow the pods that are ready; leases show who leads.

use anyhow::{Result, ensure};
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{apply, ready, sh, special};

pub(crate) const TESTS: &[Test] =
    &[("endpoints_follow_readiness", endpoints_follow_readiness), ("leases_are_renewed", leases_are_renewed)];

fn endpoints_follow_readiness() -> Result<()> {
    let space = Namespace::new("endpoints")?;
    let main = json!({"readinessProbe": {"exec": {"command": ["cat", "/tmp/ready"]}, "periodSeconds": 1, "failureThreshold": 1}});
    apply(
        &space,
        &[
            special("p", "busybox touch /tmp/ready; trap 'exit 0' TERM; sleep 100000 & wait", &main, &json!({})),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"app": "p"}, "ports": [{"name": "web", "port": 80, "targetPort": 8080}]}}),
        ],
    )?;
    ready(&space, "p")?;
    let address = space.get("pod", "p")?["status"]["podIP"].clone();
    let slice = |readiness: bool| {
        until("the slice followed", || {
            let list: Value = serde_json::from_str(&space.kubectl(&[
                "get",
                "endpointslices",
                "-l",
                "kubernetes.io/service-name=s",
                "-o",
                "json",
            ])?)?;
            let endpoint = list["items"][0]["endpoints"][0].clone();
            let right = endpoint["addresses"][0] == address
                && endpoint["conditions"]["ready"] == readiness
                && list["items"][0]["ports"][0]["port"] == 8080;
            Ok(right.then_some(()))
        })
    };
    slice(true)?;
    let endpoints =
        space.wait("endpoints", "s", "had the address", |e| e["subsets"][0]["addresses"][0]["ip"] == address)?;
    ensure!(endpoints["subsets"][0]["ports"][0]["name"] == "web", "{endpoints}");
    sh(&space, "p", "rm /tmp/ready")?;
    slice(false)?;
    space
        .wait("endpoints", "s", "had it as not ready", |e| e["subsets"][0]["notReadyAddresses"][0]["ip"] == address)?;
    space.kubectl(&["delete", "service", "s"])?;
    space.wait("endpoints", "s", "went with the service", Value::is_null)?;
    Ok(())
}

fn leases_are_renewed() -> Result<()> {
    let space = Namespace::new("leases")?;
    let renewed =
        || space.kubectl(&["get", "lease", "node1", "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}"]);
    let before = renewed()?;
    ensure!(!before.is_empty(), "the node has no lease");
    until("the node renewed its lease", || Ok((renewed()? != before).then_some(())))
}
