//! Admission: what happens to a write between authorization and the store.
//!
//! ```text
//!   decode, defaults -> mutate (built-in plugins, policies, webhooks; each again when a later one changed the object)
//!                    -> schema validation (by the caller) -> validate (built-ins, policies, webhooks) -> store
//! ```
//!
//! Built-in plugins are pure functions of the request and the [`View`]; webhooks and policies are driven by objects.

use std::sync::Arc;

use serde_json::Value;

use apimachinery::error::ApiError;
use apimachinery::request::{RequestInfo, User};

use crate::authz::Authorizer;
use crate::registry::{Registry, Resource};
use crate::view::View;
use policy::mutating::{Mutators, Place};

pub(crate) mod amount;
pub mod cel;
pub(crate) mod certificates;
pub(crate) mod configuration;
mod devices;
mod expressions;
pub mod limits;
mod node_audience;
pub mod node_restriction;
pub mod plugins;
pub mod pod_security;
pub mod policy;
pub mod quota;
pub mod rules;
mod runtime_class;
pub mod service_account;
mod storage;
pub mod webhook;

/// What is done to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// POST.
    Create,
    /// PUT and PATCH.
    Update,
    /// DELETE.
    Delete,
    /// exec, attach, port-forward, proxy.
    Connect,
}

impl Operation {
    /// The word in rules and reviews.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// A write on its way.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// What was asked for.
    pub info: RequestInfo,
    /// By whom.
    pub user: User,
    /// Of which resource.
    pub resource: Arc<Resource>,
    /// What is done.
    pub operation: Operation,
    /// Namespace of the object, empty when cluster-wide.
    pub namespace: String,
    /// Its name; may be empty on create with generateName.
    pub name: String,
    /// The new object in the request's version; None on delete.
    pub object: Option<Value>,
    /// The stored object in the request's version; None on create.
    pub old: Option<Arc<Value>>,
    /// Create-, Update-, Patch- or DeleteOptions.
    pub options: Value,
    /// Nothing will be stored.
    pub dry_run: bool,
}

/// A write that its plugins, policies and webhooks have changed as they like.
#[derive(Debug)]
pub struct Mutated {
    /// What the client is warned of.
    pub warnings: Vec<String>,
    /// Whether a policy or webhook changed the object.
    pub changed: bool,
}

/// A write that may be stored.
#[derive(Debug)]
pub struct Admitted {
    /// What the client is warned of.
    pub warnings: Vec<String>,
    /// Held until the write is stored, when it uses a quota.
    pub turn: Option<quota::Turn>,
}

/// Sets what a kind's objects hold where nothing is said.
pub type Defaults = fn(&Resource, &mut Value);

/// The chain; cheap to clone.
#[derive(Clone)]
pub struct Admission {
    view: Arc<dyn View>,
    authorizer: Authorizer,
    webhooks: Arc<webhook::Webhooks>,
    policies: Arc<policy::Policies>,
    mutators: Arc<Mutators>,
    accounts_required: bool,
    turns: quota::Turns,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").finish_non_exhaustive()
    }
}

/// How long a pod waits for the account of a namespace that was just made.
const ACCOUNT_TRIES: usize = 20;
const ACCOUNT_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// Webhook configurations and policies are not subject to webhooks and policies: a broken one could never be repaired.
fn exempt(attributes: &Attributes) -> bool {
    attributes.resource.group == "admissionregistration.k8s.io"
        || matches!(attributes.resource.group.as_str(), "authentication.k8s.io" | "authorization.k8s.io")
}

/// Policies judge webhook configurations too, but not policies.
fn exempt_from_policies(attributes: &Attributes) -> bool {
    exempt(attributes) && !attributes.resource.plural.ends_with("webhookconfigurations")
}

impl Admission {
    /// A chain reading the cluster through `view`; `accounts_required` is false where no controller makes accounts.
    #[must_use]
    pub fn new(view: Arc<dyn View>, authorizer: Authorizer, accounts_required: bool) -> Self {
        Self {
            accounts_required,
            turns: quota::Turns::default(),
            webhooks: Arc::new(webhook::Webhooks::new(view.clone())),
            policies: Arc::new(policy::Policies::new(view.clone())),
            mutators: Arc::new(Mutators::new(view.clone())),
            view,
            authorizer,
        }
    }

    /// Checks and changes the object before validation.
    ///
    /// # Errors
    /// A refusal of a plugin, policy or webhook.
    pub async fn mutate(
        &self,
        attributes: &mut Attributes,
        registry: &Registry,
        defaults: Defaults,
    ) -> Result<Mutated, ApiError> {
        let mut warnings = Vec::new();
        plugins::lifecycle(&*self.view, attributes)?;
        for _ in 0..ACCOUNT_TRIES {
            if !self.accounts_required || !service_account::missing(&*self.view, attributes) {
                break;
            }
            tokio::time::sleep(ACCOUNT_PAUSE).await;
        }
        self.built_in(attributes)?;
        let place = Place { registry, authorizer: &self.authorizer, defaults };
        let (mut policies, mut hooks) = (None, None);
        if !exempt_from_policies(attributes) {
            policies = Some(self.mutators.mutate(place, attributes).await?);
        }
        if !exempt(attributes) {
            hooks = Some(self.webhooks.mutate(attributes, registry, &self.authorizer, &mut warnings).await?);
        }
        let by_policy = policies.as_ref().is_some_and(|round| round.changed);
        let changed = by_policy || hooks.as_ref().is_some_and(webhook::Round::changed);
        if !changed {
            return Ok(Mutated { warnings, changed });
        }
        // Containers may have been added, which need what the others have.
        self.built_in(attributes)?;
        let mut again = false;
        if let Some(round) = policies {
            again = self.mutators.again(place, attributes, round).await?;
        }
        if let Some(round) = hooks {
            again |= self.webhooks.again(attributes, registry, &self.authorizer, &mut warnings, round, again).await?;
        }
        if again {
            self.built_in(attributes)?;
        }
        Ok(Mutated { warnings, changed })
    }

    fn built_in(&self, attributes: &mut Attributes) -> Result<(), ApiError> {
        plugins::mutate(&*self.view, attributes)?;
        runtime_class::mutate(&*self.view, attributes)?;
        service_account::mutate(&*self.view, attributes, self.accounts_required)?;
        limits::defaults(&*self.view, attributes);
        storage::mutate(&*self.view, attributes);
        certificates::note_requestor(attributes);
        Ok(())
    }

    /// Checks the final object.
    ///
    /// # Errors
    /// A refusal of a plugin, policy or webhook.
    pub async fn validate(&self, attributes: &Attributes, registry: &Registry) -> Result<Admitted, ApiError> {
        let mut warnings = Vec::new();
        if attributes.operation == Operation::Delete {
            // A deletion has nothing to mutate, so the chain begins here.
            plugins::lifecycle(&*self.view, attributes)?;
        }
        if let (Some(object), Operation::Create | Operation::Update) = (&attributes.object, attributes.operation) {
            let old = attributes.old.as_deref();
            crate::authz::escalation::check(&self.authorizer, &attributes.user, &attributes.info, object, old)?;
            policy::readable::check(&*self.view, &self.authorizer, attributes, registry)?;
        }
        plugins::priority_classes(&*self.view, attributes)?;
        node_restriction::check(&*self.view, &self.authorizer, attributes)?;
        service_account::validate(&*self.view, attributes)?;
        certificates::check(&self.authorizer, attributes)?;
        pod_security::check(&*self.view, attributes, &mut warnings)?;
        storage::check(&*self.view, attributes)?;
        devices::check(&*self.view, attributes)?;
        limits::check(&*self.view, attributes)?;
        if !exempt_from_policies(attributes) {
            self.policies.check(attributes, registry, &self.authorizer, &mut warnings).await?;
        }
        if !exempt(attributes) {
            self.webhooks.validate(attributes, registry, &self.authorizer, &mut warnings).await?;
        }
        // Last, because from here on the others of the namespace wait.
        let turn = quota::check(&*self.view, &self.turns, attributes).await?;
        Ok(Admitted { warnings, turn })
    }
}
