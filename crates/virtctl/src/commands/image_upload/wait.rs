//! Waiting for the volume: until it takes an upload, and until the upload is stored.

use std::time::Duration;

use api::cdi::constants::annotation;
use api::cdi::v1beta1::DataVolume;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use tokio::time::Instant;

use crate::connect::Cluster;
use crate::fault::Fault;

const INTERVAL: Duration = Duration::from_millis(500);

/// The claim and, when there is one, its DataVolume.
#[derive(Debug, Default)]
struct Seen {
    claim: Option<PersistentVolumeClaim>,
    volume: Option<DataVolume>,
}

/// What to do about it.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Done,
    Wait,
    /// It will not become so.
    Never(String),
}

impl Seen {
    async fn look(cluster: &Cluster, name: &str) -> kube::Result<Self> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let volumes: Api<DataVolume> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        Ok(Self { claim: claims.get_opt(name).await?, volume: volumes.get_opt(name).await? })
    }

    fn phase(&self) -> Option<&str> {
        self.volume.as_ref()?.status.as_ref()?.phase.as_deref()
    }

    fn said(&self, key: &str) -> Option<&str> {
        self.claim.as_ref()?.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn failed(&self) -> Option<Verdict> {
        if self.phase() != Some("Failed") {
            return None;
        }
        let status = self.volume.as_ref().and_then(|volume| volume.status.as_ref());
        let conditions = status.into_iter().flat_map(|status| &status.conditions);
        let why =
            conditions.into_iter().filter(|condition| condition.type_ == "Running").find_map(|c| c.message.clone());
        Some(Verdict::Never(why.unwrap_or_else(|| "the DataVolume failed".to_owned())))
    }

    /// Whether an upload is taken now.
    fn ready(&self) -> Verdict {
        if let Some(failed) = self.failed() {
            return failed;
        }
        match self.phase() {
            Some("UploadReady") => Verdict::Done,
            Some("WaitForFirstConsumer" | "PendingPopulation") => Verdict::Never(
                "cannot upload to DataVolume in WaitForFirstConsumer state, make sure the PVC is Bound, or use \
                 force-bind flag"
                    .to_owned(),
            ),
            _ if self.said(annotation::POD_READY) == Some("true") => Verdict::Done,
            _ => Verdict::Wait,
        }
    }

    /// Whether the upload is stored.
    fn stored(&self) -> Verdict {
        if let Some(failed) = self.failed() {
            return failed;
        }
        match (self.phase(), self.said(annotation::POD_PHASE)) {
            (Some("Succeeded"), _) | (None, Some("Succeeded")) => Verdict::Done,
            (None, Some("Failed")) => Verdict::Never("the upload's pod failed".to_owned()),
            _ => Verdict::Wait,
        }
    }

    /// What it stands at, for people.
    fn state(&self) -> String {
        match (&self.claim, self.phase()) {
            (_, Some(phase)) => format!("the DataVolume is {phase}"),
            (Some(claim), None) => {
                let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
                format!("the claim is {}", phase.unwrap_or("new"))
            }
            (None, None) => "there is no claim yet".to_owned(),
        }
    }
}

/// Waits until an upload is taken.
pub(super) async fn ready(cluster: &Cluster, name: &str, patience: Duration) -> Result<(), Fault> {
    let what = format!("{}/{name} does not take an upload", cluster.namespace);
    until(cluster, name, &what, Some(Instant::now() + patience), Seen::ready).await
}

/// Waits until the upload is stored, however long that takes.
pub(super) async fn done(cluster: &Cluster, name: &str) -> Result<(), Fault> {
    until(cluster, name, "the upload was not stored", None, Seen::stored).await
}

async fn until(
    cluster: &Cluster,
    name: &str,
    what: &str,
    deadline: Option<Instant>,
    judge: fn(&Seen) -> Verdict,
) -> Result<(), Fault> {
    loop {
        let seen = Seen::look(cluster, name).await.map_err(|error| Fault::api(what, &error))?;
        match judge(&seen) {
            Verdict::Done => return Ok(()),
            Verdict::Never(why) => return Err(Fault::new(what).because(why)),
            Verdict::Wait => {}
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Fault::new(what)
                .because(seen.state())
                .hint(format!("kubectl -n {} describe dv,pvc {name} says more", cluster.namespace)));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(annotations: Value, phase: Option<&str>, ready: &Verdict, stored: &Verdict) {
        let claim = serde_json::from_value(json!({ "metadata": { "annotations": annotations } })).unwrap();
        let volume = phase.map(|phase| {
            serde_json::from_value(json!({ "metadata": {}, "spec": {}, "status": { "phase": phase } })).unwrap()
        });
        let seen = Seen { claim: Some(claim), volume };
        assert_eq!((&seen.ready(), &seen.stored()), (ready, stored));
    }

    #[test]
    fn phases() {
        use Verdict::{Done, Wait};
        check(json!({}), None, &Wait, &Wait);
        check(json!({ "cdi.kubevirt.io/storage.pod.ready": "true" }), None, &Done, &Wait);
        check(json!({ "cdi.kubevirt.io/storage.pod.phase": "Succeeded" }), None, &Wait, &Done);
        check(json!({}), Some("UploadReady"), &Done, &Wait);
        check(json!({}), Some("Succeeded"), &Wait, &Done);
        let failed = Verdict::Never("the DataVolume failed".into());
        check(json!({}), Some("Failed"), &failed, &failed);
    }
}
