//! This node's own certificate, by which the agents of other nodes know it. The one in the Secret is every agent's.
//!
//! ```text
//! key, request -> CertificateSigningRequest --virt-operator: whose token, on which node?--> certificate, until its end
//! ```
//!
//! The one in the Secret also says how long certificates live now: virt-operator makes it anew when that becomes less.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::constants::SIGNER;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kit::certs::{self, Pair, Rotation};
use kit::tls::{self, Material};
use kit::{Chain, clock, keyring};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use tokio::time::{Instant, sleep};

/// For the signer.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(250);
const AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("a signing request cannot be made")]
    Make(#[from] certs::Error),
    #[error("the signing request cannot be filed")]
    File(#[source] kube::Error),
    #[error("signing request {name} cannot be read")]
    Read {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("signing request {name} was denied: {why}")]
    Denied { name: String, why: String },
    #[error("virt-operator has not answered signing request {name} within {PATIENCE:?}")]
    Late { name: String },
    #[error("the certificate cannot be used")]
    Use(#[from] tls::Error),
}

/// Keeps `material` filled for as long as it is polled. `shared` is the directory of the Secret's certificate.
pub(crate) async fn keep(client: Client, node: String, shared: PathBuf, material: Arc<Material>) {
    loop {
        match obtain(&client, &node).await.and_then(|pair| {
            material.set(&pair)?;
            Ok(pair.certificate)
        }) {
            Ok(certificate) => worn(&certificate, &shared).await,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "no certificate of this node: it takes part in no migration");
                sleep(AGAIN).await;
            }
        }
    }
}

/// Returns when it is time for another one.
async fn worn(certificate: &str, shared: &Path) {
    // Not at once, whatever was signed.
    sleep(AGAIN).await;
    loop {
        let reference = tls::pair(shared).await.map(|pair| pair.certificate).unwrap_or_default();
        if is_worn(certificate, &reference, clock::now()) {
            return;
        }
        sleep(tls::look_again(certificate)).await;
    }
}

/// Whether a fifth of its life is left, or certificates were made to live for less than half of that. One that lives for a little
/// less than others was signed by an authority that was about to end.
fn is_worn(certificate: &str, reference: &str, now: Timestamp) -> bool {
    let life = |certificate| {
        let (made, until) = certs::life(certificate)?;
        Duration::try_from(until.duration_since(made)).ok()
    };
    let Some(own) = life(certificate) else { return true };
    let longest = life(reference).map_or(own, |life| life.saturating_mul(2));
    keyring::due(certificate, own / 5, longest, now) == Rotation::Renew
}

async fn obtain(client: &Client, node: &str) -> Result<Pair, Error> {
    let (key, request) = certs::request(&format!("virt-handler on {node}"))?;
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let wanted = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("virt-handler-".to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: SIGNER.to_owned(),
            usages: Some(
                ["digital signature", "key encipherment", "server auth", "client auth"].map(str::to_owned).to_vec(),
            ),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let name = api.create(&PostParams::default(), &wanted).await.map_err(Error::File)?.name_any();
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        sleep(LOOK).await;
        let found = api.get(&name).await.map_err(|source| Error::Read { name: name.clone(), source })?;
        let status = found.status.unwrap_or_default();
        if let Some(certificate) = status.certificate.and_then(|bytes| String::from_utf8(bytes.0).ok()) {
            return Ok(Pair { certificate, key });
        }
        let denied = status.conditions.into_iter().flatten().find(|known| known.type_ == "Denied");
        if let Some(denied) = denied {
            return Err(Error::Denied { name, why: denied.message.unwrap_or_default() });
        }
    }
    Err(Error::Late { name })
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use kit::certs::{Authority, Leaf};

    use super::*;

    #[test]
    fn another_certificate_is_asked_for_in_time_and_when_they_are_to_live_for_less() {
        let (start, hour) = (clock::now(), Duration::from_secs(3600));
        let authority = Authority::generate("test", start, hour * 48).unwrap();
        let leaf = Leaf { name: "n".into(), role: "virt-handler".into(), ..Leaf::default() };
        let lives = |hours: u32| authority.issue(&leaf, start, hour * hours).unwrap().certificate;
        let check = |own: &str, reference: &str, after: i64, expect: bool| {
            assert_eq!(is_worn(own, reference, start + SignedDuration::from_mins(after)), expect, "{after}");
        };
        check(&lives(10), &lives(10), 1, false);
        check(&lives(10), &lives(6), 1, false);
        check(&lives(10), &lives(4), 1, true);
        check(&lives(10), "", 1, false);
        check(&lives(10), &lives(10), 7 * 60, false);
        check(&lives(10), &lives(10), 8 * 60 + 1, true);
        check("nothing", "", 1, true);
    }
}
