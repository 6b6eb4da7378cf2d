//! The certificates of the validator and of vm-console-proxy, and the authority by which the API server knows them.

use std::time::Duration;

use api::hco::{CERTIFICATES_OF_SSP, CertConfig, CertSpan};
use kit::certs::Leaf;
use kit::duration;
use kit::keyring::{Keyring, Lifetimes, Span, service_names};

use super::names::{DEPLOYMENT, PROXY_SECRET, SECRET};
use crate::{console_proxy, validator};

const DAY: u64 = 24 * 3600;

/// Without a word: authorities live a week and certificates a day, and are renewed a fifth of it before their end.
pub const USUAL: Lifetimes = Lifetimes {
    ca: Duration::from_secs(7 * DAY),
    ca_renew: Duration::from_secs(7 * DAY / 5),
    leaf: Duration::from_secs(DAY),
    leaf_renew: Duration::from_secs(DAY / 5),
};

/// As the annotation of the SSP object says.
///
/// # Errors
/// When it says nothing that can be read.
pub fn lifetimes(annotation: Option<&str>) -> Result<Lifetimes, String> {
    let Some(said) = annotation else { return Ok(USUAL) };
    let bad = |why: String| format!("annotation {CERTIFICATES_OF_SSP}: {why}; certificates live as without it");
    let config: CertConfig = serde_json::from_str(said).map_err(|error| bad(error.to_string()))?;
    let CertConfig { ca, server } = &config;
    let mut all = [&ca.duration, &ca.renew_before, &server.duration, &server.renew_before].into_iter().flatten();
    if let Some(text) = all.find(|text| duration::parse(text).is_none()) {
        return Err(bad(format!("{text:?} is no duration, such as 24h0m0s")));
    }
    Ok(Lifetimes::asked(span(ca), span(server)))
}

fn span(said: &CertSpan) -> Span<'_> {
    Span { duration: said.duration.as_deref(), renew_before: said.renew_before.as_deref() }
}

/// What is to be there in `namespace`, for vm-console-proxy only where there is to be one.
pub fn keyring(namespace: &str, tokens: bool, lifetimes: Lifetimes) -> Keyring {
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
        lifetimes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_AN_HOUR: &str = r#"{"ca":{"duration":"30m0s"},"server":{"duration":"20m","renewBefore":"5m"}}"#;

    #[test]
    fn ten_rotations_interrupt_nobody() {
        for said in [None, Some(HALF_AN_HOUR)] {
            let ring = keyring("ns", true, lifetimes(said).unwrap());
            assert_eq!(kit::keyring::rehearse(&ring, 10), Ok(()));
        }
    }

    #[test]
    fn certificates_live_as_the_annotation_says() {
        let minutes = |said| {
            let found = lifetimes(said).unwrap();
            [found.ca, found.ca_renew, found.leaf, found.leaf_renew].map(|time| time.as_secs() / 60)
        };
        assert_eq!(minutes(None), [10080, 2016, 1440, 288]);
        assert_eq!(minutes(Some(HALF_AN_HOUR)), [30, 15, 20, 5]);
        for (said, why) in [("soon", "expected value"), (r#"{"ca":{"duration":"soon"}}"#, "\"soon\" is no duration")] {
            let error = lifetimes(Some(said)).unwrap_err();
            assert!(
                error.starts_with("annotation operator.ssp.kubevirt.io/certConfig: ") && error.contains(why),
                "{error}"
            );
        }
    }
}
