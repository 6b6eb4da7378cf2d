//! Client certificates: the common name is the user, organizations are its groups.

use std::sync::Arc;

use x509_parser::prelude::{FromDer, X509Certificate};

use apimachinery::request::User;

/// Who the verified client certificate of a connection names, put into request extensions by the listener: it is read
/// once for a connection, not for each of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate(Arc<Option<User>>);

impl PeerCertificate {
    /// Reads a verified leaf certificate, DER.
    #[must_use]
    pub fn read(der: &[u8]) -> Self {
        Self(Arc::new(user_of(der)))
    }

    /// None when it names nobody.
    #[must_use]
    pub fn user(&self) -> Option<&User> {
        self.0.as_ref().as_ref()
    }
}

/// The user named by a certificate that the TLS layer has verified; None when it has no common name.
#[must_use]
pub fn user_of(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let mut groups: Vec<String> =
        subject.iter_organization().filter_map(|o| o.as_str().ok().map(ToOwned::to_owned)).collect();
    groups.push("system:authenticated".to_owned());
    Some(User { name, groups, ..User::default() })
}

#[cfg(test)]
mod properties {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    static MADE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "team");
        params.self_signed(&key).unwrap().der().to_vec()
    });

    proptest! {
        #[test]
        fn any_certificate_is_read_or_refused(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..16), cut in any::<prop::sample::Index>()) {
            let mut der = MADE.clone();
            for (at, byte) in changes {
                let at = at.index(der.len());
                der[at] = byte;
            }
            der.truncate(cut.index(der.len() + 1));
            if let Some(user) = super::user_of(&der) {
                prop_assert!(user.groups.iter().any(|group| group == "system:authenticated"));
            }
        }
    }
}
