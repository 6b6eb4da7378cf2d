//! The certificate of an export's server, signed by the authority of exports.
//!
//! The key stays in the Secret that it was made in, which nobody here reads. A certificate is no secret: the newest is an annotation
//! of the pod, which the server reads as a file, so that whoever downloads for days is not interrupted.

use std::time::Duration;

use api::export::constants::{AUTHORITY, CERTIFICATE};
use api::export::v1::VirtualMachineExport;
use api::kubevirt::v1::{CertConfig, KubeVirt};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kit::certs::{self, Authority, Leaf, Pair, Rotation};
use kit::keyring::{self, service_names};
use kit::tls::Trust;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::names;
use crate::context::Context;
use crate::error::Error;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long a server's certificate lives, and how long before its end another takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// From the beginning.
    pub whole: Duration,
    /// Before the end, another certificate takes over.
    pub renew: Duration,
}

/// As the KubeVirt object says; a day by default, renewed when a fifth is left.
pub fn lifetimes(kubevirt: Option<&KubeVirt>) -> Lifetimes {
    let signed = kubevirt.and_then(|kv| kv.spec.certificate_rotate_strategy.as_ref()?.self_signed.as_ref());
    let server = signed.and_then(|signed| signed.server.as_ref());
    let of = |field: fn(&CertConfig) -> Option<&str>| server.and_then(field).and_then(kit::duration::parse);
    let whole = of(|config| config.duration.as_deref()).unwrap_or(DAY);
    let renew = of(|config| config.renew_before.as_deref()).filter(|renew| *renew < whole).unwrap_or(whole / 5);
    Lifetimes { whole, renew }
}

impl Lifetimes {
    /// As the pod of a server carries them.
    pub fn mark(&self) -> String {
        let nanoseconds = |duration: Duration| duration.as_nanos();
        format!("{{\"Duration\":{},\"RenewBefore\":{}}}", nanoseconds(self.whole), nanoseconds(self.renew))
    }
}

/// What the certificates of servers are checked by.
pub(super) async fn bundle(context: &Context) -> Result<String, Error> {
    let namespace = context.namespace.as_str();
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), namespace);
    let map = api.get(AUTHORITY).await.map_err(Error::api("read", "configmap", namespace, AUTHORITY))?;
    Ok(map.data.and_then(|mut data| data.remove("ca-bundle")).unwrap_or_default())
}

/// A key and a certificate for the server of `export`.
pub(super) async fn issue(context: &Context, export: &VirtualMachineExport, now: Timestamp) -> Result<Pair, Error> {
    let whole = lifetimes(context.stores.kubevirts.list().first()).whole;
    authority(context).await?.issue(&leaf(export), now, whole).map_err(Error::setup("sign a certificate"))
}

/// Gives `pod`, the server of `export`, another certificate when it is time; says when to look again.
pub(super) async fn renew(
    context: &Context,
    export: &VirtualMachineExport,
    pod: &Pod,
    bundle: &str,
    now: Timestamp,
) -> Result<Duration, Error> {
    let Some(held) = pod.annotations().get(CERTIFICATE) else { return Ok(Duration::MAX) };
    let Lifetimes { whole, renew } = lifetimes(context.stores.kubevirts.list().first());
    if let Rotation::Keep(left) = keyring::due(held, renew, whole, now) {
        return Ok(left);
    }
    let leaf = leaf(export);
    if !is_ours(held, &leaf, bundle, now) {
        // Whoever writes annotations of the pod would have any key certified. The server ends with the certificate it has.
        tracing::warn!(pod = %pod.name_any(), "the certificate of an export's server is not one that was signed for it");
        return Ok(Duration::MAX);
    }
    let authority = authority(context).await?;
    let signed = authority.prolong(held, &leaf, now, whole).map_err(Error::setup("sign a certificate"))?;
    announce(context, pod, &signed).await?;
    tracing::info!(pod = %pod.name_any(), "renewed the certificate of an export's server");
    Ok(match keyring::due(&signed, renew, whole, now) {
        Rotation::Keep(left) => left,
        // The authority ends soon, and is renewed itself.
        Rotation::Renew => kit::tls::look_again(&signed),
    })
}

/// Whether the pod says which certificate its server has.
pub(super) fn is_announced(pod: &Pod) -> bool {
    pod.annotations().contains_key(CERTIFICATE)
}

/// Has the server of `pod` show this certificate.
pub(super) async fn announce(context: &Context, pod: &Pod, certificate: &str) -> Result<(), Error> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    // The UID keeps it off a pod that was made anew under the name.
    let change = json!({ "metadata": { "uid": pod.uid(), "annotations": { (CERTIFICATE): certificate } } });
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        done => done.map(drop).map_err(Error::api("annotate", "pod", &namespace, &name)),
    }
}

/// Whether the authorities of `bundle` signed this certificate for this holder.
fn is_ours(certificate: &str, leaf: &Leaf, bundle: &str, now: Timestamp) -> bool {
    let trust = Trust::new();
    let named = certs::identity_of(certificate).is_some_and(|who| who.name == leaf.name && who.role == leaf.role);
    named && trust.set(bundle).is_ok() && trust.vouches(certificate, now)
}

fn leaf(export: &VirtualMachineExport) -> Leaf {
    let (service, namespace) = (names::service(&export.name_any()), export.namespace().unwrap_or_default());
    Leaf {
        name: format!("{service}.{namespace}.svc"),
        role: "virt-export".to_owned(),
        node: None,
        dns: [vec![service.clone()], service_names(&service, &namespace).into()].concat(),
    }
}

async fn authority(context: &Context) -> Result<Authority, Error> {
    let namespace = context.namespace.as_str();
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let found = api.get(AUTHORITY).await.map_err(Error::api("read", "secret", namespace, AUTHORITY))?;
    let mut data = found.data.unwrap_or_default();
    let mut text = |key: &str| data.remove(key).and_then(|bytes| String::from_utf8(bytes.0).ok()).unwrap_or_default();
    let pair = Pair { certificate: text("tls.crt"), key: text("tls.key") };
    Authority::from_pair(pair).map_err(Error::setup("use the authority of exports"))
}

/// The Secret of `pod` with what its server begins with. It goes with the pod.
pub(super) fn secret(pod: &Pod, name: &str, namespace: &str, pair: Pair) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: pod.name_any(),
                uid: pod.uid().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..Default::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(
            [("tls.crt", pair.certificate), ("tls.key", pair.key)]
                .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())))
                .into(),
        ),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_the_administrators() {
        let kubevirt = |server| -> KubeVirt {
            serde_json::from_value(json!({ "metadata": {}, "spec": {
                "certificateRotateStrategy": { "selfSigned": { "server": server } },
            } }))
            .unwrap()
        };
        let hour = Duration::from_secs(3600);
        assert_eq!(lifetimes(None), Lifetimes { whole: DAY, renew: DAY / 5 });
        let said = lifetimes(Some(&kubevirt(json!({ "duration": "10h", "renewBefore": "3h" }))));
        assert_eq!(said, Lifetimes { whole: hour * 10, renew: hour * 3 });
        let odd = lifetimes(Some(&kubevirt(json!({ "duration": "10h", "renewBefore": "30h" }))));
        assert_eq!(odd, Lifetimes { whole: hour * 10, renew: hour * 2 });
        assert_eq!(said.mark(), r#"{"Duration":36000000000000,"RenewBefore":10800000000000}"#);
    }

    #[test]
    fn only_what_was_signed_for_a_server_is_prolonged() {
        let (now, hour) = (kit::clock::now(), Duration::from_secs(3600));
        let export = |name: &str| -> VirtualMachineExport {
            let spec = json!({ "source": { "kind": "PersistentVolumeClaim", "name": "a" } });
            serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "ns" }, "spec": spec })).unwrap()
        };
        let [ours, others] = ["exports", "others"].map(|name| Authority::generate(name, now, hour).unwrap());
        let bundle = &ours.pair().certificate;
        let check = |by: &Authority, held: &str, expect: bool| {
            let certificate = by.issue(&leaf(&export(held)), now, hour).unwrap().certificate;
            assert_eq!(is_ours(&certificate, &leaf(&export("e")), bundle, now), expect, "{held}");
        };
        check(&ours, "e", true);
        check(&ours, "f", false);
        check(&others, "e", false);
        assert!(!is_ours("nothing", &leaf(&export("e")), bundle, now));
    }
}
