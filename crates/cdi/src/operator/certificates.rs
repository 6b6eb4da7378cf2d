//! CDI's certificates: an authority for each server, so that what is trusted to answer uploads is trusted for nothing else.
//!
//! ```text
//! cdi-apiserver-signer           -> cdi-apiserver-server-cert      the API server asks cdi-apiserver
//! cdi-uploadproxy-signer         -> cdi-uploadproxy-server-cert    clients ask cdi-uploadproxy
//! cdi-uploadserver-signer        -> (cdi-controller signs)         cdi-uploadproxy and cloners ask upload servers
//! cdi-uploadserver-client-signer -> cdi-uploadserver-client-cert   cdi-uploadproxy towards upload servers
//! ```

use api::cdi::v1beta1::{CDICertSpan, CDISpec};
use kit::certs::Leaf;
use kit::duration;
use kit::keyring::{Keyring, Lifetimes, Renewed, Span, service_names};
use serde_json::{Value, json};

/// Key of a bundle in its ConfigMap.
pub const BUNDLE_KEY: &str = "ca-bundle.crt";
/// Name in cdi-uploadproxy's certificate, by which upload servers know it.
pub const UPLOAD_CLIENT: &str = "client.upload-server.cdi.kubevirt.io";
/// The role in that certificate.
pub const UPLOAD_PROXY: &str = "cdi-uploadproxy";
/// Annotation of a Secret: when its certificate was made.
const NOT_BEFORE: &str = "auth.openshift.io/certificate-not-before";
/// When it ends.
const NOT_AFTER: &str = "auth.openshift.io/certificate-not-after";
/// How long it lives, and after how long it is renewed.
const CONFIG: &str = "operator.cdi.kubevirt.io/certConfig";
/// ConfigMap with the authorities of cdi-apiserver.
pub const APISERVER_BUNDLE: &str = "cdi-apiserver-signer-bundle";

fn span(said: &CDICertSpan) -> Span<'_> {
    Span { duration: said.duration.as_deref(), renew_before: said.renew_before.as_deref() }
}

/// As the CDI object says.
fn lifetimes(ca: Option<&CDICertSpan>, leaf: Option<&CDICertSpan>) -> Lifetimes {
    Lifetimes::asked(ca.map(span).unwrap_or_default(), leaf.map(span).unwrap_or_default())
}

/// What is to be there in `namespace`.
pub fn keyrings(namespace: &str, spec: &CDISpec) -> Vec<Keyring> {
    let config = spec.cert_config.as_deref().cloned().unwrap_or_default();
    let server = lifetimes(config.ca.as_ref(), config.server.as_ref());
    let client = lifetimes(config.ca.as_ref(), config.client.as_ref());
    let served = |role: &str, service: &str| {
        let dns = service_names(service, namespace).into();
        let leaf = Leaf { name: format!("{service}.{namespace}.svc"), role: role.to_owned(), node: None, dns };
        vec![(format!("{role}-server-cert"), leaf)]
    };
    let uploads = Leaf { name: UPLOAD_CLIENT.to_owned(), role: UPLOAD_PROXY.to_owned(), ..Leaf::default() };
    let ring = |name: &str, leaves: Vec<(String, Leaf)>, lifetimes: Lifetimes| Keyring {
        authority: name.to_owned(),
        bundle: format!("{name}-bundle"),
        bundle_key: BUNDLE_KEY.to_owned(),
        name: name.to_owned(),
        leaves,
        lifetimes,
    };
    vec![
        ring("cdi-apiserver-signer", served("cdi-apiserver", "cdi-api"), server),
        ring("cdi-uploadproxy-signer", served("cdi-uploadproxy", "cdi-uploadproxy"), server),
        ring("cdi-uploadserver-signer", Vec::new(), server),
        ring("cdi-uploadserver-client-signer", vec![("cdi-uploadserver-client-cert".to_owned(), uploads)], client),
    ]
}

/// The manifests of `ring`, each Secret with the life of its certificate, as those read it who watch over certificates.
pub fn manifests(ring: &Keyring, renewed: &Renewed, namespace: &str, labels: &Value) -> Vec<Value> {
    let mut all = ring.manifests(renewed, namespace, labels);
    for manifest in &mut all {
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
        let (pair, life, renew) = match renewed.leaves.get(name) {
            _ if manifest["kind"] != "Secret" => continue,
            Some(leaf) => (leaf, ring.lifetimes.leaf, ring.lifetimes.leaf_renew),
            None => (&renewed.authority, ring.lifetimes.ca, ring.lifetimes.ca_renew),
        };
        let Some((made, until)) = kit::certs::life(&pair.certificate) else { continue };
        let config =
            json!({ "lifetime": duration::format(life), "refresh": duration::format(life.saturating_sub(renew)) });
        manifest["metadata"]["annotations"] = json!({
            NOT_BEFORE: made.to_string(), NOT_AFTER: until.to_string(), CONFIG: config.to_string(),
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(config: Value, ring: usize, expect: [u64; 4]) {
        let spec: CDISpec = serde_json::from_value(json!({ "certConfig": config })).unwrap();
        let found = keyrings("cdi", &spec)[ring].lifetimes;
        let hours = [found.ca, found.ca_renew, found.leaf, found.leaf_renew].map(|time| time.as_secs() / 3600);
        assert_eq!(hours, expect);
    }

    #[test]
    fn lifetimes_follow_the_object() {
        check(json!({}), 0, [48, 24, 24, 12]);
        let config = json!({
            "ca": { "duration": "72h0m0s", "renewBefore": "10h" }, "server": { "duration": "8h" }, "client": { "duration": "6h" },
        });
        check(config.clone(), 1, [72, 10, 8, 4]);
        check(config, 3, [72, 10, 6, 3]);
        check(json!({ "ca": { "duration": "2h" } }), 0, [2, 1, 2, 1]);
        check(json!({ "server": { "duration": "8h", "renewBefore": "9h" } }), 0, [48, 24, 8, 4]);
    }

    #[test]
    fn ten_rotations_interrupt_nobody() {
        let span = json!({ "duration": "150s", "renewBefore": "100s" });
        let short = json!({ "ca": { "duration": "300s", "renewBefore": "225s" }, "server": span, "client": span });
        for config in [json!({}), short] {
            let spec: CDISpec = serde_json::from_value(json!({ "certConfig": config })).unwrap();
            for ring in keyrings("cdi", &spec) {
                assert_eq!(kit::keyring::rehearse(&ring, 10), Ok(()), "{}", ring.authority);
            }
        }
    }

    #[test]
    fn a_secret_says_how_long_its_certificate_lives() {
        let config = json!({ "ca": { "duration": "20m", "renewBefore": "5m" }, "server": { "duration": "5m", "renewBefore": "2m" } });
        let spec: CDISpec = serde_json::from_value(json!({ "certConfig": config })).unwrap();
        let ring = &keyrings("cdi", &spec)[0];
        let now = "2026-01-01T00:00:00.5Z".parse().unwrap();
        let renewed = ring.plan(&kit::keyring::Held::default(), now).unwrap();
        let all = manifests(ring, &renewed, "cdi", &json!({}));
        let settings_of = |name: &str| {
            all.iter().find(|one| one["metadata"]["name"] == name).unwrap()["metadata"]["annotations"].clone()
        };
        let expect = |until: &str, life: &str, refresh: &str| json!({ NOT_BEFORE: "2026-01-01T00:00:00Z", NOT_AFTER: until, CONFIG: json!({ "lifetime": life, "refresh": refresh }).to_string() });
        assert_eq!(settings_of("cdi-apiserver-signer"), expect("2026-01-01T00:20:00Z", "20m0s", "15m0s"));
        assert_eq!(settings_of("cdi-apiserver-server-cert"), expect("2026-01-01T00:05:00Z", "5m0s", "3m0s"));
        assert_eq!(settings_of("cdi-apiserver-signer-bundle"), Value::Null);
    }
}
