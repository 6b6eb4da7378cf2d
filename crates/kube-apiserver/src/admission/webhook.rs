//! Mutating and validating webhooks.
//!
//! Guarantees: hooks run in order of configuration name, then position; a mutating hook that asks for it sees the object
//! again when a later one changed it; validating hooks run at once; a hook that cannot be reached refuses the request
//! unless its failure policy is Ignore; nothing of a backend's error but its text reaches the client.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::Value;

use super::cel::{Environment, Expression};
use super::{Attributes, rules};
use crate::aggregation::dial::{self, Backend};
use crate::authz::view::{View, items, strings, text};
use crate::error::ApiError;
use crate::registry::Registry;

mod call;

const GROUP: &str = "admissionregistration.k8s.io";

/// Where a hook listens.
#[derive(Debug)]
enum Target {
    Service { namespace: String, name: String, port: u16, path: String },
    Url(url::Url),
    Broken(String),
}

/// One compiled hook.
#[derive(Debug)]
struct Hook {
    name: String,
    document: Value,
    target: Target,
    backend: Option<Backend>,
    ignore_failures: bool,
    timeout: Duration,
    equivalent: bool,
    reinvoke: bool,
    dry_run_safe: bool,
    conditions: Vec<(String, Expression)>,
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

impl Hook {
    fn compile(document: &Value) -> Self {
        let client = document.get("clientConfig").unwrap_or(&Value::Null);
        let (target, server_name) = target(client);
        let (target, backend) = match (backend(client, &server_name), target) {
            (Ok(backend), target) => (target, Some(backend)),
            (Err(error), _) => (Target::Broken(error), None),
        };
        let seconds = document.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(10).clamp(1, 30);
        Self {
            name: text(document, "/name").to_owned(),
            ignore_failures: text(document, "/failurePolicy") == "Ignore",
            timeout: Duration::from_secs(seconds),
            equivalent: text(document, "/matchPolicy") != "Exact",
            reinvoke: text(document, "/reinvocationPolicy") == "IfNeeded",
            dry_run_safe: matches!(text(document, "/sideEffects"), "None" | "NoneOnDryRun"),
            conditions: items(document, "/matchConditions")
                .iter()
                .map(|c| (text(c, "/name").to_owned(), Expression::new(text(c, "/expression"))))
                .collect(),
            document: document.clone(),
            target,
            backend,
        }
    }

    /// The version the hook wants to see, None when the request is none of its business.
    fn concerns(
        &self,
        view: &dyn View,
        attributes: &Attributes,
        registry: &Registry,
    ) -> Result<Option<String>, ApiError> {
        let listed = items(&self.document, "/rules");
        let Some(version) = rules::matched_version(listed, attributes, self.equivalent, registry) else {
            return Ok(None);
        };
        if !rules::selectors_match(view, &self.document, attributes) {
            return Ok(None);
        }
        if self.conditions.is_empty() {
            return Ok(Some(version));
        }
        let environment = Environment::new(attributes);
        let mut failure = None;
        for (_, condition) in &self.conditions {
            match condition.is_true(&environment) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            None => Ok(Some(version)),
            Some(_) if self.ignore_failures => Ok(None),
            Some(error) => Err(ApiError::forbidden(
                &attributes.resource.group,
                &attributes.resource.plural,
                &attributes.name,
                &error,
            )),
        }
    }
}

fn target(client: &Value) -> (Target, String) {
    if let Some(service) = client.get("service").filter(|s| s.is_object()) {
        let (namespace, name) = (text(service, "/namespace").to_owned(), text(service, "/name").to_owned());
        let port = service.get("port").and_then(Value::as_u64).and_then(|p| u16::try_from(p).ok()).unwrap_or(443);
        let path = text(service, "/path");
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let server_name = format!("{name}.{namespace}.svc");
        return (Target::Service { namespace, name, port, path }, server_name);
    }
    match url::Url::parse(text(client, "/url")) {
        Ok(url) if url.scheme() == "https" => {
            let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            (Target::Url(url), host)
        }
        _ => (Target::Broken("webhook clientConfig has neither a service nor an https url".into()), "invalid".into()),
    }
}

fn backend(client: &Value, server_name: &str) -> Result<Backend, String> {
    use base64::Engine;
    let bundle = text(client, "/caBundle");
    if bundle.is_empty() {
        return Err(
            "tls: failed to verify certificate: x509: certificate signed by unknown authority (no caBundle)".into()
        );
    }
    let pem =
        base64::engine::general_purpose::STANDARD.decode(bundle).map_err(|_| "caBundle is not base64".to_owned())?;
    let config = dial::tls_config(Some(&pem), None).map_err(|e| format!("unable to load root certificates: {e}"))?;
    Ok(Backend::new(server_name, config))
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

    /// Lets the mutating hooks change the object; says whether one did.
    ///
    /// # Errors
    /// A refusal, or a failure of a hook that must not fail.
    pub async fn mutate(
        &self,
        attributes: &mut Attributes,
        registry: &Registry,
        warnings: &mut Vec<String>,
    ) -> Result<bool, ApiError> {
        let compiled = self.current(&self.mutating, "mutatingwebhookconfigurations");
        let mut changed = false;
        // Hooks that ran, with the number of changes made until then.
        let mut ran: Vec<(Arc<Hook>, usize)> = Vec::new();
        let mut changes = 0;
        for hook in &compiled.hooks {
            if let Some(version) = hook.concerns(&*self.view, attributes, registry)? {
                if self.mutate_by(hook, &version, attributes, warnings).await? {
                    changes += 1;
                    changed = true;
                }
                ran.push((hook.clone(), changes));
            }
        }
        for (hook, seen) in ran {
            if hook.reinvoke
                && seen < changes
                && let Some(version) = hook.concerns(&*self.view, attributes, registry)?
            {
                changed |= self.mutate_by(&hook, &version, attributes, warnings).await?;
            }
        }
        Ok(changed)
    }

    async fn mutate_by(
        &self,
        hook: &Hook,
        version: &str,
        attributes: &mut Attributes,
        warnings: &mut Vec<String>,
    ) -> Result<bool, ApiError> {
        let answer = match call::review(&*self.view, hook, version, attributes).await {
            Ok(answer) => answer,
            Err(failure) => return failure.settle(hook, warnings).map(|()| false),
        };
        warnings.extend(strings(&answer, "/warnings"));
        call::verdict(&hook.name, &answer)?;
        match call::patched(hook, version, &answer, attributes) {
            Ok(None) => Ok(false),
            Ok(Some(object)) => {
                let changed = attributes.object.as_ref() != Some(&object);
                attributes.object = Some(object);
                Ok(changed)
            }
            Err(failure) => failure.settle(hook, warnings).map(|()| false),
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
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let compiled = self.current(&self.validating, "validatingwebhookconfigurations");
        let mut calls = Vec::new();
        for hook in &compiled.hooks {
            if let Some(version) = hook.concerns(&*self.view, attributes, registry)? {
                let view = self.view.clone();
                calls.push(async move { (hook, call::review(&*view, hook, &version, attributes).await) });
            }
        }
        for (hook, outcome) in futures::future::join_all(calls).await {
            match outcome {
                Ok(answer) => {
                    warnings.extend(strings(&answer, "/warnings"));
                    call::verdict(&hook.name, &answer)?;
                }
                Err(failure) => failure.settle(hook, warnings)?,
            }
        }
        Ok(())
    }
}
