//! What the operator's workers share.

use std::collections::HashMap;

use api::hco::{HyperConverged, Status};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kit::apply::Applied;
use kit::events;
use kit::operator::Requests;
use kit::store::{Key, Store};
use kube::{Client, ResourceExt};

use super::children::Children;
use crate::Error;
use crate::render::{Input, NAME};
use crate::topology::Topology;

/// Shared by the workers.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What the manifests are made from, but for the nodes and the schedule.
    pub input: Input,
    /// Says to users what happened.
    pub events: events::Recorder,
    /// The HyperConverged object that counts.
    pub requests: Requests<HyperConverged>,
    /// HyperConverged objects.
    pub hcos: Store<HyperConverged>,
    /// The nodes.
    pub nodes: Store<Node>,
    /// The Deployment of the network resources injector.
    pub injectors: Store<Deployment>,
    /// The objects that follow.
    pub children: Children,
    /// What was applied last of the operator's own.
    pub applied: Applied,
}

impl Context {
    /// True for the one object that counts.
    pub(super) fn counts(&self, key: &Key) -> bool {
        key.name == NAME && key.namespace == self.input.namespace
    }

    /// The one object that counts.
    pub fn active(&self) -> Option<HyperConverged> {
        self.hcos.get(&Key::new(self.input.namespace.clone(), NAME))
    }

    /// What the manifests of `hco` are made from now.
    pub(super) fn input(&self, schedule: String) -> Input {
        Input { topology: Topology::of(&self.nodes.list()), schedule, ..self.input.clone() }
    }

    /// Writes `wanted` if it differs.
    pub(super) async fn write(&self, hco: &HyperConverged, wanted: &Status) -> Result<(), Error> {
        if hco.status.as_ref() == Some(wanted) {
            return Ok(());
        }
        let written = self.requests.write_status(hco, wanted).await;
        written.map_err(Error::api("patch", "HyperConverged", &hco.name_any()))
    }
}

/// Keeps of a node what its topology is made of.
pub(super) fn trim_node(node: &mut Node) {
    node.status = None;
    node.metadata.annotations = None;
    if let Some(spec) = &mut node.spec {
        *spec = k8s_openapi::api::core::v1::NodeSpec { taints: spec.taints.take(), ..Default::default() };
    }
}

/// Keeps of a Deployment how many of its pods run.
pub(super) fn trim_deployment(deployment: &mut Deployment) {
    if let Some(spec) = &mut deployment.spec {
        spec.template = Default::default();
    }
}

/// The nodes as they were seen last, for who only wants to know of changes that matter.
#[derive(Default)]
pub(super) struct Shapes(HashMap<Key, Node>);

impl Shapes {
    /// Whether the node `key` is another one `now`.
    pub(super) fn differs(&mut self, key: &Key, now: Option<&Node>) -> bool {
        let shape = |node: &Node| Node {
            metadata: kube::core::ObjectMeta { labels: node.metadata.labels.clone(), ..Default::default() },
            spec: node.spec.clone(),
            status: None,
        };
        match now.map(shape) {
            None => self.0.remove(key).is_some(),
            Some(now) => self.0.insert(key.clone(), now.clone()).as_ref() != Some(&now),
        }
    }
}
