//! What a PKCS#10 request asks for.

use rcgen::{CertificateSigningRequestParams, DnType, DnValue, SanType};

/// A request whose signature proves that whoever made it has the key.
pub(crate) struct Request {
    params: CertificateSigningRequestParams,
}

fn plain(value: &DnValue) -> String {
    match value {
        DnValue::Utf8String(text) => text.clone(),
        DnValue::PrintableString(text) => text.as_str().to_owned(),
        DnValue::Ia5String(text) => text.as_str().to_owned(),
        DnValue::TeletexString(text) => text.as_str().to_owned(),
        _ => String::new(),
    }
}

impl Request {
    /// Reads a request in PEM; None when it is none, or not signed by its own key.
    pub(crate) fn parse(pem: &str) -> Option<Self> {
        CertificateSigningRequestParams::from_pem(pem).ok().map(|params| Self { params })
    }

    pub(crate) fn into_params(self) -> CertificateSigningRequestParams {
        self.params
    }

    fn named(&self, kind: &DnType) -> Vec<String> {
        let all = self.params.params.distinguished_name.iter();
        all.filter(|(found, _)| *found == kind).map(|(_, value)| plain(value)).collect()
    }

    /// The user it is for.
    pub(crate) fn common_name(&self) -> String {
        self.named(&DnType::CommonName).into_iter().next().unwrap_or_default()
    }

    /// The user's groups.
    pub(crate) fn organizations(&self) -> Vec<String> {
        self.named(&DnType::OrganizationName)
    }

    /// Names and addresses of a server.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let host = |name: &SanType| match name {
            SanType::DnsName(name) => Some(name.as_str().to_owned()),
            SanType::IpAddress(address) => Some(address.to_string()),
            _ => None,
        };
        self.params.params.subject_alt_names.iter().filter_map(host).collect()
    }

    /// Whether it is also for something that is no host.
    pub(crate) fn has_other_names(&self) -> bool {
        self.params.params.subject_alt_names.len() > self.hosts().len()
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A request that was changed anywhere names who it is for, or is none.
        #[test]
        fn any_signing_request_is_read_or_refused(noise in ".{0,200}", at in any::<prop::sample::Index>(), letter in "[A-Za-z0-9+/=\n -]") {
            let (text, _) = signed_request();
            let at = at.index(text.len());
            let changed = format!("{}{letter}{}", &text[..at], &text[at + 1..]);
            let framed = format!("-----BEGIN CERTIFICATE REQUEST-----\n{noise}\n-----END CERTIFICATE REQUEST-----\n");
            for pem in [changed, noise, framed] {
                let Some(request) = Request::parse(&pem) else { continue };
                let _ = (request.common_name(), request.organizations(), request.hosts(), request.has_other_names());
            }
        }
    }

    fn signed_request() -> (String, rcgen::KeyPair) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["node1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "system:node:node1");
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        (params.serialize_request(&key).unwrap().pem().unwrap(), key)
    }
}
