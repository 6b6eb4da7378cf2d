//! What the operator's workers share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use api::cdi::v1beta1::{DataImportCron, DataSource};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::apply::{self, Applied};
use kit::events;
use kit::operator::{Requests, Status as Written};
use kit::store::Store;
use kube::{Client, Resource, ResourceExt};

use super::metrics::Metrics;
use super::status::phase;
use super::{Release, restored};
use crate::Error;
use crate::object::{SSP, Status};

/// Shared by the workers.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What is deployed.
    pub release: Release,
    /// Says to users what happened.
    pub events: events::Recorder,
    /// The SSP object that counts.
    pub requests: Requests<SSP>,
    /// SSP objects of the operator's namespace.
    pub ssps: Store<SSP>,
    /// SSP objects of other namespaces, of which none counts.
    pub elsewhere: Store<SSP>,
    /// Writes to these: the objects of the operator's namespace stay among themselves.
    strangers: Requests<SSP>,
    /// The validator.
    pub deployments: Store<Deployment>,
    /// DataSources of the namespace of boot sources.
    pub sources: Store<DataSource>,
    /// DataImportCrons that this operator made.
    pub crons: Store<DataImportCron>,
    /// Claims of the namespace of boot sources, by name.
    pub claims: Store<PersistentVolumeClaim>,
    /// What was applied last.
    pub applied: Applied,
    /// What was applied of templates, to tell what was changed by others.
    pub(super) templates: restored::Memory,
    /// What was deleted because nothing asks for it, so that it is not deleted again and again.
    pruned: Mutex<BTreeSet<String>>,
    /// What is counted.
    pub metrics: Metrics,
}

impl Context {
    /// Nothing is known yet.
    pub(super) fn new(
        client: Client,
        release: Release,
        events: events::Recorder,
        requests: Requests<SSP>,
        ssps: Store<SSP>,
    ) -> Self {
        let elsewhere = Store::default();
        Context {
            strangers: Requests::new(&client, &elsewhere, super::FINALIZER, Written::Subresource),
            client,
            release,
            events,
            requests,
            ssps,
            elsewhere,
            deployments: Store::default(),
            sources: Store::default(),
            crons: Store::default(),
            claims: Store::default(),
            applied: Applied::by(super::MANAGER),
            templates: restored::Memory::default(),
            pruned: Mutex::default(),
            metrics: Metrics::default(),
        }
    }

    /// Writes `wanted` if it differs, and says so when it is news.
    pub(super) async fn write(&self, ssp: &SSP, wanted: Status) -> Result<(), Error> {
        let old = ssp.status.clone().unwrap_or_default();
        if ssp.status.is_some() && old == wanted {
            return Ok(());
        }
        let here = ssp.namespace().as_deref() == Some(self.release.namespace.as_str());
        let requests = if here { &self.requests } else { &self.strangers };
        let written = requests.write_status(ssp, &wanted).await;
        written.map_err(Error::api("patch", "SSP", &ssp.name_any()))?;
        let object = ssp.object_ref(&());
        match wanted.phase.as_deref().filter(|_| old.phase != wanted.phase) {
            Some(phase::DEPLOYING) => self.events.normal(&object, "DeployStarted", "Started Deployment"),
            Some(phase::DEPLOYED) => self.events.normal(&object, "DeployCompleted", "Deployment Completed"),
            _ => {}
        }
        Ok(())
    }

    /// Deletes what lies at `addresses` once, until something applies it again.
    pub(super) async fn prune(&self, addresses: Vec<String>) -> Result<(), Error> {
        let applied: BTreeSet<String> = self.applied.addresses().into_iter().collect();
        for address in addresses {
            let known = self.pruned.lock().unwrap_or_else(PoisonError::into_inner).contains(&address);
            if known && !applied.contains(&address) {
                continue;
            }
            apply::delete(&self.client, &address).await?;
            self.pruned.lock().unwrap_or_else(PoisonError::into_inner).insert(address);
        }
        Ok(())
    }

    /// Labels of `ssp` that everything made for it carries as well.
    pub(super) fn labels(ssp: &SSP) -> BTreeMap<String, String> {
        let keys = ["app.kubernetes.io/part-of", "app.kubernetes.io/version"];
        let labels = ssp.labels();
        keys.into_iter().filter_map(|key| Some((key.to_owned(), labels.get(key)?.clone()))).collect()
    }
}
