//! Setting and removing conditions, alike for every kind that has them.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DeploymentCondition, ReplicaSetCondition};
use k8s_openapi::api::core::v1::{NamespaceCondition, NodeCondition, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as MetaCondition, Time};

use crate::text::{STATUS, brief};

/// What the conditions of all kinds have in common. [`condition!`](crate::condition) implements it.
pub trait Condition: Clone {
    /// A condition of that type about which nothing has been said.
    fn of_type(type_: &str) -> Self;
    /// Its type.
    fn type_(&self) -> &str;
    /// `True`, `False` or `Unknown`.
    fn status(&self) -> &str;
    /// Why, in one word.
    fn reason(&self) -> Option<&str>;
    /// Why, in a sentence.
    fn message(&self) -> Option<&str>;
    /// Replaces what it says.
    fn say(&mut self, status: &str, reason: Option<&str>, message: Option<&str>);
    /// Its status has become another one just now.
    fn turned(&mut self, now: Time);
    /// It was said anew; of interest where a kind keeps that time as well.
    fn told(&mut self, _now: Time) {}
}

/// Implements [`Condition`](crate::conditions::Condition) for a type of the usual fields, with the field that keeps when it was
/// last told, where it has one: `condition!(CDICondition, last_heartbeat_time)`.
#[macro_export]
macro_rules! condition {
    ($type:ty $(, $told:ident)?) => {
        impl $crate::conditions::Condition for $type {
            fn of_type(type_: &str) -> Self {
                Self { type_: type_.to_owned(), ..Self::default() }
            }
            fn type_(&self) -> &str {
                &self.type_
            }
            fn status(&self) -> &str {
                &self.status
            }
            fn reason(&self) -> Option<&str> {
                self.reason.as_deref()
            }
            fn message(&self) -> Option<&str> {
                self.message.as_deref()
            }
            fn say(&mut self, status: &str, reason: Option<&str>, message: Option<&str>) {
                status.clone_into(&mut self.status);
                self.reason = reason.map(str::to_owned);
                self.message = message.map(str::to_owned);
            }
            fn turned(&mut self, now: $crate::conditions::At) {
                self.last_transition_time = Some(now);
            }
            $(fn told(&mut self, now: $crate::conditions::At) {
                self.$told = Some(now);
            })?
        }
    };
}

/// The time of a condition, for [`condition!`](crate::condition).
pub type At = Time;

condition!(DeploymentCondition, last_update_time);
condition!(NamespaceCondition);
condition!(NodeCondition, last_heartbeat_time);
condition!(PodCondition);
condition!(ReplicaSetCondition);

impl Condition for MetaCondition {
    fn of_type(type_: &str) -> Self {
        let never = Time(Timestamp::UNIX_EPOCH);
        Self {
            type_: type_.to_owned(),
            status: String::new(),
            reason: String::new(),
            message: String::new(),
            last_transition_time: never,
            observed_generation: None,
        }
    }
    fn type_(&self) -> &str {
        &self.type_
    }
    fn status(&self) -> &str {
        &self.status
    }
    fn reason(&self) -> Option<&str> {
        Some(self.reason.as_str()).filter(|reason| !reason.is_empty())
    }
    fn message(&self) -> Option<&str> {
        Some(self.message.as_str()).filter(|message| !message.is_empty())
    }
    fn say(&mut self, status: &str, reason: Option<&str>, message: Option<&str>) {
        status.clone_into(&mut self.status);
        reason.unwrap_or_default().clone_into(&mut self.reason);
        message.unwrap_or_default().clone_into(&mut self.message);
    }
    fn turned(&mut self, now: Time) {
        self.last_transition_time = now;
    }
}

/// Sets the condition of type `type_`, adding it where there is none. The transition time moves only when the status does
/// (API conventions, "typical status properties"), and nothing at all when the same is said again. An empty reason or message
/// is none. What is said often quotes guests, servers and images, so it is made fit for a terminal and cut.
pub fn set<C: Condition>(
    list: &mut Vec<C>,
    type_: &str,
    status: &str,
    reason: Option<&str>,
    message: Option<&str>,
    now: &Time,
) {
    let at = list.iter().position(|condition| condition.type_() == type_).unwrap_or_else(|| {
        list.push(C::of_type(type_));
        list.len() - 1
    });
    update(&mut list[at], status, reason, message, now);
}

/// The condition of type `type_` as [`set`] would leave it in `before`, for lists that have an order of their own.
pub fn said<C: Condition>(
    before: &[C],
    type_: &str,
    status: &str,
    reason: Option<&str>,
    message: Option<&str>,
    now: &Time,
) -> C {
    let mut condition = get(before, type_).cloned().unwrap_or_else(|| C::of_type(type_));
    update(&mut condition, status, reason, message, now);
    condition
}

fn update<C: Condition>(condition: &mut C, status: &str, reason: Option<&str>, message: Option<&str>, now: &Time) {
    let fit = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(|text| brief(text, STATUS).into_owned());
    let (reason, message) = (fit(reason), fit(message));
    let (reason, message) = (reason.as_deref(), message.as_deref());
    if (condition.status(), condition.reason(), condition.message()) == (status, reason, message) {
        return;
    }
    // The API's times have whole seconds.
    let now = Time(Timestamp::from_second(now.0.as_second()).unwrap_or(now.0));
    if condition.status() != status {
        condition.turned(now.clone());
    }
    condition.told(now);
    condition.say(status, reason, message);
}

/// Removes the condition of type `type_`, if there is one.
pub fn remove<C: Condition>(list: &mut Vec<C>, type_: &str) {
    list.retain(|condition| condition.type_() != type_);
}

/// The condition of type `type_`.
pub fn get<'a, C: Condition>(list: &'a [C], type_: &str) -> Option<&'a C> {
    list.iter().find(|condition| condition.type_() == type_)
}

/// Whether the condition of type `type_` is said to be true.
pub fn is_true<C: Condition>(list: &[C], type_: &str) -> bool {
    get(list, type_).is_some_and(|condition| condition.status() == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Time {
        Time(text.parse().unwrap())
    }

    #[test]
    fn time_moves_with_the_status() {
        let (first, second) = (at("2026-01-01T00:00:00.7Z"), at("2026-01-01T00:00:01Z"));
        let mut list = Vec::<DeploymentCondition>::new();
        set(&mut list, "Ready", "False", Some("NotYet"), Some("soon"), &first);
        let whole = Some(at("2026-01-01T00:00:00Z"));
        assert_eq!((&list[0].last_transition_time, &list[0].last_update_time), (&whole, &whole));
        let before = list.clone();
        set(&mut list, "Ready", "False", Some("NotYet"), Some("soon"), &second);
        assert_eq!(list, before, "the same is no news");
        set(&mut list, "Ready", "False", Some(""), None, &second);
        assert_eq!((list.len(), &list[0].reason, &list[0].last_transition_time), (1, &None, &whole));
        assert_eq!(list[0].last_update_time.as_ref(), Some(&second));
        set(&mut list, "Ready", "True", None, None, &second);
        assert_eq!((list[0].status.as_str(), &list[0].last_transition_time), ("True", &Some(second)));
        assert!(is_true(&list, "Ready") && !is_true(&list, "Available"));
        remove(&mut list, "Ready");
        assert!(list.is_empty());
    }

    #[test]
    fn messages_are_escaped_and_bounded() {
        let now = at("2026-01-01T00:00:00Z");
        let mut all = Vec::<MetaCondition>::new();
        let evil = "404 \x1b[2J\u{202e}not found";
        set(&mut all, "Running", "False", Some(evil), Some(evil), &now);
        let shown = "404 \\u001b[2J\\u202enot found";
        assert_eq!((all[0].reason.as_str(), all[0].message.as_str()), (shown, shown));
        set(&mut all, "Running", "False", Some("Error"), Some(&"x".repeat(1 << 20)), &now);
        assert_eq!(all[0].message.len(), STATUS);
    }
}
