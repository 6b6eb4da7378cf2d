//! The key ring of the webhook's certificate, which the operator keeps. Pure.

use kit::certs::Leaf;
use kit::keyring::{Keyring, Lifetimes, service_names};

use super::names::{ACCOUNT, BUNDLE, BUNDLE_KEY, SECRET, SERVICE};

/// Secret with the authority.
const AUTHORITY: &str = "kubevirt-ipam-controller-ca";

/// The authority and the certificate of the webhook in `namespace`.
pub fn keyring(namespace: &str, lifetimes: Lifetimes) -> Keyring {
    let leaf = Leaf {
        name: format!("{SERVICE}.{namespace}.svc"),
        role: ACCOUNT.to_owned(),
        node: None,
        dns: service_names(SERVICE, namespace).into(),
    };
    Keyring {
        authority: AUTHORITY.to_owned(),
        bundle: BUNDLE.to_owned(),
        bundle_key: BUNDLE_KEY.to_owned(),
        name: AUTHORITY.to_owned(),
        leaves: vec![(SECRET.to_owned(), leaf)],
        lifetimes,
    }
}
