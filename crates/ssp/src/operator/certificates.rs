//! The validator's certificate, and the authority by which the API server knows it.

use std::time::Duration;

use kit::certs::Leaf;
use kit::keyring::{Keyring, Lifetimes, service_names};

use super::names::{DEPLOYMENT, SECRET};
use crate::validator::NAME;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What is to be there in `namespace`. Authorities live a week and certificates a day, and are renewed a fifth of it before their end.
pub fn keyring(namespace: &str) -> Keyring {
    let leaf = Leaf {
        name: format!("{DEPLOYMENT}.{namespace}.svc"),
        role: NAME.to_owned(),
        node: None,
        dns: service_names(DEPLOYMENT, namespace).into(),
    };
    let authority = format!("{DEPLOYMENT}-signer");
    Keyring {
        bundle: format!("{authority}-bundle"),
        bundle_key: "ca-bundle.crt".to_owned(),
        name: authority.clone(),
        authority,
        leaves: vec![(SECRET.to_owned(), leaf)],
        lifetimes: Lifetimes { ca: 7 * DAY, ca_renew: 7 * DAY / 5, leaf: DAY, leaf_renew: DAY / 5 },
    }
}
