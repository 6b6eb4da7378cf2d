//! What is wrong with a HyperConverged object, and what of it nothing acts on. Pure.

use std::time::Duration;

use api::hco::HyperConverged;
use api::unserved::{self, Answer};
use kit::admission::{Cause, Request, Verdict};
use kit::duration;
use serde_json::{Value, json};

use crate::child::Child;
use crate::conversion::{self, V1BETA1_ONLY};
use crate::refusal::Refusal;
use crate::render::{self, Input};
use crate::tree::get;
use crate::{feature_gates, golden_images};

/// Certificates are not made more often than their users can follow.
const SHORTEST: Duration = Duration::from_secs(600);
/// Without one of these no client speaks HTTP/2.
const HTTP2: [&str; 4] = [
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
];
const QUOTA: &str = "there is no application-aware quota: a ResourceQuota counts pods, not guests";
/// Where the definition itself fills the field in.
const DEFAULTS: [(&str, &str); 1] =
    [("deployment.applicationAwareConfig.vmiCalcConfigName", "DedicatedVirtualResources")];
/// Parts of the product that do not exist here: the field that asks for one, and the sentence.
const MISSING: [(&str, &str); 8] = [
    ("deployment.applicationAwareConfig.enable", QUOTA),
    ("deployment.applicationAwareConfig.allowApplicationAwareClusterResourceQuota", QUOTA),
    ("deployment.applicationAwareConfig.namespaceSelector.matchExpressions", QUOTA),
    ("deployment.applicationAwareConfig.namespaceSelector.matchLabels", QUOTA),
    ("deployment.applicationAwareConfig.vmiCalcConfigName", QUOTA),
    ("observability.allowedAlerts", "all alerts are made"),
    ("observability.allowedRecordingRules", "all recording rules are made"),
    ("observability.workloads.allowedMetrics", "all metrics of machines are served"),
];

/// Refusals and warnings that need no look at the cluster.
pub(super) fn judge(request: &Request, input: &Input) -> Verdict {
    if request.operation == "DELETE" {
        return Verdict::allow();
    }
    let object = match serde_json::from_value::<HyperConverged>(request.object.clone()) {
        Ok(object) => object,
        Err(error) => return Verdict::Invalid(vec![invalid("spec", format!("the object cannot be read: {error}"))]),
    };
    let spec = &request.object["spec"];
    let mut causes = certificates(spec);
    causes.extend(tls(spec));
    causes.extend(
        golden_images::refused(&spec["workloadSources"]).into_iter().map(|(field, message)| invalid(&field, message)),
    );
    for child in Child::ALL {
        if let Err(Refusal { field, message }) = render::render(child, &object, input) {
            causes.push(invalid(&field, message));
        }
    }
    if causes.is_empty() {
        return Verdict::Allow { warnings: warnings(&request.object, &object, input) };
    }
    Verdict::Invalid(causes)
}

fn invalid(field: &str, message: impl Into<String>) -> Cause {
    Cause { reason: "FieldValueInvalid", field: field.to_owned(), message: message.into() }
}

fn certificates(spec: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut lives = Vec::new();
    for part in ["ca", "server"] {
        let mut read = |field: &str| {
            let path = format!("security.certConfig.{part}.{field}");
            let text = get(spec, &path).and_then(Value::as_str)?;
            let found = duration::parse(text);
            match found {
                None => {
                    causes.push(invalid(&format!("spec.{path}"), format!("{text:?} is no duration such as 24h0m0s")));
                }
                Some(found) if found < SHORTEST => {
                    causes.push(invalid(
                        &format!("spec.{path}"),
                        format!("{text}: value is too small: 10m is the least"),
                    ));
                }
                Some(_) => {}
            }
            found
        };
        let (life, renew) = (read("duration"), read("renewBefore"));
        if let Some((life, renew)) = life.zip(renew)
            && life < renew
        {
            let field = format!("spec.security.certConfig.{part}");
            causes.push(invalid(&field, format!("{part}: duration is smaller than renewBefore")));
        }
        lives.push(life);
    }
    if let [Some(ca), Some(server)] = lives[..]
        && ca < server
    {
        causes.push(invalid("spec.security.certConfig", "ca.duration is smaller than server.duration"));
    }
    causes
}

fn tls(spec: &Value) -> Vec<Cause> {
    let profile = "security.tlsSecurityProfile";
    let Some(custom) = get(spec, profile).filter(|profile| profile["type"] == "Custom") else { return Vec::new() };
    let custom = &custom["custom"];
    let ciphers: Vec<&str> = custom["ciphers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let field = format!("spec.{profile}.custom");
    if custom["minTLSVersion"] == "VersionTLS13" {
        return match ciphers.is_empty() {
            true => Vec::new(),
            false => vec![invalid(
                &format!("{field}.ciphers"),
                "custom ciphers cannot be selected when minTLSVersion is VersionTLS13",
            )],
        };
    }
    match ciphers.iter().any(|cipher| HTTP2.contains(cipher)) {
        true => Vec::new(),
        false => {
            let message = format!("no cipher of HTTP/2 is among them: add one of {}", HTTP2.join(", "));
            vec![invalid(&format!("{field}.ciphers"), message)]
        }
    }
}

fn warnings(object: &Value, hco: &HyperConverged, input: &Input) -> Vec<String> {
    let spec = &object["spec"];
    let mut out = feature_gates::warnings(&hco.spec.feature_gates);
    let is_default =
        |field: &str, value: &Value| DEFAULTS.iter().any(|default| default.0 == field && value == default.1);
    let is_missing =
        |field: &str| get(spec, field).is_some_and(|value| unserved::is_set(value) && !is_default(field, value));
    out.extend(
        MISSING
            .iter()
            .filter(|(field, _)| is_missing(field))
            .map(|(field, why)| unacted(&format!("spec.{field}"), why)),
    );
    if feature_gates::is_on(&hco.spec.feature_gates, feature_gates::OBSERVABILITY_CONTROLLER) {
        let gate = format!("featureGate {}", feature_gates::OBSERVABILITY_CONTROLLER);
        out.push(unacted(&gate, "there is no observability controller: metrics and alerts are the operators' own"));
    }
    let kept = object.pointer("/metadata/annotations").and_then(|all| all.get(V1BETA1_ONLY)).and_then(Value::as_str);
    let kept: Value = kept.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    out.extend(conversion::without_effect(&kept).iter().map(|field| unacted(field, "v1 has no such field any more")));
    out.extend(of_children(hco, input));
    out
}

fn unacted(what: &str, why: &str) -> String {
    format!("{what} is not acted on in this version: {why}")
}

/// What the other operators do not act on of what this object asks them for, beyond what every object does.
fn of_children(hco: &HyperConverged, input: &Input) -> Vec<String> {
    let plain = HyperConverged { metadata: hco.metadata.clone(), ..HyperConverged::default() };
    let mut out = Vec::new();
    for (child, rows) in [(Child::KubeVirt, unserved::KUBEVIRT), (Child::Cdi, unserved::CDI)] {
        let found = |hco: &HyperConverged| {
            let rendered = render::render(child, hco, input).unwrap_or_else(|_| json!({}));
            unserved::found(rows, &rendered, "")
        };
        let always = found(&plain);
        for one in found(hco).into_iter().filter(|one| one.answer == Answer::Warned && !always.contains(one)) {
            out.push(format!("{} of the {} object: {}", one.field, child.kind().kind, one.message));
        }
    }
    out
}

#[cfg(test)]
mod fields;

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
mod tests {
    use super::*;

    pub(super) fn request(annotations: Value, spec: Value) -> Request {
        let object = json!({ "metadata": { "name": render::NAME, "annotations": annotations }, "spec": spec });
        Request { operation: "CREATE".to_owned(), object, ..Request::default() }
    }

    #[track_caller]
    fn refused(spec: Value, field: &str, message: &str) {
        let found = judge(&request(json!({}), spec), &Input::default());
        let Verdict::Invalid(causes) = found else { panic!("{found:?}") };
        assert!(causes.iter().any(|cause| cause.field == field && cause.message.contains(message)), "{causes:?}");
    }

    /// What is warned of, beside nothing.
    #[track_caller]
    fn warned(annotations: Value, spec: Value) -> Vec<String> {
        let found = judge(&request(annotations, spec), &Input::default());
        let Verdict::Allow { warnings } = found else { panic!("{found:?}") };
        warnings
    }

    #[test]
    fn bad_lives_of_certificates_are_named() {
        let config = |part: &str, duration: &str, renew: &str| json!({ "security": { "certConfig": { part: { "duration": duration, "renewBefore": renew } } } });
        refused(config("ca", "5m", "1m"), "spec.security.certConfig.ca.duration", "value is too small");
        refused(config("ca", "x", "10m"), "spec.security.certConfig.ca.duration", "no duration");
        refused(
            config("server", "20m", "30m"),
            "spec.security.certConfig.server",
            "duration is smaller than renewBefore",
        );
        let both =
            json!({ "security": { "certConfig": { "ca": { "duration": "1h" }, "server": { "duration": "2h" } } } });
        refused(both, "spec.security.certConfig", "ca.duration is smaller than server.duration");
    }

    #[test]
    fn tls_that_nobody_could_speak_is_refused() {
        let custom = |least: &str, ciphers: Value| json!({ "security": { "tlsSecurityProfile": { "type": "Custom", "custom": { "minTLSVersion": least, "ciphers": ciphers } } } });
        let field = "spec.security.tlsSecurityProfile.custom.ciphers";
        refused(custom("VersionTLS12", json!(["AES256-SHA"])), field, "HTTP/2");
        refused(custom("VersionTLS13", json!(["AES256-SHA"])), field, "cannot be selected");
        assert!(warned(json!({}), custom("VersionTLS12", json!([HTTP2[0]]))).is_empty());
    }

    #[test]
    fn what_cannot_be_rendered_is_refused_with_its_annotation() {
        let annotations = json!({ "kubevirt.kubevirt.io/jsonpatch": "{" });
        let found = judge(&request(annotations, json!({})), &Input::default());
        let Verdict::Invalid(causes) = found else { panic!("{found:?}") };
        assert_eq!(causes[0].field, "metadata.annotations[kubevirt.kubevirt.io/jsonpatch]");
        refused(
            json!({ "virtualization": { "tuningPolicy": "annotation" } }),
            "metadata.annotations[hco.kubevirt.io/tuningPolicy]",
            "qps",
        );
    }

    #[test]
    fn what_nothing_acts_on_is_named() {
        assert!(warned(json!({}), json!({})).is_empty());
        let spec = json!({
            "deployment": { "applicationAwareConfig": { "enable": true } },
            "observability": { "allowedAlerts": ["none"] },
            "virtualization": { "permittedHostDevices": { "pciHostDevices": [{ "pciDeviceSelector": "1:2", "resourceName": "a/b" }] } },
            "featureGates": [{ "name": "warp" }, { "name": "deployObservabilityController" }],
        });
        let found = warned(json!({ V1BETA1_ONLY: r#"{"vddkInitImage":"x"}"# }), spec);
        let named = [
            "warp",
            "applicationAwareConfig.enable",
            "allowedAlerts",
            "deployObservabilityController",
            "vddkInitImage",
            "permittedHostDevices",
        ];
        for name in named {
            assert!(found.iter().any(|warning| warning.contains(name)), "{name}: {found:#?}");
        }
        assert_eq!(found.len(), named.len(), "{found:#?}");
    }
}
