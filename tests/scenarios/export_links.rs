//! The links of an export, followed by curl in a pod: from inside of the cluster, and from outside, through an Ingress.

use anyhow::{Context, Result, ensure};
use e2e::{Namespace, product, wait};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("an_export_is_reached_by_its_links", an_export_is_reached_by_its_links)]
}

const SIZE: usize = 1 << 20;
/// Where the components are.
const HOME: &str = product::NAMESPACE;
const WAY: &str = "e2e-exports";
/// The name of the proxy's Service, which is what its certificate is for.
const OUTSIDE: &str = "virt-exportproxy.kubevirt-hyperconverged.svc";

/// Takes back what everybody would notice.
struct Undo;

impl Drop for Undo {
    fn drop(&mut self) {
        let _ = Namespace::kubectl_in(HOME, &["delete", "ingress", WAY, "--ignore-not-found"]);
        let _ = tls(&Value::Null);
    }
}

/// What the KubeVirt object asks of TLS.
fn tls(wanted: &Value) -> Result<()> {
    product::merge(&json!({ "security": { "tlsSecurityProfile": wanted } }))
}

/// A volume with a disk, and a pod beside it.
fn prepare(space: &Namespace) -> Result<Vec<u8>> {
    let disk: Vec<u8> = (0..SIZE).map(|at| (at / 7 % 251) as u8).collect();
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), &disk)?;
    let path = format!("--image-path={}", file.path().display());
    space.virtctl(&["image-upload", "dv", "disk", "--size=1Mi", &path, "--force-bind", "--insecure"])?;
    client(space)?;
    Ok(disk)
}

/// A pod that follows links.
pub(crate) fn client(space: &Namespace) -> Result<()> {
    space.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "client" },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "volumes": [{ "name": "tmp", "emptyDir": {} }],
            "containers": [{
                "name": "client", "image": "ferrovirt.local/component:v0.1.0", "command": ["busybox", "sleep", "3600"],
                "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }],
            }],
        },
    }))
}

/// What curl prints in the pod, which believes `authority` and nobody else.
fn curl(space: &Namespace, authority: &str, words: &str) -> Result<String> {
    Ok(String::from_utf8_lossy(&bytes(space, authority, words)?).trim().to_owned())
}

/// What curl gets in the pod.
pub(crate) fn bytes(space: &Namespace, authority: &str, words: &str) -> Result<Vec<u8>> {
    let script = format!("cat > /tmp/ca && curl --silent --show-error --max-time 60 --cacert /tmp/ca {words}");
    let output = space.feed(&["exec", "-i", "client", "--", "busybox", "sh", "-c", &script], authority.as_bytes())?;
    ensure!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(output.stdout)
}

/// The link to the raw disk on this side of the export, and what its server is checked by.
fn link(export: &Value, side: &str) -> Option<(String, String)> {
    let link = &export["status"]["links"][side];
    let formats = link["volumes"][0]["formats"].as_array()?;
    let url = formats.iter().find(|one| one["format"] == "raw")?["url"].as_str()?;
    Some((url.to_owned(), link["cert"].as_str()?.to_owned()))
}

/// The whole disk, a part of it, and nothing without the token.
fn follow(space: &Namespace, (url, authority): &(String, String), token: &str, disk: &[u8]) -> Result<()> {
    let header = format!("--header x-kubevirt-export-token:{token}");
    let digest: String = Sha256::digest(disk).iter().map(|byte| format!("{byte:02x}")).collect();
    let whole = curl(space, authority, &format!("{header} {url} | busybox head -c {SIZE} | busybox sha256sum"))?;
    ensure!(whole.starts_with(&digest), "{url}: {whole}");
    let code = "--output /dev/null --write-out '%{http_code} %{size_download}'";
    let part = curl(space, authority, &format!("{header} --range 10-19 {code} {url}"))?;
    ensure!(part == "206 10", "{url}: {part}");
    for wrong in ["", "--header x-kubevirt-export-token:wrong"] {
        let refused = curl(space, authority, &format!("{wrong} {code} {url}"))?;
        ensure!(refused.starts_with("401 "), "{url} {wrong}: {refused}");
    }
    Ok(())
}

fn an_export_is_reached_by_its_links() -> Result<()> {
    let space = Namespace::new("export-links")?;
    let disk = prepare(&space)?;
    let _undo = Undo;
    space.apply(&json!({
        // As clients have it that are a version behind.
        "apiVersion": "export.kubevirt.io/v1beta1", "kind": "VirtualMachineExport", "metadata": { "name": "out" },
        "spec": { "source": { "apiGroup": "", "kind": "PersistentVolumeClaim", "name": "disk" } },
    }))?;
    space.wait("pod", "client", "ran", |pod| pod["status"]["phase"] == "Running")?;
    let ready = space.wait("vmexport", "out", "was served", |found| found["status"]["phase"] == "Ready")?;
    ensure!(ready["apiVersion"] == "export.kubevirt.io/v1", "{}", ready["apiVersion"]);
    let token =
        space.kubectl(&["get", "secret", "export-token-out", "-o", "go-template={{.data.token|base64decode}}"])?;
    let inside = link(&ready, "internal").context("no link from inside")?;
    follow(&space, &inside, token.trim(), &disk)?;

    // No controller answers for it here: its host is the proxy itself.
    Namespace::apply_in(
        HOME,
        &json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": WAY, "namespace": HOME },
            "spec": {
                "tls": [{ "hosts": [OUTSIDE], "secretName": "kubevirt-exportproxy-certs" }],
                "rules": [{ "host": OUTSIDE, "http": { "paths": [{
                    "path": "/", "pathType": "Prefix",
                    "backend": { "service": { "name": "virt-exportproxy", "port": { "number": 443 } } },
                }] } }],
            },
        }),
    )?;
    let shown = space.wait("vmexport", "out", "was reached from outside", |found| link(found, "external").is_some())?;
    let outside = link(&shown, "external").context("no link from outside")?;
    ensure!(
        outside.0.starts_with(&format!("https://{OUTSIDE}/api/export.kubevirt.io/v1/namespaces/")),
        "{}",
        outside.0
    );
    follow(&space, &outside, token.trim(), &disk)?;

    // What the administrator asks of TLS is what servers offer: the proxy at once, the export's own when it has begun anew.
    let code =
        format!("--output /dev/null --write-out '%{{http_code}}' --header x-kubevirt-export-token:{}", token.trim());
    let old = |link: &(String, String)| curl(&space, &link.1, &format!("{code} --tls-max 1.2 {}", link.0));
    ensure!(old(&outside)? == "200", "TLS 1.2 is not offered");
    tls(&json!({ "type": "Modern", "modern": {} }))?;
    wait::until("the proxy refuses TLS 1.2", wait::SOON, || Ok(old(&outside).is_err().then_some(())))?;
    wait::until("the export's server refuses TLS 1.2", wait::BOOT, || {
        let new = curl(&space, &inside.1, &format!("{code} --tlsv1.3 {}", inside.0));
        Ok((new.is_ok_and(|code| code == "200") && old(&inside).is_err()).then_some(()))
    })?;
    Namespace::kubectl_in(HOME, &["delete", "ingress", WAY])?;
    space.wait("vmexport", "out", "was reached from inside alone", |found| {
        link(found, "internal").is_some() && link(found, "external").is_none()
    })?;
    Ok(())
}
