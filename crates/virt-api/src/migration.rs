//! The webhook of new migrations: unlike the others it must look at the cluster, for the guest and its other migrations.

use std::sync::Arc;

use api::kubevirt::constants::label;
use api::kubevirt::identity::instance_id;
use api::kubevirt::v1::VirtualMachineInstanceMigration;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kit::Chain;
use kit::admission::{self, Verdict};
use kube::api::ListParams;
use kube::{Api, Client};

use crate::cluster;
use crate::status::Refusal;
use crate::subresource::Context;
use crate::validate::migration::{self, Guest};

/// `/migration-validate-create`.
pub(crate) async fn validate(State(context): State<Arc<Context>>, body: Bytes) -> Response {
    let request = match admission::review(&body) {
        Ok(request) => request,
        Err(message) => return (StatusCode::BAD_REQUEST, message).into_response(),
    };
    let verdict = match migration::target(&request) {
        Err(verdict) => verdict,
        Ok((namespace, name)) => match guest(&context.client, &namespace, &name).await {
            Ok(guest) => migration::create((&namespace, &name), &guest),
            Err(refusal) => Verdict::Deny {
                code: refusal.code.as_u16(),
                reason: refusal.reason,
                message: format!("cannot look at VMI {namespace}/{name}: {}", refusal.message),
            },
        },
    };
    Json(admission::response(&request.uid, verdict)).into_response()
}

async fn guest(client: &Client, namespace: &str, name: &str) -> Result<Guest, Refusal> {
    let vmi = cluster::find_vmi(client, namespace, name).await?;
    let api: Api<VirtualMachineInstanceMigration> = Api::namespaced(client.clone(), namespace);
    let of_guest = ListParams::default().labels(&format!("{}={}", label::MIGRATION_SELECTOR, instance_id(name)));
    let migrations = api.list(&of_guest).await.map_err(|error| {
        tracing::debug!(error = %Chain(&error), "migrations not listed");
        Refusal::from(error)
    })?;
    Ok(Guest { vmi, migrations: migrations.items })
}
