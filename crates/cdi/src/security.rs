//! The TLS that the configuration asks of every server of CDI's: `tlsSecurityProfile`.
//!
//! Servers of the installation follow the CDIConfig while they serve; the pods that fill volumes live shortly, and are told when they begin.

use std::sync::Arc;

use api::cdi::constants::{self, env};
use api::cdi::v1beta1::{CDIConfig, TLSSecurityProfile};
use kit::Task;
use kit::store::Store;
use kit::tls::{self, Changing, Clients, Material, Policy};
use kube::runtime::watcher;
use kube::{Api, Client};

/// The least version and the ciphers that `profile` stands for; no ciphers are all.
pub(crate) fn asked(profile: Option<&TLSSecurityProfile>) -> (&str, &[String]) {
    let Some(profile) = profile else { return ("VersionTLS12", &[]) };
    match profile.type_.as_deref() {
        Some("Old") => ("VersionTLS10", &[]),
        Some("Modern") => ("VersionTLS13", &[]),
        Some("Custom") => {
            let custom = profile.custom.as_ref();
            custom.map_or(("VersionTLS12", &[]), |custom| (custom.min_tls_version.as_str(), &custom.ciphers))
        }
        _ => ("VersionTLS12", &[]),
    }
}

/// What `profile` comes to, and what of it cannot be done.
pub(crate) fn policy(profile: Option<&TLSSecurityProfile>) -> (Policy, Vec<String>) {
    let (least, ciphers) = asked(profile);
    Policy::new(least, ciphers)
}

/// Has `server` offer what the CDIConfig says, for as long as the task is held.
pub(crate) fn follow(client: &Client, server: Arc<Changing>) -> Task<()> {
    tls::follow(Api::<CDIConfig>::all(client.clone()), only(), Store::default(), vec![server], |config| {
        asked(config.spec.tls_security_profile.as_deref())
    })
}

/// The same before the kind of the CDIConfig is there, and after.
pub(crate) fn follow_optional(client: &Client, server: Arc<Changing>) -> Task<()> {
    tls::follow_optional(
        client,
        Api::<CDIConfig>::all(client.clone()),
        only(),
        Store::default(),
        vec![server],
        |config| asked(config.spec.tls_security_profile.as_deref()),
    )
}

fn only() -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={}", constants::CONFIG))
}

/// The configuration of a server in a pod that fills a volume, as its environment says.
pub(crate) fn of_environment(material: Arc<Material>, clients: Option<Clients>) -> Result<Arc<Changing>, tls::Error> {
    let text = |name: &str| std::env::var(name).unwrap_or_default();
    let ciphers = text(env::TLS_CIPHERS);
    let ciphers: Vec<String> = ciphers.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect();
    let (policy, problems) = Policy::new(&text(env::TLS_MIN_VERSION), &ciphers);
    for problem in problems {
        tracing::warn!(problem, "TLS is not all that is asked for");
    }
    let server = Changing::new(material, clients)?;
    server.obey(&policy)?;
    Ok(server)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(profile: Value, least: &str, ciphers: usize, problems: usize) {
        let profile: Option<TLSSecurityProfile> = serde_json::from_value(profile).unwrap();
        let (found, named) = asked(profile.as_ref());
        assert_eq!((found, named.len()), (least, ciphers));
        assert_eq!(policy(profile.as_ref()).1.len(), problems);
    }

    #[test]
    fn profiles() {
        check(json!(null), "VersionTLS12", 0, 0);
        check(json!({ "type": "Intermediate", "intermediate": {} }), "VersionTLS12", 0, 0);
        check(json!({ "type": "Modern", "modern": {} }), "VersionTLS13", 0, 0);
        check(json!({ "type": "Old", "old": {} }), "VersionTLS10", 0, 1);
        let custom =
            json!({ "minTLSVersion": "VersionTLS12", "ciphers": ["ECDHE-RSA-AES128-GCM-SHA256", "DES-CBC3-SHA"] });
        check(json!({ "type": "Custom", "custom": custom }), "VersionTLS12", 2, 1);
    }
}
