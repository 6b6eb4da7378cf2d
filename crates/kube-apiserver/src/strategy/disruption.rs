//! PodDisruptionBudgets: one bound, a number or a share.

use serde_json::Value;

use super::field::{Causes, Field, Rule};
use super::workload::share;

/// Checks a budget.
pub(super) fn validate(budget: &Value, causes: &mut Causes) {
    let spec = Field::new("spec", &budget["spec"]);
    if spec.get("minAvailable").is_set() && spec.get("maxUnavailable").is_set() {
        spec.invalid("minAvailable and maxUnavailable cannot be both set", causes);
    }
    for bound in ["minAvailable", "maxUnavailable"] {
        share(&spec.get(bound), true, causes);
    }
    spec.get("unhealthyPodEvictionPolicy").check(&Rule::OneOf(&["AlwaysAllow", "IfHealthyBudget"]), causes);
}
