//! Setting and removing conditions, alike for every kind that has them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::v1::{
    KubeVirtCondition, VirtualMachineCondition, VirtualMachineInstanceCondition,
    VirtualMachineInstanceMigrationCondition,
};

/// What the conditions of all kinds have in common.
pub trait Condition: Default {
    /// A condition of that type about which nothing has been said.
    fn of_type(kind: &str) -> Self;
    /// Its type.
    fn kind(&self) -> &str;
    /// `True`, `False` or `Unknown`.
    fn status(&self) -> &str;
    /// Replaces what it says; `now` only when the status has become another one.
    fn say(&mut self, status: &str, reason: Option<&str>, message: Option<&str>, changed: Option<Time>);
}

macro_rules! conditions {
    ($($type:ty),*) => {$(
        impl Condition for $type {
            fn of_type(kind: &str) -> Self {
                Self { type_: kind.to_owned(), ..Self::default() }
            }
            fn kind(&self) -> &str {
                &self.type_
            }
            fn status(&self) -> &str {
                &self.status
            }
            fn say(&mut self, status: &str, reason: Option<&str>, message: Option<&str>, changed: Option<Time>) {
                status.clone_into(&mut self.status);
                self.reason = reason.map(str::to_owned);
                self.message = message.map(str::to_owned);
                self.last_transition_time = changed.or_else(|| self.last_transition_time.take());
            }
        }
    )*};
}

conditions!(
    KubeVirtCondition,
    VirtualMachineCondition,
    VirtualMachineInstanceCondition,
    VirtualMachineInstanceMigrationCondition,
    crate::snapshot::v1beta1::Condition
);

/// Sets the condition of type `kind`, adding it where there is none. The transition time moves only when the status does
/// (API conventions, "typical status properties").
pub fn set<C: Condition>(
    list: &mut Vec<C>,
    kind: &str,
    status: &str,
    reason: Option<&str>,
    message: Option<&str>,
    now: &Time,
) {
    let at = list.iter().position(|condition| condition.kind() == kind).unwrap_or_else(|| {
        list.push(C::of_type(kind));
        list.len() - 1
    });
    let changed = (list[at].status() != status).then(|| now.clone());
    list[at].say(status, reason, message, changed);
}

/// Removes the condition of type `kind`, if there is one.
pub fn remove<C: Condition>(list: &mut Vec<C>, kind: &str) {
    list.retain(|condition| condition.kind() != kind);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_moves_with_the_status() {
        let at = |text: &str| Time(text.parse().unwrap());
        let (first, second) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:00:01Z"));
        let mut list = Vec::<VirtualMachineCondition>::new();
        set(&mut list, "Ready", "False", Some("NotYet"), Some("soon"), &first);
        set(&mut list, "Ready", "False", None, None, &second);
        assert_eq!((list.len(), &list[0].reason, &list[0].last_transition_time), (1, &None, &Some(first)));
        set(&mut list, "Ready", "True", None, None, &second);
        assert_eq!((list[0].status.as_str(), &list[0].last_transition_time), ("True", &Some(second)));
        remove(&mut list, "Ready");
        assert!(list.is_empty());
    }
}
