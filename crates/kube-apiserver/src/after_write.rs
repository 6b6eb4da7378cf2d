//! What follows from a write, before it is answered: a kind to serve, a namespace's account, a certificate.

use std::sync::Arc;

use kube_store::Object;

use crate::admission::policy::typecheck;
use crate::bootstrap::flow;
use crate::bootstrap::objects::default_account;
use crate::registry::Resource;
use crate::{ApiServer, certificates, crd_finalizer};

/// Called after every write that left an object behind.
pub(crate) async fn written(server: &ApiServer, resource: &Resource, object: &Arc<Object>) {
    if resource.group.is_empty()
        && resource.plural == "namespaces"
        && !object.terminating()
        && let Err(error) = default_account(server, &object.key.name).await
    {
        tracing::warn!(%error, namespace = %object.key.name, "cannot create the default service account");
    }
    if resource.plural == "validatingadmissionpolicies" {
        typecheck::settle(server.store(), &server.registry(), object).await;
    }
    if resource.group == "certificates.k8s.io" {
        certificates::after_write(server, object).await;
    }
    if resource.group == crate::flow::GROUP {
        settle_flows(server).await;
    }
    if matches!(resource.group.as_str(), "apiextensions.k8s.io" | "apiregistration.k8s.io") {
        server.refresh_registry().await;
        if resource.group == "apiextensions.k8s.io" {
            crd_finalizer::after_write(server, object).await;
        }
    }
}

/// Called after an object has gone.
pub(crate) async fn removed(server: &ApiServer, resource: &Resource, _object: &Arc<Object>) {
    match resource.group.as_str() {
        "apiextensions.k8s.io" => crd_finalizer::after_removal(server).await,
        "apiregistration.k8s.io" => server.refresh_registry().await,
        crate::flow::GROUP => settle_flows(server).await,
        _ => {}
    }
}

async fn settle_flows(server: &ApiServer) {
    if let Err(error) = flow::settle(server).await {
        tracing::warn!(%error, "cannot settle FlowSchemas and PriorityLevelConfigurations");
    }
}
