//! The CDI object decides the configuration; an installation in which the CDIConfig did is taken over with what it said.

use api::cdi::constants::{self, annotation};
use api::cdi::v1beta1::{CDI, CDIConfig, CDIConfigSpec};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::context::Context;
use crate::Error;

/// Has the CDI object decide from now on.
///
/// # Errors
/// When the API server refuses.
pub(super) async fn take(context: &Context, cdi: &CDI) -> Result<(), Error> {
    if cdi.annotations().contains_key(annotation::CONFIG_AUTHORITY) {
        return Ok(());
    }
    let mut patch = json!({ "metadata": { "annotations": { annotation::CONFIG_AUTHORITY: "" } } });
    if cdi.spec.config.is_none()
        && let Some(said) = said_before(context).await?
    {
        patch["spec"] = json!({ "config": said });
    }
    let done = context.requests.merge(cdi, &patch).await;
    done.map(drop).map_err(Error::api("patch", "CDI", &cdi.name_any()))
}

/// What a CDIConfig says that was there before; its kind may not be.
async fn said_before(context: &Context) -> Result<Option<CDIConfigSpec>, Error> {
    let api: Api<CDIConfig> = Api::all(context.client.clone());
    match api.get_opt(constants::CONFIG).await {
        Ok(found) => Ok(found.map(|config| config.spec).filter(|spec| *spec != CDIConfigSpec::default())),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(Error::api("read", "CDIConfig", constants::CONFIG)(error)),
    }
}
