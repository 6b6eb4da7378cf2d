//! Tasks about disks and keys. CDI's controller is played by the tests.

use std::sync::atomic::Ordering;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE, cluster, refusal};

fn volume(name: &str) -> String {
    format!("/apis/cdi.kubevirt.io/v1beta1/namespaces/{NAMESPACE}/datavolumes/{name}")
}

fn secret(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/secrets/{name}")
}

fn manifest(size: &str) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "disk" },
        "spec": { "source": { "blank": {} }, "storage": { "resources": { "requests": { "storage": size } } } },
    })
}

/// What CDI says of the disk.
async fn say(cluster: &Cluster, phase: &str, ready: &str) {
    cluster.there(&volume("disk")).await;
    let conditions = json!([{ "type": "Ready", "status": ready }]);
    let status = json!({ "status": { "phase": phase, "conditions": conditions } });
    cluster.merge(&format!("{}/status", volume("disk")), status).await;
}

#[tokio::test]
async fn a_disk_is_made_waited_for_replaced_and_deleted() {
    let cluster = cluster().await;
    let params = |size: &str, more: &[(&'static str, Value)]| {
        let mut all = vec![("manifest", json!(manifest(size).to_string()))];
        all.extend(more.iter().cloned());
        all
    };
    let wait = params("1Gi", &[("waitForSuccess", json!("true"))]);
    let (done, ()) = tokio::join!(cluster.run("modify-data-object", &wait), say(&cluster, "Succeeded", "True"));
    assert_eq!((done.unwrap(), cluster.result("name").as_str()), (0, "disk"));
    assert!(refusal(cluster.run("modify-data-object", &wait).await).contains("cannot create DataVolume ci/disk"));
    let replace = params("2Gi", &[("allowReplace", json!("true"))]);
    cluster.run("modify-data-object", &replace).await.unwrap();
    let held = cluster.get(&volume("disk")).await.unwrap();
    assert_eq!(held.pointer("/spec/storage/resources/requests/storage").unwrap(), "2Gi");
    let delete = [
        ("deleteObject", json!("true")),
        ("deleteObjectKind", json!("DataVolume")),
        ("deleteObjectName", json!("disk")),
    ];
    cluster.run("modify-data-object", &delete).await.unwrap();
    assert!(cluster.get(&volume("disk")).await.is_none());
    assert!(refusal(cluster.run("modify-data-object", &delete).await).contains("there is no DataVolume ci/disk"));
}

#[tokio::test]
async fn a_disk_that_fails_or_does_not_come_is_a_failure() {
    let cluster = cluster().await;
    let wait = |timeout: &str| {
        [
            ("manifest", json!(manifest("1Gi").to_string())),
            ("waitForSuccess", json!("true")),
            ("allowReplace", json!("true")),
            ("timeout", json!(timeout)),
        ]
    };
    let params = wait("1h");
    let (done, ()) = tokio::join!(cluster.run("modify-data-object", &params), say(&cluster, "Failed", "False"));
    assert!(refusal(done).contains("DataVolume ci/disk failed"));
    let late = cluster.run("modify-data-object", &wait("1s")).await;
    assert!(refusal(late).contains("DataVolume ci/disk was not ready after 1 s"));
    assert!(refusal(cluster.run("modify-data-object", &wait("soon")).await).contains("param timeout"));
}

#[tokio::test]
async fn a_wait_that_is_over_says_why_nothing_was_known() {
    let cluster = cluster().await;
    cluster.broken.store(u32::MAX, Ordering::SeqCst);
    let params =
        [("manifest", json!(manifest("1Gi").to_string())), ("waitForSuccess", json!("true")), ("timeout", json!("1s"))];
    let said = refusal(cluster.run("modify-data-object", &params).await);
    assert!(said.contains("DataVolume ci/disk was not ready after 1 s: "), "{said}");
    assert!(said.contains("the server is being started anew"), "{said}");
}

/// A disk of the same name takes the place of another only when that one's claim is gone, too.
#[tokio::test]
async fn the_claim_of_a_disk_that_is_replaced_goes_first() {
    let cluster = cluster().await;
    let params = |size: &str| [("manifest", json!(manifest(size).to_string())), ("allowReplace", json!("true"))];
    cluster.run("modify-data-object", &params("1Gi")).await.unwrap();
    let uid = cluster.get(&volume("disk")).await.unwrap()["metadata"]["uid"].clone();
    let claim = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/disk");
    cluster
        .apply(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "disk", "namespace": NAMESPACE,
                "ownerReferences": [{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "disk", "uid": uid }],
            },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
        }))
        .await;
    let collecting = async {
        cluster.gone(&volume("disk")).await;
        cluster.merge(&claim, json!({ "metadata": { "finalizers": null } })).await;
        assert!(cluster.get(&volume("disk")).await.is_none(), "it waits for the claim");
        cluster.delete(&claim).await;
    };
    let again = params("2Gi");
    let (done, ()) = tokio::join!(cluster.run("modify-data-object", &again), collecting);
    done.unwrap();
    let held = cluster.get(&volume("disk")).await.unwrap();
    assert_eq!(held.pointer("/spec/storage/resources/requests/storage").unwrap(), "2Gi");
    assert!(cluster.get(&claim).await.is_none());
}

/// Where the public key cannot go, nobody has the private one.
#[tokio::test]
async fn a_private_key_without_its_public_key_is_taken_back() {
    let cluster = cluster().await;
    cluster.apply(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "others" } })).await;
    for name in ["keys", ""] {
        let params = [
            ("publicKeySecretName", json!(name)),
            ("publicKeySecretNamespace", json!("others")),
            ("additionalSSHKeygenOptions", json!("-t ed25519")),
        ];
        let said = refusal(cluster.run("generate-ssh-keys", &params).await);
        assert!(said.contains("Secret others/") && said.contains("forbidden"), "{said}");
        let left = cluster.get(&format!("/api/v1/namespaces/{NAMESPACE}/secrets")).await.unwrap();
        assert_eq!(left["items"], json!([]));
    }
}

#[tokio::test]
async fn keys_are_generated_into_secrets() {
    let cluster = cluster().await;
    let params = [
        ("publicKeySecretName", json!("keys")),
        ("privateKeySecretName", json!("key")),
        ("privateKeyConnectionOptions", json!(["user:fedora", "disable-strict-host-key-checking:true"])),
        ("additionalSSHKeygenOptions", json!("-t ed25519")),
    ];
    cluster.run("generate-ssh-keys", &params).await.unwrap();
    assert_eq!(
        (cluster.result("publicKeySecretName"), cluster.result("privateKeySecretName")),
        ("keys".to_owned(), "key".to_owned())
    );
    let private = cluster.get(&secret("key")).await.unwrap();
    assert_eq!(private["type"], "kubernetes.io/ssh-auth");
    let read = |value: &Value| String::from_utf8(BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap()).unwrap();
    assert!(read(&private["data"]["ssh-privatekey"]).contains("OPENSSH PRIVATE KEY"));
    assert_eq!(read(&private["data"]["user"]), "fedora");
    // Another pair is added to the public keys; a private key is never written over.
    let again = refusal(cluster.run("generate-ssh-keys", &params).await);
    assert!(again.contains("is there already"), "{again}");
    cluster.run("generate-ssh-keys", &[("publicKeySecretName", json!("keys"))]).await.unwrap();
    let public = cluster.get(&secret("keys")).await.unwrap();
    let keys: Vec<String> = public["data"].as_object().unwrap().values().map(read).collect();
    assert!(keys.len() == 2 && keys.iter().all(|key| key.starts_with("ssh-")), "{keys:?}");
    let bad = [("privateKeyConnectionOptions", json!(["port:22"]))];
    assert!(refusal(cluster.run("generate-ssh-keys", &bad).await).contains("is none of user"));
}
