//! What the KubeVirt object says about TLS. Pure.

use api::kubevirt::v1::TLSConfiguration;
use kit::admission::Cause;
use kit::tls::Policy;
use serde_json::Value;

const PATH: &str = "spec.configuration.tlsConfiguration";
/// The names of ciphers that the API knows. Some of them are not offered, which a warning says.
const NAMES: [&str; 17] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
];

fn said(kubevirt: &Value) -> Option<TLSConfiguration> {
    serde_json::from_value(kubevirt.pointer("/spec/configuration/tlsConfiguration")?.clone()).ok()
}

/// What is wrong.
pub(super) fn causes(kubevirt: &Value) -> Vec<Cause> {
    let Some(said) = said(kubevirt) else { return Vec::new() };
    let cause = |field: String, message: String| Cause { reason: "FieldValueNotSupported", message, field };
    if matches!(said.min_tls_version.as_deref(), None | Some("" | "VersionTLS13")) {
        let message = format!("You cannot specify ciphers when {PATH}.minTLSVersion is empty or VersionTLS13");
        return if said.ciphers.is_empty() { Vec::new() } else { vec![cause(format!("{PATH}.ciphers"), message)] };
    }
    let unknown = said.ciphers.iter().enumerate().filter(|(_, name)| !NAMES.contains(&name.as_str()));
    unknown
        .map(|(index, name)| cause(format!("{PATH}.ciphers#{index}"), format!("{name} is not a valid cipher")))
        .collect()
}

/// What is right, and not done.
pub(super) fn warnings(kubevirt: &Value) -> Vec<String> {
    let said = said(kubevirt).unwrap_or_default();
    let (_, problems) = Policy::new(said.min_tls_version.as_deref().unwrap_or_default(), &said.ciphers);
    problems.into_iter().map(|problem| format!("{PATH}: {problem}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(tls: &Value, wrong: &[(&str, &str)], told: &[&str]) {
        let kubevirt = json!({ "spec": { "configuration": { "tlsConfiguration": tls } } });
        let found = causes(&kubevirt);
        let found: Vec<_> = found.iter().map(|cause| (cause.field.as_str(), cause.message.as_str())).collect();
        assert_eq!(found, wrong);
        assert_eq!(warnings(&kubevirt), told);
    }

    #[test]
    fn ciphers_are_for_tls_1_2() {
        let (gcm, ciphers) = ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "spec.configuration.tlsConfiguration.ciphers");
        let never = "You cannot specify ciphers when spec.configuration.tlsConfiguration.minTLSVersion is empty or VersionTLS13";
        check(&Value::Null, &[], &[]);
        check(&json!({ "minTLSVersion": "VersionTLS13" }), &[], &[]);
        check(&json!({ "minTLSVersion": "VersionTLS12", "ciphers": [gcm] }), &[], &[]);
        check(&json!({ "ciphers": [gcm] }), &[(ciphers, never)], &[]);
        check(&json!({ "minTLSVersion": "VersionTLS13", "ciphers": [gcm] }), &[(ciphers, never)], &[]);
        check(
            &json!({ "minTLSVersion": "VersionTLS12", "ciphers": [gcm, "ROT13"] }),
            &[(&format!("{ciphers}#1"), "ROT13 is not a valid cipher")],
            &["spec.configuration.tlsConfiguration: the cipher ROT13 is not offered"],
        );
        check(
            &json!({ "minTLSVersion": "VersionTLS11", "ciphers": [gcm, "TLS_RSA_WITH_AES_128_CBC_SHA"] }),
            &[],
            &[
                "spec.configuration.tlsConfiguration: VersionTLS11 is asked for: TLS 1.2 is the least that is offered",
                "spec.configuration.tlsConfiguration: the cipher TLS_RSA_WITH_AES_128_CBC_SHA is not offered",
            ],
        );
    }
}
