//! Which versions and cipher suites a server offers, as an administrator says it.
//!
//! There is no TLS below 1.2 here, and of TLS 1.2 no suite without forward secrecy and authenticated encryption: what a policy asks for
//! beyond that is told, not done.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, SupportedCipherSuite, SupportedProtocolVersion};

/// The suites of TLS 1.2 that there are, by OpenSSL's name.
const SUITES: [(&str, CipherSuite); 6] = [
    ("ECDHE-ECDSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// What a server offers. All of TLS 1.2 and 1.3, unless it is said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Nothing below TLS 1.3.
    modern: bool,
    /// The suites of TLS 1.2; none said, all.
    suites: Option<Vec<CipherSuite>>,
}

impl Policy {
    /// From `least`, a version as in `VersionTLS12`, with `ciphers` by their OpenSSL or IANA names; and what of it cannot be done, in
    /// sentences. The suites of TLS 1.3 are always all offered. No ciphers at all are every cipher.
    pub fn new(least: &str, ciphers: &[String]) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let modern = match least {
            "VersionTLS13" => true,
            "" | "VersionTLS12" => false,
            "VersionTLS10" | "VersionTLS11" => {
                problems.push(format!("{least} is asked for: TLS 1.2 is the least that is offered"));
                false
            }
            other => {
                problems.push(format!(
                    "the least version is {other:?}: it has to be VersionTLS12 or VersionTLS13, and is TLS 1.2"
                ));
                false
            }
        };
        let mut suites = Vec::new();
        for cipher in ciphers.iter().filter(|cipher| !is_tls13(cipher)) {
            match named(cipher) {
                Some(suite) => suites.push(suite),
                None => problems.push(format!("the cipher {cipher} is not offered")),
            }
        }
        if !ciphers.is_empty() && suites.is_empty() && !modern {
            problems.push("none of the ciphers is one of TLS 1.2: only TLS 1.3 is offered".to_owned());
        }
        (Self { modern, suites: (!ciphers.is_empty()).then_some(suites) }, problems)
    }

    fn offers(&self, suite: SupportedCipherSuite) -> bool {
        match suite {
            SupportedCipherSuite::Tls13(_) => true,
            SupportedCipherSuite::Tls12(_) if self.modern => false,
            SupportedCipherSuite::Tls12(_) => self.suites.as_ref().is_none_or(|suites| suites.contains(&suite.suite())),
        }
    }

    pub(super) fn provider(&self) -> Arc<CryptoProvider> {
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|suite| self.offers(*suite));
        Arc::new(provider)
    }

    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        static BOTH: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];
        let none = self.suites.as_ref().is_some_and(Vec::is_empty);
        if self.modern || none { &BOTH[1..] } else { &BOTH }
    }
}

fn is_tls13(cipher: &str) -> bool {
    matches!(
        cipher,
        "TLS_AES_128_GCM_SHA256"
            | "TLS_AES_256_GCM_SHA384"
            | "TLS_CHACHA20_POLY1305_SHA256"
            | "TLS_AES_128_CCM_SHA256"
            | "TLS_AES_128_CCM_8_SHA256"
    )
}

fn named(cipher: &str) -> Option<CipherSuite> {
    let iana = |suite: CipherSuite| suite.as_str().is_some_and(|name| name == cipher);
    SUITES.iter().find(|(name, suite)| *name == cipher || iana(*suite)).map(|(_, suite)| *suite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(least: &str, ciphers: &[&str], suites: usize, problems: &[&str]) {
        let ciphers: Vec<String> = ciphers.iter().map(|cipher| (*cipher).to_owned()).collect();
        let (policy, found) = Policy::new(least, &ciphers);
        assert_eq!(found, problems);
        let all = policy.provider().cipher_suites.len();
        assert_eq!(all, suites + 3, "beside the three of TLS 1.3");
        assert_eq!(policy.versions().len(), if suites == 0 { 1 } else { 2 });
    }

    #[test]
    fn the_policy_decides_on_versions_and_ciphers() {
        check("", &[], 6, &[]);
        check("VersionTLS12", &["ECDHE-RSA-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256"], 1, &[]);
        check("VersionTLS12", &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"], 1, &[]);
        check("VersionTLS13", &["ECDHE-RSA-AES128-GCM-SHA256"], 0, &[]);
        let old = "VersionTLS10 is asked for: TLS 1.2 is the least that is offered";
        check(
            "VersionTLS10",
            &["AES128-SHA", "ECDHE-RSA-AES128-GCM-SHA256"],
            1,
            &[old, "the cipher AES128-SHA is not offered"],
        );
        let none = "none of the ciphers is one of TLS 1.2: only TLS 1.3 is offered";
        check("VersionTLS12", &["AES128-SHA"], 0, &["the cipher AES128-SHA is not offered", none]);
    }
}
