//! The certificates of the validator and of vm-console-proxy, and the authority by which the API server knows them.

use std::time::Duration;

use kit::certs::Leaf;
use kit::keyring::{Keyring, Lifetimes, service_names};

use super::names::{DEPLOYMENT, PROXY_SECRET, SECRET};
use crate::{console_proxy, validator};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What is to be there in `namespace`, for vm-console-proxy only where there is to be one. Authorities live a week and certificates a day, and are renewed a fifth of it before their end.
pub fn keyring(namespace: &str, tokens: bool) -> Keyring {
    let leaf = |service: &str, role: &str| Leaf {
        name: format!("{service}.{namespace}.svc"),
        role: role.to_owned(),
        node: None,
        dns: service_names(service, namespace).into(),
    };
    let mut leaves = vec![(SECRET.to_owned(), leaf(DEPLOYMENT, validator::NAME))];
    if tokens {
        leaves.push((PROXY_SECRET.to_owned(), leaf(console_proxy::NAME, console_proxy::NAME)));
    }
    let authority = format!("{DEPLOYMENT}-signer");
    Keyring {
        bundle: format!("{authority}-bundle"),
        bundle_key: "ca-bundle.crt".to_owned(),
        name: authority.clone(),
        authority,
        leaves,
        lifetimes: Lifetimes { ca: 7 * DAY, ca_renew: 7 * DAY / 5, leaf: DAY, leaf_renew: DAY / 5 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_rotations_interrupt_nobody() {
        assert_eq!(kit::keyring::rehearse(&keyring("ns", true), 10), Ok(()));
    }
}
