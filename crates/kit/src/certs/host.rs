//! Which certificates a client of a host believes.

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// What a client of `host` is to believe: of the certificates in `chain` that are valid now, the one that names the host (of several,
/// the one that lasts longest), and after it the others. Empty when none names the host: then what the client believes
/// anyway has to do.
pub fn for_host(chain: &str, host: &str, now: Timestamp) -> String {
    let mut valid: Vec<(String, Timestamp)> = super::blocks(chain)
        .into_iter()
        .filter_map(|block| {
            let (from, until) = super::lifetime(&block)?;
            (from <= now && now < until).then_some((block, until))
        })
        .collect();
    let naming = valid.iter().enumerate().filter(|(_, (block, _))| names(block, host));
    let Some(best) = naming.max_by_key(|(_, (_, until))| *until).map(|(place, _)| place) else { return String::new() };
    valid[..=best].rotate_right(1);
    valid.into_iter().map(|(block, _)| block).collect::<Vec<_>>().join("\n")
}

/// Whether the certificate is for `host`, or for any name at its place.
fn names(block: &str, host: &str) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(block.as_bytes()) else { return false };
    let Ok((_, parsed)) = X509Certificate::from_der(&der) else { return false };
    let common = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let alternative = parsed.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    common.chain(alternative).any(|name| matches(name, host))
}

fn matches(name: &str, host: &str) -> bool {
    match name.strip_prefix("*.") {
        Some(rest) => host.split_once('.').is_some_and(|(_, parent)| parent.eq_ignore_ascii_case(rest)),
        None => name.eq_ignore_ascii_case(host),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Authority, Leaf};
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn names_and_wildcards() {
        assert!(matches("a.example", "A.example") && matches("*.example", "a.example"));
        assert!(!matches("*.example", "a.b.example") && !matches("*.example", "example") && !matches("", "a"));
    }

    #[test]
    fn the_certificate_of_the_host_comes_first() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let authority = Authority::generate("test", now, HOUR * 48).unwrap();
        let leaf = |name: &str, lives: Duration| {
            let leaf = Leaf { name: "x".into(), role: "x".into(), dns: vec![name.into()], ..Leaf::default() };
            authority.issue(&leaf, now, lives).unwrap().certificate.trim().to_owned()
        };
        let root = authority.pair().certificate.trim().to_owned();
        let (short, long, other) = (leaf("a.example", HOUR), leaf("*.example", HOUR * 2), leaf("b.org", HOUR));
        let chain = [root.clone(), short.clone(), long.clone(), other.clone()].join("\n");
        let later = now + HOUR * 3 / 2;
        let check = |host: &str, at: Timestamp, expect: &[&String]| {
            let expect = expect.iter().map(|block| block.as_str()).collect::<Vec<_>>().join("\n");
            assert_eq!(for_host(&chain, host, at), expect, "{host}");
        };
        check("a.example", now, &[&long, &root, &short, &other]);
        check("b.org", now, &[&other, &root, &short, &long]);
        check("a.example", later, &[&long, &root]);
        check("b.org", later, &[]);
        check("c.org", now, &[]);
        assert_eq!(for_host("no certificate", "a", now), "");
    }
}
