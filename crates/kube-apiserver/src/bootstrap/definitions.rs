//! Kinds every cluster serves as custom resources: the VolumeSnapshots, so that a snapshot controller can bring newer ones,
//! and the networks that the nodes' agents attach pods to.

use serde_json::Value;

use apimachinery::error::ApiError;

use crate::ApiServer;
use crate::bootstrap::objects::ensure;

const GROUP: &str = "apiextensions.k8s.io";

/// Defines the kinds that are missing.
pub(super) async fn run(server: &ApiServer) -> Result<(), ApiError> {
    for definition in definitions()? {
        ensure(server, GROUP, "customresourcedefinitions", "", definition).await?;
    }
    server.refresh_registry().await;
    Ok(())
}

fn definitions() -> Result<Vec<Value>, ApiError> {
    let unreadable = |_| ApiError::internal("the shipped definitions of custom resources cannot be read");
    let mut all = Vec::new();
    for text in [include_str!("../../data/snapshots.json"), include_str!("../../data/networks.json")] {
        all.extend(serde_json::from_str::<Vec<Value>>(text).map_err(unreadable)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_valid() {
        let definitions = definitions().unwrap();
        assert_eq!(definitions.len(), 5);
        for mut definition in definitions {
            crate::crd::prepare(&mut definition);
            let mut causes = Vec::new();
            crate::crd::check::validate(&definition, None, &mut causes);
            assert!(causes.is_empty(), "{causes:?}");
        }
    }
}
