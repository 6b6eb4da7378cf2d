//! The certificate of an export's server, signed by the authority of exports.

use std::time::Duration;

use api::export::constants::AUTHORITY;
use api::export::v1::VirtualMachineExport;
use api::kubevirt::v1::{CertConfig, KubeVirt};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kit::certs::{self, Authority, Leaf, Pair};
use kit::keyring::service_names;
use kube::{Api, ResourceExt};

use super::names;
use crate::context::Context;
use crate::error::Error;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long a server's certificate lives, and how long before its end another server takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// From the beginning.
    pub whole: Duration,
    /// Before the end.
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
    /// As the pod of a server carries them, to be found when they have changed.
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

/// The Secret called `name` with the certificate that `pod`, the server of `export`, shows.
pub(super) async fn issue(
    context: &Context,
    export: &VirtualMachineExport,
    pod: &Pod,
    name: &str,
    now: Timestamp,
) -> Result<Secret, Error> {
    let authority = authority(context).await?;
    let namespace = export.namespace().unwrap_or_default();
    let service = names::service(&export.name_any());
    let leaf = Leaf {
        name: format!("{service}.{namespace}.svc"),
        role: "virt-export".to_owned(),
        node: None,
        dns: [vec![service.clone()], service_names(&service, &namespace).into()].concat(),
    };
    // Nothing outlives its authority.
    let end = certs::lifetime(&authority.pair().certificate).map_or(now, |(_, until)| until);
    let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
    let whole = lifetimes(context.stores.kubevirts.list().first()).whole;
    let pair = authority.issue(&leaf, now, whole.min(left)).map_err(Error::setup("sign a certificate"))?;
    Ok(secret(pod, name, &namespace, pair))
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

/// It goes with the pod.
fn secret(pod: &Pod, name: &str, namespace: &str, pair: Pair) -> Secret {
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
    use serde_json::json;

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
}
