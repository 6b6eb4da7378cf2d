//! The TLS that the SSP object asks of every server of this crate: `tlsSecurityProfile`.

use std::sync::Arc;

use api::cdi::v1beta1::TLSSecurityProfile;
use kit::Task;
use kit::store::Store;
use kit::tls::{self, Changing};
use kube::runtime::watcher;
use kube::{Api, Client};

use crate::object::SSP;

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

/// Has `servers` offer what the SSP of `namespace` says, for as long as the task is held.
pub(crate) fn follow(client: &Client, namespace: &str, servers: Vec<Arc<Changing>>) -> Task<()> {
    let api = Api::namespaced(client.clone(), namespace);
    tls::follow(api, watcher::Config::default(), Store::default(), servers, of)
}

/// The same before the kind is there, and after.
pub(crate) fn follow_optional(client: &Client, namespace: &str, servers: Vec<Arc<Changing>>) -> Task<()> {
    let api = Api::namespaced(client.clone(), namespace);
    tls::follow_optional(client, api, watcher::Config::default(), Store::default(), servers, of)
}

fn of(ssp: &SSP) -> (&str, &[String]) {
    asked(ssp.spec.tls_security_profile.as_ref())
}

#[cfg(test)]
mod tests {
    use kit::tls::Policy;
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(profile: Value, least: &str, ciphers: usize, problems: usize) {
        let profile: Option<TLSSecurityProfile> = serde_json::from_value(profile).unwrap();
        let (found, named) = asked(profile.as_ref());
        assert_eq!((found, named.len()), (least, ciphers));
        assert_eq!(Policy::new(found, named).1.len(), problems);
    }

    #[test]
    fn a_profile_is_a_least_version_and_ciphers() {
        check(json!(null), "VersionTLS12", 0, 0);
        check(json!({ "type": "Intermediate", "intermediate": {} }), "VersionTLS12", 0, 0);
        check(json!({ "type": "Modern", "modern": {} }), "VersionTLS13", 0, 0);
        check(json!({ "type": "Old", "old": {} }), "VersionTLS10", 0, 1);
        let custom =
            json!({ "minTLSVersion": "VersionTLS12", "ciphers": ["ECDHE-RSA-AES128-GCM-SHA256", "DES-CBC3-SHA"] });
        check(json!({ "type": "Custom", "custom": custom }), "VersionTLS12", 2, 1);
    }
}
