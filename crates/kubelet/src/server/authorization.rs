//! Who may ask this kubelet for what: the API server decides, as it does for the subresources of its Node.
//!
//! `/metrics` is `nodes/metrics`, `/stats` is `nodes/stats`, `/pods` and `/healthz` are called as they are; everything else is
//! `nodes/proxy`. What reaches into a container is `create`, also where it begins as a GET.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::Method;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kit::certs::Identity;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{Instant, timeout};

/// How long a yes counts, and how long a no.
const YES: Duration = Duration::from_secs(300);
const NO: Duration = Duration::from_secs(30);
const ASK: Duration = Duration::from_secs(10);
/// Answers remembered; whoever asks for more is asked about again.
const REMEMBERED: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    user: String,
    groups: Vec<String>,
    verb: &'static str,
    subresource: &'static str,
}

/// Asks, and remembers the answers for a while.
pub(super) struct Authorization {
    client: Client,
    node: String,
    known: Mutex<HashMap<Question, (bool, Instant)>>,
}

impl Authorization {
    pub(super) fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.to_owned(), known: Mutex::default() }
    }

    /// Whether the holder of a certificate may send such a request.
    pub(super) async fn allows(&self, who: &Identity, method: &Method, path: &str) -> kube::Result<bool> {
        let (verb, subresource) = wanted(method, path);
        let mut groups = who.organizations.clone();
        groups.push("system:authenticated".to_owned());
        let question = Question { user: who.name.clone(), groups, verb, subresource };
        if let Some(known) = self.remembered(&question) {
            return Ok(known);
        }
        let allowed = self.ask(&question).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(question, (allowed, Instant::now()));
        Ok(allowed)
    }

    fn remembered(&self, question: &Question) -> Option<bool> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (allowed, at) = known.get(question)?;
        (at.elapsed() < if *allowed { YES } else { NO }).then_some(*allowed)
    }

    async fn ask(&self, question: &Question) -> kube::Result<bool> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(question.user.clone()),
                groups: Some(question.groups.clone()),
                resource_attributes: Some(ResourceAttributes {
                    version: Some("v1".to_owned()),
                    verb: Some(question.verb.to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some(question.subresource.to_owned()),
                    name: Some(self.node.clone()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let params = PostParams::default();
        let answered = timeout(ASK, api.create(&params, &review)).await;
        let late = |error: tokio::time::error::Elapsed| kube::Error::Service(error.into());
        Ok(answered.map_err(late)??.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

/// The verb and the subresource of the node that a request is.
fn wanted(method: &Method, path: &str) -> (&'static str, &'static str) {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    let subresource = match first {
        "metrics" => "metrics",
        "stats" => "stats",
        "pods" => "pods",
        "healthz" => "healthz",
        _ => "proxy",
    };
    let verb = match (first, method.as_str()) {
        ("exec" | "attach" | "portForward" | "csi", _) | (_, "POST") => "create",
        (_, "GET" | "HEAD") => "get",
        (_, "PUT") => "update",
        (_, "PATCH") => "patch",
        (_, "DELETE") => "delete",
        _ => "*",
    };
    (verb, subresource)
}

#[cfg(test)]
mod tests {
    use kube_apiserver::ApiServer;
    use kube_apiserver::request::User;
    use serde_json::json;

    use super::*;

    #[test]
    fn exec_and_logs_need_rights_to_the_proxy() {
        let check = |path: &str, expect| assert_eq!(wanted(&Method::GET, path), expect);
        check("/metrics/resource", ("get", "metrics"));
        check("/stats/summary", ("get", "stats"));
        check("/containerLogs/n/p/c", ("get", "proxy"));
        check("/exec/n/p/c", ("create", "proxy"));
        check("//exec/n/p/c", ("create", "proxy"));
        assert_eq!(wanted(&Method::POST, "/exec/n/p/c"), ("create", "proxy"));
    }

    #[tokio::test]
    async fn only_what_the_api_server_allows_is_answered() {
        let server = ApiServer::in_memory().await.unwrap();
        let node = User { name: "system:node:n1".into(), groups: vec!["system:nodes".into()], ..User::default() };
        let gate = Authorization::new(server.client_as(node), "n1");
        let who = |name: &str, group: Option<&str>| Identity {
            name: name.into(),
            organizations: group.into_iter().map(str::to_owned).collect(),
            ..Identity::default()
        };
        let own = who("kube-apiserver-kubelet-client", None);
        let asks = async |who: &Identity, path: &str| gate.allows(who, &Method::GET, path).await.unwrap();
        assert!(asks(&own, "/exec/n/p/c").await && asks(&own, "/metrics").await);
        // Another node, and a component with a certificate of the same authority.
        let other = who("system:node:n2", Some("system:nodes"));
        assert!(!asks(&other, "/exec/n/p/c").await && !asks(&other, "/pods").await);
        assert!(!asks(&who("system:network-agent", None), "/containerLogs/n/p/c").await);
        // Whoever may read metrics may do nothing else.
        let api: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> = Api::all(server.client());
        let roles: Api<k8s_openapi::api::rbac::v1::ClusterRole> = Api::all(server.client());
        let role = json!({ "metadata": { "name": "scrapes" },
            "rules": [{ "apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"] }] });
        roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
        let group = "rbac.authorization.k8s.io";
        let binding = json!({ "metadata": { "name": "scrapes" },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "scrapes" },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": "prometheus" }] });
        api.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
        let scraper = who("prometheus", None);
        assert!(asks(&scraper, "/metrics").await && !asks(&scraper, "/exec/n/p/c").await);
    }
}
