//! A machine's disk leaves the cluster and comes back: as a file, as a machine elsewhere, and out of a snapshot.

use std::io::{Read, Write as _};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use e2e::machine::{self, holds, phase};
use e2e::{Namespace, until};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("a_machine_is_exported_and_imported_back", a_machine_is_exported_and_imported_back)]
}

const NAME: &str = "traveller";
const SIZE: usize = 8 << 20;
const FIRST: &str = "this went abroad";

/// A disk that begins with a line, and holds something in its middle.
fn disk() -> Vec<u8> {
    let mut disk = vec![0; SIZE];
    disk[..FIRST.len()].copy_from_slice(FIRST.as_bytes());
    disk[FIRST.len()] = b'\n';
    disk[SIZE / 2..SIZE / 2 + 4].copy_from_slice(b"half");
    disk
}

/// Whether `found` is the disk; it may have grown with its claim.
fn is_disk(found: &[u8], disk: &[u8]) -> bool {
    found.starts_with(disk) && found[disk.len()..].iter().all(|byte| *byte == 0)
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The machine, halted, on a disk that was uploaded.
fn prepare(space: &Namespace, disk: &[u8]) -> Result<()> {
    let mut file = tempfile::NamedTempFile::new()?;
    let mut packed = GzEncoder::new(file.as_file_mut(), Compression::fast());
    packed.write_all(disk)?;
    packed.finish()?.sync_all()?;
    let path = format!("--image-path={}", file.path().display());
    space.virtctl(&["image-upload", "dv", "disk", "--size=8Mi", &path, "--force-bind", "--insecure"])?;
    let mut vm = machine::on_kernel(NAME, "Halted");
    machine::add_disk(&mut vm, "disk", json!({ "dataVolume": { "name": "disk" } }));
    space.apply(&vm)
}

fn is_ready(export: &Value) -> bool {
    export["status"]["phase"] == "Ready"
}

/// Waits until nothing is left of the export that would use its volumes.
fn gone(space: &Namespace, export: &str) -> Result<()> {
    space.kubectl(&["delete", "vmexport", export, "--ignore-not-found"])?;
    let pod = format!("virt-export-{export}");
    until(&format!("{pod} has ended"), || Ok(space.get("pod", &pod)?.is_null().then_some(())))
}

/// What virtctl writes into a file, for these words.
fn downloaded(space: &Namespace, directory: &Path, words: &[&str]) -> Result<Vec<u8>> {
    let path = directory.join("download");
    let output = format!("--output={}", path.display());
    let mut all = vec!["vmexport", "download", output.as_str()];
    all.extend(words);
    let said = space.virtctl(&all)?;
    ensure!(words.contains(&"--manifest") || said.contains("Download finished succesfully"), "{said}");
    std::fs::read(&path).with_context(|| format!("nothing in {}", path.display()))
}

/// The disk by nothing but kubectl: through the API server to the Service of the export, and to the proxy before it.
fn by_kubectl(space: &Namespace, disk: &[u8]) -> Result<()> {
    let token =
        space.kubectl(&["get", "secret", "export-token-out", "-o", "go-template={{.data.token|base64decode}}"])?;
    let end = format!("volumes/disk/disk.img?x-kubevirt-export-token={}", token.trim());
    let namespace = space.name();
    let direct = format!("/api/v1/namespaces/{namespace}/services/https:virt-export-out:443/proxy/{end}");
    let proxy = format!(
        "/api/v1/namespaces/kubevirt-hyperconverged/services/https:virt-exportproxy:443/proxy/api/export.kubevirt.io/v1/namespaces/\
         {namespace}/virtualmachineexports/out/{end}"
    );
    for path in [direct, proxy] {
        let found = space.kubectl(&["get", "--raw", &path])?;
        ensure!(is_disk(found.as_bytes(), disk), "{path}: {} bytes", found.len());
        let refused = space.kubectl(&["get", "--raw", &path.replace(token.trim(), "wrong")]);
        ensure!(refused.is_err(), "{path} was served without the token");
    }
    Ok(())
}

/// The machine and its disk are made in another namespace of what the manifests say; the disk's digest there.
fn elsewhere(space: &Namespace, other: &Namespace, directory: &Path) -> Result<String> {
    let manifests = downloaded(space, directory, &["out", "--manifest", "--include-secret"])?;
    let own = format!("namespace: {}\n", space.name());
    let manifests = String::from_utf8(manifests)?.replace(&own, &format!("namespace: {}\n", other.name()));
    other.apply(&manifests)?;
    // The pod is the first consumer that the disk waits for.
    other.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "look" },
        "spec": {
            "terminationGracePeriodSeconds": 0, "restartPolicy": "Never",
            "securityContext": { "runAsUser": 107, "fsGroup": 107 },
            "volumes": [{ "name": "disk", "persistentVolumeClaim": { "claimName": "disk" } }],
            "containers": [{
                "name": "look", "image": "ferrovirt.local/component:v0.1.0",
                "command": ["sh", "-c", format!("busybox head -c {SIZE} /disk/disk.img | busybox sha256sum")],
                "volumeMounts": [{ "name": "disk", "mountPath": "/disk" }],
            }],
        },
    }))?;
    let volume =
        other.wait("datavolume", "disk", "was filled", |found| matches!(phase(found), "Succeeded" | "Failed"))?;
    ensure!(phase(&volume) == "Succeeded", "{}", volume["status"]);
    other.wait("pod", "look", "ended", |pod| matches!(phase(pod), "Succeeded" | "Failed"))?;
    let vm = other.get("vm", NAME)?;
    ensure!(vm["spec"]["runStrategy"] == "Halted", "{vm}");
    other.kubectl(&["logs", "look"])
}

fn a_machine_is_exported_and_imported_back() -> Result<()> {
    let (space, other) = (Namespace::new("export")?, Namespace::new("import")?);
    let (disk, directory) = (disk(), tempfile::tempdir()?);
    prepare(&space, &disk)?;
    space.apply(&json!({
        "apiVersion": "export.kubevirt.io/v1", "kind": "VirtualMachineExport", "metadata": { "name": "out" },
        "spec": { "source": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": NAME }, "ttlDuration": "1h" },
    }))?;
    let export = space.wait("vmexport", "out", "was served", is_ready)?;
    ensure!(export["status"]["virtualMachineName"] == NAME && holds(&export, "Ready"), "{}", export["status"]);

    let packed = downloaded(&space, directory.path(), &["out"])?;
    let mut unpacked = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut unpacked)?;
    ensure!(is_disk(&unpacked, &disk) && packed.len() < SIZE / 10, "{} bytes out of {}", unpacked.len(), packed.len());
    by_kubectl(&space, &disk)?;
    let found = elsewhere(&space, &other, directory.path())?;
    ensure!(found.starts_with(&digest(&disk)), "{found}");
    gone(&space, "out")?;

    // Out of a snapshot, with an export that comes and goes with the download.
    space.apply(&json!({
        "apiVersion": "snapshot.kubevirt.io/v1beta1", "kind": "VirtualMachineSnapshot", "metadata": { "name": "then" },
        "spec": { "source": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": NAME } },
    }))?;
    space.wait("vmsnapshot", "then", "was taken", |found| found["status"]["readyToUse"] == true)?;
    let words = ["kept", "--snapshot=then", "--format=raw", "--port-forward", "--readiness-timeout=10m"];
    ensure!(is_disk(&downloaded(&space, directory.path(), &words)?, &disk), "the snapshot holds something else");
    ensure!(space.get("vmexport", "kept")?.is_null(), "the export was kept");
    let refused = space.virtctl_refused(&["vmexport", "create", "odd"])?;
    ensure!(refused.contains("need to specify export kind"), "{refused}");
    Ok(())
}
