//! A cluster is saved, changed, lost, and comes back.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::PoisonError;

use super::{MACHINE, ferrovirt, need_machine, succeeds};

pub(crate) fn kubectl(config: &Path, words: &[&str]) -> Result<String, String> {
    let output = Command::new("kubectl").arg("--kubeconfig").arg(config).args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

#[track_caller]
fn refused(state: &Path, words: &[&str], expect: &str) {
    let output = ferrovirt(state, words);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains(expect), "{words:?}: {text}");
}

fn version(config: &Path, name: &str) -> u64 {
    let path = "jsonpath={.metadata.resourceVersion}";
    kubectl(config, &["get", "configmap", name, "-o", path]).unwrap().parse().unwrap()
}

#[test]
fn a_backup_brings_the_cluster_back() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    need_machine();
    let dir = tempfile::tempdir().unwrap();
    let (state, other) = (&dir.path().join("state"), &dir.path().join("other"));
    let (file, config) = (&dir.path().join("saved"), &dir.path().join("kubeconfig"));
    let saved = file.to_str().unwrap();

    refused(state, &["backup", saved], "there is no cluster in ");
    succeeds(state, &["up", "--cluster-only"]);
    fs::copy(state.join("kubeconfig"), config).unwrap();
    kubectl(config, &["create", "configmap", "before", "--from-literal=k=v"]).unwrap();
    kubectl(config, &["create", "clusterrolebinding", "b", "--clusterrole=view", "--serviceaccount=default:default"])
        .unwrap();
    let token = kubectl(config, &["create", "token", "default"]).unwrap();

    let text = succeeds(state, &["backup", saved]);
    assert!(text.contains(" objects at revision "), "{text}");
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    refused(state, &["backup", saved], "exists\nhint: a backup overwrites nothing");
    refused(state, &["restore", saved], "the cluster runs\nhint: `ferrovirt down` stops it");
    let pods = kubectl(config, &["auth", "can-i", "get", "/backup", "--as=system:serviceaccount:default:default"]);
    assert!(pods.is_err(), "{pods:?}");

    kubectl(config, &["delete", "configmap", "before"]).unwrap();
    kubectl(config, &["create", "configmap", "after"]).unwrap();
    let seen = version(config, "after");
    succeeds(state, &["down"]);
    refused(state, &["restore", saved], "there is a cluster in ");
    let damaged = dir.path().join("damaged");
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] = if bytes[middle] == b'x' { b'y' } else { b'x' };
    fs::write(&damaged, bytes).unwrap();
    refused(state, &["restore", damaged.to_str().unwrap(), "--force"], "damaged: it is damaged: ");
    refused(state, &["restore", "/etc/hostname", "--force"], "it is not a backup made by `ferrovirt backup`");

    succeeds(state, &["restore", saved, "--force"]);
    succeeds(state, &["up", "--cluster-only"]);
    // The kubeconfig, the token and what was there are as before; what came after is not.
    assert_eq!(kubectl(config, &["get", "configmap", "before", "-o", "jsonpath={.data.k}"]).unwrap(), "v");
    assert!(kubectl(config, &["get", "configmap", "after"]).is_err());
    let bare = dir.path().join("bare");
    let without = fs::read_to_string(config).unwrap();
    let without: Vec<&str> = without.lines().filter(|line| !line.contains("client-")).collect();
    fs::write(&bare, without.join("\n").replace("  user:\ncontexts", "  user: {}\ncontexts")).unwrap();
    kubectl(&bare, &["--token", &token, "get", "configmaps"]).unwrap();
    // A watch from what was seen before is told to begin anew, and no revision comes twice.
    let path = format!("/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1&resourceVersion={seen}");
    let told = kubectl(config, &["get", "--raw", &path]).unwrap();
    assert!(told.contains("\"code\":410"), "{told}");
    kubectl(config, &["create", "configmap", "later"]).unwrap();
    assert!(version(config, "later") > seen);

    // A stopped cluster is saved as well, and comes up where there was none.
    succeeds(state, &["down"]);
    let second = dir.path().join("second");
    succeeds(state, &["backup", second.to_str().unwrap()]);
    succeeds(other, &["restore", second.to_str().unwrap()]);
    succeeds(other, &["up", "--cluster-only"]);
    kubectl(config, &["get", "configmap", "later"]).unwrap();
    succeeds(other, &["down"]);

    // A damaged store is no empty one.
    let store = fs::OpenOptions::new().write(true).open(other.join("store/objects.redb")).unwrap();
    store.set_len(100_000).unwrap();
    let hint = "hint: `ferrovirt restore FILE --force` puts a backup in its place";
    refused(other, &["up", "--cluster-only"], "objects.redb is damaged: ");
    refused(other, &["up", "--cluster-only"], hint);
    // No node was started on it, so what the hint says can be done at once.
    succeeds(other, &["restore", saved, "--force"]);
    succeeds(other, &["up", "--cluster-only"]);
    kubectl(config, &["get", "configmap", "before"]).unwrap();
    succeeds(other, &["down", "--purge"]);
    succeeds(state, &["down", "--purge"]);
}
