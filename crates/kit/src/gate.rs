//! An aggregated API server's gate. Who asks, and whether they may: the API server vouches for the user by its front-proxy certificate, and decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::HeaderMap;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::refusal::Refusal;
use crate::server::Peer;
use crate::tls::Trust;
use crate::{Chain, Task};

const CONFIG: &str = "extension-apiserver-authentication";
const LOOK: Duration = Duration::from_secs(60);

/// How the API server vouches for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Front {
    ca: String,
    names: Vec<String>,
    user: Vec<String>,
    group: Vec<String>,
    extra: Vec<String>,
}

/// A user, as vouched for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Extra facts.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What the authoriser is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The API group.
    pub group: &'static str,
    /// A version of it.
    pub version: &'static str,
    /// `get`, `update`, …
    pub verb: &'static str,
    /// Empty for cluster-wide names.
    pub namespace: String,
    /// The resource.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The object's name, or empty.
    pub name: String,
}

/// Authenticates and authorises; cheap to clone.
#[derive(Clone)]
pub struct Gate {
    client: Client,
    front: Arc<ArcSwap<Front>>,
}

fn parse(data: &BTreeMap<String, String>) -> Front {
    let list = |key: &str, default: &str| {
        let text = data.get(key).map(String::as_str).unwrap_or_default();
        let found: Vec<String> = serde_json::from_str(text).unwrap_or_default();
        if found.is_empty() && !default.is_empty() { vec![default.to_owned()] } else { found }
    };
    Front {
        ca: data.get("requestheader-client-ca-file").cloned().unwrap_or_default(),
        names: list("requestheader-allowed-names", ""),
        user: list("requestheader-username-headers", "X-Remote-User"),
        group: list("requestheader-group-headers", "X-Remote-Group"),
        extra: list("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
    }
}

async fn read(client: &Client) -> kube::Result<Front> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    Ok(parse(&api.get(CONFIG).await?.data.unwrap_or_default()))
}

impl Gate {
    /// Reads how the API server vouches, now and every minute; `trust` follows.
    ///
    /// # Errors
    /// When it cannot be read the first time.
    pub async fn open(client: Client, trust: Arc<Trust>) -> kube::Result<(Self, Task<()>)> {
        let front = read(&client).await?;
        if let Err(error) = trust.set(&front.ca) {
            tracing::warn!(error = %Chain(&error), "the front proxy's authority cannot be used");
        }
        let gate = Gate { client, front: Arc::new(ArcSwap::from_pointee(front)) };
        let held = gate.clone();
        let task = crate::spawn("front-proxy", async move {
            loop {
                tokio::time::sleep(LOOK).await;
                match read(&held.client).await {
                    Ok(front) if front != **held.front.load() => {
                        if let Err(error) = trust.set(&front.ca) {
                            tracing::warn!(error = %Chain(&error), "the front proxy's authority cannot be used");
                        }
                        held.front.store(Arc::new(front));
                    }
                    Ok(_) => {}
                    Err(error) => tracing::debug!(error = %Chain(&error), "front proxy configuration not read"),
                }
            }
        });
        Ok((gate, task))
    }

    /// The user the API server vouches for. The certificate was verified in the handshake.
    ///
    /// # Errors
    /// When the peer is not the API server, or names nobody.
    pub fn user(&self, peer: Option<&Peer>, headers: &HeaderMap) -> Result<User, Refusal> {
        authenticate(&self.front.load(), peer.and_then(Peer::identity).map(|identity| identity.name), headers)
    }

    /// Asks the API server whether `user` may.
    ///
    /// # Errors
    /// When the answer is no, or there is none.
    pub async fn allow(&self, user: &User, question: &Question) -> Result<(), Refusal> {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    group: Some(question.group.to_owned()),
                    version: Some(question.version.to_owned()),
                    verb: Some(question.verb.to_owned()),
                    namespace: some(&question.namespace),
                    resource: some(&question.resource),
                    subresource: some(&question.subresource),
                    name: some(&question.name),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await.map_err(Refusal::from)?;
        if answer.status.is_some_and(|status| status.allowed && !status.denied.unwrap_or(false)) {
            return Ok(());
        }
        let what = match question.subresource.as_str() {
            "" => question.resource.clone(),
            subresource => format!("{}/{subresource}", question.resource),
        };
        let group = question.group;
        let place = match question.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace \"{namespace}\""),
        };
        Err(Refusal::forbidden(format!(
            "{what}.{group} \"{}\" is forbidden: User \"{}\" cannot {} resource \"{what}\" in API group \"{group}\" {place}",
            question.name, user.name, question.verb
        )))
    }
}

fn authenticate(front: &Front, name: Option<String>, headers: &HeaderMap) -> Result<User, Refusal> {
    let Some(name) = name else {
        return Err(Refusal::unauthorized("only the API server may ask, and it shows its front-proxy certificate"));
    };
    if !front.names.is_empty() && !front.names.contains(&name) {
        return Err(Refusal::unauthorized(format!("certificate {name:?} may not speak for users")));
    }
    let texts = |wanted: &[String]| -> Vec<String> {
        let all = wanted.iter().flat_map(|header| headers.get_all(header.as_str()));
        all.filter_map(|value| value.to_str().ok()).map(str::to_owned).filter(|text| !text.is_empty()).collect()
    };
    let Some(user) = texts(&front.user).into_iter().next() else {
        return Err(Refusal::unauthorized("the request names no user"));
    };
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for prefix in front.extra.iter().map(|prefix| prefix.to_ascii_lowercase()) {
        for (header, value) in headers {
            if let (Some(key), Ok(value)) = (header.as_str().strip_prefix(&prefix), value.to_str()) {
                extra.entry(unescape(key)).or_default().push(value.to_owned());
            }
        }
    }
    Ok(User { name: user, groups: texts(&front.group), extra })
}

/// Keys of extra facts are percent-encoded in header names.
fn unescape(key: &str) -> String {
    let mut out = Vec::with_capacity(key.len());
    let mut bytes = key.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let rest = bytes.clone().take(2).collect::<Vec<_>>();
            let text = std::str::from_utf8(&rest).unwrap_or_default();
            if let (2, Ok(value)) = (text.len(), u8::from_str_radix(text, 16)) {
                out.push(value);
                bytes.nth(1);
                continue;
            }
        }
        out.push(byte);
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(certificate: Option<&str>, headers: &[(&'static str, &str)], expect: Result<&str, u16>) {
        let front = parse(&[("requestheader-allowed-names".to_owned(), "[\"front-proxy-client\"]".to_owned())].into());
        let headers: HeaderMap = headers.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
        let found = authenticate(&front, certificate.map(str::to_owned), &headers);
        let found = found.as_ref().map(|user| user.name.as_str()).map_err(|refusal| refusal.code.as_u16());
        assert_eq!(found, expect);
    }

    #[test]
    fn only_the_front_proxy_speaks_for_users() {
        check(Some("front-proxy-client"), &[("x-remote-user", "alice")], Ok("alice"));
        check(Some("kubernetes-admin"), &[("x-remote-user", "alice")], Err(401));
        check(None, &[("x-remote-user", "alice")], Err(401));
        check(Some("front-proxy-client"), &[], Err(401));
    }

    #[test]
    fn extra_keys_are_decoded() {
        assert_eq!(unescape("authentication.kubernetes.io%2fnode-name"), "authentication.kubernetes.io/node-name");
        assert_eq!(unescape("a%2"), "a%2");
    }
}
