//! The certificate of the server, which is replaced while it serves. The key stays.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kit::certs::{self, Pair};
use kit::tls::{self, Material};
use kit::{Chain, clock};
use tokio::time::sleep;

/// Has `material` show whatever certificate `renewed` holds, as long as there is one that has not ended.
pub(super) async fn renew(material: Arc<Material>, mut shown: Pair, renewed: &Path) {
    let ended = |certificate: &str| certs::lifetime(certificate).is_some_and(|(_, until)| until <= clock::now());
    let mut seen = shown.certificate.clone();
    loop {
        if let Ok(found) = tokio::fs::read_to_string(renewed).await
            && !found.is_empty()
            && found != seen
        {
            let pair = Pair { certificate: found.clone(), key: shown.key.clone() };
            match material.set(&pair) {
                Ok(()) => {
                    tracing::info!("another certificate is shown");
                    shown = pair;
                }
                Err(error) => tracing::warn!(error = %Chain(&error), "the new certificate is not used"),
            }
            seen = found;
        }
        if ended(&shown.certificate) {
            return;
        }
        sleep(look_again(&shown.certificate)).await;
    }
}

fn look_again(certificate: &str) -> Duration {
    let left = certs::lifetime(certificate).map(|(_, until)| until.duration_since(clock::now()));
    let left = left.and_then(|left| Duration::try_from(left).ok()).unwrap_or_default();
    // Once more at its end.
    tls::look_again(certificate).min(left + Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use kit::certs::{Authority, Leaf};
    use kit::tls::Trust;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_lies_in_the_file_is_shown_until_it_ends() {
        let life = Duration::from_secs(60);
        let authority = Authority::generate("test", clock::now(), life * 10).unwrap();
        let leaf = Leaf { name: "s".into(), role: "virt-export".into(), ..Leaf::default() };
        let first = authority.issue(&leaf, clock::now(), life).unwrap();
        let second = authority.prolong(&first.certificate, &leaf, clock::now(), life * 3).unwrap();
        let (dir, material, trust) = (tempfile::tempdir().unwrap(), Material::new(), Trust::new());
        trust.set(&authority.pair().certificate).unwrap();
        material.set(&first).unwrap();
        let file = dir.path().join("tls.crt");
        std::fs::write(&file, "").unwrap();
        let begin = clock::now();
        let served = tokio::spawn({
            let (material, file) = (material.clone(), file.clone());
            async move { renew(material, first, &file).await }
        });
        sleep(Duration::from_secs(30)).await;
        std::fs::write(&file, &second).unwrap();
        served.await.unwrap();
        let lasted = clock::now().duration_since(begin).as_secs();
        // Certificates count in whole seconds.
        assert!((178..190).contains(&lasted), "{lasted}");
    }
}
