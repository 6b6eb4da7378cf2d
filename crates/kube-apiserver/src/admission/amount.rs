//! Amounts of a resource: exact, added, compared, and written the way the first of them was written.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use meta::quantity::nanos;
use serde_json::Value;

use apimachinery::pointer::{items, text};

const ONE: i128 = 1_000_000_000;

/// An amount in billionths, and whether it is written with binary suffixes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Amount {
    nanos: i128,
    binary: bool,
}

/// Amounts by the name of their resource.
pub(crate) type Amounts = BTreeMap<String, Amount>;

impl Amount {
    /// So many of something.
    pub(crate) fn whole(count: usize) -> Self {
        Self { nanos: i128::try_from(count).unwrap_or(i128::MAX / ONE) * ONE, binary: false }
    }

    /// Reads a quantity; one that cannot be read counts as nothing, since validation has refused it already.
    pub(crate) fn of(value: &Value) -> Self {
        let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        Self { nanos: nanos(&text).unwrap_or(0), binary: text.ends_with('i') }
    }

    pub(crate) fn is_positive(self) -> bool {
        self.nanos > 0
    }

    /// What is left without `other`.
    pub(crate) fn less(self, other: Self) -> Self {
        Self { nanos: self.nanos - other.nanos, ..self }
    }

    /// How often `other` fits, as a fraction.
    #[expect(clippy::cast_precision_loss, reason = "a ratio is shown with six digits")]
    pub(crate) fn ratio(self, other: Self) -> f64 {
        self.nanos as f64 / other.nanos as f64
    }

    /// Whether it is more than `bound` times `other`.
    pub(crate) fn exceeds(self, other: Self, bound: Self) -> bool {
        self.nanos.saturating_mul(ONE) > other.nanos.saturating_mul(bound.nanos)
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Amount {}

impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Amount {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        // Nothing has no way of being written.
        self.binary = if self.nanos == 0 { other.binary } else { self.binary };
        self.nanos += other.nanos;
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SMALL: [(&str, i128); 3] = [("m", 1_000_000), ("u", 1_000), ("n", 1)];
        const DECIMAL: [(&str, u32); 6] = [("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3)];
        const BINARY: [(&str, u32); 6] = [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
        if self.nanos % ONE != 0 {
            let fits = SMALL.iter().find(|(_, unit)| self.nanos % unit == 0);
            let (suffix, unit) = fits.copied().unwrap_or(("n", 1));
            return write!(f, "{}{suffix}", self.nanos / unit);
        }
        let whole = self.nanos / ONE;
        let unit = |(suffix, power): &(&'static str, u32)| {
            let unit = if self.binary { 1_i128 << power } else { 10_i128.pow(*power) };
            (*suffix, unit)
        };
        let table = if self.binary { &BINARY } else { &DECIMAL };
        match table.iter().map(unit).find(|(_, unit)| whole != 0 && whole % unit == 0) {
            Some((suffix, unit)) => write!(f, "{}{suffix}", whole / unit),
            None => write!(f, "{whole}"),
        }
    }
}

/// `requests` or `limits` of a container.
pub(crate) fn of_container(container: &Value, field: &str) -> Amounts {
    amounts(container.pointer(&format!("/resources/{field}")))
}

/// A map of quantities.
pub(crate) fn amounts(map: Option<&Value>) -> Amounts {
    map.and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.clone(), Amount::of(value)))
        .collect()
}

pub(crate) fn add(to: &mut Amounts, more: Amounts) {
    for (name, amount) in more {
        *to.entry(name).or_default() += amount;
    }
}

fn at_least(to: &mut Amounts, other: Amounts) {
    for (name, amount) in other {
        let entry = to.entry(name).or_insert(amount);
        *entry = (*entry).max(amount);
    }
}

/// `requests` or `limits` of a whole pod, as it is wanted: its containers and sidecars together, or what its start needs
/// if that is more; what the pod states for itself comes first.
pub(crate) fn of_pod(pod: &Value, field: &str) -> Amounts {
    total(pod, field, of_container)
}

/// The same of a pod that may be on the way from one size to another: a container takes the most of what it is to have,
/// what its node has set aside for it, and what it has. What its node can never give it does not count.
pub(crate) fn held_by_pod(pod: &Value, field: &str) -> Amounts {
    let conditions = items(pod, "/status/conditions");
    let infeasible =
        conditions.iter().any(|c| text(c, "/type") == "PodResizePending" && text(c, "/reason") == "Infeasible");
    let statuses = || items(pod, "/status/containerStatuses").iter().chain(items(pod, "/status/initContainerStatuses"));
    total(pod, field, |container, field| {
        let status = statuses().find(|status| status.get("name") == container.get("name"));
        let Some(status) = status.filter(|status| status.get("resources").is_some()) else {
            return of_container(container, field);
        };
        let mut held = if infeasible { Amounts::new() } else { of_container(container, field) };
        at_least(&mut held, of_container(status, field));
        if field == "requests" {
            at_least(&mut held, amounts(status.get("allocatedResources")));
        }
        held
    })
}

fn total(pod: &Value, field: &str, of: impl Fn(&Value, &str) -> Amounts) -> Amounts {
    let mut total = Amounts::new();
    for container in items(pod, "/spec/containers") {
        add(&mut total, of(container, field));
    }
    let (mut sidecars, mut start) = (Amounts::new(), Amounts::new());
    for container in items(pod, "/spec/initContainers") {
        let sidecar = container.get("restartPolicy").and_then(Value::as_str) == Some("Always");
        // One that ends before the others start does not change its size.
        let mut needs = if sidecar { of(container, field) } else { of_container(container, field) };
        if sidecar {
            add(&mut total, needs.clone());
            add(&mut sidecars, needs);
            at_least(&mut start, sidecars.clone());
        } else {
            add(&mut needs, sidecars.clone());
            at_least(&mut start, needs);
        }
    }
    at_least(&mut total, start);
    total.extend(amounts(pod.pointer(&format!("/spec/resources/{field}"))));
    for (name, overhead) in amounts(pod.pointer("/spec/overhead")) {
        // An overhead is a request, and part of a limit that is there.
        if field == "requests" || total.contains_key(&name) {
            *total.entry(name).or_default() += overhead;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sums_are_written_like_what_was_summed() {
        let check = |parts: &[&str], expect: &str| {
            let mut sum = Amount::default();
            parts.iter().for_each(|part| sum += Amount::of(&json!(part)));
            assert_eq!(sum.to_string(), expect);
        };
        check(&[], "0");
        check(&["0", "100Mi", "1Gi"], "1124Mi");
        check(&["1Gi", "1Gi"], "2Gi");
        check(&["600m", "400m"], "1");
        check(&["1500m"], "1500m");
        check(&["0.5"], "500m");
        check(&["2000"], "2k");
        check(&["1000M", "1000M"], "2G");
        check(&["1536Mi", "1"], "1610612737");
    }

    #[test]
    fn a_pod_needs_its_containers_or_its_start() {
        let container =
            |cpu: &str, policy: Option<&str>| json!({"resources": {"requests": {"cpu": cpu}}, "restartPolicy": policy});
        let check = |init: Vec<Value>, containers: Vec<Value>, expect: &str| {
            let pod = json!({"spec": {"initContainers": init, "containers": containers, "overhead": {"cpu": "1m"}}});
            assert_eq!(of_pod(&pod, "requests")["cpu"].to_string(), expect);
        };
        check(vec![], vec![container("1", None), container("500m", None)], "1501m");
        check(vec![container("2", None)], vec![container("1", None)], "2001m");
        check(vec![container("1", Some("Always"))], vec![container("1", None)], "2001m");
        check(vec![container("1", Some("Always")), container("3", None)], vec![container("1", None)], "4001m");
    }

    #[test]
    fn a_pod_between_two_sizes_takes_the_larger() {
        let check = |status: Value, reason: Option<&str>, expect: [&str; 2]| {
            let container = json!({"name": "c", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}});
            let pending = json!({"type": "PodResizePending", "status": "True", "reason": reason});
            let pod = json!({"spec": {"containers": [container]},
                "status": {"containerStatuses": [status], "conditions": reason.map(|_| [pending])}});
            let held = ["requests", "limits"].map(|field| held_by_pod(&pod, field)["cpu"].to_string());
            assert_eq!(held, expect);
            assert_eq!(of_pod(&pod, "requests")["cpu"].to_string(), "2");
        };
        let has = |requests: &str, limits: &str, allocated: &str| {
            json!({"name": "c", "resources": {"requests": {"cpu": requests}, "limits": {"cpu": limits}},
                "allocatedResources": {"cpu": allocated}})
        };
        check(json!({"name": "c"}), None, ["2", "4"]);
        check(has("1", "1", "1"), None, ["2", "4"]);
        check(has("1", "1", "1"), Some("Deferred"), ["2", "4"]);
        check(has("1", "1", "1"), Some("Infeasible"), ["1", "1"]);
        check(has("3", "6", "1"), None, ["3", "6"]);
        check(has("1", "1", "3"), Some("Infeasible"), ["3", "1"]);
    }
}
