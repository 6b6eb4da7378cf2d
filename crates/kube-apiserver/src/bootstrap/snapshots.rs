//! The VolumeSnapshot kinds every cluster serves: custom resources, so that a snapshot controller can bring newer ones.

use serde_json::Value;

use crate::ApiServer;
use crate::error::ApiError;
use crate::registry::bootstrap::ensure;

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
    serde_json::from_str(include_str!("../../data/snapshots.json"))
        .map_err(|_| ApiError::internal("the shipped definitions of snapshots cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_valid() {
        let definitions = definitions().unwrap();
        assert_eq!(definitions.len(), 3);
        for mut definition in definitions {
            crate::crd::prepare(&mut definition);
            let mut causes = Vec::new();
            crate::crd::check::validate(&definition, None, &mut causes);
            assert!(causes.is_empty(), "{causes:?}");
        }
    }
}
