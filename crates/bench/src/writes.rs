//! Writes to the API by who made them, from the API server's own count.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use kube::Client;

/// How the API server calls an account, before its namespace.
const ACCOUNT: &str = "system:serviceaccount:";
/// Writers in the order in which they are printed.
pub(crate) const WRITERS: [&str; 4] = ["virt-controller", "virt-handler", "kubelet", "others"];

/// Writes since the server was started; events are counted apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writes {
    by: BTreeMap<&'static str, u64>,
    pub(crate) events: u64,
}

impl Writes {
    pub(crate) async fn count(client: &Client) -> Result<Self> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        Ok(parse(&client.request_text(request).await.context("cannot read the API server's metrics")?))
    }

    pub(crate) fn by(&self, writer: &str) -> u64 {
        self.by.get(writer).copied().unwrap_or(0)
    }

    /// Of all writers, events included.
    pub(crate) fn all(&self) -> u64 {
        self.by.values().sum::<u64>() + self.events
    }

    /// What was written after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let by = self.by.iter().map(|(writer, count)| (*writer, count - before.by(writer))).collect();
        Self { by, events: self.events - before.events }
    }
}

fn parse(page: &str) -> Writes {
    let mut writes = Writes::default();
    for line in page.lines().filter_map(|line| line.strip_prefix("apiserver_request_total{")) {
        let Some((labels, count)) = line.rsplit_once("} ") else { continue };
        let label = |name: &str| {
            let start = labels.find(&format!("{name}=\""))? + name.len() + 2;
            labels[start..].split('"').next()
        };
        let verb = label("verb").unwrap_or_default();
        let (group, resource) = (label("group").unwrap_or_default(), label("resource").unwrap_or_default());
        // Leases and nodes are renewed whether or not there are machines, and reviews and tokens are questions.
        let question =
            matches!(group, "authentication.k8s.io" | "authorization.k8s.io") || label("subresource") == Some("token");
        let write = matches!(verb, "create" | "update" | "patch" | "delete" | "deletecollection");
        if !write || question || matches!(resource, "leases" | "nodes") {
            continue;
        }
        let count = count.parse().unwrap_or(0);
        if resource == "events" {
            writes.events += count;
        } else {
            *writes.by.entry(writer(label("user").unwrap_or_default())).or_default() += count;
        }
    }
    writes
}

fn writer(user: &str) -> &'static str {
    match user {
        user if user.starts_with(ACCOUNT) && user.ends_with(":kubevirt-controller") => "virt-controller",
        user if user.starts_with(ACCOUNT) && user.ends_with(":kubevirt-handler") => "virt-handler",
        user if user.starts_with("system:node:") => "kubelet",
        _ => "others",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(user: &str, verb: &str, resource: &str, count: u64) -> String {
        format!(
            "apiserver_request_total{{user=\"{user}\",verb=\"{verb}\",group=\"\",resource=\"{resource}\",subresource=\"\",code=\"200\"}} {count}\n"
        )
    }

    #[test]
    fn writes_are_counted_by_writer() {
        let page = "# HELP apiserver_request_total x\n".to_owned()
            + &line("system:serviceaccount:kubevirt-hyperconverged:kubevirt-controller", "patch", "pods", 3)
            + &line("system:node:node1", "update", "pods", 2)
            + &line("system:node:node1", "update", "leases", 9)
            + &line("system:node:node1", "get", "pods", 9)
            + &line("system:node:node1", "create", "events", 4);
        let writes = parse(&page);
        assert_eq!(WRITERS.map(|writer| writes.by(writer)), [3, 0, 2, 0]);
        assert_eq!(writes.events, 4);
        assert_eq!(writes.since(&writes).by("kubelet"), 0);
    }
}
