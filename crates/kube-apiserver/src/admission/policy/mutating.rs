//! MutatingAdmissionPolicies and their bindings: objects changed by CEL.
//!
//! ```text
//! policy x binding x parameter -> concerned? conditions hold? -> each mutation in turn -> the changed object
//!                                                                     (patch: an apply configuration or a JSON patch)
//! ```
//!
//! Guarantees: policies run in the order of their names, then of their bindings; one that asks for it sees the object
//! again, once, when it was changed after; a mutation that fails refuses the request unless the policy's failure policy
//! is Ignore, and changes nothing; who an object is, no policy changes; what all mutations of a policy cost
//! is bounded, and so is what they make of an object.

mod patch;

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use apimachinery::cel::{Budget, PER_OBJECT};
use apimachinery::error::{ApiError, Cause};
use apimachinery::pointer::{items, text};

use super::bound::{self, Bound};
use super::parameters;
use crate::admission::cel::{Conditions, Expression, named};
use crate::admission::{Attributes, Defaults};
use crate::authz::Authorizer;
use crate::registry::Registry;
use crate::view::View;

#[derive(Debug)]
struct Policy {
    name: String,
    document: Arc<Value>,
    conditions: Conditions,
    variables: Vec<(String, Expression)>,
    mutations: Vec<patch::Mutation>,
    ignore_failures: bool,
    reinvoke: bool,
}

impl bound::Policy for Policy {
    const RESOURCES: [&'static str; 2] = ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"];

    fn compile(document: Arc<Value>) -> Self {
        Self {
            name: text(&document, "/metadata/name").to_owned(),
            conditions: Conditions::compile(items(&document, "/spec/matchConditions")),
            variables: named(&document, "/spec/variables"),
            mutations: items(&document, "/spec/mutations").iter().map(patch::Mutation::compile).collect(),
            ignore_failures: text(&document, "/spec/failurePolicy") == "Ignore",
            reinvoke: text(&document, "/spec/reinvocationPolicy") == "IfNeeded",
            document,
        }
    }
}

/// All policies with their bindings.
pub(crate) struct Mutators(Bound<Policy>);

/// What a request is admitted with.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) authorizer: &'a Authorizer,
    pub(crate) defaults: Defaults,
}

/// A policy run through a binding with a parameter, by their names.
type Run = [String; 4];

/// What the policies did in the first round.
#[derive(Default)]
pub(crate) struct Round {
    /// Whether one changed the object.
    pub(crate) changed: bool,
    /// What asks to run again, with the number of changes made until it had run.
    ran: Vec<(Run, usize)>,
    changes: usize,
    /// The object after the round; kept where something asks to run again.
    left: Option<Value>,
}

impl Mutators {
    pub(crate) fn new(view: Arc<dyn View>) -> Self {
        Self(Bound::new(view))
    }

    /// Lets all policies that concern the request change its object.
    ///
    /// # Errors
    /// A failure of a policy that must not fail.
    pub(crate) async fn mutate(&self, place: Place<'_>, attributes: &mut Attributes) -> Result<Round, ApiError> {
        let mut round = Round::default();
        self.run(place, attributes, &mut round, None).await?;
        round.changed = round.changes > 0;
        if !round.ran.is_empty() {
            round.left.clone_from(&attributes.object);
        }
        Ok(round)
    }

    /// Lets those run again that ask for it and after which the object was changed; says whether one changed it.
    ///
    /// # Errors
    /// As above.
    pub(crate) async fn again(
        &self,
        place: Place<'_>,
        attributes: &mut Attributes,
        round: Round,
    ) -> Result<bool, ApiError> {
        let changes = round.changes + usize::from(round.left != attributes.object);
        let outdated = round.ran.into_iter().filter(|(_, seen)| *seen < changes).map(|(run, _)| run);
        let outdated: HashSet<Run> = outdated.collect();
        if outdated.is_empty() {
            return Ok(false);
        }
        let mut second = Round::default();
        self.run(place, attributes, &mut second, Some(&outdated)).await?;
        Ok(second.changes > 0)
    }

    async fn run(
        &self,
        place: Place<'_>,
        attributes: &mut Attributes,
        round: &mut Round,
        only: Option<&HashSet<Run>>,
    ) -> Result<(), ApiError> {
        let view = &*self.0.view;
        let mut failures = Vec::new();
        for (policy, binding) in &self.0.current().bound {
            let concerned = bound::concerns(view, &policy.document, binding, attributes, place.registry);
            let Some(version) = concerned else { continue };
            let binding_name = text(binding, "/metadata/name");
            let mut fail = |why: &str| {
                if policy.ignore_failures {
                    tracing::debug!(policy = %policy.name, %binding_name, %why, "ignored by the failure policy");
                } else {
                    let bound = format!("policy '{}' with binding '{binding_name}'", policy.name);
                    failures.push(format!("{bound} denied request: {why}"));
                }
            };
            let found = parameters::find(view, &policy.document, binding, attributes, place.registry);
            let parameters = match found {
                Ok(parameters) => parameters,
                Err(why) => {
                    fail(&format!("failed to configure binding: {why}"));
                    continue;
                }
            };
            for parameter in parameters {
                let parameter = parameter.as_deref();
                let part = |pointer: &str| parameter.map_or("", |found| text(found, pointer)).to_owned();
                let run =
                    [policy.name.clone(), binding_name.to_owned(), part("/metadata/namespace"), part("/metadata/name")];
                if only.is_some_and(|only| !only.contains(&run)) {
                    continue;
                }
                let (outcome, whys) = self.invoke(place, policy, &version, attributes, parameter).await?;
                whys.iter().for_each(|why| fail(why));
                if let Some(object) = outcome {
                    attributes.object = Some(object);
                    round.changes += 1;
                }
                if policy.reinvoke {
                    round.ran.push((run, round.changes));
                }
                // Parameters may be many, and a tenant's: others have their turn, and the request its time limit.
                tokio::task::yield_now().await;
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(refusal(attributes, failures)) }
    }

    /// The object as a policy leaves it, if it changes it, and what went wrong.
    async fn invoke(
        &self,
        place: Place<'_>,
        policy: &Policy,
        version: &str,
        attributes: &Attributes,
        parameter: Option<&Value>,
    ) -> Result<(Option<Value>, Vec<String>), ApiError> {
        let view = &*self.0.view;
        let converted = bound::in_version(view, attributes, place.registry, version).await?;
        let seen = converted.as_ref().unwrap_or(attributes);
        let (object, whys) = mutated(view, place, policy, seen, parameter);
        let Some(object) = object else { return Ok((None, whys)) };
        let object = match &converted {
            Some(seen) => bound::from_version(view, place.registry, attributes, seen, object).await?,
            None => object,
        };
        Ok((Some(object), whys))
    }
}

/// Runs the mutations of a policy whose conditions hold.
fn mutated(
    view: &dyn View,
    place: Place<'_>,
    policy: &Policy,
    seen: &Attributes,
    parameter: Option<&Value>,
) -> (Option<Value>, Vec<String>) {
    let Some(before) = &seen.object else { return (None, Vec::new()) };
    let mut scope = bound::scope(view, seen, place.authorizer, parameter, &policy.variables);
    match policy.conditions.hold(&scope) {
        Ok(true) => {}
        Ok(false) => return (None, Vec::new()),
        Err(why) => return (None, vec![why]),
    }
    scope.allow_changes();
    let mut budget = Budget::new(PER_OBJECT);
    let mut object: Option<Value> = None;
    let mut whys = Vec::new();
    for mutation in &policy.mutations {
        let current = object.as_ref().unwrap_or(before);
        match mutation.apply(&scope, &mut budget, seen, place, current) {
            Ok(new) if new == *current => {}
            Ok(new) => {
                scope.set_object(&new);
                object = Some(new);
            }
            Err(why) => whys.push(why),
        }
        if budget.left() == 0 {
            break;
        }
    }
    (object, whys)
}

fn refusal(attributes: &Attributes, failures: Vec<String>) -> ApiError {
    let resource = &attributes.resource;
    let mut error = ApiError::forbidden(&resource.group, &resource.plural, &attributes.name, "");
    error.reason = "Invalid";
    error.message = failures.first().cloned().unwrap_or_default();
    let cause = |message| Cause { reason: String::new(), message, field: String::new() };
    error.causes = failures.into_iter().map(cause).collect();
    error
}
