//! What a driver published of this node goes when the driver has gone: nobody could prepare it.

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams};

use super::claim::{kind, text};
use crate::context::Context;
use crate::error::{Error, Result};

/// A driver that is only replaced is back by then.
const RETURN: Duration = Duration::from_secs(30);

/// Withdraws the slices of a driver, unless it comes back.
pub(crate) async fn withdraw(context: Arc<Context>, driver: String) {
    tokio::time::sleep(RETURN).await;
    sweep(&context, |of| of == driver).await;
}

/// Withdraws the slices of drivers that were here in an earlier life and are not now.
pub(crate) async fn withdraw_absent(context: Arc<Context>) {
    sweep(&context, |_| true).await;
}

async fn sweep(context: &Context, concerns: impl Fn(&str) -> bool) {
    if let Err(error) = try_sweep(context, concerns).await {
        tracing::warn!(error = %kit::Chain(&error), "the slices of a driver that has gone are still published");
    }
}

async fn try_sweep(context: &Context, concerns: impl Fn(&str) -> bool) -> Result<()> {
    let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &kind("ResourceSlice"));
    let own = ListParams::default().fields(&format!("spec.nodeName={}", context.config.node_name));
    let slices = api.list(&own).await.map_err(Error::api("list resourceslices"))?;
    for slice in slices {
        let driver = text(&slice, "/spec/driver");
        if !concerns(driver) || context.device_claims.plugins.get(driver).is_ok() {
            continue;
        }
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        match api.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(Error::api("delete resourceslice")(error)),
            Ok(_) => tracing::info!(driver, slice = name, "withdrew what a driver that has gone had published"),
        }
    }
    Ok(())
}
