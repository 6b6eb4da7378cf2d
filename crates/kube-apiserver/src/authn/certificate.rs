//! Client certificates: the common name is the user, organizations are its groups.

use x509_parser::prelude::{FromDer, X509Certificate};

use crate::request::User;

/// The verified client certificate of a connection (leaf, DER), put into request extensions by the listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate(pub std::sync::Arc<[u8]>);

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
