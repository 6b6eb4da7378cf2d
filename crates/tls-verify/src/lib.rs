//! Which servers a TLS client believes, where the authorities of a root store are not the whole answer.
//!
//! Guarantee: whoever is believed has the private key of the certificate it shows.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Verifies the certificates of servers.
#[derive(Debug)]
pub struct ServerVerifier {
    believed: Believed,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
enum Believed {
    Anybody,
    Known { authorities: Option<Arc<WebPkiServerVerifier>>, servers: Vec<CertificateDer<'static>> },
}

impl ServerVerifier {
    /// Believes whoever answers: for `insecureSkipVerify`, and where what is asked decides nothing that a stranger must
    /// not decide.
    pub fn anybody(provider: Arc<CryptoProvider>) -> Self {
        Self { believed: Believed::Anybody, provider }
    }

    /// Believes whom an authority of `roots` vouches for, and servers whose very certificates are among `servers`, for
    /// their names and as long as these are valid.
    ///
    /// The latter signed their own, or nobody names their authority. A chain ends at an authority, and a server's
    /// certificate is none: verifiers of chains refuse it even where it is among those that are trusted.
    pub fn known(roots: RootCertStore, servers: Vec<CertificateDer<'static>>, provider: Arc<CryptoProvider>) -> Self {
        // Without any authority nothing is vouched for, which is no reason not to try.
        let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().ok();
        Self { believed: Believed::Known { authorities, servers }, provider }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Believed::Known { authorities, servers } = &self.believed else {
            return Ok(ServerCertVerified::assertion());
        };
        if servers.contains(end_entity) {
            let parsed = ParsedCertificate::try_from(end_entity)?;
            verify_server_name(&parsed, server_name)?;
            return is_valid_at(end_entity, now).map(|()| ServerCertVerified::assertion());
        }
        let authorities = authorities.as_ref().ok_or(CertificateError::UnknownIssuer)?;
        authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn is_valid_at(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|_| rustls::Error::from(CertificateError::BadEncoding))?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let (from, until) = (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
    match (from <= now, now <= until) {
        (true, true) => Ok(()),
        (false, _) => Err(CertificateError::NotValidYet.into()),
        (_, false) => Err(CertificateError::Expired.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::crypto::ring::default_provider;

    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    /// A certificate for `name` that is its own authority, valid in 2030.
    fn of_its_own(name: &str) -> CertificateDer<'static> {
        let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2030, 1, 1);
        params.not_after = rcgen::date_time_ymd(2031, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn a_server_is_believed_for_its_own_name_while_its_certificate_is_valid() {
        let (own, other) = (of_its_own("registry.example.com"), of_its_own("registry.example.com"));
        let known = ServerVerifier::known(RootCertStore::empty(), vec![own.clone()], default_provider().into());
        let anybody = ServerVerifier::anybody(default_provider().into());
        let middle = Duration::from_secs(1_909_000_000);
        let check = |shown: &CertificateDer<'_>, name: &'static str, at: Duration, expect: Option<CertificateError>| {
            let (name, at) = (ServerName::try_from(name).unwrap(), UnixTime::since_unix_epoch(at));
            let found = known.verify_server_cert(shown, &[], &name, &[], at).err();
            match (found, expect) {
                (None, None) => {}
                (Some(rustls::Error::InvalidCertificate(found)), Some(expect)) => {
                    assert_eq!(std::mem::discriminant(&found), std::mem::discriminant(&expect), "{found}");
                }
                (found, expect) => panic!("{found:?} is not {expect:?}"),
            }
            anybody.verify_server_cert(shown, &[], &name, &[], at).unwrap();
        };
        check(&own, "registry.example.com", middle, None);
        check(&own, "registry.example.com", middle - YEAR, Some(CertificateError::NotValidYet));
        check(&own, "registry.example.com", middle + YEAR, Some(CertificateError::Expired));
        check(&other, "registry.example.com", middle, Some(CertificateError::UnknownIssuer));
        let found = known.verify_server_cert(
            &own,
            &[],
            &ServerName::try_from("elsewhere.example.com").unwrap(),
            &[],
            UnixTime::since_unix_epoch(middle),
        );
        assert!(found.is_err_and(|error| error.to_string().contains("not valid for name")));
    }
}
