//! What the operator's workers share.

use api::cdi::v1beta1::{CDI, CDIStatus};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kit::apply::Applied;
use kit::events;
use kit::operator::Requests;
use kit::store::Store;
use kube::{Client, Resource, ResourceExt};

use super::Release;
use super::status::{self, phase};
use crate::Error;

/// The class of the components where the object names none and this one is there: OpenShift's for what its users count on.
pub(super) const PRIORITY: &str = "openshift-user-critical";

/// Shared by the workers.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What is deployed.
    pub release: Release,
    /// Says to users what happened.
    pub events: events::Recorder,
    /// The CDI object that counts.
    pub requests: Requests<CDI>,
    /// CDI objects.
    pub cdis: Store<CDI>,
    /// Our Deployments.
    pub deployments: Store<Deployment>,
    /// The class that is taken when none is named, where it is there.
    pub priorities: Store<PriorityClass>,
    /// What was applied last.
    pub applied: Applied,
}

impl Context {
    /// Writes `wanted` if it differs, and says so when it is news.
    pub(crate) async fn write(&self, cdi: &CDI, wanted: CDIStatus) -> Result<(), Error> {
        let old = cdi.status.clone().unwrap_or_default();
        if old == wanted {
            return Ok(());
        }
        let news = old.phase != wanted.phase;
        let written = self.requests.write_status(cdi, &wanted).await;
        written.map_err(Error::api("patch", "CDI", &cdi.name_any()))?;
        if news {
            self.announce(cdi, &wanted);
        }
        Ok(())
    }

    fn announce(&self, cdi: &CDI, status: &CDIStatus) {
        let (object, recorder) = (cdi.object_ref(&()), &self.events);
        match status.phase.as_deref() {
            Some(phase::DEPLOYING) => recorder.normal(&object, "DeployStarted", "Started Deployment"),
            Some(phase::UPGRADING) => {
                let version = status.target_version.as_deref().unwrap_or_default();
                recorder.normal(&object, "UpgradeStarted", format!("Started upgrade to version {version}"));
            }
            Some(phase::DEPLOYED) => recorder.normal(&object, "DeployCompleted", "Deployment Completed"),
            Some(phase::ERROR) => recorder.warning(&object, "ConfigError", status::UNWANTED),
            _ => {}
        }
    }
}
