//! This node's own certificate, by which the agents of other nodes know it. The one in the Secret is every agent's.
//!
//! ```text
//! key, request -> CertificateSigningRequest --virt-operator: whose token, on which node?--> certificate, until its end
//! ```

use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::constants::SIGNER;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kit::certs::{self, Pair, Rotation};
use kit::tls::Material;
use kit::{Chain, clock};
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
    Use(#[from] kit::tls::Error),
}

/// Keeps `material` filled for as long as it is polled.
pub(crate) async fn keep(client: Client, node: String, material: Arc<Material>) {
    loop {
        let next = match obtain(&client, &node).await.and_then(|pair| {
            material.set(&pair)?;
            Ok(pair.certificate)
        }) {
            Ok(certificate) => renewal(&certificate),
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "no certificate of this node: it takes part in no migration");
                AGAIN
            }
        };
        sleep(next).await;
    }
}

/// When a fifth of its life is left.
fn renewal(certificate: &str) -> Duration {
    let life = certs::life(certificate).map(|(made, until)| until.duration_since(made));
    let before = life.and_then(|life| Duration::try_from(life).ok()).unwrap_or_default() / 5;
    match certs::rotation(certificate, clock::now(), before) {
        Rotation::Keep(left) => left.max(AGAIN),
        Rotation::Renew => AGAIN,
    }
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
