//! What the KubeVirt object asks of the product's TLS servers.

use super::v1::KubeVirt;

/// The least version and the ciphers; no version and no ciphers are those of servers that nobody has said anything to.
pub fn asked(kubevirt: &KubeVirt) -> (&str, &[String]) {
    let configuration = kubevirt.spec.configuration.as_ref();
    let Some(tls) = configuration.and_then(|all| all.tls_configuration.as_ref()) else { return ("", &[]) };
    (tls.min_tls_version.as_deref().unwrap_or_default(), &tls.ciphers)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(configuration: &Value, least: &str, ciphers: &[&str]) {
        let object = json!({ "metadata": {}, "spec": { "configuration": configuration } });
        let kubevirt: KubeVirt = serde_json::from_value(object).unwrap();
        let (found, named) = asked(&kubevirt);
        assert_eq!((found, named.iter().map(String::as_str).collect::<Vec<_>>()), (least, ciphers.to_vec()));
    }

    #[test]
    fn version_and_ciphers_come_from_the_tls_configuration() {
        check(&json!({}), "", &[]);
        check(&json!({ "tlsConfiguration": { "minTLSVersion": "VersionTLS13" } }), "VersionTLS13", &[]);
        let both = json!({ "minTLSVersion": "VersionTLS12", "ciphers": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"] });
        check(&json!({ "tlsConfiguration": both }), "VersionTLS12", &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
    }
}
