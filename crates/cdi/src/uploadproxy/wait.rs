//! Waits a short while for the upload server of a claim: a client may be faster than the pod that serves it.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client};

use super::place::{Next, Place, next};

const LOOK: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);

/// The server of claim `name`, or the sentence that says why there is none.
pub(super) async fn ready(client: &Client, namespace: &str, name: &str) -> Result<Place, String> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let poll = async {
        loop {
            if let Some(place) = look(&claims, name).await? {
                return Ok(place);
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let late = |_| format!("timed out waiting for the condition: the upload server of PVC {name} is not ready");
    tokio::time::timeout(LONGEST, poll).await.map_err(late)?
}

async fn look(claims: &Api<PersistentVolumeClaim>, name: &str) -> Result<Option<Place>, String> {
    let mut name = name.to_owned();
    // A claim leads to the one that is filled for it, and that one no further.
    for _ in 0..2 {
        let found = claims.get_opt(&name).await.map_err(|e| format!("cannot read PVC {name}: {}", kit::Chain(&e)))?;
        let claim = found.ok_or_else(|| format!("rejecting Upload Request for PVC {name} that doesn't exist"))?;
        match next(&claim) {
            Next::Follow(prime) => name = prime,
            Next::Wait => return Ok(None),
            Next::Send(place) => return Ok(Some(place)),
            Next::Refuse(why) => return Err(why),
        }
    }
    Ok(None)
}
