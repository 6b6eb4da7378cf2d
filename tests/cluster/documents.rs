//! What the server says of itself: versions, resources, and the explanation of every field.

use anyhow::{Result, ensure};
use e2e::Namespace;

use crate::Test;

pub(crate) const TESTS: &[Test] = &[
    ("fields_are_explained", fields_are_explained),
    ("resources_and_versions_are_listed", resources_and_versions_are_listed),
];

fn fields_are_explained() -> Result<()> {
    let space = Namespace::new("explain")?;
    let check = |path: &str, expect: &[&str]| -> Result<()> {
        let printed = space.kubectl(&["explain", path])?;
        for words in expect {
            ensure!(printed.contains(words), "explain {path} lacks {words:?}:\n{printed}");
        }
        ensure!(!printed.contains("<empty>"), "explain {path} has no description:\n{printed}");
        Ok(())
    };
    check("pod", &["Pod is a collection of containers", "spec\t<PodSpec>"])?;
    check("pod.spec.containers.livenessProbe", &["Periodic probe of container liveness", "periodSeconds\t<integer>"])?;
    check("deployment.spec.strategy.rollingUpdate.maxSurge", &["maximum number of pods"])?;
    check("service.spec.clusterIP", &["clusterIP is the IP address of the service"])?;
    check("crd.spec.scope", &["Cluster"])?;
    check("lease.spec", &["holderIdentity"])?;
    check("validatingadmissionpolicy.spec.validations.expression", &["CEL"])?;
    let printed = space.kubectl(&["explain", "deployment", "--recursive"])?;
    ensure!(
        printed.contains("maxSurge") && printed.contains("matchLabels") && printed.contains("livenessProbe"),
        "{printed}"
    );
    let machine = space.kubectl(&["explain", "vm.spec.template.spec.domain.devices"])?;
    ensure!(machine.contains("interfaces\t<[]Object>") && machine.contains("disks\t<[]Object>"), "{machine}");
    Ok(())
}

fn resources_and_versions_are_listed() -> Result<()> {
    let space = Namespace::new("versions")?;
    let check = |words: &[&str], expect: &[&str]| -> Result<()> {
        let printed = space.kubectl(words)?;
        for expect in expect {
            ensure!(printed.contains(expect), "kubectl {} lacks {expect:?}:\n{printed}", words.join(" "));
        }
        Ok(())
    };
    check(&["api-versions"], &["v1\n", "apps/v1\n", "kubevirt.io/v1\n", "subresources.kubevirt.io/v1\n"])?;
    check(&["api-resources"], &["pods", "deployments", "virtualmachines", "customresourcedefinitions"])?;
    check(&["api-resources", "--verbs=list", "--namespaced=false", "-o", "name"], &["nodes\n", "namespaces\n"])?;
    check(&["api-resources", "--api-group=kubevirt.io"], &["vmi,vmis"])?;
    check(&["cluster-info"], &["is running at"])?;
    check(&["version"], &["Server Version"])?;
    check(&["get", "--raw", "/readyz?verbose"], &["ok"])?;
    check(&["get", "--raw", "/version"], &["\"major\""])?;
    Ok(())
}
