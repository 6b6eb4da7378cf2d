//! Writes down what was decided: bindings, why a pod waits, and the end of those that make room.

use k8s_openapi::api::core::v1::Pod;
use kit::clock;
use kit::controller::{During, Error, Result, gone_is_none, pod};
use kit::events::Severity;
use kit::store::Key;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::cluster::nominated_node;
use super::cycle::Decided;
use super::devices::Share;
use super::verdict::Event;
use super::volumes::Choice;
use super::{NAME, Scheduler};

impl Scheduler {
    /// Does what was decided; what fails is decided anew.
    pub(super) async fn execute(&self, key: &Key, decided: Decided) {
        let outcome = match decided {
            Decided::Bind { pod, node, volumes, devices } => {
                let ready = self.provide(&pod, &node, &volumes, &devices).await;
                if !devices.is_empty() {
                    self.shelf.settle(&pod);
                    // Who shares a claim waited for it to be written.
                    self.backlog.happened(Event::Device);
                }
                match ready {
                    Ok(()) => self.bind(&pod, &node).await,
                    Err(why) => self.not_provided(&pod, why).await,
                }
            }
            Decided::Wait { pod, why, keeps } => {
                let nominated = nominated_node(&pod).filter(|_| keeps).map(str::to_owned);
                self.report(&pod, &why, nominated.as_deref()).await
            }
            Decided::Preempt { pod, why, node, victims, displaced } => {
                let preempted = self.preempt(&pod, &why, &node, &victims).await;
                for pod in &displaced {
                    self.displace(pod).await;
                }
                preempted
            }
        };
        if let Err(error) = outcome {
            tracing::warn!(pod = %key, error = error.chain(), "will be scheduled again");
            self.backlog.failed(key);
        }
    }

    async fn bind(&self, pod: &Pod, node: &str) -> Result<()> {
        let key = Key::of(pod);
        let api: Api<Pod> = self.ctx.api(&key.namespace);
        let binding = json!({"apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": pod.uid()},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
        let params = PostParams::default();
        let bound: Result<Value, _> = api.create_subresource("binding", &key.name, &params, &binding).await;
        match bound.during("bind pod", &key) {
            Ok(_) => {
                let text = format!("Successfully assigned {key} to {node}");
                self.ctx.events.record(NAME, pod, Severity::Normal, "Scheduled", text);
                Ok(())
            }
            Err(error) => {
                // A pod that is gone or bound by somebody else needs nothing; what the server has says which it is.
                self.read_anew(&api, pod).await?;
                tracing::debug!(pod = %key, error = error.chain(), "not bound");
                if matches!(error.code(), 404 | 409) { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Brings what the pod needs on the node, and writes that it is the pod's. The error says what did not come.
    async fn provide(&self, pod: &Pod, node: &str, volumes: &Choice, devices: &[Share]) -> Result<(), String> {
        if !volumes.is_empty()
            && let Err(why) = super::volumes::bind(&self.ctx, volumes, node).await
        {
            return Err(format!("running PreBind plugin \"VolumeBinding\": binding volumes: {why}"));
        }
        let written = super::devices::write(&self.ctx, devices, pod).await;
        written.map_err(|why| format!("running PreBind plugin \"DynamicResources\": {why}"))
    }

    /// The pod is placed anew: its volumes or devices did not come to the node.
    async fn not_provided(&self, pod: &Pod, text: String) -> Result<()> {
        let key = Key::of(pod);
        self.ctx.events.record(NAME, pod, Severity::Warning, "FailedScheduling", text.clone());
        self.read_anew(&self.ctx.api(&key.namespace), pod).await?;
        Err(Error::Unfinished { object: key.to_string(), what: text })
    }

    /// Puts what the server has in place of what was assumed.
    async fn read_anew(&self, api: &Api<Pod>, pod: &Pod) -> Result<()> {
        let key = Key::of(pod);
        match api.get_opt(&key.name).await.during("read pod", &key)? {
            Some(current) => self.ctx.store::<Pod>().assume(current),
            None => self.ctx.store::<Pod>().forget(&key, &pod.uid().unwrap_or_default()),
        }
        Ok(())
    }

    /// Says on the pod why it waits, and for which node.
    async fn report(&self, pod: &Pod, why: &str, nominated: Option<&str>) -> Result<()> {
        let known = pod::condition(pod, "PodScheduled");
        let said = known.is_some_and(|c| c.status == "False" && c.message.as_deref() == Some(why));
        if said && nominated == nominated_node(pod) {
            return Ok(());
        }
        if !said {
            self.ctx.events.record(NAME, pod, Severity::Warning, "FailedScheduling", why);
        }
        let since = known.filter(|c| c.status == "False").and_then(|c| c.last_transition_time.clone());
        let mut change = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": why, "lastTransitionTime": since.unwrap_or_else(clock::time)}]}});
        if nominated.is_some() || nominated_node(pod).is_some() {
            change["status"]["nominatedNodeName"] = nominated.into();
        }
        self.write_status(pod, &change).await
    }

    async fn write_status(&self, pod: &Pod, change: &Value) -> Result<()> {
        let key = Key::of(pod);
        let api: Api<Pod> = self.ctx.api(&key.namespace);
        let patched = api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(change)).await;
        if let Some(pod) = gone_is_none(patched.during("write status of pod", &key))? {
            self.ctx.store::<Pod>().observe(pod);
        }
        Ok(())
    }

    /// The pod's claim on the room is written first, so that a scheduler that starts anew respects it.
    async fn preempt(&self, pod: &Pod, why: &str, node: &str, victims: &[std::sync::Arc<Pod>]) -> Result<()> {
        self.report(pod, why, Some(node)).await?;
        let reason = json!({"status": {"conditions": [{"type": "DisruptionTarget", "status": "True",
            "reason": "PreemptionByScheduler", "lastTransitionTime": clock::time(),
            "message": format!("{NAME}: preempting to accommodate a higher priority pod")}]}});
        for victim in victims.iter().filter(|victim| !pod::is_terminating(victim)) {
            self.write_status(victim, &reason).await?;
            self.ctx.delete("preempt pod", victim.as_ref(), DeleteParams::default()).await?;
            let text = format!("Preempted by pod {} on node {node}", pod.uid().unwrap_or_default());
            self.ctx.events.record(NAME, victim.as_ref(), Severity::Normal, "Preempted", text);
        }
        Ok(())
    }

    /// Somebody more important was promised the same room.
    async fn displace(&self, pod: &Pod) {
        let change = json!({"status": {"nominatedNodeName": null}});
        if let Err(error) = self.write_status(pod, &change).await {
            tracing::debug!(pod = %Key::of(pod), error = error.chain(), "still nominated");
        }
        self.backlog.add(&Key::of(pod), super::priority(pod));
    }
}
