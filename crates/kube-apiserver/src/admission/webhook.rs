//! Mutating and validating webhooks.
//!
//! Guarantees: hooks run in order of configuration name, then position; a mutating hook that asks for it sees the object
//! again when a later one changed it; validating hooks run at once; a hook that cannot be reached refuses the request
//! unless its failure policy is Ignore; nothing of a backend's error but its text reaches the client.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::Value;

use apimachinery::error::ApiError;
use apimachinery::pointer::{items, strings, text};

use super::cel::{Conditions, Scope};
use super::{Attributes, rules};
use crate::authz::Authorizer;
use crate::hook::Client;
use crate::registry::Registry;
use crate::view::View;

mod call;

const GROUP: &str = "admissionregistration.k8s.io";

/// One compiled hook.
#[derive(Debug)]
struct Hook {
    name: String,
    document: Value,
    client: Client,
    ignore_failures: bool,
    timeout: Duration,
    equivalent: bool,
    reinvoke: bool,
    dry_run_safe: bool,
    conditions: Conditions,
}

/// What a call reads of the cluster.
struct Place<'a> {
    view: &'a dyn View,
    registry: &'a Registry,
    authorizer: &'a Authorizer,
}

#[derive(Debug, Default)]
struct Compiled {
    revision: u64,
    hooks: Vec<Arc<Hook>>,
}

/// Both kinds of webhooks, compiled when their configurations change.
pub struct Webhooks {
    view: Arc<dyn View>,
    mutating: ArcSwap<Compiled>,
    validating: ArcSwap<Compiled>,
}

impl std::fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhooks").finish_non_exhaustive()
    }
}

/// What the mutating hooks did when they first saw an object.
#[derive(Debug)]
pub struct Round {
    /// Hooks that ran, with the number of changes made until then.
    ran: Vec<(Arc<Hook>, usize)>,
    changes: usize,
}

impl Round {
    /// Whether one changed the object.
    #[must_use]
    pub fn changed(&self) -> bool {
        self.changes > 0
    }
}

impl Hook {
    fn compile(document: &Value) -> Self {
        let seconds = document.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(10).clamp(1, 30);
        Self {
            name: text(document, "/name").to_owned(),
            ignore_failures: text(document, "/failurePolicy") == "Ignore",
            timeout: Duration::from_secs(seconds),
            equivalent: text(document, "/matchPolicy") != "Exact",
            reinvoke: text(document, "/reinvocationPolicy") == "IfNeeded",
            dry_run_safe: matches!(text(document, "/sideEffects"), "None" | "NoneOnDryRun"),
            conditions: Conditions::compile(items(document, "/matchConditions")),
            client: Client::new(document.get("clientConfig").unwrap_or(&Value::Null)),
            document: document.clone(),
        }
    }

    /// The version the hook wants to see, None when the request is none of its business.
    fn concerns(&self, place: &Place<'_>, attributes: &Attributes) -> Result<Option<String>, ApiError> {
        let listed = items(&self.document, "/rules");
        let Some(version) = rules::matched_version(listed, attributes, self.equivalent, place.registry) else {
            return Ok(None);
        };
        if !rules::selectors_match(place.view, &self.document, attributes) {
            return Ok(None);
        }
        if self.conditions.is_empty() {
            return Ok(Some(version));
        }
        match self.conditions.hold(&Scope::new(attributes, place.authorizer)) {
            Ok(true) => Ok(Some(version)),
            Ok(false) => Ok(None),
            Err(_) if self.ignore_failures => Ok(None),
            Err(error) => Err(ApiError::forbidden(
                &attributes.resource.group,
                &attributes.resource.plural,
                &attributes.name,
                &error,
            )),
        }
    }
}

impl Webhooks {
    /// Hooks configured in `view`.
    #[must_use]
    pub fn new(view: Arc<dyn View>) -> Self {
        let none = || ArcSwap::from_pointee(Compiled { revision: u64::MAX, hooks: Vec::new() });
        Self { view, mutating: none(), validating: none() }
    }

    fn current(&self, cache: &ArcSwap<Compiled>, resource: &str) -> Arc<Compiled> {
        let revision = self.view.revision(GROUP, resource);
        let compiled = cache.load_full();
        if compiled.revision == revision {
            return compiled;
        }
        let mut configurations = self.view.list(GROUP, resource, "");
        configurations.sort_by(|a, b| text(a, "/metadata/name").cmp(text(b, "/metadata/name")));
        let hooks =
            configurations.iter().flat_map(|c| items(c, "/webhooks")).map(|d| Arc::new(Hook::compile(d))).collect();
        let fresh = Arc::new(Compiled { revision, hooks });
        cache.store(fresh.clone());
        fresh
    }

    /// Lets the mutating hooks change the object.
    ///
    /// # Errors
    /// A refusal, or a failure of a hook that must not fail.
    pub async fn mutate(
        &self,
        attributes: &mut Attributes,
        registry: &Registry,
        authorizer: &Authorizer,
        warnings: &mut Vec<String>,
    ) -> Result<Round, ApiError> {
        let place = Place { view: &*self.view, registry, authorizer };
        let compiled = self.current(&self.mutating, "mutatingwebhookconfigurations");
        let mut round = Round { ran: Vec::new(), changes: 0 };
        for hook in &compiled.hooks {
            if let Some(version) = hook.concerns(&place, attributes)? {
                round.changes += usize::from(self.mutate_by(hook, &version, attributes, &place, warnings).await?);
                round.ran.push((hook.clone(), round.changes));
            }
        }
        Ok(round)
    }

    /// Shows the object again to the hooks that ask for it and after which it was changed; `changed` says that it was
    /// changed by others since all ran. Says whether a hook changed it now.
    ///
    /// # Errors
    /// As above.
    pub async fn again(
        &self,
        attributes: &mut Attributes,
        registry: &Registry,
        authorizer: &Authorizer,
        warnings: &mut Vec<String>,
        round: Round,
        changed: bool,
    ) -> Result<bool, ApiError> {
        let place = Place { view: &*self.view, registry, authorizer };
        let mut now = false;
        for (hook, seen) in round.ran {
            if hook.reinvoke
                && (changed || seen < round.changes)
                && let Some(version) = hook.concerns(&place, attributes)?
            {
                now |= self.mutate_by(&hook, &version, attributes, &place, warnings).await?;
            }
        }
        Ok(now)
    }

    async fn mutate_by(
        &self,
        hook: &Hook,
        version: &str,
        attributes: &mut Attributes,
        place: &Place<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<bool, ApiError> {
        let answer = match call::review(place, hook, version, attributes).await {
            Ok(answer) => answer,
            Err(failure) => return failure.settle(hook).map(|()| false),
        };
        warnings.extend(strings(&answer, "/warnings"));
        call::verdict(&hook.name, &answer)?;
        match call::patched(place, hook, version, &answer, attributes).await {
            Ok(None) => Ok(false),
            Ok(Some(object)) => {
                let changed = attributes.object.as_ref() != Some(&object);
                attributes.object = Some(object);
                Ok(changed)
            }
            Err(failure) => failure.settle(hook).map(|()| false),
        }
    }

    /// Asks all validating hooks.
    ///
    /// # Errors
    /// A refusal, or a failure of a hook that must not fail.
    pub async fn validate(
        &self,
        attributes: &Attributes,
        registry: &Registry,
        authorizer: &Authorizer,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let place = Place { view: &*self.view, registry, authorizer };
        let place = &place;
        let compiled = self.current(&self.validating, "validatingwebhookconfigurations");
        let mut calls = Vec::new();
        for hook in &compiled.hooks {
            if let Some(version) = hook.concerns(place, attributes)? {
                calls.push(async move { (hook, call::review(place, hook, &version, attributes).await) });
            }
        }
        for (hook, outcome) in futures::future::join_all(calls).await {
            match outcome {
                Ok(answer) => {
                    warnings.extend(strings(&answer, "/warnings"));
                    call::verdict(&hook.name, &answer)?;
                }
                Err(failure) => failure.settle(hook)?,
            }
        }
        Ok(())
    }
}
