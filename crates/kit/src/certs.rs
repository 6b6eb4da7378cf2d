//! Certificates: an authority, leaves that name a role and a node, and when to renew them.
//!
//! A peer is not trusted for having a valid signature: its certificate says which component it is
//! (`ferrovirt://role/<role>`) and, where one exists, on which node (`ferrovirt://node/<node>`).

mod host;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SubjectPublicKeyInfo,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

pub use self::host::for_host;

const ROLE: &str = "ferrovirt://role/";
const NODE: &str = "ferrovirt://node/";
/// Certificates begin a little in the past, for clocks that are.
const BACKDATE: Duration = Duration::from_secs(300);

/// Making or reading certificates failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate could not be made.
    #[error("cannot make the certificate of {subject}")]
    Make {
        /// Its common name.
        subject: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// A key or certificate in PEM could not be read.
    #[error("cannot read the {what}")]
    Read {
        /// Which one.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A moment lies outside of what a certificate can say.
    #[error("the validity of {0} is out of range")]
    Validity(String),
}

/// A certificate and its key, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The certificate, or the chain.
    pub certificate: String,
    /// The private key, PKCS#8.
    pub key: String,
}

/// What a leaf says about its holder.
#[derive(Clone, Debug, Default)]
pub struct Leaf {
    /// The common name.
    pub name: String,
    /// The component, such as `virt-handler`; also becomes a DNS name, so that TLS clients have one to check.
    pub role: String,
    /// The node, for components bound to one.
    pub node: Option<String>,
    /// DNS names, of Services mostly.
    pub dns: Vec<String>,
}

/// Who a certificate says its holder is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The subject's common name.
    pub name: String,
    /// The component, empty when the certificate names none.
    pub role: String,
    /// The node, when the certificate is bound to one.
    pub node: Option<String>,
    /// The subject's organizations: what Kubernetes calls groups.
    pub organizations: Vec<String>,
}

/// Signs leaves.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pair: Pair,
}

impl Authority {
    /// A new self-signed authority.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn generate(name: &str, now: Timestamp, lifetime: Duration) -> Result<Self, Error> {
        let make = |source| Error::Make { subject: name.to_owned(), source };
        let key = KeyPair::generate().map_err(make)?;
        let mut params = CertificateParams::default();
        validity(&mut params, name, now, lifetime)?;
        params.distinguished_name = Default::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(make)?;
        let pair = Pair { certificate: certificate.pem(), key: key.serialize_pem() };
        Ok(Authority { issuer: Issuer::new(params, key), pair })
    }

    /// An authority from its stored pair.
    ///
    /// # Errors
    /// When either part is not what it should be.
    pub fn from_pair(pair: Pair) -> Result<Self, Error> {
        let read = |what| move |source: rcgen::Error| Error::Read { what, source: source.into() };
        let key = KeyPair::from_pem(&pair.key).map_err(read("key of the authority"))?;
        let issuer = Issuer::from_ca_cert_pem(&pair.certificate, key).map_err(read("certificate of the authority"))?;
        Ok(Authority { issuer, pair })
    }

    /// The authority's own certificate and key.
    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    /// A leaf with a new key, good for both ends of a connection.
    ///
    /// # Errors
    /// When a name is not one, or no key can be made.
    pub fn issue(&self, leaf: &Leaf, now: Timestamp, lifetime: Duration) -> Result<Pair, Error> {
        let make = |source| Error::Make { subject: leaf.name.clone(), source };
        let key = KeyPair::generate().map_err(make)?;
        let certificate = self.sign(&key, leaf, now, lifetime)?;
        Ok(Pair { certificate, key: key.serialize_pem() })
    }

    /// A leaf for the key of a signing request. Of the request only the key is taken: who its holder is, `leaf` says.
    ///
    /// # Errors
    /// When the request is not one, or a name is not one.
    pub fn answer(&self, request: &str, leaf: &Leaf, now: Timestamp, lifetime: Duration) -> Result<String, Error> {
        let read = |source: rcgen::Error| Error::Read { what: "signing request", source: source.into() };
        let request = CertificateSigningRequestParams::from_pem(request).map_err(read)?;
        self.sign(&request.public_key, leaf, now, lifetime)
    }

    /// A leaf for the key that an earlier one of it is for.
    ///
    /// # Errors
    /// When that one is no certificate, or a name is not one.
    pub fn prolong(&self, earlier: &str, leaf: &Leaf, now: Timestamp, lifetime: Duration) -> Result<String, Error> {
        type Boxed = Box<dyn std::error::Error + Send + Sync>;
        let unreadable = |source: Boxed| Error::Read { what: "earlier certificate", source };
        let der = CertificateDer::from_pem_slice(earlier.as_bytes()).map_err(|e| unreadable(e.into()))?;
        let (_, parsed) =
            x509_parser::certificate::X509Certificate::from_der(&der).map_err(|e| unreadable(e.to_string().into()))?;
        let key = SubjectPublicKeyInfo::from_der(parsed.public_key().raw).map_err(|e| unreadable(e.into()))?;
        self.sign(&key, leaf, now, lifetime)
    }

    /// No leaf outlives its authority, beyond whose end nobody trusts it.
    fn sign(&self, key: &impl PublicKeyData, leaf: &Leaf, now: Timestamp, lifetime: Duration) -> Result<String, Error> {
        let end = self::lifetime(&self.pair.certificate).map_or(now, |(_, until)| until);
        let lifetime = lifetime.min(Duration::try_from(end.duration_since(now)).unwrap_or_default());
        let make = |source| Error::Make { subject: leaf.name.clone(), source };
        let mut params = CertificateParams::default();
        validity(&mut params, &leaf.name, now, lifetime)?;
        params.distinguished_name = Default::default();
        params.distinguished_name.push(DnType::CommonName, leaf.name.as_str());
        let mut names = vec![SanType::URI(format!("{ROLE}{}", leaf.role).try_into().map_err(make)?)];
        if let Some(node) = &leaf.node {
            names.push(SanType::URI(format!("{NODE}{node}").try_into().map_err(make)?));
        }
        for dns in std::iter::once(&leaf.role).chain(&leaf.dns) {
            names.push(SanType::DnsName(dns.as_str().try_into().map_err(make)?));
        }
        params.subject_alt_names = names;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Ok(params.signed_by(key, &self.issuer).map_err(make)?.pem())
    }
}

/// A new key and a signing request for it, both in PEM. Whoever signs says who the holder is; the name is for readers.
///
/// # Errors
/// When no key can be made.
pub fn request(name: &str) -> Result<(String, String), Error> {
    let make = |source| Error::Make { subject: name.to_owned(), source };
    let key = KeyPair::generate().map_err(make)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = Default::default();
    params.distinguished_name.push(DnType::CommonName, name);
    let request = params.serialize_request(&key).map_err(make)?.pem().map_err(make)?;
    Ok((key.serialize_pem(), request))
}

fn validity(params: &mut CertificateParams, name: &str, now: Timestamp, lifetime: Duration) -> Result<(), Error> {
    let out_of_range = || Error::Validity(name.to_owned());
    let moment = |at: Timestamp| OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|_| out_of_range());
    let lifetime = SignedDuration::try_from(lifetime).map_err(|_| out_of_range())?;
    let start = now.checked_sub(BACKDATE).map_err(|_| out_of_range())?;
    params.not_before = moment(start)?;
    params.not_after = moment(now.checked_add(lifetime).map_err(|_| out_of_range())?)?;
    Ok(())
}

/// What to do about a certificate now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// Good; look again after this long.
    Keep(Duration),
    /// Make a new one now.
    Renew,
}

/// Renews a certificate `renew_before` its end; one that cannot be read or is not yet valid is renewed too.
pub fn rotation(certificate: &str, now: Timestamp, renew_before: Duration) -> Rotation {
    let Some((from, until)) = lifetime(certificate) else { return Rotation::Renew };
    let left = until.duration_since(now);
    let Ok(left) = Duration::try_from(left) else { return Rotation::Renew };
    if now < from || left <= renew_before { Rotation::Renew } else { Rotation::Keep(left.saturating_sub(renew_before)) }
}

/// The first certificate's validity.
pub fn lifetime(certificate: &str) -> Option<(Timestamp, Timestamp)> {
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(&der).ok()?;
    let from = Timestamp::from_second(parsed.validity().not_before.timestamp()).ok()?;
    let until = Timestamp::from_second(parsed.validity().not_after.timestamp()).ok()?;
    Some((from, until))
}

/// When the first certificate was made, and when it ends.
pub fn life(certificate: &str) -> Option<(Timestamp, Timestamp)> {
    let (from, until) = lifetime(certificate)?;
    Some((from.checked_add(BACKDATE).ok()?, until))
}

/// A trust bundle of `newest` followed by the still valid certificates of `bundle`, without repetition: peers that hold
/// leaves of the authority before this one stay trusted until that one ends.
pub fn bundle(newest: &str, bundle: &str, now: Timestamp) -> String {
    let mut out = newest.trim().to_owned();
    out.push('\n');
    for block in blocks(bundle) {
        let valid = lifetime(&block).is_some_and(|(_, until)| until > now);
        if valid && block.trim() != newest.trim() {
            out.push_str(block.trim());
            out.push('\n');
        }
    }
    out
}

fn blocks(pem: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    pem.split_inclusive(END).filter(|block| block.contains(END)).map(|block| block.trim().to_owned()).collect()
}

/// Who the holder of the first certificate of this PEM is.
pub fn identity_of(certificate: &str) -> Option<Identity> {
    identity(&CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?)
}

/// Who the holder of this certificate is. The signature is not looked at: TLS has done so.
pub fn identity(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(certificate).ok()?;
    let name =
        parsed.subject().iter_common_name().next().and_then(|cn| cn.as_str().ok()).unwrap_or_default().to_owned();
    let organizations =
        parsed.subject().iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned).collect();
    let mut identity = Identity { name, organizations, ..Default::default() };
    if let Ok(Some(names)) = parsed.subject_alternative_name() {
        for name in &names.value.general_names {
            let GeneralName::URI(uri) = name else { continue };
            if let Some(role) = uri.strip_prefix(ROLE) {
                identity.role = role.to_owned();
            } else if let Some(node) = uri.strip_prefix(NODE) {
                identity.node = Some(node.to_owned());
            }
        }
    }
    Some(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn start() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_leaf_says_its_role_and_node() {
        let authority = Authority::generate("test", start(), HOUR * 48).unwrap();
        let leaf = Leaf {
            name: "handler".into(),
            role: "virt-handler".into(),
            node: Some("node1".into()),
            dns: vec!["x.ns.svc".into()],
        };
        let pair = authority.issue(&leaf, start(), HOUR).unwrap();
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        let expect = Identity {
            name: "handler".into(),
            role: "virt-handler".into(),
            node: Some("node1".into()),
            ..Default::default()
        };
        assert_eq!(identity(&der), Some(expect));
    }

    #[test]
    fn a_request_is_answered_with_the_names_of_the_signer() {
        let authority = Authority::generate("test", start(), HOUR * 48).unwrap();
        let (key, request) = request("anybody").unwrap();
        let leaf =
            Leaf { name: "h".into(), role: "virt-handler".into(), node: Some("n1".into()), ..Default::default() };
        let certificate = authority.answer(&request, &leaf, start(), HOUR).unwrap();
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let found = identity(&der).unwrap();
        assert_eq!(
            (found.name.as_str(), found.role.as_str(), found.node.as_deref()),
            ("h", "virt-handler", Some("n1"))
        );
        crate::tls::Material::new().set(&Pair { certificate, key }).unwrap();
        assert!(authority.answer("not a request", &leaf, start(), HOUR).is_err());
    }

    #[test]
    fn a_leaf_is_prolonged_for_the_key_it_has() {
        let leaf = Leaf { name: "s".into(), role: "virt-export".into(), ..Default::default() };
        let (old, new) = ["old", "new"].map(|name| Authority::generate(name, start(), HOUR * 48).unwrap()).into();
        let pair = old.issue(&leaf, start(), HOUR).unwrap();
        let certificate = new.prolong(&pair.certificate, &leaf, start(), HOUR * 2).unwrap();
        assert_eq!(life(&certificate).unwrap().1, start() + SignedDuration::from_hours(2));
        let trust = crate::tls::Trust::new();
        trust.set(&new.pair().certificate).unwrap();
        assert!(trust.vouches(&certificate, start()) && !trust.vouches(&pair.certificate, start()));
        let material = crate::tls::Material::new();
        material.set(&Pair { certificate: certificate.clone(), key: pair.key }).unwrap();
        assert!(new.prolong("nothing", &leaf, start(), HOUR).is_err());
        // A key and a certificate of different times are no pair.
        let other = new.issue(&leaf, start(), HOUR).unwrap();
        assert!(material.set(&Pair { certificate, key: other.key }).is_err());
    }

    #[test]
    fn an_authority_survives_its_pair() {
        let authority = Authority::generate("test", start(), HOUR * 48).unwrap();
        let again = Authority::from_pair(authority.pair().clone()).unwrap();
        assert_eq!(again.pair(), authority.pair());
        again.issue(&Leaf { name: "a".into(), role: "a".into(), ..Default::default() }, start(), HOUR).unwrap();
    }

    #[track_caller]
    fn check_rotation(age: Duration, expect: Rotation) {
        let authority = Authority::generate("test", start(), HOUR * 24).unwrap();
        let now = start() + SignedDuration::try_from(age).unwrap();
        assert_eq!(rotation(&authority.pair().certificate, now, HOUR * 12), expect);
    }

    #[test]
    fn renewal_comes_before_the_end() {
        check_rotation(Duration::ZERO, Rotation::Keep(HOUR * 12));
        check_rotation(HOUR * 11, Rotation::Keep(HOUR));
        check_rotation(HOUR * 12, Rotation::Renew);
        check_rotation(HOUR * 30, Rotation::Renew);
        assert_eq!(rotation("not a certificate", start(), HOUR), Rotation::Renew);
    }

    #[test]
    fn the_bundle_keeps_the_old_authority_until_it_ends() {
        let old = Authority::generate("old", start(), HOUR * 2).unwrap();
        let new = Authority::generate("new", start(), HOUR * 9).unwrap();
        let (old, new) = (&old.pair().certificate, &new.pair().certificate);
        let both = bundle(new, old, start());
        assert!(both.contains(old.trim()) && both.contains(new.trim()));
        assert_eq!(bundle(new, &both, start()), both);
        assert!(!bundle(new, &both, start() + SignedDuration::from_hours(3)).contains(old.trim()));
    }
}

#[cfg(test)]
mod properties {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    static MADE: LazyLock<(Vec<u8>, String)> = LazyLock::new(|| {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let authority = Authority::generate("test", now, Duration::from_secs(3600)).unwrap();
        let leaf = Leaf { name: "a".into(), role: "virt-handler".into(), ..Default::default() };
        let pair = authority.issue(&leaf, now, Duration::from_secs(600)).unwrap();
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        (der.to_vec(), request("a").unwrap().0)
    });

    proptest! {
        /// A certificate that was changed anywhere is somebody's, or nobody's; its text is read, or it is to be renewed.
        #[test]
        fn any_peer_certificate_is_verified_or_refused(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..16), cut in any::<prop::sample::Index>(), noise in ".{0,200}") {
            let mut der = MADE.0.clone();
            for (at, byte) in changes {
                let at = at.index(der.len());
                der[at] = byte;
            }
            der.truncate(cut.index(der.len() + 1));
            let _ = identity(&CertificateDer::from(der));
            let now = "2026-01-01T00:00:00Z".parse().unwrap();
            let text = format!("-----BEGIN CERTIFICATE-----\n{noise}\n-----END CERTIFICATE-----\n");
            prop_assert_eq!(rotation(&text, now, Duration::ZERO), Rotation::Renew);
            prop_assert!(!bundle("new", &text, now).contains("BEGIN"));
        }

        /// A request that was changed anywhere is answered with a certificate for what the authority says, or refused.
        #[test]
        fn any_signing_request_is_answered_or_refused(at in any::<prop::sample::Index>(), letter in "[A-Za-z0-9+/=\n -]") {
            let now = "2026-01-01T00:00:00Z".parse().unwrap();
            let authority = Authority::generate("test", now, Duration::from_secs(3600)).unwrap();
            let at = at.index(MADE.1.len());
            let changed = format!("{}{letter}{}", &MADE.1[..at], &MADE.1[at + 1..]);
            let leaf = Leaf { name: "b".into(), role: "virt-api".into(), ..Default::default() };
            if let Ok(certificate) = authority.answer(&changed, &leaf, now, Duration::from_secs(600)) {
                let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
                let who = identity(&der).unwrap();
                prop_assert_eq!((who.name.as_str(), who.role.as_str()), ("b", "virt-api"));
            }
        }
    }
}
