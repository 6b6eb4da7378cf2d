//! The CDI object itself.

use api::cdi::v1beta1::{CDI, CDICertSpan};
use api::unserved;
use k8s_openapi::api::core::v1::{Affinity, NodeSelectorTerm};
use kit::admission::{Cause, Verdict};
use serde_json::json;

use super::{deny, invalid};
use crate::{operator, security};

const BLOCK: &str = "BlockUninstallIfWorkloadsExist";
const REFUSAL: &str = "Rejecting the uninstall request, since there are still DataVolumes present. Either delete all \
                       DataVolumes or change the uninstall strategy before uninstalling CDI.";

/// Judges what is created or changed.
pub(crate) fn judge(cdi: &CDI) -> Verdict {
    let places = [
        cdi.spec.infra.as_deref().and_then(|infra| infra.affinity.as_ref()),
        cdi.spec.workload.as_deref().and_then(|workload| workload.affinity.as_ref()),
    ];
    if let Some(wrong) = places.into_iter().flatten().find_map(|affinity| self::affinity(affinity).err()) {
        return deny(wrong);
    }
    let mut causes: Vec<Cause> = durations(cdi);
    causes
        .extend(operator::refused(cdi).into_iter().map(|refusal| invalid(refusal.field.clone(), refusal.to_string())));
    if causes.is_empty() {
        let mut warnings = tls(cdi);
        warnings.extend(ignored(cdi));
        return Verdict::Allow { warnings };
    }
    Verdict::Invalid(causes)
}

/// What the TLS profile asks for in vain.
fn tls(cdi: &CDI) -> Vec<String> {
    let profile = cdi.spec.config.as_ref().and_then(|config| config.tls_security_profile.as_deref());
    let (_, problems) = security::policy(profile);
    problems.into_iter().map(|problem| format!("spec.config.tlsSecurityProfile: {problem}")).collect()
}

/// What is said and not acted on.
fn ignored(cdi: &CDI) -> Vec<String> {
    let found = unserved::found(unserved::CDI, &json!({ "spec": cdi.spec }), "");
    let mut warnings: Vec<String> = found.into_iter().map(|one| one.message).collect();
    let gates = cdi.spec.config.iter().flat_map(|config| &config.feature_gates);
    let idle: Vec<&str> =
        gates.map(String::as_str).filter(|gate| !unserved::CDI_FEATURE_GATES.contains(gate)).collect();
    if !idle.is_empty() {
        let idle = idle.join(", ");
        warnings.push(format!("spec.config.featureGates: {idle} changes nothing in this version: remove it"));
    }
    warnings
}

/// Whether the object may go; `left` when there are DataVolumes.
pub(crate) fn delete(cdi: &CDI, left: bool) -> Verdict {
    let phase = cdi.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let idle = matches!(phase, "" | "Error");
    if left && !idle && cdi.spec.uninstall_strategy.as_deref() == Some(BLOCK) {
        return deny(REFUSAL);
    }
    Verdict::allow()
}

/// Whether it has to be known that there are DataVolumes.
pub(crate) fn blocks(cdi: &CDI) -> bool {
    delete(cdi, true) != Verdict::allow()
}

fn durations(cdi: &CDI) -> Vec<Cause> {
    let config = cdi.spec.cert_config.as_deref().cloned().unwrap_or_default();
    let mut causes = Vec::new();
    for (part, span) in [("ca", config.ca), ("server", config.server), ("client", config.client)] {
        let CDICertSpan { duration, renew_before } = span.unwrap_or_default();
        let mut read = |field: &str, text: Option<&String>| {
            let text = text?;
            let found = kit::duration::parse(text);
            if found.is_none() {
                let field = format!("spec.certConfig.{part}.{field}");
                let message = format!("{field} is {text:?}, which is not a duration: write it like 24h or 12h30m");
                causes.push(invalid(field, message));
            }
            found
        };
        let (lives, renewed) = (read("duration", duration.as_ref()), read("renewBefore", renew_before.as_ref()));
        if let (Some(lives), Some(renewed)) = (lives, renewed)
            && renewed >= lives
        {
            let field = format!("spec.certConfig.{part}.renewBefore");
            let message = format!("{field} is not less than spec.certConfig.{part}.duration: nothing would be kept");
            causes.push(invalid(field, message));
        }
    }
    causes
}

fn affinity(affinity: &Affinity) -> Result<(), String> {
    let Some(node) = &affinity.node_affinity else { return Ok(()) };
    if let Some(required) = &node.required_during_scheduling_ignored_during_execution {
        if required.node_selector_terms.is_empty() {
            return Err("must have at least one node selector term".to_owned());
        }
        required.node_selector_terms.iter().try_for_each(term)?;
    }
    for preferred in node.preferred_during_scheduling_ignored_during_execution.iter().flatten() {
        if !(1..=100).contains(&preferred.weight) {
            return Err("weight must be in the range 1-100".to_owned());
        }
        term(&preferred.preference)?;
    }
    Ok(())
}

fn term(term: &NodeSelectorTerm) -> Result<(), String> {
    for requirement in term.match_expressions.iter().flatten() {
        let values = requirement.values.as_ref().map_or(0, Vec::len);
        match requirement.operator.as_str() {
            "In" | "NotIn" if values == 0 => {
                return Err("Values must be specified when `operator` is 'In' or 'NotIn'".to_owned());
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                return Err("Values may not be specified when `operator` is 'Exists' or 'DoesNotExist'".to_owned());
            }
            "Gt" | "Lt" if values != 1 => {
                return Err("Must be only one value when `operator` is 'Lt' or 'Gt'".to_owned());
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => return Err(format!("Operator {other} is not a valid selector operator")),
        }
    }
    for requirement in term.match_fields.iter().flatten() {
        match requirement.operator.as_str() {
            "In" | "NotIn" if requirement.values.as_ref().map_or(0, Vec::len) != 1 => {
                return Err("Must be only one value when `operator` is 'In' or 'NotIn'".to_owned());
            }
            "In" | "NotIn" => {}
            other => return Err(format!("Operator {other} is not a valid field selector operator")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn cdi(spec: Value) -> CDI {
        serde_json::from_value(json!({ "metadata": {}, "spec": spec, "status": { "phase": "Deployed" } })).unwrap()
    }

    #[test]
    fn data_volumes_block_an_uninstall_when_asked_to() {
        let blocking = cdi(json!({ "uninstallStrategy": BLOCK }));
        assert_eq!(delete(&blocking, true), deny(REFUSAL));
        assert_eq!(delete(&blocking, false), Verdict::allow());
        assert!(blocks(&blocking) && !blocks(&cdi(json!({ "uninstallStrategy": "RemoveWorkloads" }))));
    }

    #[test]
    fn ignored_fields_are_warned_of() {
        let told = |config: Value| match judge(&cdi(json!({ "config": config }))) {
            Verdict::Allow { warnings } => warnings,
            other => panic!("{other:?}"),
        };
        assert_eq!(told(json!({ "featureGates": ["HonorWaitForFirstConsumer"], "preallocation": true })), [""; 0]);
        let scratch = "spec.config.scratchSpaceStorageClass is not acted on in this version: disks are imported without \
                       scratch space";
        assert_eq!(told(json!({ "scratchSpaceStorageClass": "fast" })), [scratch]);
        let gate = "spec.config.featureGates: BootcImageImport changes nothing in this version: remove it";
        assert_eq!(told(json!({ "featureGates": ["BootcImageImport"] })), [gate]);
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        let said = |spec: Value| match judge(&cdi(spec)) {
            Verdict::Invalid(causes) => causes[0].field.clone(),
            Verdict::Deny { message, .. } => message,
            _ => String::new(),
        };
        assert_eq!(said(json!({})), "");
        assert_eq!(said(json!({ "certConfig": { "ca": { "duration": "2d" } } })), "spec.certConfig.ca.duration");
        let late = json!({ "certConfig": { "client": { "duration": "2h", "renewBefore": "2h" } } });
        assert_eq!(said(late), "spec.certConfig.client.renewBefore");
        let flags = json!({ "customizeComponents": { "flags": { "api": { "v": "5" } } } });
        assert_eq!(said(flags), "spec.customizeComponents.flags.api");
        let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [] } });
        let infra = json!({ "infra": { "affinity": { "nodeAffinity": required } } });
        assert_eq!(said(infra), "must have at least one node selector term");
        let old = json!({ "config": { "tlsSecurityProfile": { "type": "Old", "old": {} } } });
        let least = "spec.config.tlsSecurityProfile: VersionTLS10 is asked for: TLS 1.2 is the least that is offered";
        assert_eq!(judge(&cdi(old)), Verdict::Allow { warnings: vec![least.to_owned()] });
    }
}
